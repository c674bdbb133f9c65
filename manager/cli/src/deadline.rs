//! Time limits for the answers of daemons, and the messages if one does not answer.
//!
//! A daemon that was stopped still accepts connections, because the kernel does that for its socket. So every call has
//! a deadline, and keep-alive checks run on a connection while an answer is awaited.

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Service, StdError};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::client::dial;
use crate::cluster::credentials;
use crate::error::Failure;
use crate::server::Server;

const QUESTION: Duration = Duration::from_secs(5);
/// The time limit for a change. It is longer, because a change writes files, and waits for the threads that carry it
/// out.
const CHANGE: Duration = Duration::from_secs(30);

/// Time limit for finding out which process does not answer.
const PEER_PATIENCE: Duration = Duration::from_millis(100);

/// The time limit from the command line; it applies to all calls of this program.
static GIVEN: OnceLock<Duration> = OnceLock::new();

/// Sets the time limit from the command line.
pub(crate) fn set(given: Option<Duration>) {
    if let Some(given) = given {
        // Only the first call in a program counts, and there is only one.
        let _ = GIVEN.set(given);
    }
}

/// Time limit for the answer to a question.
pub(crate) fn of_question() -> Duration {
    GIVEN.get().copied().unwrap_or(QUESTION)
}

fn of_change() -> Duration {
    GIVEN.get().copied().unwrap_or(CHANGE)
}

/// A channel to a daemon on which every call has a deadline.
#[derive(Debug, Clone)]
pub(crate) struct Deadlines {
    channel: Channel,
    server: &'static Server,
    socket: PathBuf,
}

impl Deadlines {
    /// `channel`, which is connected to the `server` on `socket`.
    pub(crate) fn new(channel: Channel, server: &'static Server, socket: &Path) -> Deadlines {
        Deadlines { channel, server, socket: socket.to_owned() }
    }
}

impl Service<Request<Body>> for Deadlines {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, StdError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        self.channel.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_change = is_change(request.uri().path());
        let limit = if is_change { of_change() } else { of_question() };
        let (answer, server, socket) = (self.channel.call(request), self.server, self.socket.clone());
        Box::pin(async move {
            match tokio::time::timeout(limit, answer).await {
                Ok(answer) => Ok(answer?),
                Err(_) => Err(status(&Silence::of(server, &socket), limit, is_change).into()),
            }
        })
    }
}

/// Whether the method at `path` changes something. Methods that do not are known by their names.
fn is_change(path: &str) -> bool {
    let method = path.rsplit('/').next().unwrap_or(path);
    !["Get", "List", "Watch", "Read", "Explain"].iter().any(|question| method.starts_with(question))
}

/// A daemon that does not answer.
struct Silence {
    server: &'static Server,
    socket: PathBuf,
    /// The process that listens on the socket, and whether it is stopped, if that can be found out.
    process: Option<(i32, bool)>,
    /// The daemon is on another machine, and `socket` is the file that says where.
    is_elsewhere: bool,
}

impl Silence {
    fn of(server: &'static Server, socket: &Path) -> Silence {
        let stream = dial(socket, PEER_PATIENCE).ok();
        let listener = stream.and_then(|stream| getsockopt(&stream, PeerCredentials).ok());
        let pid = listener.map(|peer| peer.pid()).filter(|&pid| pid > 0);
        let process = pid.map(|pid| (pid, is_stopped(pid)));
        Silence { server, socket: socket.to_owned(), process, is_elsewhere: credentials::is_file(socket) }
    }

    fn message(&self, limit: Duration) -> String {
        let (name, socket, seconds) = (self.server.name, self.socket.display(), limit.as_secs_f64());
        match self.process {
            _ if self.is_elsewhere => format!(
                "the {name} that {socket} names has not answered for {seconds} s: the network or the {name} is too slow, or away"
            ),
            Some((pid, true)) => format!(
                "the {name} on {socket} accepts connections but has not answered for {seconds} s: its process {pid} is \
                 stopped"
            ),
            _ => format!(
                "the {name} on {socket} accepts connections but has not answered for {seconds} s: it has too much to do, \
                 or hangs"
            ),
        }
    }

    fn remedy(&self) -> String {
        let (name, log, restart) = (self.server.name, self.server.log(), self.server.restart());
        match self.process {
            _ if self.is_elsewhere => {
                "wait longer with --timeout, or ask an administrator of the cluster whether it runs".to_owned()
            }
            Some((pid, true)) => format!("continue it: kill -CONT {pid}; or restart it: {restart}"),
            Some((pid, false)) => format!(
                "wait longer with --timeout, look at process {pid} and the {name}'s log ({log}), or restart it: {restart}"
            ),
            None => {
                format!("wait longer with --timeout, look at the {name}'s log ({log}), or restart it: {restart}")
            }
        }
    }
}

/// Whether `/proc` shows the process as stopped.
fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Separates the message from the remedy in the status of a call that ended here.
const REMEDY_BEGINS: &str = "\nhint: ";

fn status(silence: &Silence, limit: Duration, is_change: bool) -> Status {
    let mut remedy = silence.remedy();
    if is_change {
        remedy.push_str("; the request may still be executed: check before you repeat it");
    }
    Status::deadline_exceeded(format!("{}{REMEDY_BEGINS}{remedy}", silence.message(limit)))
}

/// The status of a stream on which nothing has come for `limit` from the `server` on `socket`.
pub(crate) fn silent_stream(server: &'static Server, socket: &Path, limit: Duration) -> Status {
    status(&Silence::of(server, socket), limit, false)
}

/// The failure of a call without an answer in time; `None` if `status` means something else.
pub(crate) fn failure(status: &Status) -> Option<Failure> {
    let (message, remedy) = status.message().split_once(REMEDY_BEGINS)?;
    (status.code() == Code::DeadlineExceeded).then(|| Failure::new(message).hint(remedy))
}

/// The failure for a daemon whose queue of connections on `socket` is full.
pub(crate) fn not_accepted(server: &Server, socket: &Path) -> Failure {
    let (name, program, socket) = (server.name, server.program, socket.display());
    Failure::new(format!(
        "the {name} on {socket} accepts no more connections, because too many wait already; it is stopped, hangs, or is overloaded"
    ))
    .hint(format!(
        "check its state and log (systemctl status {program}; {}), or restart it: {}",
        server.log(),
        server.restart()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::NODE_MANAGER;

    #[test]
    fn methods_that_ask_have_the_shorter_deadline() {
        for (method, change) in [
            ("GetUsage", false),
            ("ListSlices", false),
            ("WatchUsage", false),
            ("CreateSlice", true),
            ("ReadLog", false),
            ("CancelJob", true),
        ] {
            assert_eq!(is_change(&format!("/aliquot.node.v1.NodeManager/{method}")), change, "{method}");
        }
    }

    #[test]
    fn the_cause_and_the_remedy_are_separate_lines() {
        let silence =
            |process| Silence { server: &NODE_MANAGER, socket: "/run/x.sock".into(), process, is_elsewhere: false };
        let said =
            |process, change| failure(&status(&silence(process), Duration::from_secs(5), change)).unwrap().to_string();
        let stopped = said(Some((7, true)), false);
        assert!(
            stopped.contains("/run/x.sock") && stopped.contains("for 5 s: its process 7 is stopped\nhint: continue it")
        );
        assert!(
            said(Some((7, false)), true).contains("look at process 7")
                && said(None, true).contains("may still be executed")
        );
        assert!(failure(&Status::deadline_exceeded("slow")).is_none());
    }
}
