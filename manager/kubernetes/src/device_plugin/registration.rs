//! Serves one resource, and registers it with kubelet, again whenever kubelet has lost it.
//!
//! Kubelet keeps one plugin for each resource: the one that registered last. It forgets it
//!
//! * when it was restarted: it then empties the directory;
//! * without Kubernetes PR 135437, when *any* plugin of the resource ends: it disconnects the newest one in its place. A
//!   plugin beside others prevents that, see [`is_detached`];
//! * when the plugin that ends was the newest, because it registered again after this one had: then its socket goes.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_proto::kubelet::device_plugin as proto;
use hyper_util::rt::TokioIo;
use proto::device_plugin_server::{DevicePlugin, DevicePluginServer};
use proto::registration_client::RegistrationClient;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server as Transport};
use tracing::{info, warn};

use super::listeners::Listeners;
use super::server::options;
use crate::unix_socket::{SocketFile, remove_dead, sockets_in};

const VERSION: &str = "v1beta1";
const KUBELET_SOCKET: &str = "kubelet.sock";
/// Time between two looks at the sockets, and the minimum time between two registrations. Pods can fail in between.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Kubelet listens within milliseconds. If it does not listen for this long, it has given the plugin up.
const LISTENING_GRACE: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The time within which kubelet sees that its streams have ended after a process's sockets are gone.
const END_MAX: Duration = Duration::from_millis(500);
/// Time between two checks whether other plugins of a resource are alive.
const DEAD_INTERVAL: Duration = Duration::from_secs(1);
/// The length of the last group of a UID, which is random.
const INSTANCE_CHARACTERS: usize = 12;
/// Maximum size of a message, which can contain all ids of a container.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The plugin of one resource, as it is described to kubelet.
#[derive(Debug)]
pub(crate) struct Plugin<P> {
    pub(crate) resource: String,
    /// Distinguishes its socket from those of other processes that serve the same resource. Only the last characters
    /// are used, because a socket's path has at most 107 bytes.
    pub(crate) instance: Option<String>,
    pub(crate) service: Arc<P>,
    /// The streams of the service.
    pub(crate) listeners: Listeners,
}

impl<P> Plugin<P> {
    /// The common beginning of the names of all sockets of this resource.
    fn socket_prefix(&self) -> String {
        format!("{SOCKET_PREFIX}{}", self.resource.replace(['/', '.'], "-"))
    }

    /// The name of its socket.
    fn socket_name(&self) -> String {
        self.named('@')
    }

    /// The name of a socket that other processes do not take for a plugin's.
    fn mute_socket_name(&self) -> String {
        self.named('!')
    }

    fn named(&self, separator: char) -> String {
        let instance = self.instance.as_ref().map(|instance| {
            let end = instance.char_indices().rev().nth(INSTANCE_CHARACTERS - 1).map_or(0, |(at, _)| at);
            format!("{separator}{}", &instance[end..])
        });
        let instance = instance.unwrap_or_default();
        format!("{}{instance}.sock", self.socket_prefix())
    }

    /// The sockets of other processes that serve the same resource.
    fn siblings(&self, dir: &Path) -> BTreeSet<PathBuf> {
        let (prefix, own) = (self.socket_prefix(), dir.join(self.socket_name()));
        let is_of_resource = |path: &PathBuf| {
            let rest = path.file_name().and_then(|name| name.to_str()?.strip_prefix(&prefix));
            rest.is_some_and(|rest| rest == ".sock" || rest.starts_with('@'))
        };
        sockets_in(dir, &prefix).into_iter().filter(|path| is_of_resource(path) && *path != own).collect()
    }
}

/// The common beginning of the names of all sockets for kubelet.
pub(crate) const SOCKET_PREFIX: &str = "aliquot-";

