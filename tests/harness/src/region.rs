//! A slice made by hand, without a manager.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use aliquot_abi::ledger;
use aliquot_abi::region::{
    CONTEXT_NEGLIGIBLE, LEDGER_FILE, LEDGER_FILE_BYTES, LEDGER_MAGIC, LIMITS_FILE, LIMITS_FILE_BYTES, LIMITS_MAGIC,
    Ledger, Limits, gate,
};
use tempfile::TempDir;

use crate::{Mapped, SimulatedGpu, artifacts};

/// A region like those of the manager, but without a manager: limits and gates stay as the test sets them, and the
/// memory charged to dead processes is not given back. For tests of the shim alone.
pub struct Region {
    dir: TempDir,
    limits: Mapped<Limits>,
    ledger: Mapped<Ledger>,
}

/// A region's part of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Index of the device in the machine.
    pub device: usize,
    /// The limit of the part's memory, in bytes.
    pub memory_limit_bytes: u64,
}

/// The shim's file name in a region made by hand.
const SHIM_FILE: &str = "libaliquot-shim.so";

impl Region {
    /// A region with `memory_limit_bytes` of the machine's first device. Its gate stays open.
    #[must_use]
    pub fn new(gpu: &SimulatedGpu, memory_limit_bytes: u64) -> Region {
        Region::with_parts(gpu, &[Part { device: 0, memory_limit_bytes }])
    }

    /// A region with all memory and time of all the machine's devices: the shim is loaded but limits nothing.
    #[must_use]
    pub fn unlimited(gpu: &SimulatedGpu) -> Region {
        let devices = gpu.config().devices.iter().enumerate();
        let parts: Vec<Part> =
            devices.map(|(device, config)| Part { device, memory_limit_bytes: config.memory_bytes }).collect();
        Region::with_parts(gpu, &parts)
    }

    /// A region with these parts, in this order.
    #[must_use]
    pub fn with_parts(gpu: &SimulatedGpu, parts: &[Part]) -> Region {
        let dir = tempfile::Builder::new()
            .prefix("aliquot-region-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir_in(base())
            .expect("a temporary directory");
        fs::copy(artifacts::shim(), dir.path().join(SHIM_FILE)).expect("a copy of the shim");
        for (name, bytes, mode) in [(LIMITS_FILE, LIMITS_FILE_BYTES, 0o444), (LEDGER_FILE, LEDGER_FILE_BYTES, 0o666)] {
            let file = File::create_new(dir.path().join(name)).expect("a file in the region");
            file.set_len(bytes as u64).expect("a file of its full size");
            file.set_permissions(Permissions::from_mode(mode)).expect("the file's permissions");
        }
        let limits = Mapped::<Limits>::open(&dir.path().join(LIMITS_FILE));
        let ledger = Mapped::<Ledger>::open(&dir.path().join(LEDGER_FILE));
        let region = Region { dir, limits, ledger };
        region.publish(gpu, parts);
        region
    }

    fn publish(&self, gpu: &SimulatedGpu, parts: &[Part]) {
        // A heartbeat in the far future never becomes stale, so no manager is needed.
        self.limits.heartbeat_ns.store(u64::MAX, Ordering::Relaxed);
        self.limits.device_count.store(parts.len() as u32, Ordering::Relaxed);
        for (part, limits) in parts.iter().zip(&self.limits.devices) {
            limits.gate.store(gate::OPEN | gate::FREE, Ordering::Relaxed);
            limits.marker_launches_max.store(16, Ordering::Relaxed);
            limits.inflight_ns_max.store(4_000_000, Ordering::Relaxed);
            limits.core_limit_percent.store(100, Ordering::Relaxed);
            limits.core_request_percent.store(100, Ordering::Relaxed);
            limits.memory_limit_bytes.store(part.memory_limit_bytes, Ordering::Relaxed);
            // No manager measures the memory of contexts.
            limits.context_bytes.store(CONTEXT_NEGLIGIBLE, Ordering::Relaxed);
            let uuid = gpu.config().devices[part.device].uuid;
            // SAFETY: no process knows this region yet, so none reads the UUID while it is written; the address lies in
            // a writable mapping.
            unsafe { std::ptr::from_ref(&limits.uuid).cast_mut().write_volatile(uuid) };
        }
        self.ledger.header.publish(LEDGER_MAGIC, LEDGER_FILE_BYTES, 1);
        self.limits.header.publish(LIMITS_MAGIC, LIMITS_FILE_BYTES, 1);
    }

    /// Makes `command` run in this region. The shim comes before libraries that `command` preloads already.
    pub fn preload_into<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        preload(command, &self.shim())
    }

    /// The shim inside the region.
    #[must_use]
    pub fn shim(&self) -> PathBuf {
        self.dir.path().join(SHIM_FILE)
    }

    /// The path of the region's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Closes the gate of part `part` and marks it as watched by a manager. At an unwatched gate, a process that cannot
    /// ring the manager would pace itself after one second.
    pub fn close_gate(&self, part: usize) {
        self.limits.devices[part].gate.store(gate::WATCHED, Ordering::SeqCst);
    }

    /// The limits, which a test may change as a manager would.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The ledger, which processes of the region write.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Bytes of part `part` in use according to the ledger.
    #[must_use]
    pub fn used_bytes(&self, part: usize) -> u64 {
        ledger::used_bytes(&self.ledger.devices[part])
    }

    /// The largest number of bytes of part `part` ever in use according to the ledger.
    #[must_use]
    pub fn peak_bytes(&self, part: usize) -> u64 {
        self.ledger.devices[part].peak_bytes.load(Ordering::Relaxed)
    }
}

/// The directory for regions: on a memory file system, because a device cannot write to pages of files on a disk. It
/// must also allow libraries to be loaded, which `/dev/shm` does not where it is mounted `noexec`.
pub(crate) fn base() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    let flags = rustix::fs::statvfs(&shm).map(|shm| shm.f_flag);
    match flags {
        Ok(flags) if !flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC) => shm,
        _ => std::env::temp_dir(),
    }
}

/// Puts `library` before the libraries that `command` preloads already.
pub(crate) fn preload<'a>(command: &'a mut Command, library: &Path) -> &'a mut Command {
    let mut list = OsString::from(library);
    let before = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").and_then(|(_, value)| value);
    if let Some(before) = before {
        list.push(":");
        list.push(before);
    }
    command.env("LD_PRELOAD", list)
}
