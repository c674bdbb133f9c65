//! The record of each instance that the node was told to start: a directory.
//!
//! ```text
//! <state>/instances/<term>-<number>/
//!   command      what was commanded, without its secrets; written before anything is done
//!   reserved     room for the file `end`, so that a full disk does not lose it
//!   supervisor   the process that starts and ends it
//!   init         the first process of the job
//!   started      the command runs since then
//!   stop         why the supervisor was told to stop it
//!   end          how it has ended
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aliquot_proto::agent::v1::{self as proto, Generation, Start};
use nix::fcntl::posix_fallocate;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::files;
use crate::process::{ProcessId, from_errno};

/// Room for the file `end`.
const END_BYTES_MAX: usize = 4096;
/// The longest explanation in the file `end`.
const FAILURE_BYTES_MAX: usize = 2048;

/// A generation as term and number, ordered as the scheduler orders generations.
pub(crate) type Number = (u64, u64);

/// The number of a generation.
pub(crate) fn number(generation: &Generation) -> Number {
    (generation.term, generation.number)
}

/// The generation of this number.
pub(crate) fn generation((term, number): Number) -> Generation {
    Generation { term, number }
}

/// The files of one instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InstanceDir(PathBuf);

/// Why an instance was stopped, or does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reason {
    Exited,
    Stopped,
    Lease,
    TimeLimit,
    Lost,
}

impl From<Reason> for proto::EndReason {
    fn from(reason: Reason) -> proto::EndReason {
        match reason {
            Reason::Exited => proto::EndReason::Exited,
            Reason::Stopped => proto::EndReason::Stopped,
            Reason::Lease => proto::EndReason::Lease,
            Reason::TimeLimit => proto::EndReason::TimeLimit,
            Reason::Lost => proto::EndReason::Lost,
        }
    }
}

/// How an instance has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct End {
    /// Why the command was not started; `None` if it was, or was stopped before.
    pub(crate) failure: Option<String>,
    /// Whether the node is at fault that the command was not started: then it may start on another node.
    #[serde(default)]
    pub(crate) is_nodes_fault: bool,
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: u32,
    pub(crate) reason: Reason,
    /// When the command was started; 0 if it never ran, or if that is not known.
    pub(crate) started_unix_ms: u64,
    pub(crate) ended_unix_ms: u64,
}

impl End {
    /// The end of an instance that was not started, or that ended in an unknown way.
    pub(crate) fn unknown(reason: Reason) -> End {
        End {
            failure: None,
            is_nodes_fault: false,
            exit_code: None,
            signal: 0,
            reason,
            started_unix_ms: 0,
            ended_unix_ms: clock::unix_ms(),
        }
    }

    /// The end of an instance that the node lacks something for, such as the memory for its secrets.
    pub(crate) fn refused(why: String) -> End {
        End { is_nodes_fault: true, ..End::failed(why) }
    }

    /// The end of an instance that could not be started.
    pub(crate) fn failed(mut why: String) -> End {
        let end = (0..=why.len().min(FAILURE_BYTES_MAX)).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
        why.truncate(end);
        End { failure: Some(why), ..End::unknown(Reason::Exited) }
    }
}

/// A process of an instance.
#[derive(Serialize, Deserialize)]
struct Alive {
    boot_id: String,
    process: ProcessId,
}

/// The processes of an instance and its history, as its files show them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    /// Whether its supervisor or its first process lives.
    pub(crate) is_alive: bool,
    pub(crate) started_unix_ms: Option<u64>,
    pub(crate) end: Option<End>,
}

impl InstanceDir {
    /// The directory of an instance below `instances`.
    pub(crate) fn below(instances: &Path, (term, number): Number) -> InstanceDir {
        InstanceDir(instances.join(format!("{term}-{number}")))
    }

    /// The directory at the path that a supervisor was given.
    pub(crate) fn at(path: &Path) -> InstanceDir {
        InstanceDir(path.to_owned())
    }

    /// The path of it.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory for the command `start`, durably.
    pub(crate) fn create(&self, start: &Start) -> io::Result<()> {
        files::create_private_dir(&self.0)?;
        let created = (|| {
            let reserved = aliquot_durable::create_private(&self.0.join("reserved"))?;
            let room = i64::try_from(END_BYTES_MAX).unwrap_or(i64::MAX);
            posix_fallocate(&reserved, 0, room).map_err(from_errno)?;
            reserved.sync_all()?;
            aliquot_durable::replace(&self.0.join("command"), &without_secrets(start).encode_to_vec())?;
            aliquot_durable::sync_parent(&self.0)
        })();
        created.inspect_err(|_| self.remove())
    }

