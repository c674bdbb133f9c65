//! The driver's sockets: one for requests to the driver, and one by which kubelet finds the first.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_proto::kubelet::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use aliquot_proto::kubelet::dra_health::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use aliquot_proto::kubelet::registration::registration_server::RegistrationServer;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tracing::{error, info};

use super::names::DRIVER;
use super::registration::Registrar;
use crate::unix_socket::{SocketError, SocketFile, remove_dead};

/// Time between two checks whether the sockets still exist.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Part of the name of the registration socket. Kubelet connects to the socket's path as if it were a host's name,
/// percent-encoded. HTTP/2 servers that read the name as an authority refuse percent signs in a host, but not before an
/// `@`, where they belong to a user.
const REGISTRATION: &str = "@reg";
const ENDPOINT: &str = "dra";

/// The paths of a driver's sockets.
#[derive(Clone, Debug)]
pub(crate) struct Sockets {
    endpoint: PathBuf,
    /// The registration socket; `None` if kubelet is not told of the driver.
    registration: Option<PathBuf>,
}

/// The sockets, listened on. The endpoint exists before kubelet is told of it.
pub(crate) struct Listening {
    endpoint: (SocketFile, UnixListener),
    registration: Option<(SocketFile, UnixListener)>,
}

impl Sockets {
    /// The sockets of the only driver on a node.
    #[must_use]
    pub(crate) fn for_kubelet(kubelet_dir: &Path) -> Sockets {
        Sockets::named(kubelet_dir, "")
    }

    /// The sockets of one of several drivers that serve a node while they replace each other. Kubelet uses the one that
    /// registered last. It tells them apart by the endpoints.
    #[must_use]
    pub(crate) fn of_instance(kubelet_dir: &Path, instance: &str) -> Sockets {
        Sockets::named(kubelet_dir, &format!("-{instance}"))
    }

    /// The sockets of a driver that only relays connect to.
    #[must_use]
    pub(crate) fn for_relays(endpoint: PathBuf) -> Sockets {
        Sockets { endpoint, registration: None }
    }

    fn named(kubelet_dir: &Path, suffix: &str) -> Sockets {
        Sockets {
            endpoint: kubelet_dir.join("plugins").join(DRIVER).join(format!("{ENDPOINT}{suffix}.sock")),
            registration: Some(
                kubelet_dir.join("plugins_registry").join(format!("{DRIVER}{REGISTRATION}{suffix}.sock")),
            ),
        }
    }

    /// Removes sockets that killed drivers have left beside these.
    pub(crate) fn clear_up(&self) {
        let beside = |path: &Path, prefix: &str| path.parent().into_iter().for_each(|dir| remove_dead(dir, prefix));
        beside(&self.endpoint, ENDPOINT);
        self.registration.iter().for_each(|path| beside(path, &format!("{DRIVER}{REGISTRATION}")));
    }

    /// Listens on both sockets.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn listen(&self) -> Result<Listening, SocketError> {
        Ok(Listening {
            endpoint: SocketFile::listen(&self.endpoint)?,
            registration: self.registration.as_deref().map(SocketFile::listen).transpose()?,
        })
    }
}

/// Serves until `end` is true. If one of the sockets is removed, it serves again with new ones.
pub(crate) async fn keep_serving<D: DraPlugin + DraResourceHealth + Clone>(
    sockets: &Sockets,
    driver: &D,
    mut listening: Listening,
    mut end: watch::Receiver<bool>,
) {
    loop {
        let outcome = serve_once(sockets, driver, listening, &end).await;
        if *end.borrow() {
            return;
        }
        match outcome {
            Ok(()) => info!("a socket of the driver was removed: it makes new ones"),
            Err(error) => error!(%error, "cannot serve kubelet"),
        }
        listening = loop {
            match sockets.listen() {
                Ok(listening) => break listening,
                Err(error) => error!(%error, "cannot serve kubelet"),
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
                _ = end.wait_for(|end| *end) => return,
            }
        };
    }
}

/// Serves until `end` is true, or until one of the sockets no longer exists.
async fn serve_once<D: DraPlugin + DraResourceHealth + Clone>(
    sockets: &Sockets,
    driver: &D,
    listening: Listening,
    end: &watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let Listening { endpoint: (endpoint_file, endpoint), registration } = listening;
    let (registration_file, registration) = registration.unzip();
    let driver = Server::builder()
        .add_service(DraPluginServer::new(driver.clone()))
        .add_service(DraResourceHealthServer::new(driver.clone()));
    let registrar = Registrar::new(sockets.endpoint.to_string_lossy().into_owned());
    let registrar = async {
        match registration {
            Some(listener) => {
                let registrar = Server::builder().add_service(RegistrationServer::new(registrar));
                serve_on(registrar, listener, end.clone()).await?;
                // The registrar has ended because `end` is true. The driver may still have requests to answer.
                std::future::pending().await
            }
            None => std::future::pending().await,
        }
    };
    let removed = async {
        let are_there = || endpoint_file.is_there() && registration_file.as_ref().is_none_or(SocketFile::is_there);
        // Once `end` is true, the service ends with the driver's last answer, and the sockets are not checked any more.
        while *end.borrow() || are_there() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    };
    tokio::select! {
        outcome = serve_on(driver, endpoint, end.clone()) => outcome,
        outcome = registrar => outcome,
        () = removed => Ok(()),
    }
}

async fn serve_on(
    router: Router,
    listener: UnixListener,
    mut end: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let incoming = UnixListenerStream::new(listener);
    let ended = async move {
        // An error means that the sender is gone, which is the end as well.
        let _ = end.wait_for(|end| *end).await;
    };
    router.serve_with_incoming_shutdown(incoming, ended).await
}

#[cfg(test)]
mod tests {
    use tonic::codegen::http::uri::Authority;

    use super::*;

    #[test]
    fn kubelet_s_names_for_the_registration_sockets_are_authorities() {
        let uid = "8f6a1c1e-0000-4000-8000-00000000000a";
        let dir = Path::new("/var/lib/kubelet");
        for (sockets, host) in [
            (Sockets::for_kubelet(dir), "reg.sock".to_owned()),
            (Sockets::of_instance(dir, uid), format!("reg-{uid}.sock")),
        ] {
            let path = sockets.registration.unwrap();
            // A socket's path has at most 107 bytes.
            assert!(path.as_os_str().len() <= 107 && sockets.endpoint.as_os_str().len() <= 107);
            let encoded = path.to_string_lossy().replace('/', "%2F");
            let authority: Authority = encoded.parse().unwrap();
            assert_eq!(authority.host(), host);
            assert!(encoded.contains(DRIVER), "{encoded}");
            // Without the `@` the name would not be a valid authority.
            assert!(encoded.replace('@', "-").parse::<Authority>().is_err());
        }
    }
}
