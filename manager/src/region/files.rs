//! Makes, finds and removes the files of regions.
//!
//! ```text
//! <runtime>/lib/libaliquot-<hash>.so             this manager's shim, and older ones that regions still link to
//! <runtime>/lib/limits                           empty: see below
//! <runtime>/slices/<id>/                         only for this manager and the slice's users; holds slice.json
//! <runtime>/slices/<id>/region/                  a region: limits, ledger, attach.sock, libaliquot-<hash>.so
//! <runtime>/slices/.new-<id>/ .old-<id>/         a region that is being made or removed
//! ```
//!
//! # Access to a region's files
//!
//! Only the processes of a slice can open the files of its region, whichever user they run as. In a container that can
//! be any user, so the files' own modes are open to all users, and the path to the files is closed instead. A container
//! has the region bind-mounted, which needs no right to the directories above it. On the node, the directory around the
//! region lets only its owner (the manager's user) and the users of the slice pass ([`admission`](super::admission)).
//! So other users cannot connect to the socket, even if `/proc/net/unix` shows its path. A user who may trace a process
//! of the slice can reach the files by `/proc/PID/root`, but could act as that process anyway.
//!
//! A region is not a sealed memory file: that cannot be bind-mounted, and a live manager would be needed to pass it to
//! each new process. So a tenant can truncate the ledger of its slice, and harms only itself ([`fault`](super::fault)).
//!
//! # The stand-in
//!
//! The loader ignores a library that it cannot open. So a program that has changed its user, or whose region was
//! deleted, would run without limits. Therefore `lib` holds an empty limits file: a shim that is loaded from `lib`
//! finds a damaged region, and refuses everything. This stand-in is preloaded after the slice's own shim, which is a
//! link to the same file. Where the slice's own can be opened, the loader recognises the second name as the same
//! library.

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
use tracing::warn;

use crate::paths;
use crate::procfs::{self, FileId};
use crate::region::admission::{AdmissionError, admit};
use crate::region::manifest::Manifest;
use crate::region::map::Mapping;
use crate::region::{OpenRegionError, Region};
use crate::shim_image;
use crate::slices::{Part, Slice, SliceId};

/// Maximum launches of one thread between two progress markers. Threads share the words of markers: with 64, the shim
/// added 8 ns to a launch by one thread, and 16 ns to launches by two.
const MARKER_LAUNCHES_MAX: u32 = 256;
/// Maximum work in flight at which a launch may add more, in nanoseconds: small compared with a lease, and long enough
/// to keep the device busy while the launching thread sleeps or waits for a processor.
const INFLIGHT_NS_MAX: u32 = 4_000_000;

/// The region's own directory, inside the directory that is named after its slice.
pub(crate) const REGION_DIR: &str = "region";

/// The directories that hold regions.
#[derive(Clone, Debug)]
pub(crate) struct RegionDirs {
    runtime_dir: PathBuf,
    slices: PathBuf,
    lib: PathBuf,
    shim: PathBuf,
}

/// Why a region cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateRegionError {
    /// A file cannot be made.
    #[error("cannot make {}: {source}", path.display())]
    Io {
        /// The path of that file.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
    /// The region was made, but cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenRegionError),
    /// A user cannot be admitted.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> CreateRegionError + '_ {
    move |source| CreateRegionError::Io { path: path.into(), source }
}

impl RegionDirs {
    /// The runtime directory, in which the directory of regions lies.
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
        // The directory cannot be listed, so other users cannot see which slices exist.
        make_dir(&slices, 0o711)?;
        make_dir(&lib, 0o755)?;
        let shim = lib.join(shim_image::file_name());
        // The file's name contains its hash, but a file cut short by a full disk has the same name. So the content is
        // compared.
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

    /// Removes other versions of the shim that no region links to any more.
    fn drop_unused_shims(&self) {
        let entries = fs::read_dir(&self.lib).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.path() != self.shim && entry.file_name() != LIMITS_FILE) {
            if entry.metadata().is_ok_and(|file| file.nlink() <= 1) {
                // A failure does no harm, and the next call tries again.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The directory of the region of slice `id`, whether it exists or not.
    #[must_use]
    pub(crate) fn region(&self, id: SliceId) -> PathBuf {
        self.around(id).join(REGION_DIR)
    }

    /// The directory around the region of slice `id`.
    fn around(&self, id: SliceId) -> PathBuf {
        self.slices.join(id.to_string())
    }

    /// The directory that holds all regions.
    #[must_use]
    pub(crate) fn slices(&self) -> &Path {
        &self.slices
    }

    /// Writes the manifest of `slice` beside its region: the facts that the limits do not contain.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn describe(&self, slice: &Slice) -> Result<(), CreateRegionError> {
        let dir = self.around(slice.id);
        Manifest { boot_id: procfs::boot_id(), slice: slice.clone() }.write(&dir).map_err(io_at(&dir))
    }

    /// Lets the users of `slice` reach its region, and no others.
    ///
    /// # Errors
    /// The file system has no access control lists, or the list cannot be written.
    pub(crate) fn admit(&self, slice: &Slice) -> Result<(), CreateRegionError> {
        Ok(admit(&self.around(slice.id), &slice.users)?)
    }

    /// The manifest of slice `id`.
    #[must_use]
    pub(crate) fn description(&self, id: SliceId) -> Option<Manifest> {
        Manifest::read(&self.around(id), id)
    }

    /// The ids of all existing regions.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub(crate) fn ids(&self) -> Result<Vec<SliceId>, CreateRegionError> {
        let entries = fs::read_dir(&self.slices).map_err(io_at(&self.slices))?.flatten();
        Ok(entries.filter_map(|entry| SliceId::parse(entry.file_name().to_str()?)).collect())
    }