    /// The command; `None` if the directory was not made completely, and so nothing was done.
    pub(crate) fn command(&self) -> Option<Start> {
        Start::decode(fs::read(self.0.join("command")).ok()?.as_slice()).ok()
    }

    /// Removes the directory, and with it the instance.
    pub(crate) fn remove(&self) {
        // Without the command the directory is not taken for an instance any more, even if the rest of it stays.
        let _ = fs::remove_file(self.0.join("command"));
        let _ = fs::remove_dir_all(&self.0);
    }

    /// Notes the process that supervises the instance.
    pub(crate) fn note_supervisor(&self, process: ProcessId) -> io::Result<()> {
        self.note("supervisor", process)
    }

    /// Notes the process that holds all others of the job.
    pub(crate) fn note_init(&self, process: ProcessId) -> io::Result<()> {
        self.note("init", process)
    }

    fn note(&self, file: &str, process: ProcessId) -> io::Result<()> {
        files::write_json(&self.0.join(file), &Alive { boot_id: clock::boot_id(), process })
    }

    fn process(&self, file: &str) -> Option<ProcessId> {
        let alive: Alive = files::read_json(&self.0.join(file)).ok().flatten()?;
        (alive.boot_id == clock::boot_id()).then_some(alive.process)
    }

    /// The supervisor, if it was started since the machine was.
    pub(crate) fn supervisor(&self) -> Option<ProcessId> {
        self.process("supervisor")
    }

    /// Notes that the command runs.
    pub(crate) fn note_started(&self, unix_ms: u64) -> io::Result<()> {
        fs::write(self.0.join("started.new"), unix_ms.to_string())?;
        fs::rename(self.0.join("started.new"), self.0.join("started"))
    }

    fn started(&self) -> Option<u64> {
        fs::read_to_string(self.0.join("started")).ok()?.parse().ok()
    }

    /// Notes why the instance will be stopped. The first reason stays.
    pub(crate) fn note_stop(&self, reason: Reason) -> io::Result<()> {
        if self.stop().is_some() {
            return Ok(());
        }
        files::write_json(&self.0.join("stop"), &reason)
    }

    /// Why the instance will be stopped, if it will be.
    pub(crate) fn stop(&self) -> Option<Reason> {
        files::read_json(&self.0.join("stop")).ok().flatten()
    }

    /// Notes how the instance has ended, durably, in the room that was reserved for this.
    pub(crate) fn note_end(&self, end: &End) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let (reserved, path) = (self.0.join("reserved"), self.0.join("end"));
        let mut bytes = serde_json::to_vec(end)?;
        // White space follows the value, so the file keeps its length: making it shorter may need room on some file
        // systems.
        bytes.resize(bytes.len().max(END_BYTES_MAX), b' ');
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&reserved)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        aliquot_durable::rename(&reserved, &path)
    }

    /// Reads the present state from the files.
    pub(crate) fn look(&self) -> Seen {
        // Read first: if the process has ended, everything that it wrote before is seen by the reads below.
        let is_alive = ["supervisor", "init"].iter().any(|file| self.process(file).is_some_and(ProcessId::is_alive));
        let end = files::read_json(&self.0.join("end")).ok().flatten();
        Seen { is_alive, started_unix_ms: self.started(), end }
    }
}

