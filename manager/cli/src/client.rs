//! The connection to the node manager or the scheduler: gRPC over its Unix socket.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_manager::paths::{Paths, is_of_this_user};
use aliquot_proto::node::v1::node_manager_client::NodeManagerClient;
use aliquot_proto::stream::v1::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use hyper_util::rt::TokioIo;
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, setsockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

use crate::access;
use crate::cluster::credentials;
use crate::deadline::{self, Deadlines};
use crate::error::{Failure, Result, with_causes};
use crate::server::{NODE_MANAGER, SCHEDULER, Server};

/// A connection to a node manager.
pub(crate) type Client = NodeManagerClient<Deadlines>;

/// How long a watching command waits for a daemon that has ended. Systemd restarts the daemon, and the command then
/// continues where it was.
pub(crate) const RESTART_PATIENCE: Duration = Duration::from_secs(30);

/// Time between two attempts to reach the daemon again.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The history of many slices is larger than gRPC's default limit for a message.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Time between two checks that the daemon is alive while an answer is awaited.
const SIGN_OF_LIFE_INTERVAL: Duration = Duration::from_secs(5);

/// An async runtime for a command that talks to a daemon.
pub(crate) fn runtime() -> Result<Runtime> {
    let failed = |error: io::Error| Failure::new(format!("cannot set up a connection: {error}"));
    // The runtime opens five descriptors. For some of them it panics where there are no more.
    let pairs: io::Result<Vec<_>> = (0..3).map(|_| UnixStream::pair()).collect();
    drop(pairs.map_err(failed)?);
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)
}

/// Why a daemon cannot be reached.
#[derive(Debug)]
pub(crate) enum Absent {
    /// No process listens on any of these sockets.
    NotRunning(Vec<PathBuf>),
    /// There is a socket that this user cannot connect to.
    Unreachable(PathBuf, io::Error),
    /// The directory for this user's socket belongs to another user.
    Foreign(PathBuf),
}

/// The socket of a running manager: `socket` if it is given, else this user's, else the system's.
pub(crate) fn find(socket: Option<&Path>) -> std::result::Result<PathBuf, Absent> {
    find_server(&NODE_MANAGER, socket)
}

/// The socket of a running daemon of any kind. For the scheduler it may also be a file of credentials; this user's own
/// file is tried before the system's socket.
pub(crate) fn find_server(server: &Server, socket: Option<&Path>) -> std::result::Result<PathBuf, Absent> {
    let takes_credentials = *server == SCHEDULER;
    let candidates = match socket {
        Some(socket) => vec![socket.to_owned()],
        None => {
            let own = Paths::of_this_user();
            // The manager decides which library is preloaded, and the scheduler is told the environment of jobs. So
            // both must be trusted. In a directory that every user can write to, they could be another user's.
            if matches!(is_of_this_user(&own.runtime_dir), Ok(false)) {
                return Err(Absent::Foreign(own.runtime_dir));
            }
            let mut candidates = server.sockets(&own);
            let file = credentials::default_file();
            if takes_credentials && credentials::is_file(&file) {
                candidates.insert(1, file);
            }
            candidates
        }
    };
    for candidate in &candidates {
        if takes_credentials && credentials::is_file(candidate) {
            return Ok(candidate.clone());
        }
        match dial(candidate, deadline::of_question()) {
            Ok(_) => return Ok(candidate.clone()),
            // There is no socket, or a killed daemon has left one behind.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
            Err(error) => return Err(Absent::Unreachable(candidate.clone(), error)),
        }
    }
    Err(Absent::NotRunning(candidates))
}

/// Connects to `socket`. If the daemon's queue of connections is full, waits for a place in it, but at most for
/// `limit`.
pub(crate) fn dial(socket: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = UnixAddr::new(socket)?;
    let stream = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let microseconds = i64::try_from(limit.as_micros()).unwrap_or(i64::MAX);
    setsockopt(&stream, SendTimeout, &TimeVal::microseconds(microseconds))?;
    nix::sys::socket::connect(stream.as_raw_fd(), &address)?;
    Ok(stream.into())
}