    /// Whether there is a region of slice `id` from an older manager, which made regions without a directory around
    /// them. If so, closes it to other users; containers have it mounted, and other processes of the slice have it
    /// mapped.
    ///
    /// # Errors
    /// The region cannot be closed.
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
            // Leftovers that an earlier manager could neither finish nor remove.
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

    /// Makes a directory that only this manager and `users` can pass, with a directory for a region in it.
    fn make_around(&self, around: &Path, users: &BTreeSet<u32>) -> Result<(), CreateRegionError> {
        make_dir(around, 0o700)?;
        make_dir(&around.join(REGION_DIR), 0o755)?;
        Ok(admit(around, users)?)
    }

    /// Replaces the region of slice `id`, of which a file is gone or was replaced, by a closed one that gives nothing.
    /// A program that starts there now must not conclude that there is no region, or use files that someone else has
    /// put there. Does nothing if the closed region exists already.
    ///
    /// # Errors
    /// The region cannot be made, for example because the disk is full.
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
            // The directories may have been deleted with everything in them.
            if !self.runtime_dir.exists() {
                make_dir(&self.runtime_dir, paths::runtime_dir_mode(&self.runtime_dir))?;
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
        // The file is copied where the file system supports no links.
        fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop)).map_err(io_at(to))
    }

    fn fill(&self, dir: &Path, slice: &Slice) -> Result<(), CreateRegionError> {
        let id = slice.id.region_id();
        // Writable for its owner, the manager's user: the next manager maps it again and may not be root.
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

    /// Revokes what the region of slice `id` gives, whether it is in its place or [retired](RegionDirs::retire): the
    /// processes that have it mapped must get nothing more once its share can be given out again. Does nothing if there
    /// is no region, or if it is a [closed one](RegionDirs::make_closed).
    pub(crate) fn revoke(&self, id: SliceId) {
        for around in [self.around(id), self.retired(id)] {
            // The second directory is that of older managers, which made none around the region.
            for dir in [around.join(REGION_DIR), around] {
                if !dir.join(LIMITS_FILE).exists() || has_empty_limits(&dir) {
                    continue;
                }
                if let Err(error) = Region::revoke_in(id, &dir) {
                    warn!(%id, %error, "a removed region cannot be revoked: processes that still use it keep what it gave them, end them");
                }
            }
        }
    }

    /// Moves the region of slice `id` out of the way, if there is one, as the first step of its removal.
    ///
    /// # Errors
    /// The region cannot be renamed, for example because the file system is read-only.
    pub(crate) fn retire(&self, id: SliceId) -> Result<(), CreateRegionError> {
        let around = self.around(id);
        match fs::rename(&around, self.retired(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(&around)(error)),
            _ => Ok(()),
        }
    }

    /// Deletes the region that [`RegionDirs::retire`] has moved out of the way.
    ///
    /// # Errors
    /// The region cannot be deleted.
    pub(crate) fn discard(&self, id: SliceId) -> Result<(), CreateRegionError> {
        remove_all(&self.retired(id))?;
        self.drop_unused_shims();
        Ok(())
    }

    /// Removes regions that a killed manager has made or removed only in part, and the regions of slices that are not
    /// in `known`. Returns the names of the removed directories.
    ///
    /// # Errors
    /// A directory cannot be removed.
    pub(crate) fn remove_residue(&self, known: &[SliceId]) -> Result<Vec<String>, CreateRegionError> {
        let mut removed = Vec::new();
        for entry in fs::read_dir(&self.slices).map_err(io_at(&self.slices))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if SliceId::parse(&name).is_some_and(|id| known.contains(&id)) {
                continue;
            }
            if let Some(id) = SliceId::parse(name.strip_prefix(".old-").unwrap_or(&name)) {
                self.revoke(id);
            }
            fs::remove_dir_all(entry.path()).map_err(io_at(&entry.path()))?;
            removed.push(name);
        }
        Ok(removed)
    }
}

/// The shim in a region's directory, in any version.
pub(super) fn find_shim(dir: &Path) -> Result<PathBuf, OpenRegionError> {
    let entries = fs::read_dir(dir).map_err(|source| OpenRegionError::Io { path: dir.into(), source })?;
    let is_shim = |name: &str| name.starts_with("libaliquot-") && name.ends_with(".so");
    let shim = entries.flatten().find(|entry| entry.file_name().to_str().is_some_and(is_shim));
    shim.map(|entry| entry.path()).ok_or_else(|| OpenRegionError::NoShim { path: dir.into() })
}

/// The library that is preloaded after `shim` of the region in `dir`, if there is one: another name of the same file.
pub(super) fn find_stand_in(dir: &Path, shim: &Path) -> Option<PathBuf> {
    let runtime_dir = dir.ancestors().nth(3)?;
    let stand_in = runtime_dir.join("lib").join(shim.file_name()?);
    (FileId::of(&stand_in)? == FileId::of(shim)?).then_some(stand_in)
}

/// Gives `dir` an empty limits file, unless it has one: a shim that is loaded from there refuses everything.
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

/// Writes a slice's limits. Each value takes effect in running containers independently of the others.
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

/// Writes the devices' UUIDs. They never change, and are written before any process maps the file.
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

/// Makes a file of `file_bytes` bytes, of which the first `backed_bytes` are allocated. So a full disk is an error
/// here, and not a signal in a process that maps the file.
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
        // Set afterwards, because the umask would remove bits at the creation.
        file.set_permissions(Permissions::from_mode(mode))
    };
    make().map_err(io_at(path))
}

/// Allocates the file's first `bytes`. Bytes that are allocated already stay unchanged.
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

/// Makes a directory, or takes an existing one, and gives it exactly this mode.
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
