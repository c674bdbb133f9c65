//! `aliquot port-forward`: connections from here to ports of a running job.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use aliquot_proto::scheduler::v1::{Job, JobState, Task};
use aliquot_proto::stream::v1::from_job::Frame;
use aliquot_proto::stream::v1::open::What;
use aliquot_proto::stream::v1::{End, Forward, Open, from_user};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::state::{self, has_ended};
use super::stream::{Stream, frame};
use super::watch::Watch;
use super::{Client, TaskId, connect, find};
use crate::args::PortForwardArgs;
use crate::error::{Failure, Result};
use crate::output;

/// How many bytes of a connection are read at once.
const READ_BYTES: usize = 32 << 10;
/// The pause after a connection could not be accepted, for example because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port of this machine and a port of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    /// The port of this machine; 0 stands for any free port.
    local: u16,
    remote: u16,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Ports, String> {
        let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let ports = match text.split_once(':') {
            None => number(text).map(|port| Ports { local: port, remote: port }),
            Some(("", remote)) => number(remote).map(|remote| Ports { local: 0, remote }),
            Some((local, remote)) => number(local).zip(number(remote)).map(|(local, remote)| Ports { local, remote }),
        };
        ports.filter(|ports| ports.remote > 0).ok_or_else(|| {
            "write REMOTE or LOCAL:REMOTE, such as 8080 or 9000:8080; :8080 takes a free local port".to_owned()
        })
    }
}

/// The member of a job that the ports belong to.
#[derive(Debug, Clone, Copy)]
struct Meant {
    task: TaskId,
    rank: u32,
}

impl Meant {
    fn open(self, port: u16) -> Open {
        let what = Some(What::Forward(Forward { port: port.into() }));
        Open { id: self.task.job, task: self.task.task, rank: self.rank, what }
    }

    /// The state of the task in the job.
    fn state(self, job: &Job) -> JobState {
        let task = self.task.task.and_then(|index| job.tasks.iter().find(|task| task.index == index));
        task.map_or(job.state(), Task::state)
    }
}

impl fmt::Display for Meant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            0 => write!(f, "job {}", self.task),
            rank => write!(f, "rank {rank} of job {}", self.task),
        }
    }
}

/// Forwards connections until Ctrl-C, or the end of the job.
pub(crate) async fn port_forward(socket: Option<&Path>, args: &PortForwardArgs) -> Result<()> {
    let socket = find(socket)?;
    let meant = Meant { task: args.task, rank: args.rank };
    let client = connect(&socket).await?;
    let mut watch = Watch::new(&socket, args.task.job).await?;
    let now = meant.state(watch.next().await?);
    if now != JobState::Running {
        return Err(Failure::new(format!("job {} does not run: it is {}", args.task, state::word(now)))
            .hint(format!("see: aliquot job {}", args.task)));
    }
    let (fatal, mut failures) = mpsc::channel(1);
    for ports in &args.ports {
        for listener in listen(*ports).await? {
            let address = listener.local_addr().map_err(|error| Failure::new(error.to_string()))?;
            output::print(&format!("{address} -> port {} of {meant}\n", ports.remote))?;
            tokio::spawn(accept(listener, client.clone(), meant.open(ports.remote), fatal.clone()));
        }
    }
    let ended = async {
        loop {
            let now = meant.state(watch.next().await?);
            if has_ended(now) {
                return Err(Failure::new(format!("job {} has ended: it {}", args.task, state::word(now))));
            }
        }
    };
    tokio::select! {
        ended = ended => ended,
        Some(failure) = failures.recv() => Err(failure),
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))
        }
    }
}

/// Listens on both loopback addresses; if the second one is not available, only on the first.
async fn listen(ports: Ports) -> Result<Vec<TcpListener>> {
    let first = TcpListener::bind((Ipv4Addr::LOCALHOST, ports.local)).await.map_err(|error| {
        Failure::new(format!("cannot listen on 127.0.0.1:{}: {error}", ports.local))
            .hint(format!("choose another local port; :{} takes a free one", ports.remote))
    })?;
    let port = first.local_addr().map_or(ports.local, |address| address.port());
    let second = TcpListener::bind((Ipv6Addr::LOCALHOST, port)).await;
    Ok([Some(first), second.ok()].into_iter().flatten().collect())
}

