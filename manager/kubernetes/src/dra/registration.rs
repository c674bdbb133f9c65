//! The driver's registration with kubelet: a socket in kubelet's directory of plugins, on which kubelet asks for the
//! driver's name and kind.

use aliquot_proto::kubelet::registration::registration_server::Registration;
use aliquot_proto::kubelet::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tonic::{Request, Response, Status};
use tracing::{error, info};

use super::names::DRIVER;

/// Kubelet's name for plugins of this kind.
const PLUGIN_TYPE: &str = "DRAPlugin";
/// The services of the driver: that for kubelets that know `resource.k8s.io/v1`, and the devices' health. Newer
/// kubelets ask for the health only if it is named here; older ones ask anyway, and pass over names that they do not
/// know.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// Answers kubelet's questions about the driver.
#[derive(Clone, Debug)]
pub(super) struct Registrar {
    endpoint: String,
}

impl Registrar {
    /// A registrar for the driver that serves on the socket `endpoint`, a path as kubelet sees it.
    #[must_use]
    pub(super) fn new(endpoint: String) -> Registrar {
        Registrar { endpoint }
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.into(),
            name: DRIVER.into(),
            endpoint: self.endpoint.clone(),
            supported_versions: SERVICES.map(Into::into).into(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        match request.into_inner() {
            RegistrationStatus { plugin_registered: true, .. } => info!("kubelet has registered the driver"),
            RegistrationStatus { error, .. } => error!(error, "kubelet does not register the driver"),
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use aliquot_proto::kubelet::dra::dra_plugin_server;
    use aliquot_proto::kubelet::dra_health::dra_resource_health_server;

    use super::*;

    #[tokio::test]
    async fn kubelet_is_told_all_services_that_the_driver_has() {
        let info = Registrar::new("/driver.sock".into()).get_info(Request::new(InfoRequest {})).await.unwrap();
        let named = info.into_inner().supported_versions;
        assert_eq!(named, ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]);
        // Kubelet's names are the ends of those in the protocol.
        for (served, named) in
            [dra_plugin_server::SERVICE_NAME, dra_resource_health_server::SERVICE_NAME].iter().zip(named)
        {
            assert!(served.ends_with(&named), "{served}, {named}");
        }
    }
}
