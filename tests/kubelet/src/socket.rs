//! gRPC over Unix sockets.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};

/// A channel to whoever listens at `socket`.
pub(crate) async fn connect(socket: &Path, timeout: Duration) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The address is only the authority that is sent.
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(timeout);
    endpoint.connect_with_connector(connector).await
}

/// Listens at `socket`, where nobody does any more.
///
/// # Panics
/// If it cannot be made.
pub(crate) fn listen(socket: &Path) -> UnixListenerStream {
    // It may be left from before.
    let _ = fs::remove_file(socket);
    let directory = socket.parent().expect("a socket lies in a directory");
    fs::create_dir_all(directory).expect("a directory for the socket");
    let listener = UnixListener::bind(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    UnixListenerStream::new(listener)
}

/// A file in a directory, told apart from others that had its name before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    inode: u64,
    changed: (i64, i64),
}

/// The sockets in a directory, as they are now.
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