impl Absent {
    /// The message to the user about `server`.
    pub(crate) fn failure(self, server: &'static Server) -> Failure {
        let name = server.name;
        match self {
            Absent::NotRunning(sockets) => {
                let sockets: Vec<_> = sockets.iter().map(|socket| socket.display().to_string()).collect();
                Failure::new(format!("no {name} runs here (nothing listens on {})", sockets.join(" or ")))
                    .hint(server.start)
            }
            Absent::Foreign(dir) => {
                Failure::new(format!("{} belongs to another user, or others can write to it", dir.display()))
                    .hint("remove it, or set XDG_RUNTIME_DIR to a directory that is this user's alone")
            }
            Absent::Unreachable(socket, error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Failure::new(format!("this user may not connect to the {name}'s socket {}", socket.display()))
                    .hint(access::remedy(&socket, server))
            }
            Absent::Unreachable(socket, error) if error.kind() == io::ErrorKind::WouldBlock => {
                deadline::not_accepted(server, &socket)
            }
            Absent::Unreachable(socket, error) => {
                Failure::new(format!("cannot connect to the {name} on {}: {error}", socket.display()))
                    .hint(format!("check {}", server.options))
            }
        }
    }
}

/// A manager that cannot be reached.
impl From<Absent> for Failure {
    fn from(absent: Absent) -> Failure {
        absent.failure(&NODE_MANAGER)
    }
}

/// Connects to the manager that serves `socket`.
pub(crate) async fn connect(socket: &Path) -> Result<Client> {
    let channel = channel(&NODE_MANAGER, socket).await?;
    Ok(NodeManagerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX))
}

/// A channel to the `server` on `socket`.
pub(crate) async fn channel(server: &'static Server, socket: &Path) -> Result<Deadlines> {
    let failed = |error: tonic::transport::Error| {
        let (name, causes) = (server.name, with_causes(&error));
        Failure::new(format!("cannot connect to the {name} on {}: {causes}", socket.display()))
            .hint(format!("check that a {name} listens there: {}", server.look))
    };
    // The address is only sent as the authority; the connector decides where the connection goes.
    let endpoint = Endpoint::from_static("http://localhost")
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(SIGN_OF_LIFE_INTERVAL)
        .keep_alive_timeout(deadline::of_question());
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move {
            // Blocks in the kernel for at most the time limit of an answer. This program has nothing else to do then.
            let stream = dial(&path, deadline::of_question())?;
            stream.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(stream).map(TokioIo::new)
        }
    });
    let channel = endpoint.connect_with_connector(connector).await.map_err(failed)?;
    Ok(Deadlines::new(channel, server, socket))
}

/// The failure of a watching command after the daemon has ended.
pub(crate) fn gone(server: &Server) -> Failure {
    let (name, seconds) = (server.name, RESTART_PATIENCE.as_secs());
    Failure::new(format!("the {name} has ended, and no other one has started within {seconds} s"))
        .hint(format!("see its log: {}", server.log()))
}

/// Connects to the running manager.
pub(crate) async fn connect_to_running(socket: Option<&Path>) -> Result<Client> {
    connect(&find(socket)?).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_socket_and_a_stale_one_are_no_manager() {
        let dir = tempfile::tempdir().unwrap();
        let stale = dir.path().join("manager.sock");
        assert!(matches!(find(Some(&stale)), Err(Absent::NotRunning(_))));
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        assert!(stale.exists());
        assert!(matches!(find(Some(&stale)), Err(Absent::NotRunning(_))));
    }

    #[test]
    fn a_path_that_is_not_a_socket_is_named_as_the_cause() {
        let dir = tempfile::tempdir().unwrap();
        let below_a_file = dir.path().join("file");
        std::fs::write(&below_a_file, "").unwrap();
        let failure = Failure::from(find(Some(&below_a_file.join("manager.sock"))).unwrap_err());
        assert!(failure.to_string().contains("ALIQUOT_SOCKET"), "{failure}");
    }

    #[test]
    fn a_running_manager_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("manager.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(find(Some(&socket)).unwrap(), socket);
    }
}
