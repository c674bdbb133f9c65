//! The targets.

use std::path::Path;
use std::sync::LazyLock;

use aliquot_abi::region::{AttachMessage, DEVICES_MAX, SLOTS_MAX};
use aliquot_manager::fuzzing::{self, HostileLedger};
use tempfile::TempDir;

/// A target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, as in `fuzz_targets` and `corpus`.
    pub name: &'static str,
    /// Takes any bytes.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "attach_message", run: attach_message },
    Target { name: "checkpoint", run: checkpoint },
    Target { name: "client", run: client },
    Target { name: "config", run: config },
    Target { name: "ledger", run: ledger },
    Target { name: "processes", run: processes },
    Target { name: "slices", run: slices },
];

/// What a process of a container sends on the attach socket: what is taken for a message is one, within its bounds.
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

/// What a client of the manager's socket sends.
pub fn client(bytes: &[u8]) {
    fuzzing::client(bytes);
}

/// The manager's configuration file.
pub fn config(bytes: &[u8]) {
    thread_local!(static DIR: TempDir = directory());
    DIR.with(|dir| fuzzing::config(dir.path(), bytes));
}

/// A ledger in which a process of the container has written what it likes. Each twelve bytes are one such write: four
/// of the offset, eight of the value.
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

/// What the kernel says of a process.
pub fn processes(bytes: &[u8]) {
    fuzzing::processes(bytes);
}

/// Requests for slices.
pub fn slices(bytes: &[u8]) {
    fuzzing::slices(bytes);
}

fn directory() -> TempDir {
    /// In memory, where there is such a place: the files are written some thousand times a second.
    static PARENT: LazyLock<&Path> = LazyLock::new(|| {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { memory } else { Path::new("/tmp") }
    });
    tempfile::tempdir_in(*PARENT).expect("a directory for files can be made")
}
