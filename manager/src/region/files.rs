//! Makes, finds and removes the files of regions.
//!
//! ```text
//! <runtime>/lib/libaliquot-<hash>.so             the shim of this manager, and those that regions have links of
//! <runtime>/lib/limits                           empty: see below
//! <runtime>/slices/<id>/                         closed to all but this manager and the slice's users; slice.json
//! <runtime>/slices/<id>/region/                  a region: limits, ledger, attach.sock, libaliquot-<hash>.so
//! <runtime>/slices/.new-<id>/ .old-<id>/         one that is being made or removed
//! ```
//!
//! # Who can open a region's files
//!
//! Only the processes of its slice, whichever user they run as. In a container that can be any user, so the files' own
//! modes are open to all; the way to the files is closed. A container has the region bind-mounted, which needs no right
//! to the directories above it. On the node the directory around the region lets through only its owner, this manager's
//! user, and the users that the slice was made for ([`admission`](super::admission)). So a stranger cannot connect,
//! even if `/proc/net/unix` shows the socket's path. A user who may trace a process of the slice can reach the files by
//! `/proc/PID/root`, but could act as that process anyhow.
//!
//! A region is no sealed memory file: that cannot be bind-mounted, and handing it to each new process would need a
//! manager that is alive. So a tenant can truncate the ledger of its slice, and harms only itself
//! ([`fault`](super::fault)).
//!
//! # The stand-in
//!
//! The loader ignores a library that it cannot open: a program that has become another user, or whose region was
//! deleted, would run without limits. So `lib` has an empty limits file: what loads the shim from there finds a region
//! that is damaged, and gets nothing. It is preloaded behind the slice's own, which is a link to the same file: where that
//! can be opened, the loader takes the second name for the first library.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use aliquot_abi::region::{
    DeviceLimits, LEDGER_BACKED_BYTES, LEDGER_FILE, LEDGER_FILE_BYTES, LEDGER_MAGIC, LIMITS_FILE, LIMITS_FILE_BYTES,
    LIMITS_MAGIC, Ledger, Limits,
};
use rustix::fs::{FallocateFlags, fallocate};

use crate::procfs::{self, FileId};
use crate::region::admission::{AdmissionError, admit};
use crate::region::manifest::Manifest;
use crate::region::map::Mapping;
use crate::region::{OpenRegionError, Region};
use crate::shim_image;
use crate::slices::{Part, Slice, SliceId};

/// Launches between two progress markers of one thread at most. Threads share the words of markers: with 64, the shim
/// added 8 ns to a launch by one thread, and 16 ns to launches by two.
const MARKER_LAUNCHES_MAX: u32 = 256;
/// Work in flight that a launch may add to: small against a lease, and long enough that the device stays at work while
/// the launching thread sleeps or waits for a processor.
const INFLIGHT_NS_MAX: u32 = 4_000_000;

/// The region's own directory, in the one that is named after its slice.
pub(crate) const REGION_DIR: &str = "region";

/// The directories that regions live in.
#[derive(Clone, Debug)]
pub(crate) struct RegionDirs {
    runtime_dir: PathBuf,
    slices: PathBuf,
    lib: PathBuf,
    shim: PathBuf,
}

/// Why a region is not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateRegionError {
    /// A file cannot be made.
    #[error("cannot make {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was made, but cannot be used.
    #[error(transparent)]
    Open(#[from] OpenRegionError),
    /// A user cannot be let in.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> CreateRegionError + '_ {
    move |source| CreateRegionError::Io { path: path.into(), source }
}

impl RegionDirs {
    /// The directory that they are all below.
    #[must_use]
    pub(crate) fn runtime_dir(&self) -> &Path {
        self.slices.parent().unwrap_or(&self.slices)
    }

    /// Makes the directories below `runtime_dir`, and the shim's file in them.
    ///
    /// # Errors
    /// A directory or the shim's file cannot be made.
    pub(crate) fn prepare(runtime_dir: &Path) -> Result<RegionDirs, CreateRegionError> {
        let (slices, lib) = (runtime_dir.join("slices"), runtime_dir.join("lib"));
        // Not to be listed: which slices there are is nobody's business.
        make_dir(&slices, 0o711)?;
        make_dir(&lib, 0o755)?;
        let shim = lib.join(shim_image::file_name());
        // Its name says its contents, but a file that was cut short by a full disk has the same name.
        if fs::read(&shim).ok().as_deref() != Some(shim_image::bytes()) {
            let new = lib.join(".new");
            write_file(&new, shim_image::bytes(), 0o555)?;
            fs::rename(&new, &shim).map_err(io_at(&shim))?;
        }
        close(&lib)?;
        let dirs = RegionDirs { runtime_dir: runtime_dir.into(), slices, lib, shim };
        dirs.drop_unused_shims();
        Ok(dirs)
    }

