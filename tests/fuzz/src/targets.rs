//! The fuzz targets.

use std::path::Path;
use std::sync::LazyLock;

use aliquot_abi::region::{AttachMessage, DEVICES_MAX, SLOTS_MAX};
use aliquot_manager::fuzzing::{self, HostileLedger};
use tempfile::TempDir;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, as in `fuzz_targets` and `corpus`.
    pub name: &'static str,
    /// The target's function, which must accept any bytes.
    pub run: fn(&[u8]),
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "attach_message", run: attach_message },
    Target { name: "checkpoint", run: checkpoint },
    Target { name: "client", run: client },
    Target { name: "config", run: config },
    Target { name: "ledger", run: ledger },
    Target { name: "processes", run: processes },
    Target { name: "slices", run: slices },
];

/// A message of a container's process on the attach socket. An accepted message must be valid and within its bounds.
pub fn attach_message(bytes: &[u8]) {
    if let Some(message) = AttachMessage::from_bytes(bytes) {
        assert_eq!(message.to_bytes(), bytes);
        assert!((message.slot as usize) < SLOTS_MAX && (message.device as usize) < DEVICES_MAX);
        assert!(matches!(message.kind, AttachMessage::ATTACH | AttachMessage::RING | AttachMessage::LOOK));
    }
}

/// The manager's checkpoint.
pub fn checkpoint(bytes: &[u8]) {
    thread_local!(static DIR: TempDir = directory());
    DIR.with(|dir| fuzzing::checkpoint(dir.path(), bytes));
}

/// The bytes that a client sends to the manager's socket.
pub fn client(bytes: &[u8]) {
    fuzzing::client(bytes);
}

/// The manager's configuration file.
pub fn config(bytes: &[u8]) {
    thread_local!(static DIR: TempDir = directory());
    DIR.with(|dir| fuzzing::config(dir.path(), bytes));
}

/// A ledger with arbitrary writes by a process of the container. Every twelve bytes are one write: four bytes offset,
/// eight bytes value.
pub fn ledger(bytes: &[u8]) {
    thread_local!(static LEDGER: HostileLedger = HostileLedger::new().expect("there is memory for a ledger"));
    LEDGER.with(|ledger| {
        ledger.clear().expect("the test's own file can be emptied");
        let (writes, _) = bytes.as_chunks::<12>();
        for &[o0, o1, o2, o3, value @ ..] in writes {
            let offset = u32::from_le_bytes([o0, o1, o2, o3]);
            ledger.write(offset.into(), u64::from_le_bytes(value)).expect("the test's own file can be written");
        }
        ledger.look();
        ledger.reclaim();
    });
}

/// The kernel's files about a process.
pub fn processes(bytes: &[u8]) {
    fuzzing::processes(bytes);
}

/// A sequence of requests for slices.
pub fn slices(bytes: &[u8]) {
    fuzzing::slices(bytes);
}

fn directory() -> TempDir {
    /// On a memory file system if there is one: the files are written some thousand times per second.
    static PARENT: LazyLock<&Path> = LazyLock::new(|| {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { memory } else { Path::new("/tmp") }
    });
    tempfile::tempdir_in(*PARENT).expect("a directory for files can be made")
}