/// Serves a resource until this is dropped.
pub(crate) async fn keep_serving<P: DevicePlugin>(plugin: Plugin<P>, dir: PathBuf) {
    let mut last_problem = None;
    loop {
        match serve_once(&plugin, &dir).await {
            Ok(()) => last_problem = None,
            Err(problem) if last_problem.as_ref() != Some(&problem) => {
                warn!(resource = plugin.resource, "not registered with kubelet, will try again: {problem}");
                last_problem = Some(problem);
            }
            Err(_) => {}
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Serves a resource on this socket until this is dropped. Relays tell kubelet about it.
pub(crate) async fn keep_serving_unregistered<P: DevicePlugin>(service: Arc<P>, socket: PathBuf) {
    loop {
        let problem = match SocketFile::listen(&socket) {
            Err(error) => error.to_string(),
            Ok((file, listener)) => {
                let served = serve_on(Arc::clone(&service), listener);
                let removed = async {
                    while file.is_there() {
                        sleep(LOOK_INTERVAL).await
                    }
                };
                tokio::select! {
                    problem = served => problem,
                    () = removed => format!("{} was removed", socket.display()),
                }
            }
        };
        warn!("relays cannot ask for units, will try again: {problem}");
        sleep(LOOK_INTERVAL).await;
    }
}

/// Serves until an error, and returns its description.
async fn serve_on<P: DevicePlugin>(service: Arc<P>, listener: UnixListener) -> String {
    let service = DevicePluginServer::from_arc(service).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let ended = Transport::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)).await;
    ended.err().map_or("serving has ended".into(), |error| error.to_string())
}

/// Serves and registers. Returns when both must be done again with a new socket.
async fn serve_once<P: DevicePlugin>(plugin: &Plugin<P>, dir: &Path) -> Result<(), String> {
    let kubelet = dir.join(KUBELET_SOCKET);
    let listening = connect(&kubelet).await.map_err(|error| {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        format!("cannot connect to {}: {cause}", kubelet.display())
    })?;
    // The identity of the kubelet that was reached, or of a later one: no kubelet is told the same again.
    let before = identity(&kubelet).map_err(|error| format!("{}: {error}", kubelet.display()))?;
    let (file, listener) = SocketFile::listen(&dir.join(plugin.socket_name())).map_err(|error| error.to_string())?;
    let watched = async {
        // Kubelet empties the directory before it listens. So a socket that was made after kubelet was reached stays,
        // unless another kubelet was started since.
        let is_known = || file.is_there() && identity(&kubelet).is_ok_and(|now| now == before);
        let mut can_detach = true;
        while is_known() {
            let pause = Instant::now() + LOOK_INTERVAL;
            let siblings = plugin.siblings(dir);
            // A stream that was open before does not come from this registration.
            let before = plugin.listeners.watch().borrow().number;
            let registered = register(listening.clone(), plugin.socket_name(), &plugin.resource).await;
            registered.map_err(|status| status.message().to_owned())?;
            if can_detach && !siblings.is_empty() {
                can_detach = is_detached(plugin, dir, listening.clone()).await?;
                if !can_detach {
                    continue;
                }
            }
            info!(resource = plugin.resource, "registered with kubelet");
            while_listened_to(plugin, dir, siblings, before, is_known).await;
            info!(
                resource = plugin.resource,
                "registering again: kubelet does not listen, or the other plugins have ended"
            );
            tokio::time::sleep_until(pause).await;
        }
        Ok(())
    };
    tokio::select! {
        problem = serve_on(Arc::clone(&plugin.service), listener) => Err(problem),
        watched = watched => watched,
    }
}

/// Registers a second, mute plugin of the resource, so that kubelet forgets which client is the newest.
///
/// Without Kubernetes PR 135437 kubelet keeps the newest client of each resource. When the stream of any client of the
/// resource ends, kubelet disconnects the newest client, and all units are gone until it has registered again. A client
/// that does not answer the question for its options becomes the newest and is dropped at once. After that there is no
/// newest client to disconnect, but the units, the stream and the endpoint of the earlier plugin stay. So nothing
/// happens when another process that serves the resource ends. With that change each client disconnects only itself,
/// and the mute plugin changes nothing.
///
/// Returns false if kubelet has accepted the mute plugin: then the earlier one must register again.
async fn is_detached<P>(plugin: &Plugin<P>, dir: &Path, kubelet: Channel) -> Result<bool, String> {
    let name = plugin.mute_socket_name();
    let (_file, listener) = SocketFile::listen(&dir.join(&name)).map_err(|error| error.to_string())?;
    let mut is_refused = true;
    let registered = async { is_refused = register(kubelet, name, &plugin.resource).await.is_err() };
    let mute = Transport::builder().add_routes(Routes::default());
    // Kubelet does not close this connection, so it is closed here.
    let served = mute.serve_with_incoming_shutdown(UnixListenerStream::new(listener), registered);
    if let Ok(Err(error)) = timeout(2 * ANSWER_TIMEOUT, served).await {
        return Err(error.to_string());
    }
    Ok(is_refused)
}

/// Returns when a plugin that has registered beside these others must register again. That is so when kubelet no longer
/// listens to it, or when the last of the others has gone, so that kubelet knows this one as the newest again. `before`
/// is the number of the newest stream before the registration.
async fn while_listened_to<P>(
    plugin: &Plugin<P>,
    dir: &Path,
    mut siblings: BTreeSet<PathBuf>,
    before: u64,
    is_known: impl Fn() -> bool,
) {
    let mut listeners = plugin.listeners.watch();
    let (registered, mut alone_since) = (Instant::now(), None);
    let mut looked = registered;
    loop {
        if !siblings.is_empty() && looked.elapsed() >= DEAD_INTERVAL {
            // A killed process has left its socket behind.
            remove_dead(dir, &plugin.socket_prefix());
            looked = Instant::now();
        }
        let newest = *listeners.borrow_and_update();
        let is_heard = newest.number > before;
        let is_lost = if is_heard { !newest.is_open } else { registered.elapsed() >= LISTENING_GRACE };
        let now = plugin.siblings(dir);
        let is_left = now.is_empty() && !siblings.is_empty();
        alone_since = if is_left { Some(Instant::now()) } else { alone_since.filter(|_| now.is_empty()) };
        let is_alone = alone_since.is_some_and(|since: Instant| since.elapsed() >= END_MAX);
        if is_lost || !is_known() || is_alone {
            return;
        }
        siblings = now;
        tokio::select! {
            () = sleep(LOOK_INTERVAL) => {}
            // The sender cannot be gone: the plugin, which is borrowed here, holds it.
            _ = listeners.changed() => {}
        }
    }
}

async fn connect(kubelet: &Path) -> Result<Channel, tonic::transport::Error> {
    let path = kubelet.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // The address is sent only as the authority. The connector decides where the connection goes.
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

/// Distinguishes one run of kubelet from the next: inode numbers are used again, times are not.
fn identity(path: &Path) -> io::Result<(u64, u64, i64, i64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix_socket::SocketFile;

    fn plugin(instance: Option<&str>) -> Plugin<()> {
        Plugin {
            resource: "aliquot.dev/gpu".into(),
            instance: instance.map(str::to_owned),
            service: Arc::new(()),
            listeners: Listeners::default(),
        }
    }

    #[test]
    fn the_sockets_of_all_resources_have_paths_that_the_kernel_takes() {
        let uid = "8f6a1c1e-0000-4000-8000-00000000000a";
        let resources = [
            "gpushare.provisioner.elasticgpu.io/gpu-memory",
            "tke.cloud.tencent.com/qgpu-core-greedy",
            "aliyun.com/gpu-core.percentage",
            "volcano.sh/vgpu-memory-percentage",
            "nvidia.com/mig-1g.24gb.me.all",
            "aliquot.dev/gpu-memory",
        ];
        for resource in resources {
            let plugin = Plugin { resource: resource.into(), ..plugin(Some(uid)) };
            let path = Path::new("/var/lib/kubelet/device-plugins").join(plugin.socket_name());
            assert!(path.as_os_str().len() <= 107, "{}", path.display());
            assert!(path.to_string_lossy().ends_with("@00000000000a.sock"), "{}", path.display());
        }
    }

    #[tokio::test]
    async fn a_socket_is_named_after_its_resource_and_its_process() {
        assert_eq!(plugin(None).socket_name(), "aliquot-aliquot-dev-gpu.sock");
        assert_eq!(plugin(Some("u-1")).socket_name(), "aliquot-aliquot-dev-gpu@u-1.sock");
        let dir = tempfile::tempdir().unwrap();
        let names = ["gpu.sock", "gpu@u-1.sock", "gpu@u-2.sock", "gpu-core.sock", "gpu-core@u-2.sock"];
        let made =
            names.map(|name| SocketFile::listen(&dir.path().join(format!("aliquot-aliquot-dev-{name}"))).unwrap());
        let siblings = plugin(Some("u-1")).siblings(dir.path());
        let others =
            ["aliquot-aliquot-dev-gpu.sock", "aliquot-aliquot-dev-gpu@u-2.sock"].map(|name| dir.path().join(name));
        assert_eq!(siblings, BTreeSet::from(others));
        drop(made);
    }
}
