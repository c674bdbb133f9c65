//! Serves one resource, and makes it known to kubelet, again whenever kubelet was restarted: it then empties the
//! directory.

use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aliquot_proto::kubelet::device_plugin as proto;
use hyper_util::rt::TokioIo;
use proto::device_plugin_server::DevicePluginServer;
use proto::registration_client::RegistrationClient;
use tokio::net::UnixStream;
use tokio::time::sleep;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server as Transport};
use tracing::{info, warn};

use super::server::{Server, options};
use crate::unix_socket::SocketFile;

const VERSION: &str = "v1beta1";
const KUBELET_SOCKET: &str = "kubelet.sock";
/// How often the sockets are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Kubelet listens within milliseconds; if it does not for so long, it has given the plugin up.
const LISTENING_GRACE: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// All ids of a container come in one message.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Serves a resource until this is dropped.
pub(super) async fn keep_serving(server: Arc<Server>, dir: PathBuf) {
    let mut last_problem = None;
    loop {
        match serve_once(&server, &dir).await {
            Ok(()) => last_problem = None,
            Err(problem) if last_problem.as_ref() != Some(&problem) => {
                warn!(resource = server.resource.name, "not registered with kubelet, will try again: {problem}");
                last_problem = Some(problem);
            }
            Err(_) => {}
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Serves and registers, and returns when that has to be done again.
async fn serve_once(server: &Arc<Server>, dir: &Path) -> Result<(), String> {
    let kubelet = dir.join(KUBELET_SOCKET);
    let listening = connect(&kubelet).await.map_err(|error| {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        format!("cannot connect to {}: {cause}", kubelet.display())
    })?;
    // Of the kubelet that was reached, or of a later one: it is not told again of what it knows.
    let before = identity(&kubelet).map_err(|error| format!("{}: {error}", kubelet.display()))?;
    let endpoint = endpoint(&server.resource.name);
    let (file, listener) = SocketFile::listen(&dir.join(&endpoint)).map_err(|error| error.to_string())?;
    let service = DevicePluginServer::from_arc(Arc::clone(server)).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let served = Transport::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener));
    let watched = async {
        // Kubelet empties the directory before it listens: a socket that is made once it was reached stays, unless
        // another kubelet was started since.
        if !file.is_there() {
            return Ok(());
        }
        register(listening, endpoint, &server.resource.name).await.map_err(|status| status.message().to_owned())?;
        info!(resource = server.resource.name, "registered with kubelet");
        let mut unheard = Duration::ZERO;
        while file.is_there() && identity(&kubelet).is_ok_and(|now| now == before) && unheard < LISTENING_GRACE {
            sleep(LOOK_INTERVAL).await;
            let is_heard = server.listeners.load(Ordering::Relaxed) > 0;
            unheard = if is_heard { Duration::ZERO } else { unheard + LOOK_INTERVAL };
        }
        info!(resource = server.resource.name, "kubelet was restarted or does not listen; registering again");
        Ok(())
    };
    tokio::select! {
        ended = served => Err(ended.err().map_or("serving has ended".into(), |error| error.to_string())),
        watched = watched => watched,
    }
}

/// The name of a resource's socket.
fn endpoint(resource: &str) -> String {
    format!("aliquot-{}.sock", resource.replace(['/', '.'], "-"))
}

async fn connect(kubelet: &Path) -> Result<Channel, tonic::transport::Error> {
    let path = kubelet.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // The address is only the authority that is sent; where the connection goes is the connector's business.
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(ANSWER_TIMEOUT).timeout(ANSWER_TIMEOUT);
    endpoint.connect_with_connector(connector).await
}

async fn register(kubelet: Channel, endpoint: String, resource: &str) -> Result<(), tonic::Status> {
    let request = proto::RegisterRequest {
        version: VERSION.to_owned(),
        endpoint,
        resource_name: resource.to_owned(),
        options: Some(options()),
    };
    RegistrationClient::new(kubelet).register(request).await.map(drop)
}

/// Tells one run of kubelet's from the next: inode numbers are used again, times are not.
fn identity(path: &Path) -> io::Result<(u64, u64, i64, i64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_named_after_its_resource() {
        assert_eq!(endpoint("aliquot.dev/gpu-core"), "aliquot-aliquot-dev-gpu-core.sock");
    }
}
