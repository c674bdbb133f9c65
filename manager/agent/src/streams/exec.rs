//! A command that a user runs beside a job's own.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use aliquot_proto::stream::v1::from_job::Frame;
use aliquot_proto::stream::v1::{Exec, Exit, FromUser, Refused, from_user};
use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tonic::Streaming;

use super::terminal::Terminal;
use super::{Instance, READ_BYTES, ToUser, ask_aside, next, refused, send, terminal_kind};
use crate::supervise::requests::{Reply, Request, receive_later};

/// How long the output of an ended command may be silent before reading stops. Where the command has left behind a
/// process that cannot be killed, the end of the output never comes.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// A command that runs. It is killed when this is dropped.
pub(super) struct Running {
    stdio: Stdio,
    /// The connection on which the companion reports how the command has ended.
    companion: UnixStream,
}

enum Stdio {
    Pipes { input: pipe::Sender, output: pipe::Receiver, errors: pipe::Receiver },
    Terminal(Terminal),
}

impl Stdio {
    /// Opens pipes or a terminal. Returns the node's side, and the descriptors that the command gets.
    fn open(exec: &Exec, uid: u32) -> io::Result<(Stdio, Vec<OwnedFd>)> {
        if let Some(terminal) = &exec.terminal {
            let (near, far) = Terminal::open(terminal.size.unwrap_or_default(), uid)?;
            return Ok((Stdio::Terminal(near), vec![far]));
        }
        let ((far_input, input), (output, far_output)) = (io::pipe()?, io::pipe()?);
        let (errors, far_errors) = io::pipe()?;
        let near = Stdio::Pipes {
            input: pipe::Sender::from_owned_fd(input.into())?,
            output: pipe::Receiver::from_owned_fd(output.into())?,
            errors: pipe::Receiver::from_owned_fd(errors.into())?,
        };
        Ok((near, vec![far_input.into(), far_output.into(), far_errors.into()]))
    }
}

/// Starts a command beside that of an instance.
pub(super) async fn start(instance: &Instance, exec: Exec) -> Result<Running, Refused> {
    if exec.command.first().is_none_or(String::is_empty) {
        return Err(refused("no command is given"));
    }
    let terminal = terminal_kind(&exec);
    let (stdio, far) = Stdio::open(&exec, instance.uid)
        .map_err(|error| refused(format!("the node has no pipe or terminal left: {error}")))?;
    let request = Request::Exec { command: exec.command, terminal };
    let (companion, _) = ask_aside(instance, request, far).await?;
    let companion = companion.set_nonblocking(true).and_then(|()| UnixStream::from_std(companion));
    let companion = companion.map_err(|error| refused(error.to_string()))?;
    Ok(Running { stdio, companion })
}

impl Running {
    /// Carries data until the command has ended, or the user is gone: then the command is killed.
    pub(super) async fn run(self, from_user: &mut Streaming<FromUser>, to_user: &ToUser) {
        let Running { stdio, mut companion } = self;
        let has_ended = watch::Sender::new(false);
        let status = async {
            let reply = receive_later(&mut companion).await;
            has_ended.send_replace(true);
            reply
        };
        let exit = match stdio {
            Stdio::Terminal(terminal) => {
                let output = async {
                    let mut bytes = vec![0; READ_BYTES];
                    while let Some(count @ 1..) = unless_silent(&has_ended, terminal.read(&mut bytes)).await {
                        send(to_user, Frame::Data(bytes[..count].to_vec())).await?;
                    }
                    Some(())
                };
                tokio::select! {
                    (reply, _) = async { tokio::join!(status, output) } => exit(reply),
                    () = type_in(&terminal, from_user) => return,
                    () = to_user.closed() => return,
                }
            }
            Stdio::Pipes { input, output, errors } => {
                let outputs = async {
                    tokio::join!(
                        copy(output, &has_ended, to_user, Frame::Data),
                        copy(errors, &has_ended, to_user, Frame::Errors)
                    )
                };
                tokio::select! {
                    (reply, _) = async { tokio::join!(status, outputs) } => exit(reply),
                    () = feed(input, from_user) => return,
                    () = to_user.closed() => return,
                }
            }
        };
        // An error means that the user is gone.
        let _ = send(to_user, Frame::Exit(exit)).await;
    }
}

fn exit(reply: io::Result<Reply>) -> Exit {
    match reply {
        Ok(Reply::Exited(code)) => Exit { code, signal: 0, with_job: false },
        Ok(Reply::Killed(signal)) => Exit { code: 0, signal, with_job: false },
        // The companion is gone without a report, so all of the job was killed.
        _ => Exit { code: 0, signal: Signal::SIGKILL as u32, with_job: true },
    }
}

/// Waits for a read. Returns `None` at an error, and when nothing more comes after the command has ended.
async fn unless_silent(
    has_ended: &watch::Sender<bool>,
    read: impl Future<Output = io::Result<usize>>,
) -> Option<usize> {
    let mut ended = has_ended.subscribe();
    let silence = async {
        let _ = ended.wait_for(|ended| *ended).await;
        tokio::time::sleep(DRAIN_PATIENCE).await;
    };
    tokio::select! {
        count = read => count.ok(),
        () = silence => None,
    }
}

/// Sends the output that the command writes into a pipe.
async fn copy(
    mut output: pipe::Receiver,
    has_ended: &watch::Sender<bool>,
    to_user: &ToUser,
    frame: fn(Vec<u8>) -> Frame,
) -> Option<()> {
    let mut bytes = vec![0; READ_BYTES];
    while let Some(count @ 1..) = unless_silent(has_ended, output.read(&mut bytes)).await {
        send(to_user, frame(bytes[..count].to_vec())).await?;
    }
    Some(())
}

/// Hands the user's input to the command. Returns when the user is gone.
async fn feed(input: pipe::Sender, from_user: &mut Streaming<FromUser>) {
    let mut input = Some(input);
    while let Some(FromUser { frame }) = next(from_user).await {
        match frame {
            Some(from_user::Frame::Data(data)) => {
                // A command that has closed its input reads no more, so further input is dropped.
                if let Some(open) = &mut input
                    && open.write_all(&data).await.is_err()
                {
                    input = None;
                }
            }
            Some(from_user::Frame::End(_)) => input = None,
            Some(from_user::Frame::Resize(_) | from_user::Frame::Open(_)) | None => {}
        }
    }
}

/// Hands the user's input to a command at a terminal. The input has no end of its own; the user types the control
/// character for it.
async fn type_in(terminal: &Terminal, from_user: &mut Streaming<FromUser>) {
    while let Some(FromUser { frame }) = next(from_user).await {
        match frame {
            // Input that no process reads any more is lost.
            Some(from_user::Frame::Data(data)) => _ = terminal.write_all(&data).await,
            Some(from_user::Frame::Resize(size)) => terminal.resize(size),
            Some(from_user::Frame::End(_) | from_user::Frame::Open(_)) | None => {}
        }
    }
}