    /// Removes the shims of other versions that no region has a link of any more.
    fn drop_unused_shims(&self) {
        let entries = fs::read_dir(&self.lib).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.path() != self.shim && entry.file_name() != LIMITS_FILE) {
            if entry.metadata().is_ok_and(|file| file.nlink() <= 1) {
                // It is in nobody's way, and is tried again.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The directory of the region of slice `id`, whether there is one or not.
    #[must_use]
    pub(crate) fn region(&self, id: SliceId) -> PathBuf {
        self.around(id).join(REGION_DIR)
    }

    /// The directory around it.
    fn around(&self, id: SliceId) -> PathBuf {
        self.slices.join(id.to_string())
    }

    /// Where all regions are.
    #[must_use]
    pub(crate) fn slices(&self) -> &Path {
        &self.slices
    }

    /// Writes down what the limits do not say of `slice`, beside its region.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn describe(&self, slice: &Slice) -> Result<(), CreateRegionError> {
        let dir = self.around(slice.id);
        Manifest { boot_id: procfs::boot_id(), slice: slice.clone() }.write(&dir).map_err(io_at(&dir))
    }

    /// Lets the users of `slice` come to its region, and no others.
    ///
    /// # Errors
    /// The file system keeps no access control lists.
    pub(crate) fn admit(&self, slice: &Slice) -> Result<(), CreateRegionError> {
        Ok(admit(&self.around(slice.id), &slice.users)?)
    }

    /// What was written down of slice `id`.
    #[must_use]
    pub(crate) fn description(&self, id: SliceId) -> Option<Manifest> {
        Manifest::read(&self.around(id), id)
    }

    /// The regions that are there.
    ///
    /// # Errors
    /// They cannot be listed.
    pub(crate) fn ids(&self) -> Result<Vec<SliceId>, CreateRegionError> {
        let entries = fs::read_dir(&self.slices).map_err(io_at(&self.slices))?.flatten();
        Ok(entries.filter_map(|entry| SliceId::parse(entry.file_name().to_str()?)).collect())
    }

    /// Whether a manager that made regions without a directory around them has left one of slice `id`. It is closed to
    /// strangers then: containers have it mounted, and others that use it have it mapped.
    ///
    /// # Errors
    /// It cannot be closed.
    pub(crate) fn close_open_region(&self, id: SliceId) -> Result<bool, CreateRegionError> {
        let around = self.around(id);
        if !around.join(LIMITS_FILE).exists() {
            return Ok(false);
        }
        fs::set_permissions(&around, Permissions::from_mode(0o700)).map_err(io_at(&around))?;
        Ok(true)
    }

    fn new_region(&self, id: SliceId) -> PathBuf {
        self.slices.join(format!(".new-{id}"))
    }

    fn retired(&self, id: SliceId) -> PathBuf {
        self.slices.join(format!(".old-{id}"))
    }

    /// Makes the region of `slice` and maps it.
    ///
    /// # Errors
    /// A file cannot be made, for example because the disk is full; nothing is left behind.
    pub(crate) fn create(&self, slice: &Slice) -> Result<Region, CreateRegionError> {
        let (new, around) = (self.new_region(slice.id), self.around(slice.id));
        let make = || {
            // What a manager before could neither finish nor remove.
            remove_all(&new)?;
            self.make_around(&new, &slice.users)?;
            self.fill(&new.join(REGION_DIR), slice)?;
            let manifest = Manifest { boot_id: procfs::boot_id(), slice: slice.clone() };
            manifest.write(&new).map_err(io_at(&new))?;
            fs::rename(&new, &around).map_err(io_at(&around))
        };
        make().inspect_err(|_| drop(fs::remove_dir_all(&new)))?;
        Region::open(slice.id, &self.region(slice.id)).map_err(|error| {
            let _ = fs::remove_dir_all(&around);
            error.into()
        })
    }

    /// Makes a directory that only this manager and `users` get through, and one in it for a region.
    fn make_around(&self, around: &Path, users: &BTreeSet<u32>) -> Result<(), CreateRegionError> {
        make_dir(around, 0o700)?;
        make_dir(&around.join(REGION_DIR), 0o755)?;
        Ok(admit(around, users)?)
    }

    /// Puts one that gives nothing in the place of the region of slice `id`, of which a file is gone or is another one:
    /// what is started there now must not take it for no region, or use what somebody has put there. Nothing is done
    /// where such a one is already.
    ///
    /// # Errors
    /// It cannot be made, for example because the disk is full.
    pub(crate) fn make_closed(
        &self,
        id: SliceId,
        users: &BTreeSet<u32>,
        shim: &OsStr,
    ) -> Result<(), CreateRegionError> {
        let (new, around) = (self.new_region(id), self.around(id));
        if has_empty_limits(&self.region(id)) && self.region(id).join(shim).exists() {
            return Ok(());
        }
        let make = || {
            // They may have been deleted with all that is in them.
            if !self.runtime_dir.exists() {
                make_dir(&self.runtime_dir, 0o755)?;
            }
            RegionDirs::prepare(&self.runtime_dir)?;
            let stand_in = self.lib.join(shim);
            if !stand_in.exists() {
                self.link_shim(&self.shim, &stand_in)?;
            }
            remove_all(&new)?;
            self.make_around(&new, users)?;
            let dir = new.join(REGION_DIR);
            close(&dir)?;
            self.link_shim(&stand_in, &dir.join(shim))?;
            self.retire(id)?;
            self.discard(id)?;
            fs::rename(&new, &around).map_err(io_at(&around))
        };
        make().inspect_err(|_| drop(fs::remove_dir_all(&new)))
    }

    fn link_shim(&self, from: &Path, to: &Path) -> Result<(), CreateRegionError> {
        // A copy where links are not possible.
        fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop)).map_err(io_at(to))
    }

    fn fill(&self, dir: &Path, slice: &Slice) -> Result<(), CreateRegionError> {
        let id = slice.id.region_id();
        // Writable for its owner, this manager: the next one maps it again without being root.
        make_shared(&dir.join(LIMITS_FILE), LIMITS_FILE_BYTES, size_of::<Limits>(), 0o644, |file| {
            write_uuids(file, &slice.parts)?;
            let limits = Mapping::<Limits>::new(file, LIMITS_FILE_BYTES)?;
            limits.device_count.store(slice.parts.len() as u32, Ordering::Relaxed);
            write_limits(&limits, slice);
            limits.header.publish(LIMITS_MAGIC, LIMITS_FILE_BYTES, id);
            Ok(())
        })?;
        make_shared(&dir.join(LEDGER_FILE), LEDGER_FILE_BYTES, LEDGER_BACKED_BYTES, 0o666, |file| {
            let ledger = Mapping::<Ledger>::new(file, LEDGER_FILE_BYTES)?;
            ledger.header.publish(LEDGER_MAGIC, LEDGER_FILE_BYTES, id);
            Ok(())
        })?;
        self.link_shim(&self.shim, &dir.join(shim_image::file_name()))
    }

    /// Takes the region of slice `id` out of the way, if there is one, as the first step of its removal.
    ///
    /// # Errors
    /// It cannot be renamed: the file system is read-only.
    pub(crate) fn retire(&self, id: SliceId) -> Result<(), CreateRegionError> {
        let around = self.around(id);
        match fs::rename(&around, self.retired(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(&around)(error)),
            _ => Ok(()),
        }
    }

    /// Deletes what [`RegionDirs::retire`] has left.
    ///
    /// # Errors
    /// It cannot be deleted.
    pub(crate) fn discard(&self, id: SliceId) -> Result<(), CreateRegionError> {
        remove_all(&self.retired(id))?;
        self.drop_unused_shims();
        Ok(())
    }

    /// Removes what a manager that was killed has left half made or half removed, and regions that no slice of `known`
    /// has. Returns the names of what it removed.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub(crate) fn remove_residue(&self, known: &[SliceId]) -> Result<Vec<String>, CreateRegionError> {
        let mut removed = Vec::new();
        for entry in fs::read_dir(&self.slices).map_err(io_at(&self.slices))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if SliceId::parse(&name).is_some_and(|id| known.contains(&id)) {
                continue;
            }
            fs::remove_dir_all(entry.path()).map_err(io_at(&entry.path()))?;
            removed.push(name);
        }
        Ok(removed)
    }
}

