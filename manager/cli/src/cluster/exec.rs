//! `aliquot exec` with a job: runs a command beside the job's own, on its node and in its slice.

use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use aliquot_proto::stream::v1::from_job::Frame;
use aliquot_proto::stream::v1::open::What;
use aliquot_proto::stream::v1::{End, Exec, Exit, FromJob, Open, from_user};
use tokio::signal::unix::SignalKind;
use tokio::sync::{mpsc, oneshot};
use tonic::Streaming;

use super::signals::{Signals, listen};
use super::stream::{NotOpened, Stream, ToJob, frame};
use super::{TaskId, connect, failed, find, terminal};
use crate::args::ExecArgs;
use crate::client;
use crate::error::{Failure, Result, exit};
use crate::output;

/// How many bytes of standard input are read at once.
const READ_BYTES: usize = 32 << 10;
/// Maximum pieces of output that wait to be printed.
const PIECES_MAX: usize = 2;

/// Runs the command, and returns its exit status.
pub(crate) fn exec(socket: Option<&Path>, task: TaskId, args: &ExecArgs) -> Result<ExitCode> {
    let command = args.command.iter().map(word).collect::<Result<Vec<String>>>()?;
    if args.terminal && !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::new("--terminal needs a terminal as standard input and output")
            .hint("leave it out; -i passes standard input to the command")
            .exit(exit::USAGE));
    }
    let exec = Exec { command, terminal: args.terminal.then(terminal::like_this) };
    let open = Open { id: task.job, task: task.task, rank: args.rank.unwrap_or(0), what: Some(What::Exec(exec)) };
    client::runtime()?.block_on(async {
        // From now on no signal ends this program before it has restored the terminal.
        let mut signals = Signals::new()?;
        let mut client = connect(&find(socket)?).await?;
        let opened = tokio::select! {
            opened = Stream::open(&mut client, open) => opened,
            ended_by = signals.end() => return Ok(exit::of_signal(ended_by).into()),
        };
        let Stream { to_job, from_job } = opened.map_err(NotOpened::failure)?;
        let raw = if args.terminal { Some(terminal::Raw::enter()?) } else { None };
        let (pieces, printed) = print();
        if args.terminal || args.interactive {
            type_in(to_job.clone());
        } else {
            // The channel has room for it: the last frame was taken.
            let _ = to_job.send(frame(from_user::Frame::End(End {}))).await;
        }
        let ended = tokio::select! {
            ended = follow(from_job, pieces, printed) => ended,
            ended_by = signals.end() => Ok(exit::of_signal(ended_by).into()),
            never = resize(&to_job), if args.terminal => never,
        };
        drop(raw);
        ended
    })
}

/// A word of the command. It must be text, because the node gets it as text.
fn word(word: &OsString) -> Result<String> {
    word.to_str().map(str::to_owned).ok_or_else(|| {
        Failure::new(format!("{} is not UTF-8; the arguments of a command beside a job must be UTF-8", word.display()))
            .exit(exit::USAGE)
    })
}

/// Carries the command's output until the command has ended.
async fn follow(
    mut from_job: Streaming<FromJob>,
    pieces: mpsc::Sender<Piece>,
    printed: oneshot::Receiver<Printed>,
) -> Result<ExitCode> {
    let exit = loop {
        let piece = match from_job.message().await.map_err(failed)?.map(|message| message.frame) {
            Some(Some(Frame::Data(data))) => Piece::Output(data),
            Some(Some(Frame::Errors(data))) => Piece::Errors(data),
            Some(Some(Frame::Exit(exit))) => break Some(exit),
            // A frame of a newer node that this version does not know.
            Some(_) => continue,
            None => {
                return Err(Failure::new("the connection to the command ended before the command did")
                    .hint("the command was killed"));
            }
        };
        if pieces.send(piece).await.is_err() {
            break None;
        }
    };
    drop(pieces);
    match (printed.await, exit) {
        (Ok(Printed::All), Some(exit)) => Ok(exit_code(exit)),
        (Ok(Printed::ReaderGone), _) => Ok(exit::of_signal(nix::sys::signal::Signal::SIGPIPE as u8).into()),
        (Ok(Printed::Failed(error)), _) => {
            Err(Failure::new(format!("cannot print the output of the command: {error}")))
        }
        (Ok(Printed::All) | Err(_), _) => Err(Failure::new("the output of the command cannot be printed")),
    }
}

fn exit_code(Exit { code, signal, with_job }: Exit) -> ExitCode {
    if with_job {
        output::say("the job has ended, and the command with it");
    }
    match u8::try_from(signal) {
        Ok(0) => u8::try_from(code).unwrap_or(exit::FAILED).into(),
        Ok(signal) => 128u8.checked_add(signal).unwrap_or(exit::FAILED).into(),
        Err(_) => exit::FAILED.into(),
    }
}

/// A piece of the command's output.
enum Piece {
    Output(Vec<u8>),
    Errors(Vec<u8>),
}

/// The outcome of printing.
enum Printed {
    All,
    ReaderGone,
    Failed(io::Error),
}

/// Starts a thread that prints, so that a slow reader of the output delays only the command.
fn print() -> (mpsc::Sender<Piece>, oneshot::Receiver<Printed>) {
    let (sender, mut pieces) = mpsc::channel(PIECES_MAX);
    let (printed, result) = oneshot::channel();
    thread::spawn(move || {
        let mut outcome = Printed::All;
        while let Some(piece) = pieces.blocking_recv() {
            let done = match piece {
                Piece::Output(bytes) => write_to(&mut io::stdout().lock(), &bytes),
                Piece::Errors(bytes) => write_to(&mut io::stderr().lock(), &bytes),
            };
            match done {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    outcome = Printed::ReaderGone;
                    break;
                }
                Err(error) => {
                    outcome = Printed::Failed(error);
                    break;
                }
            }
        }
        // An error means that this program is ending.
        let _ = printed.send(outcome);
    });
    (sender, result)
}

fn write_to(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

/// Starts a thread that hands standard input to the command. No task waits for the thread, because a read may never
/// return.
fn type_in(to_job: ToJob) {
    thread::spawn(move || {
        let mut bytes = vec![0; READ_BYTES];
        let mut input = io::stdin().lock();
        loop {
            let sent = match input.read(&mut bytes) {
                Ok(count @ 1..) => frame(from_user::Frame::Data(bytes[..count].to_vec())),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => {
                    let _ = to_job.blocking_send(frame(from_user::Frame::End(End {})));
                    return;
                }
            };
            if to_job.blocking_send(sent).is_err() {
                return;
            }
        }
    });
}

/// Sends the command each new size of the terminal. Never returns a success.
async fn resize(to_job: &ToJob) -> Result<ExitCode> {
    let mut changes = listen(SignalKind::window_change())?;
    while changes.recv().await.is_some() {
        if to_job.send(frame(from_user::Frame::Resize(terminal::size()))).await.is_err() {
            break;
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_that_of_shells() {
        let shown = |code, signal| format!("{:?}", exit_code(Exit { code, signal, with_job: false }));
        for (code, signal, status) in [(0, 0, 0), (7, 0, 7), (255, 0, 255), (-1, 0, 1), (0, 15, 143), (0, 4000, 1)] {
            assert_eq!(shown(code, signal), format!("{:?}", ExitCode::from(status)), "{code} {signal}");
        }
    }
}