/// `start` in the form that is stored. The command and the environment may hold secrets too, so they are left out.
pub(crate) fn without_secrets(start: &Start) -> Start {
    let process = start.process.as_ref().map(|process| proto::Process {
        command: Vec::new(),
        environment: Default::default(),
        secrets: Vec::new(),
        ..process.clone()
    });
    Start { process, ..start.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Start {
        Start {
            claim: "1.0.0.1".into(),
            generation: Some(Generation { term: 2, number: 3 }),
            process: Some(proto::Process {
                command: vec!["train".into()],
                environment: [("TOKEN".to_owned(), "secret".to_owned())].into(),
                log: "1.0.0".into(),
                secrets: vec![proto::Secret { value: b"secret".to_vec(), ..proto::Secret::default() }],
                ..proto::Process::default()
            }),
            ..Start::default()
        }
    }

    #[test]
    fn what_was_commanded_is_kept_without_its_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let instance = InstanceDir::below(dir.path(), (2, 3));
        assert_eq!(instance.command(), None);
        instance.create(&start()).unwrap();
        let kept = instance.command().unwrap();
        assert_eq!((kept.claim.as_str(), number(&kept.generation.unwrap())), ("1.0.0.1", (2, 3)));
        assert_eq!(kept.process.unwrap().log, "1.0.0");
        let bytes = fs::read(instance.path().join("command")).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"secret"));
        instance.remove();
        assert!(!instance.path().exists());
    }

    /// The file `command` of an instance, as an agent from before streams and secrets has written it.
    const RECORDED_COMMAND: &str = "0a07312e302e302e311204080110011a351a330a284750552d61313130633037612d353133302d346137\
        652d383030302d30303030303030303030303010ac02188080808020208ee9012a281a012f2a04726f6f7438904e42136a6f622031206f66\
        20726f6f743a206c6f6e674a05312e302e30";

    #[test]
    fn what_an_older_agent_has_left_is_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let instance = InstanceDir::below(dir.path(), (1, 1));
        fs::create_dir(instance.path()).unwrap();
        let digits: Vec<u32> = RECORDED_COMMAND.chars().filter_map(|digit| digit.to_digit(16)).collect();
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect();
        let write = |file: &str, text: &str| fs::write(instance.path().join(file), text).unwrap();
        fs::write(instance.path().join("command"), bytes).unwrap();
        write("started", "1795691189330");
        let own = ProcessId::of(std::process::id().cast_signed()).unwrap();
        let recorded = r#"{"boot_id":"BOOT","process":PROCESS}"#.replace("BOOT", &clock::boot_id());
        // Only the numbers differ.
        let process = serde_json::to_string(&own).unwrap();
        assert!(process.starts_with(r#"{"pid":"#) && process.contains(r#","start_time":"#), "{process}");
        write("supervisor", &recorded.replace("PROCESS", &process));
        write("init", r#"{"boot_id":"29a5dc42-c585-4513-ac03-cc9db4a02720","process":{"pid":1,"start_time":4553607}}"#);

        let command = instance.command().expect("it is understood");
        assert_eq!((command.claim.as_str(), number(&command.generation.unwrap())), ("1.0.0.1", (1, 1)));
        assert_eq!(command.amounts.unwrap().devices[0].core_millis, 300);
        let process = command.process.unwrap();
        assert_eq!((process.log.as_str(), process.grace_ms, process.secrets.len()), ("1.0.0", 10_000, 0));
        let seen = instance.look();
        assert_eq!(seen, Seen { is_alive: true, started_unix_ms: Some(1_795_691_189_330), end: None });
        let end =
            r#"{"failure":null,"exit_code":7,"signal":0,"reason":"exited","started_unix_ms":5,"ended_unix_ms":6}"#;
        write("end", &format!("{end:4096}"));
        let end = instance.look().end.expect("it is understood");
        assert_eq!((end.exit_code, end.reason, end.is_nodes_fault), (Some(7), Reason::Exited, false));
        write("stop", "\"time-limit\"");
        assert_eq!(instance.stop(), Some(Reason::TimeLimit));
    }

    #[test]
    fn an_end_is_noted_once_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let instance = InstanceDir::below(dir.path(), (2, 3));
        instance.create(&start()).unwrap();
        assert_eq!(instance.look(), Seen::default());
        instance.note_supervisor(ProcessId::of(std::process::id().cast_signed()).unwrap()).unwrap();
        instance.note_started(5).unwrap();
        let end = End { exit_code: Some(7), started_unix_ms: 5, ..End::unknown(Reason::Exited) };
        instance.note_end(&end).unwrap();
        assert_eq!(instance.look(), Seen { is_alive: true, started_unix_ms: Some(5), end: Some(end) });
    }

    #[test]
    fn an_explanation_fits_into_the_room_that_is_kept() {
        let end = End::failed("ä".repeat(5000));
        assert!(serde_json::to_vec(&end).unwrap().len() <= END_BYTES_MAX);
        let end = End::failed("\u{1}".repeat(5000));
        assert!(end.failure.unwrap().len() <= FAILURE_BYTES_MAX);
    }

    #[test]
    fn the_first_reason_to_stop_stays() {
        let dir = tempfile::tempdir().unwrap();
        let instance = InstanceDir::below(dir.path(), (2, 3));
        instance.create(&start()).unwrap();
        instance.note_stop(Reason::Lease).unwrap();
        instance.note_stop(Reason::Stopped).unwrap();
        assert_eq!(instance.stop(), Some(Reason::Lease));
    }
}