/// The shim in the directory of a region, made by whatever version of the manager.
pub(super) fn find_shim(dir: &Path) -> Result<PathBuf, OpenRegionError> {
    let entries = fs::read_dir(dir).map_err(|source| OpenRegionError::Io { path: dir.into(), source })?;
    let is_shim = |name: &str| name.starts_with("libaliquot-") && name.ends_with(".so");
    let shim = entries.flatten().find(|entry| entry.file_name().to_str().is_some_and(is_shim));
    shim.map(|entry| entry.path()).ok_or_else(|| OpenRegionError::NoShim { path: dir.into() })
}

/// The library that is preloaded behind `shim` of the region in `dir`, if there is one: another name of the same file.
pub(super) fn find_stand_in(dir: &Path, shim: &Path) -> Option<PathBuf> {
    let runtime_dir = dir.ancestors().nth(3)?;
    let stand_in = runtime_dir.join("lib").join(shim.file_name()?);
    (FileId::of(&stand_in)? == FileId::of(shim)?).then_some(stand_in)
}

/// Gives `dir` an empty limits file, if it has none: a shim that is loaded from there refuses everything.
fn close(dir: &Path) -> Result<(), CreateRegionError> {
    if has_empty_limits(dir) { Ok(()) } else { write_file(&dir.join(LIMITS_FILE), &[], 0o444) }
}

