//! Regions: the files that this manager and the processes of a container share. See `aliquot_abi::region`.
//!
//! This module and those below it are the only ones in the manager with `unsafe` code, but for two below `nvml` that
//! call the driver's library. What they give to others is safe whatever the container does to its ledger, which it can
//! write, truncate and unmap at any time:
//!
//! * the ledger is reached only through atomics and through values that were bounded here ([`view`]);
//! * reading a page that the container has truncated away raises SIGBUS; the handler in [`fault`] puts a page of zeros in its
//!   place and marks the region as damaged;
//! * a damaged region ([`damage`]) gives its processes nothing more; its slice can be described and removed.
//!
//! # What a crash leaves behind
//!
//! A region is made in a directory of another name (`.new-<id>`) and renamed when it is complete, and removed by first
//! renaming it (`.old-<id>`). So whatever has a proper name is complete, and whatever has not is rubbish that
//! [`files::RegionDirs::remove_residue`] removes at start-up. A process that still maps a removed region keeps its last
//! limits, with a heartbeat that has stopped.

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

/// A region, mapped.
pub(crate) struct Region {
    id: SliceId,
    dir: PathBuf,
    shim_path: PathBuf,
    stand_in: Option<PathBuf>,
    limits: Mapping<Limits>,
    ledger: Mapping<Ledger>,
    ledger_file: File,
    /// What was found at their paths when they were opened.
    files: Files,
    device_count: usize,
}

/// Why a region cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenRegionError {
    /// A file cannot be opened or mapped.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is too short.
    #[error("{} has {found_bytes} bytes instead of {expected_bytes}: it was truncated", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size that it must have.
        expected_bytes: u64,
    },
    /// A file is of another version, or no such file at all.
    #[error("{} cannot be understood: {}", path.display(), header(.error))]
    Header {
        /// The file.
        path: PathBuf,
        /// Why.
        error: HeaderError,
    },
    /// The files are of another slice than they should be.
    #[error("{} belongs to another slice", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The region lies in a directory that everybody can reach.
    #[error("{} was made by a manager that left regions open to every user of the node", path.display())]
    Open {
        /// The directory where it should be.
        path: PathBuf,
    },
    /// The directory holds no shim.
    #[error("{} holds no shim", path.display())]
    NoShim {
        /// The directory.
        path: PathBuf,
    },
}

/// What a region's limits say of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Guaranteed share of its time.
    pub core_request_percent: u32,
    /// Share of its time that is never exceeded.
    pub core_limit_percent: u32,
    /// Its memory that is never exceeded.
    pub memory_limit_bytes: u64,
}

impl OpenRegionError {
    /// The region was made by a manager with another major version.
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
    /// Maps the region of slice `id` in `dir`, as it was left by the manager before.
    ///
    /// # Errors
    /// See [`OpenRegionError`].
    pub(crate) fn open(id: SliceId, dir: &Path) -> Result<Region, OpenRegionError> {
        let (limits, limits_file) = Mapping::<Limits>::open(&dir.join(LIMITS_FILE), LIMITS_FILE_BYTES)?;
        check(&dir.join(LIMITS_FILE), limits.header.check(LIMITS_MAGIC, LIMITS_FILE_BYTES), &limits.header, id)?;
        // A manager with fewer fields has backed less of the file.
        files::back(&limits_file, size_of::<Limits>())
            .map_err(|source| OpenRegionError::Io { path: dir.join(LIMITS_FILE), source })?;
        let device_count = (limits.device_count.load(Ordering::Relaxed) as usize).min(DEVICES_MAX);
        // Nobody else sets them, and what was found out about memory is found out again.
        limits.flags.store(0, Ordering::Relaxed);
        for device in &limits.devices {
            for bytes in [&device.memory_overhead_bytes, &device.context_bytes] {
                if bytes.load(Ordering::Relaxed) > view::USED_BYTES_MAX {
                    bytes.store(0, Ordering::Relaxed);
                }
            }
        }
        let open = || {
            // What is wrong with the ledger's header is damage by the container, which does not keep its limits from
            // working.
            let (ledger, ledger_file) = Mapping::<Ledger>::open(&dir.join(LEDGER_FILE), LEDGER_FILE_BYTES)?;
            let shim_path = files::find_shim(dir)?;
            let stand_in = files::find_stand_in(dir, &shim_path);
            let files = Files::at(dir, &shim_path);
            Ok((ledger, ledger_file, shim_path, stand_in, files))
        };
        // Who runs there has these limits mapped, and nobody will ever write to them again.
        let opened = open().inspect_err(|_| revoke(&limits, device_count));
        let (ledger, ledger_file, shim_path, stand_in, files) = opened?;
        Ok(Region { id, dir: dir.into(), shim_path, stand_in, limits, ledger, ledger_file, files, device_count })
    }

