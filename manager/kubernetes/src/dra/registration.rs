//! The driver's registration with kubelet: a socket in kubelet's directory of plugins, on which kubelet asks for the
//! driver's name and kind.

use aliquot_proto::kubelet::registration::registration_server::Registration;
use aliquot_proto::kubelet::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tonic::{Request, Response, Status};
use tracing::{error, info};

use super::names::DRIVER;

/// Kubelet's name for plugins of this kind.
const PLUGIN_TYPE: &str = "DRAPlugin";
/// The service of the driver, for kubelets that know `resource.k8s.io/v1`.
const SERVICE: &str = "v1.DRAPlugin";

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
            supported_versions: vec![SERVICE.into()],
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
