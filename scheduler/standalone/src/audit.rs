//! The audit log: the caller, the call, the time, the origin and the result. One JSON object in each line.
//!
//! A line is written before the call is answered. So a call whose answer was received is in the log, even if the
//! scheduler is killed then. If the log cannot be written, calls go on: a warning and a metric tell of it.

mod file;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tonic::{Code, Status};
use tracing::{info, warn};

use file::LogFile;

/// Where the audit log is written, and how long its files may become.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// The newest file; older files have `.1`, `.2` and so on appended to the name. Not set: `audit.jsonl` in the state
    /// directory.
    pub file: Option<PathBuf>,
    /// The greatest length of a file in bytes; then the next one begins.
    pub file_bytes: u64,
    /// The number of files that are kept, with the newest.
    pub files: u32,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { file: None, file_bytes: 16 << 20, files: 8 }
    }
}

impl AuditConfig {
    /// Checks that the values can be used.
    ///
    /// # Errors
    /// A sentence with the wrong value, and what to do.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.file_bytes < 4096 {
            return Err(format!(
                "audit.file_bytes {} is shorter than 4096: write for example 16777216",
                self.file_bytes
            ));
        }
        if !(1..=1000).contains(&self.files) {
            return Err(format!("audit.files {} is not from 1 to 1000: write for example 8", self.files));
        }
        Ok(())
    }
}

/// The most characters of one text in a line.
const TEXT_MAX: usize = 500;
/// The most lines that may wait for the disk.
const WAITING_MAX: usize = 1024;
/// A call is answered after this time even if its line is not written yet, because the disk hangs.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line of the log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Line {
    /// The time of the call in the format of RFC 3339.
    pub(crate) time: String,
    /// The name of the user or node; empty: the caller is unknown.
    pub(crate) who: String,
    /// `local`, `certificate`, `node`, `token` or `unknown`.
    pub(crate) known_by: &'static str,
    /// The user number of a local user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<u32>,
    /// `socket`, or the IP address of the caller.
    pub(crate) from: String,
    /// The standby scheduler that handed the call on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by_way_of: Option<String>,
    /// The name of the method.
    pub(crate) call: String,
    /// The object of the call, such as `job 17`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
    /// `ok`, or the gRPC code in words.
    pub(crate) result: String,
    /// Why the call was refused or has failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
}

impl Line {
    /// The line, completed with its time, its object, and the failure if there is one.
    pub(crate) fn with(self, unix_ms: u64, object: Option<&str>, failed: Option<&Status>) -> Self {
        Self {
            time: Self::time(unix_ms),
            object: object.map(shortened),
            result: failed.map_or("ok", |status| word(status.code())).to_owned(),
            reason: failed.map(|status| shortened(status.message())).unwrap_or_default(),
            ..self
        }
    }

    /// A line's time in the format of RFC 3339.
    fn time(unix_ms: u64) -> String {
        let moment = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        moment.map(|moment| format!("{moment:.3}")).unwrap_or_default()
    }
}

/// The beginning of a text, which may come from a caller and have any length.
fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// The name of a gRPC status code in the log.
fn word(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::InvalidArgument => "invalid-argument",
        Code::DeadlineExceeded => "deadline-exceeded",
        Code::NotFound => "not-found",
        Code::AlreadyExists => "already-exists",
        Code::PermissionDenied => "permission-denied",
        Code::ResourceExhausted => "resource-exhausted",
        Code::FailedPrecondition => "failed-precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out-of-range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data-loss",
        Code::Unauthenticated => "unauthenticated",
        Code::Unknown => "unknown",
    }
}

struct Asked {
    line: String,
    written: oneshot::Sender<()>,
}

/// A handle of the log. All copies write to the same log.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    sender: SyncSender<Asked>,
    /// Lines that could not be written.
    pub(crate) lost: Counter,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

impl Audit {
    /// Starts the thread that writes the log.
    ///
    /// # Errors
    /// If no thread can be started. A file that cannot be opened is no error.
    pub(crate) fn start(path: PathBuf, config: &AuditConfig) -> std::io::Result<Self> {
        let (sender, asked) = sync_channel(WAITING_MAX);
        let lost = Counter::default();
        let (file, lost_in_thread) = (LogFile::new(path, config.file_bytes, config.files), lost.clone());
        thread::Builder::new().name("audit".to_owned()).spawn(move || write(file, &asked, &lost_in_thread))?;
        Ok(Self { sender, lost })
    }

    /// Adds a line. The line is written when this returns, unless the disk is full or hangs.
    pub(crate) async fn note(&self, line: &Line) {
        let Ok(mut line) = serde_json::to_string(line) else { return };
        line.push('\n');
        let (written, answer) = oneshot::channel();
        match self.sender.try_send(Asked { line, written }) {
            Ok(()) => _ = tokio::time::timeout(PATIENCE, answer).await,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => _ = self.lost.inc(),
        }
    }
}

fn write(mut file: LogFile, asked: &Receiver<Asked>, lost: &Counter) {
    let mut is_in_trouble = false;
    for Asked { line, written } in asked {
        match file.append(line.as_bytes()) {
            Ok(()) if is_in_trouble => {
                info!(file = %file.path().display(), "the audit log is written again");
                is_in_trouble = false;
            }
            Ok(()) => {}
            Err(error) => {
                lost.inc();
                if !is_in_trouble {
                    warn!(file = %file.path().display(), %error, "the audit log cannot be written; calls go on without it");
                    is_in_trouble = true;
                }
            }
        }
        // The caller may have stopped waiting.
        _ = written.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Waits until something is so.
    #[track_caller]
    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(180), "still not: {what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn line(call: &str) -> Line {
        Line { time: Line::time(1_764_140_400_123), call: call.to_owned(), ..Line::default() }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_line_is_in_the_file_when_the_call_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/audit.jsonl");
        let audit = Audit::start(path.clone(), &AuditConfig::default()).unwrap();
        for call in ["SubmitJob", "Cancel\n\"Job\""] {
            // On a slow machine the patience may end before the line is written.
            wait_until("the call is answered because its line is written", || {
                let began = Instant::now();
                block_on(audit.note(&line(call)));
                began.elapsed() < PATIENCE
            });
            let text = std::fs::read_to_string(&path).unwrap();
            let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
            assert_eq!((&last["call"], &last["time"]), (&call.into(), &"2025-11-26T07:00:00.123Z".into()));
        }
        assert_eq!(audit.lost.get(), 0);
    }

    #[test]
    fn calls_go_on_when_the_disk_is_full() {
        let audit = Audit::start("/dev/full".into(), &AuditConfig::default()).unwrap();
        block_on(async {
            audit.note(&line("SubmitJob")).await;
            audit.note(&line("CancelJob")).await;
        });
        wait_until("both lines are counted as lost", || audit.lost.get() == 2);
    }

    #[test]
    fn a_log_of_nothing_is_refused() {
        assert!(AuditConfig { files: 0, ..AuditConfig::default() }.check().unwrap_err().contains("audit.files 0"));
        assert!(AuditConfig { file_bytes: 1, ..AuditConfig::default() }.check().unwrap_err().contains("file_bytes 1"));
        AuditConfig::default().check().unwrap();
    }
}
