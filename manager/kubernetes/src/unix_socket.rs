//! Unix sockets: listening sockets of this process, and channels to those of others.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::{Channel, Endpoint};

/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {}: {source}", path.display())]
pub struct SocketError {
    path: PathBuf,
    source: io::Error,
}

/// A socket's file, which is removed when this is dropped. A file that another process has put in its place is left
/// alone.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    /// Listens on `path`. A socket that an ended process has left there is replaced. Only root may connect.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn listen(path: &Path) -> Result<(SocketFile, UnixListener), SocketError> {
        let listen = || {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o600))?;
            let inode = inode(path)?;
            Ok((SocketFile { path: path.into(), inode }, listener))
        };
        listen().map_err(|source| SocketError { path: path.into(), source })
    }

    /// Whether the file still exists and is the same.
    #[must_use]
    pub(crate) fn is_there(&self) -> bool {
        inode(&self.path).is_ok_and(|inode| inode == self.inode)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            // It is refused at the next connection, if not sooner.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A channel to the process that listens at `path`. It connects when it is used, and again when the listener was
/// replaced.
#[must_use]
pub(crate) fn channel(path: PathBuf) -> Channel {
    // The address is sent only as the authority. The connector decides where the connection goes.
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(CONNECT_TIMEOUT);
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
        let path = path.clone();
        async move { io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
    }))
}

/// The sockets in `dir` whose names begin with `prefix`; none if there is no such directory.
#[must_use]
pub(crate) fn sockets_in(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        is_socket && entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix))
    });
    sockets.map(|entry| entry.path()).collect()
}

/// Removes those of these sockets on which no process listens: killed processes have left them behind.
pub(crate) fn remove_dead(dir: &Path, prefix: &str) {
    for path in sockets_in(dir, prefix) {
        let refused = std::os::unix::net::UnixStream::connect(&path).err();
        if refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // Another process may remove it at the same time.
            let _ = fs::remove_file(&path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_takes_the_place_of_an_old_one_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugins/x.sock");
        let (first, _listener) = SocketFile::listen(&path).unwrap();
        assert!(first.is_there());
        let (second, _listener) = SocketFile::listen(&path).unwrap();
        assert!(second.is_there() && !first.is_there());
        drop(first);
        assert!(second.is_there());
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn only_sockets_on_which_nobody_listens_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (_alive, _listener) = SocketFile::listen(&path("x-alive.sock")).unwrap();
        drop(UnixListener::bind(path("x-dead.sock")).unwrap());
        drop(UnixListener::bind(path("y-dead.sock")).unwrap());
        fs::write(path("x-file"), "").unwrap();
        remove_dead(dir.path(), "x-");
        assert_eq!(sockets_in(dir.path(), "x-"), [path("x-alive.sock")]);
        assert!(path("x-file").exists() && path("y-dead.sock").exists());
        assert!(sockets_in(&path("nowhere"), "x-").is_empty());
    }
}
