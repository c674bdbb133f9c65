//! Regions: the files that the manager and the processes of a container share. See `aliquot_abi::region`.
//!
//! Apart from two modules below `nvml`, which call the driver's library, only this module and those below it contain
//! `unsafe` code. Their functions are safe for the rest of the manager whatever the container does to its ledger, which
//! it can write, truncate and unmap at any time:
//!
//! * The ledger is read only through atomics, and through values that were bounded here ([`view`]).
//! * A page that the container has truncated away raises SIGBUS when it is read. The handler in [`fault`] maps a page
//!   of zeros in its place and marks the region as damaged.
//! * A damaged region ([`damage`]) gives its processes nothing more. Its slice can still be listed and removed.
//!
//! # Leftovers of a crash
//!
//! A region is made in a directory of another name (`.new-<id>`) that is renamed when it is complete. To remove a
//! region, its directory is first renamed (`.old-<id>`). So a directory with a proper name is complete, and
//! [`files::RegionDirs::remove_residue`] removes all others at the start. The limits of a removed region are revoked
//! ([`files::RegionDirs::revoke`]), so a process that still maps it gets nothing more.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use aliquot_abi::handshake;
use aliquot_abi::region::{
    DEVICES_MAX, DeviceCounters, DeviceLimits, DeviceWaits, HeaderError, LEDGER_FILE, LEDGER_FILE_BYTES, LIMITS_FILE,
    LIMITS_FILE_BYTES, LIMITS_MAGIC, Ledger, Limits, gate,
};
use rustix::thread::futex;

use crate::slices::{Part, Slice, SliceId};

pub(crate) mod admission;
mod damage;
mod fault;
pub(crate) mod files;
#[cfg(feature = "fuzzing")]
pub(crate) mod hostile;
pub(crate) mod manifest;
mod map;
pub(crate) mod view;

use damage::Files;
use map::Mapping;

/// The files of a region, mapped.
pub(crate) struct Region {
    id: SliceId,
    dir: PathBuf,
    shim_path: PathBuf,
    stand_in: Option<PathBuf>,
    limits: Mapping<Limits>,
    ledger: Mapping<Ledger>,
    ledger_file: File,
    /// Identities of the files when they were opened.
    files: Files,
    device_count: usize,
}

/// Why a region cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenRegionError {
    /// A file cannot be opened or mapped.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The path of that file.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
    /// A file is too short.
    #[error("{} has {found_bytes} bytes instead of {expected_bytes}: it was truncated", path.display())]
    Size {
        /// The path of that file.
        path: PathBuf,
        /// Its present size, in bytes.
        found_bytes: u64,
        /// The size that it must have.
        expected_bytes: u64,
    },
    /// A file has another version, or is not such a file at all.
    #[error("{} cannot be understood: {}", path.display(), header(.error))]
    Header {
        /// The path of that file.
        path: PathBuf,
        /// The part of the header that is wrong.
        error: HeaderError,
    },
    /// The files belong to another slice.
    #[error("{} belongs to another slice", path.display())]
    Foreign {
        /// The path of that file.
        path: PathBuf,
    },
    /// The region lies in a directory that every user can reach.
    #[error("{} was made by a manager that left regions open to every user of the node", path.display())]
    Open {
        /// The directory where it belongs.
        path: PathBuf,
    },
    /// The directory holds no shim.
    #[error("{} holds no shim", path.display())]
    NoShim {
        /// The directory that should hold the shim.
        path: PathBuf,
    },
}

/// A device's share in a region's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Guaranteed share of the device's time.
    pub core_request_percent: u32,
    /// Maximum share of the device's time.
    pub core_limit_percent: u32,
    /// Maximum memory of the device.
    pub memory_limit_bytes: u64,
}

impl OpenRegionError {
    /// Whether the region was made by a manager with another major version of the layout.
    #[must_use]
    pub(crate) fn is_of_other_version(&self) -> bool {
        matches!(self, OpenRegionError::Header { error: HeaderError::WrongMajor { .. }, .. })
    }
}

fn header(error: &HeaderError) -> String {
    match error {
        HeaderError::NotReady => "it is not complete".into(),
        HeaderError::WrongMagic { found } => format!("it begins with {found:#x}"),
        HeaderError::WrongMajor { found } => {
            format!("it is of version {found}, and this manager knows version {}", aliquot_abi::region::MAJOR)
        }
        HeaderError::WrongSize { found_bytes } => format!("it says that it has {found_bytes} bytes"),
    }
}