fn has_empty_limits(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(LIMITS_FILE)).is_ok_and(|limits| limits.is_file() && limits.len() == 0)
}

fn remove_all(dir: &Path) -> Result<(), CreateRegionError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(dir)(error)),
        _ => Ok(()),
    }
}

/// Writes a slice's limits, each of which a running container takes up on its own.
pub(super) fn write_limits(limits: &Limits, slice: &Slice) {
    for (device, part) in limits.devices.iter().zip(&slice.parts) {
        device.core_request_percent.store(part.core_request_percent, Ordering::Relaxed);
        device.core_limit_percent.store(part.core_limit_percent, Ordering::Relaxed);
        device.memory_limit_bytes.store(part.memory_limit_bytes, Ordering::Relaxed);
        device.marker_launches_max.store(MARKER_LAUNCHES_MAX, Ordering::Relaxed);
        device.inflight_ns_max.store(INFLIGHT_NS_MAX, Ordering::Relaxed);
    }
    limits.host_memory_limit_bytes.store(slice.host_memory_limit_bytes, Ordering::Relaxed);
}

/// Devices' UUIDs never change: they are written before the file is mapped by anybody.
fn write_uuids(mut file: &File, parts: &[Part]) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    use std::mem::offset_of;
    for (number, part) in parts.iter().enumerate() {
        let uuid = part.device.bytes().ok_or(io::ErrorKind::InvalidInput)?;
        let offset = offset_of!(Limits, devices) + number * size_of::<DeviceLimits>() + offset_of!(DeviceLimits, uuid);
        file.seek(SeekFrom::Start(offset as u64))?;
        file.write_all(&uuid)?;
    }
    Ok(())
}

/// Makes a file of `file_bytes` of which the first `backed_bytes` are backed: a full disk is an error here, and not a
/// signal in a process that maps it.
fn make_shared(
    path: &Path,
    file_bytes: usize,
    backed_bytes: usize,
    mode: u32,
    fill: impl FnOnce(&File) -> io::Result<()>,
) -> Result<(), CreateRegionError> {
    let make = || {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(file_bytes as u64)?;
        back(&file, backed_bytes)?;
        fill(&file)?;
        // After the creation, where the umask would take bits away.
        file.set_permissions(Permissions::from_mode(mode))
    };
    make().map_err(io_at(path))
}

/// Backs the file's first `bytes`; what is backed already stays as it is.
pub(super) fn back(file: &File, bytes: usize) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), 0, bytes as u64)?)
}

fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CreateRegionError> {
    let write = || {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))
    };
    write().map_err(io_at(path))
}

/// Makes a directory with exactly this mode, if it is not there.
fn make_dir(path: &Path, mode: u32) -> Result<(), CreateRegionError> {
    let make = || {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::set_permissions(path, Permissions::from_mode(mode))
    };
    make().map_err(io_at(path))
}
