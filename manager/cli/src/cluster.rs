//! The commands for a cluster without Kubernetes: jobs, queues and nodes. A client of the scheduler.

pub(crate) mod attach;
pub(crate) mod cancel;
pub(crate) mod completion;
pub(crate) mod credentials;
mod demand;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod job;
pub(crate) mod jobs;
mod json;
pub(crate) mod logs;
pub(crate) mod nodes;
pub(crate) mod port_forward;
pub(crate) mod queues;
pub(crate) mod secrets;
mod signals;
mod state;
mod stream;
pub(crate) mod submit;
mod task_id;
mod terminal;
pub(crate) mod token;
pub(crate) mod users;
mod watch;
mod words;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use aliquot_proto::scheduler::v1::scheduler_client::SchedulerClient;
use prost_types::Timestamp;
use tonic::Status;

pub(crate) use port_forward::Ports;
pub(crate) use task_id::TaskId;
pub(crate) use words::{JobWords, Priority, Text};

use crate::client::{self, ANSWER_BYTES_MAX};
use crate::deadline::Deadlines;
use crate::error::{self, Failure, Result};
use crate::moment;
use crate::quantity::span_human;
use crate::server::SCHEDULER;

/// A connection to a scheduler.
pub(crate) type Client = SchedulerClient<Deadlines>;

/// The socket of the running scheduler, or a file of credentials for one: `socket` if it is given, else this user's, else
/// the system's.
fn find(socket: Option<&Path>) -> Result<PathBuf> {
    client::find_server(&SCHEDULER, socket).map_err(|absent| absent.failure(&SCHEDULER))
}

/// Connects to the scheduler that serves `socket`, or that this file of credentials names.
pub(crate) async fn connect(socket: &Path) -> Result<Client> {
    let channel = match credentials::is_file(socket) {
        true => credentials::channel(socket).await?,
        false => client::channel(&SCHEDULER, socket).await?,
    };
    Ok(SchedulerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX))
}

/// Connects to the running scheduler.
async fn connect_to_running(socket: Option<&Path>) -> Result<Client> {
    connect(&find(socket)?).await
}

/// The failure for an answer of the scheduler.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn failed(status: Status) -> Failure {
    credentials::expired(&status).unwrap_or_else(|| error::of_status(&status, &SCHEDULER))
}

fn now_unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A moment for people, and how long ago it was; `-` for 0, which stands for none.
fn moment_human(unix_ms: u64, now_unix_ms: u64) -> String {
    match unix_ms {
        0 => "-".to_owned(),
        _ => format!("{} ({} ago)", clock_human(unix_ms), age_human(unix_ms, now_unix_ms)),
    }
}

fn clock_human(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX);
    moment::human(Some(&Timestamp { seconds, nanos: 0 }))
}

/// The time since a moment, which is 0 where clocks disagree.
fn age_human(unix_ms: u64, now_unix_ms: u64) -> String {
    span_human(now_unix_ms.saturating_sub(unix_ms) / 1000)
}

/// `count` with the name of a thing, which gets an s unless there is exactly one.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
