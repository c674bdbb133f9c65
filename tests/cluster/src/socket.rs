//! gRPC over Unix sockets.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};

/// A channel to the server at `socket`, as kubelet connects to drivers and device plugins.
///
/// # Errors
/// If no server listens there.
pub(crate) async fn connect(socket: &Path, timeout: Duration) -> Result<Channel, tonic::transport::Error> {
    // The address is only sent as the authority.
    connect_as(Endpoint::from_static("http://localhost"), socket, timeout).await
}

/// The authority that kubelet sends to a plugin that registers at `socket`: the path, with percent signs for characters
/// that an authority cannot contain. The real kubelet does so, and servers in Rust refuse such an authority unless an
/// `@` comes before the percent signs.
///
/// # Errors
/// If a server as strict as Aliquot's would refuse it.
pub(crate) fn registration_authority(socket: &Path) -> Result<Endpoint, String> {
    let may_stand = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(byte);
    let path = socket.as_os_str().as_encoded_bytes();
    let escaped = |byte: &u8| if may_stand(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    let authority: String = path.iter().map(escaped).collect();
    Endpoint::from_shared(format!("http://{authority}"))
        .map_err(|error| format!("servers refuse the authority {authority:?}: {error}"))
}

/// A channel to the server at `socket`, with the authority of `endpoint`.
///
/// # Errors
/// If no server listens there.
pub(crate) async fn connect_as(
    endpoint: Endpoint,
    socket: &Path,
    timeout: Duration,
) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    endpoint.connect_timeout(timeout).connect_with_connector(connector).await
}

/// Listens at `socket`. A file that an earlier server left there is replaced.
///
/// # Panics
/// If the socket cannot be made.
pub(crate) fn listen(socket: &Path) -> UnixListenerStream {
    // An earlier server may have left the file.
    let _ = fs::remove_file(socket);
    let directory = socket.parent().expect("a socket lies in a directory");
    fs::create_dir_all(directory).expect("a directory for the socket");
    let listener = UnixListener::bind(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    UnixListenerStream::new(listener)
}

/// A file in a directory, told apart from earlier files with the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    inode: u64,
    changed: (i64, i64),
}

/// The sockets that are in a directory now.
pub(crate) fn sockets_in(directory: &Path) -> Vec<File> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        let is_socket = std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type());
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        is_socket.then(|| File { path: entry.path(), inode: metadata.ino(), changed })
    });
    sockets.collect()
}