impl Region {
    /// Maps the region of slice `id` in `dir`, as the previous manager left it.
    ///
    /// # Errors
    /// See [`OpenRegionError`].
    pub(crate) fn open(id: SliceId, dir: &Path) -> Result<Region, OpenRegionError> {
        let (limits, limits_file) = Mapping::<Limits>::open(&dir.join(LIMITS_FILE), LIMITS_FILE_BYTES)?;
        check(&dir.join(LIMITS_FILE), limits.header.check(LIMITS_MAGIC, LIMITS_FILE_BYTES), &limits.header, id)?;
        // A manager with fewer fields has allocated less of the file.
        files::back(&limits_file, size_of::<Limits>())
            .map_err(|source| OpenRegionError::Io { path: dir.join(LIMITS_FILE), source })?;
        let device_count = (limits.device_count.load(Ordering::Relaxed) as usize).min(DEVICES_MAX);
        // Only the manager sets the flags. Facts about memory are learned again.
        limits.flags.store(0, Ordering::Relaxed);
        for device in &limits.devices {
            for bytes in [&device.memory_overhead_bytes, &device.context_bytes] {
                if bytes.load(Ordering::Relaxed) > view::USED_BYTES_MAX {
                    bytes.store(0, Ordering::Relaxed);
                }
            }
        }
        let open = || {
            // A wrong header of the ledger is not an error here: it is damage by the container, and the limits still
            // work.
            let (ledger, ledger_file) = Mapping::<Ledger>::open(&dir.join(LEDGER_FILE), LEDGER_FILE_BYTES)?;
            let shim_path = files::find_shim(dir)?;
            let stand_in = files::find_stand_in(dir, &shim_path);
            let files = Files::at(dir, &shim_path);
            Ok((ledger, ledger_file, shim_path, stand_in, files))
        };
        // Processes may have these limits mapped, and no manager will write to them again.
        let opened = open().inspect_err(|_| revoke(&limits, device_count));
        let (ledger, ledger_file, shim_path, stand_in, files) = opened?;
        Ok(Region { id, dir: dir.into(), shim_path, stand_in, limits, ledger, ledger_file, files, device_count })
    }

    /// Revokes everything in the region of slice `id` in `dir`, of which only the limits need be there: processes may
    /// have them mapped, although no manager writes to them again.
    ///
    /// # Errors
    /// See [`OpenRegionError`].
    pub(crate) fn revoke_in(id: SliceId, dir: &Path) -> Result<(), OpenRegionError> {
        let path = dir.join(LIMITS_FILE);
        let (limits, _) = Mapping::<Limits>::open(&path, LIMITS_FILE_BYTES)?;
        check(&path, limits.header.check(LIMITS_MAGIC, LIMITS_FILE_BYTES), &limits.header, id)?;
        revoke(&limits, (limits.device_count.load(Ordering::Relaxed) as usize).min(DEVICES_MAX));
        Ok(())
    }

    /// The directory that holds the region's files.
    #[must_use]
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The library to preload.
    #[must_use]
    pub(crate) fn shim_path(&self) -> &Path {
        &self.shim_path
    }

    /// The libraries to preload: the shim, and after it the stand-in for processes that cannot open the shim.
    pub(crate) fn preload(&self) -> impl Iterator<Item = &Path> {
        [Some(self.shim_path()), self.stand_in()].into_iter().flatten()
    }

    /// The stand-in that is preloaded after the shim; `None` if the file system supports no links. See [`files`].
    #[must_use]
    pub(crate) fn stand_in(&self) -> Option<&Path> {
        self.stand_in.as_deref()
    }

    /// How many devices it has.
    #[must_use]
    pub(crate) fn device_count(&self) -> usize {
        self.device_count
    }

    /// The limits on device number `device`.
    ///
    /// # Panics
    /// No region has a device of this number, which is a mistake of the caller.
    #[must_use]
    pub(crate) fn device_limits(&self, device: usize) -> &DeviceLimits {
        &self.limits.devices[device]
    }