/// Accepts connections, and reports why one of them cannot be forwarded.
async fn accept(listener: TcpListener, client: Client, open: Open, fatal: mpsc::Sender<Failure>) {
    let address = listener.local_addr().map_or_else(|_| String::new(), |address| address.to_string());
    loop {
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                output::say(format_args!("cannot take a connection to {address}: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (mut client, open, fatal, address) = (client.clone(), open.clone(), fatal.clone(), address.clone());
        tokio::spawn(async move {
            match Stream::open(&mut client, open).await {
                Ok(stream) => carry(stream, connection).await,
                Err(not_opened) => {
                    let is_fatal = not_opened.concerns_all();
                    let failure = not_opened.failure();
                    // The client must see that it was refused, and not an empty answer.
                    let _ = connection.set_zero_linger();
                    match is_fatal {
                        // An error means that this program is ending already.
                        true => _ = fatal.send(failure).await,
                        false => {
                            output::say(format_args!("a connection to {address} is refused: {}", failure.message()))
                        }
                    }
                }
            }
        });
    }
}

/// Carries data until both sides have ended, or one has broken.
async fn carry(stream: Stream, mut connection: TcpStream) {
    let Stream { to_job, mut from_job } = stream;
    // If this fails, small pieces arrive a little later.
    let _ = connection.set_nodelay(true);
    let is_whole = {
        let (mut reader, mut writer) = connection.split();
        let outgoing = async {
            let mut bytes = vec![0; READ_BYTES];
            loop {
                let (read, is_end) = match reader.read(&mut bytes).await.ok()? {
                    0 => (from_user::Frame::End(End {}), true),
                    count => (from_user::Frame::Data(bytes[..count].to_vec()), false),
                };
                to_job.send(frame(read)).await.ok()?;
                if is_end {
                    return Some(());
                }
            }
        };
        let incoming = async {
            loop {
                match from_job.message().await.ok()??.frame {
                    Some(Frame::Data(data)) => writer.write_all(&data).await.ok()?,
                    Some(Frame::End(_)) => return writer.shutdown().await.ok(),
                    _ => {}
                }
            }
        };
        tokio::pin!(outgoing, incoming);
        // A broken side ends the other one.
        tokio::select! {
            done = &mut outgoing => done.is_some() && incoming.await.is_some(),
            done = &mut incoming => done.is_some() && outgoing.await.is_some(),
        }
    };
    if is_whole {
        drop(to_job);
        // The last data is still on the way: the node ends the stream when it has received it.
        while let Ok(Some(_)) = from_job.message().await {}
    } else {
        // The client must see a broken connection, not an end of the data.
        let _ = connection.set_zero_linger();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_two_numbers() {
        for (text, local, remote) in [("8080", 8080, 8080), ("9000:80", 9000, 80), (":80", 0, 80), ("0:80", 0, 80)] {
            assert_eq!(text.parse(), Ok(Ports { local, remote }), "{text}");
        }
        for text in ["", "0", "80:", ":", "80:0", "65536", "+80", "a:80", "1:2:3", "-1"] {
            assert!(text.parse::<Ports>().unwrap_err().contains("9000:8080"), "{text}");
        }
    }

    #[test]
    fn the_named_task_counts() {
        let task = |index, state: JobState| Task { index, state: state.into(), ..Task::default() };
        let tasks = vec![task(3, JobState::Succeeded), task(4, JobState::Running)];
        let job = Job { state: JobState::Running.into(), tasks, ..Job::default() };
        let state = |index| Meant { task: TaskId { job: 17, task: index }, rank: 0 }.state(&job);
        assert_eq!(state(Some(3)), JobState::Succeeded);
        assert_eq!(state(Some(4)), JobState::Running);
        assert_eq!(state(None), JobState::Running);
    }
}
