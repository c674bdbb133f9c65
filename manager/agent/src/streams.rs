//! Answers users' direct requests to a running job: a command beside it, or a connection to one of its ports.
//!
//! The data goes through the scheduler, on another connection than the agent's messages. Nothing is stored here: each
//! sender waits until its last frame is on its way.

mod exec;
mod forward;
mod terminal;

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_node::aside;
use aliquot_proto::agent::v1::OpenStream;
use aliquot_proto::agent::v1::agents_client::AgentsClient;
use aliquot_proto::stream::v1::from_job::Frame;
use aliquot_proto::stream::v1::open::What;
use aliquot_proto::stream::v1::{Exec, FromJob, FromUser, Opened, Refused};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use tracing::debug;

use crate::supervise::requests::{self, Reply};

/// The metadata key for the stream's id.
const STREAM_ID: &str = "stream-id";
/// Frames that wait until the connection takes them.
const FRAMES_MAX: usize = 2;
/// Maximum bytes that are read at once. The buffers of pipes and terminals are not larger.
const READ_BYTES: usize = 32 << 10;
/// How long a job's first process may take to carry out a request.
const OPEN_PATIENCE: Duration = Duration::from_secs(12);

/// The channel of frames for the user. It is closed when the user is gone.
type ToUser = mpsc::Sender<FromJob>;

/// An instance that runs.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// The directory of its files, with the socket of its first process.
    pub(crate) dir: PathBuf,
    /// The user that the job belongs to.
    pub(crate) uid: u32,
}

/// The thing that the node has opened for a user.
enum Opening {
    Exec(exec::Running),
    Forward(tokio::net::TcpStream),
}

/// Carries out a request to an instance, and reports to the scheduler, until the user or the job ends it.
pub(crate) async fn answer(channel: Channel, asked: OpenStream, instance: Result<Instance, String>) {
    let Ok(id) = asked.stream_id.parse() else {
        debug!(id = asked.stream_id, "the scheduler opens a stream with an id that cannot be sent back");
        return;
    };
    let opened = match (instance, asked.open.and_then(|open| open.what)) {
        (Ok(instance), Some(What::Exec(exec))) => exec::start(&instance, exec).await.map(Opening::Exec),
        (Ok(instance), Some(What::Forward(forward))) => {
            forward::connect(&instance, forward.port).await.map(Opening::Forward)
        }
        (Ok(_), None) => Err(refused("the node does not know this request: its manager is older than the scheduler")),
        (Err(why), _) => Err(refused(why)),
    };
    let (to_user, frames) = mpsc::channel(FRAMES_MAX);
    let (opening, first) = match opened {
        Ok(opening) => (Some(opening), Frame::Opened(Opened {})),
        Err(refused) => (None, Frame::Refused(refused)),
    };
    // The channel has room for the first frame.
    let _ = to_user.try_send(FromJob { frame: Some(first) });
    let mut request = Request::new(ReceiverStream::new(frames));
    request.metadata_mut().insert(STREAM_ID, id);
    let mut from_user = match AgentsClient::new(channel).answer_stream(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return debug!(%status, "a stream is not wanted any more"),
    };
    match opening {
        Some(Opening::Exec(running)) => running.run(&mut from_user, &to_user).await,
        Some(Opening::Forward(connection)) => forward::run(connection, &mut from_user, &to_user).await,
        None => {}
    }
    drop(to_user);
    // The scheduler ends its side when it has received everything.
    while next(&mut from_user).await.is_some() {}
}

fn refused(why: impl Into<String>) -> Refused {
    Refused { why: why.into(), exit_code: 0 }
}

/// The user's next frame; `None` if the user is gone.
async fn next(from_user: &mut Streaming<FromUser>) -> Option<FromUser> {
    from_user.message().await.ok().flatten()
}

async fn send(to_user: &ToUser, frame: Frame) -> Option<()> {
    to_user.send(FromJob { frame: Some(frame) }).await.ok()
}

/// Sends a request to the first process of the instance in `dir`. Returns the connection, on which further answers
/// follow, and the descriptors that came with the first answer.
fn ask(
    dir: &Path,
    request: &requests::Request,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(UnixStream, Vec<OwnedFd>), Refused> {
    let socket = UnixStream::connect(requests::socket_in(dir)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => refused(
            "it was started by a node manager of another version, or could not listen; a job that starts now can be reached",
        ),
        _ => refused(format!("it cannot be reached: {error}")),
    })?;
    let lost = |error: std::io::Error| match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => refused("it has just ended"),
        _ => refused(format!("it does not answer: {error}")),
    };
    socket.set_read_timeout(Some(OPEN_PATIENCE)).map_err(lost)?;
    requests::send(&socket, request, descriptors).map_err(lost)?;
    match requests::receive(&socket).map_err(lost)? {
        (Reply::Started | Reply::Connected, descriptors) => Ok((socket, descriptors)),
        (Reply::Failed { why, exit_code }, _) => Err(Refused { why, exit_code: exit_code.into() }),
        (Reply::Exited(_) | Reply::Killed(_), _) => Err(refused("its first process answers something else")),
    }
}

/// Does the same without blocking the other tasks. The descriptors are closed here afterwards.
async fn ask_aside(
    instance: &Instance,
    request: requests::Request,
    descriptors: Vec<OwnedFd>,
) -> Result<(UnixStream, Vec<OwnedFd>), Refused> {
    let dir = instance.dir.clone();
    let asked = aside(move || {
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        ask(&dir, &request, &borrowed)
    });
    asked.await.unwrap_or_else(|error| Err(refused(format!("its node has no thread left: {error}"))))
}

/// The kind of terminal that a command wants; `dumb` if its name could be anything else than such a kind. `None` if the
/// command wants no terminal.
fn terminal_kind(exec: &Exec) -> Option<String> {
    let kind = exec.terminal.as_ref()?.kind.as_str();
    let is_sound = (1..=64).contains(&kind.len())
        && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte));
    Some(if is_sound { kind } else { "dumb" }.to_owned())
}

#[cfg(test)]
mod tests {
    use aliquot_proto::stream::v1::Terminal;

    use super::*;

    #[test]
    fn a_strange_kind_of_terminal_is_a_dumb_one() {
        let of = |kind: &str| {
            let terminal = Some(Terminal { kind: kind.into(), size: None });
            terminal_kind(&Exec { terminal, ..Exec::default() })
        };
        assert_eq!(of("xterm-256color").as_deref(), Some("xterm-256color"));
        for strange in ["", "a=b", "x\n", &"x".repeat(65)] {
            assert_eq!(of(strange).as_deref(), Some("dumb"));
        }
        assert_eq!(terminal_kind(&Exec::default()), None);
    }
}