    /// Counters of what the container has used of device number `device`.
    ///
    /// # Panics
    /// No region has a device of this number, which is a mistake of the caller.
    #[must_use]
    pub(crate) fn counters(&self, device: usize) -> &DeviceCounters {
        &self.limits.counters[device]
    }

    /// The container's waits for leases of device number `device`.
    ///
    /// # Panics
    /// No region has a device of this number, which is a mistake of the caller.
    #[must_use]
    pub(crate) fn waits(&self, device: usize) -> &DeviceWaits {
        &self.limits.waits[device]
    }

    /// The ledger, for the protocols of `aliquot_abi::ledger`. The container controls its values: bound them, or use
    /// [`view`].
    #[must_use]
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Maximum bytes of page-locked host memory; 0: no limit.
    #[must_use]
    pub(crate) fn host_memory_limit_bytes(&self) -> u64 {
        self.limits.host_memory_limit_bytes.load(Ordering::Relaxed)
    }

    /// The share of each device, with the device's sixteen UUID bytes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = ([u8; 16], Shares)> + '_ {
        let value = |word: &AtomicU32| word.load(Ordering::Relaxed);
        self.limits.devices.iter().take(self.device_count).map(move |limits| {
            let shares = Shares {
                core_request_percent: value(&limits.core_request_percent),
                core_limit_percent: value(&limits.core_limit_percent),
                memory_limit_bytes: limits.memory_limit_bytes.load(Ordering::Relaxed),
            };
            (limits.uuid, shares)
        })
    }

    /// Writes the limits of `slice`.
    pub(crate) fn write_limits(&self, slice: &Slice) {
        files::write_limits(&self.limits, slice);
    }

    /// Revokes everything: no allocation succeeds, no gate opens, and a process that paces itself because the heartbeat
    /// has stopped gets no time either.
    pub(crate) fn revoke(&self) {
        revoke(&self.limits, self.device_count);
    }

    /// Whether everything was revoked. No slice has a limit of 0 percent otherwise.
    #[must_use]
    pub(crate) fn is_revoked(&self) -> bool {
        self.limits.devices[0].core_limit_percent.load(Ordering::Relaxed) == 0
    }

    /// Whether the region was made for the devices of these parts.
    #[must_use]
    pub(crate) fn is_of(&self, parts: &[Part]) -> bool {
        self.device_count == parts.len()
            && parts.iter().zip(&self.limits.devices).all(|(part, limits)| part.device.bytes() == Some(limits.uuid))
    }

    /// Sets the heartbeat to `now_ns`.
    pub(crate) fn beat(&self, now_ns: u64) {
        self.limits.heartbeat_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Sets the gate of a device to `flags`, with a new count. If that opens it, wakes all threads that wait for it.
    pub(crate) fn set_gate(&self, device: usize, flags: u32) {
        set_gate(&self.limits, device, flags);
    }

    /// Advances the gate's count and keeps its flags.
    pub(crate) fn tick_gate(&self, device: usize) {
        self.limits.devices[device].gate.fetch_add(gate::TICK, Ordering::Release);
    }
}

fn set_gate(limits: &Limits, device: usize, flags: u32) {
    let gate = &limits.devices[device].gate;
    let before = handshake::set(gate, flags);
    if flags & gate::OPEN != 0 && before & gate::OPEN == 0 {
        // A shared futex, because the waiters are other processes. It cannot fail on a mapped word.
        let _ = futex::wake(gate, futex::Flags::empty(), i32::MAX as u32);
    }
}

fn revoke(limits: &Limits, device_count: usize) {
    for device in 0..device_count {
        limits.devices[device].memory_limit_bytes.store(0, Ordering::Relaxed);
        limits.devices[device].core_limit_percent.store(0, Ordering::Relaxed);
        set_gate(limits, device, 0);
    }
    // The smallest limit, because 0 means no limit.
    limits.host_memory_limit_bytes.store(1, Ordering::Relaxed);
}

fn check(
    path: &Path,
    outcome: Result<(), HeaderError>,
    found: &aliquot_abi::region::Header,
    id: SliceId,
) -> Result<(), OpenRegionError> {
    outcome.map_err(|error| OpenRegionError::Header { path: path.into(), error })?;
    if found.region_id.load(Ordering::Relaxed) != id.region_id() {
        return Err(OpenRegionError::Foreign { path: path.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