    /// Its directory.
    #[must_use]
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The library to preload.
    #[must_use]
    pub(crate) fn shim_path(&self) -> &Path {
        &self.shim_path
    }

    /// What to preload: the library, and behind it what stands in for it where it cannot be opened.
    pub(crate) fn preload(&self) -> impl Iterator<Item = &Path> {
        [Some(self.shim_path()), self.stand_in()].into_iter().flatten()
    }

    /// What is preloaded behind the library; `None` where the file system has no links. See [`files`].
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
    /// There is no device of this number in any region: a mistake of the caller.
    #[must_use]
    pub(crate) fn device_limits(&self, device: usize) -> &DeviceLimits {
        &self.limits.devices[device]
    }

    /// What the container has used of device number `device`.
    ///
    /// # Panics
    /// There is no device of this number in any region: a mistake of the caller.
    #[must_use]
    pub(crate) fn counters(&self, device: usize) -> &DeviceCounters {
        &self.limits.counters[device]
    }

    /// How the container has waited for leases of device number `device`.
    ///
    /// # Panics
    /// There is no device of this number in any region: a mistake of the caller.
    #[must_use]
    pub(crate) fn waits(&self, device: usize) -> &DeviceWaits {
        &self.limits.waits[device]
    }

    /// The ledger, for the protocols of `aliquot_abi::ledger`. Its values are the container's: bound them, or use
    /// [`view`].
    #[must_use]
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Bytes of page-locked host memory that are never exceeded; 0: no limit.
    #[must_use]
    pub(crate) fn host_memory_limit_bytes(&self) -> u64 {
        self.limits.host_memory_limit_bytes.load(Ordering::Relaxed)
    }

    /// What the limits say of each device, by the device's sixteen bytes.
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

    /// Writes what `slice` may use.
    pub(crate) fn write_limits(&self, slice: &Slice) {
        files::write_limits(&self.limits, slice);
    }

    /// Takes away everything: nothing more can be allocated, no gate opens any more, and a process that paces itself
    /// because the heartbeat has stopped gets no time either.
    pub(crate) fn revoke(&self) {
        revoke(&self.limits, self.device_count);
    }

    /// Whether everything was taken away: no slice has a share of nothing.
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

    /// Gives a sign of life at `now_ns`.
    pub(crate) fn beat(&self, now_ns: u64) {
        self.limits.heartbeat_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Sets the gate of a device to `flags`, with a new count. Wakes all who wait for it if it is open now.
    pub(crate) fn set_gate(&self, device: usize, flags: u32) {
        set_gate(&self.limits, device, flags);
    }

    /// Advances the gate's count and leaves its flags.
    pub(crate) fn tick_gate(&self, device: usize) {
        self.limits.devices[device].gate.fetch_add(gate::TICK, Ordering::Release);
    }
}

fn set_gate(limits: &Limits, device: usize, flags: u32) {
    let gate = &limits.devices[device].gate;
    let before = handshake::set(gate, flags);
    if flags & gate::OPEN != 0 && before & gate::OPEN == 0 {
        // A shared futex: the waiters are other processes. It cannot fail on a word that is mapped.
        let _ = futex::wake(gate, futex::Flags::empty(), i32::MAX as u32);
    }
}

fn revoke(limits: &Limits, device_count: usize) {
    for device in 0..device_count {
        limits.devices[device].memory_limit_bytes.store(0, Ordering::Relaxed);
        limits.devices[device].core_limit_percent.store(0, Ordering::Relaxed);
        set_gate(limits, device, 0);
    }
    // The least that is a limit: 0 is none.
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
