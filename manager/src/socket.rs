//! The Unix socket on which gRPC is served.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::{Group, chown, geteuid};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tracing::warn;

mod connection;
mod header_block;

use connection::Connection;
#[cfg(feature = "fuzzing")]
pub(crate) use connection::told;

/// Members of this group may use the system's manager without being root.
const GROUP: &str = "aliquot";

/// Pause after a failed accept, for example when no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A process listens on it.
    #[error("another manager serves {}; stop it, or choose another socket with --socket", path.display())]
    InUse {
        /// The path of the socket.
        path: PathBuf,
    },
    /// Another kind of file has the socket's name.
    #[error("{} exists and is not a socket; move it away, or choose another socket with --socket", path.display())]
    NoSocket {
        /// The path of that file.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot serve the socket {}: {source}", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
}

/// A socket that is listened on. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Listens on `path`, replacing a socket there on which no process listens.
    ///
    /// # Errors
    /// See [`SocketError`].
    pub(crate) fn listen(path: &Path) -> Result<(Socket, UnixListener), SocketError> {
        let at = |source| SocketError::Io { path: path.into(), source };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(at(error)),
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(SocketError::NoSocket { path: path.into() });
            }
            Ok(_) => match UnixStream::connect(path) {
                Ok(_) => return Err(SocketError::InUse { path: path.into() }),
                // The socket was left behind by a manager that was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(at(error)),
            },
        }
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        let listen = || {
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&new)?;
            listener.set_nonblocking(true)?;
            // The socket gets its final name only after its permissions are set.
            admit(&new)?;
            fs::rename(&new, path)?;
            Ok(listener)
        };
        let listener = listen().map_err(|error| {
            let _ = fs::remove_file(&new);
            at(error)
        })?;
        Ok((Socket { path: path.into() }, listener))
    }
}

/// The connections of clients of `listener`, at most `clients_max` at a time. A failed accept is retried here; the
/// server itself would end permanently.
pub(crate) fn connections(
    listener: tokio::net::UnixListener,
    clients_max: usize,
) -> ReceiverStream<io::Result<Connection>> {
    let (accepted, connections) = mpsc::channel(1);
    let clients = Arc::new(Semaphore::new(clients_max));
    tokio::spawn(async move {
        loop {
            // The semaphore is never closed.
            let Ok(client) = Arc::clone(&clients).acquire_owned().await else { return };
            let stream = tokio::select! {
                outcome = listener.accept() => match outcome {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        warn!(%error, "cannot accept a client");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
                () = accepted.closed() => return,
            };
            if accepted.send(Ok(Connection::new(stream, client))).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(connections)
}

/// Sets the permissions: root's socket is open to the group, and an ordinary user's socket only to that user.
fn admit(path: &Path) -> io::Result<()> {
    if !geteuid().is_root() {
        return fs::set_permissions(path, Permissions::from_mode(0o600));
    }
    if let Ok(Some(group)) = Group::from_name(GROUP) {
        chown(path, None, Some(group.gid))?;
    }
    fs::set_permissions(path, Permissions::from_mode(0o660))
}

impl Drop for Socket {
    fn drop(&mut self) {
        // It may be gone already, with its directory.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};

    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        // A socket on which no process has ever listened. A closed listener could still be held by a child that another
        // test is starting.
        let stale = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(stale.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        assert!(path.exists());
        let (socket, listener) = Socket::listen(&path).unwrap();
        assert!(matches!(Socket::listen(&path), Err(SocketError::InUse { .. })));
        UnixStream::connect(&path).unwrap();
        drop((socket, listener));
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Socket::listen(&path), Err(SocketError::NoSocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        assert!(matches!(Socket::listen(&dir.path().join("missing/s")), Err(SocketError::Io { .. })));
    }
}
