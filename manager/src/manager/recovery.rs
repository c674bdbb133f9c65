//! The start: puts the slices of an earlier manager to work again.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use aliquot_abi::region::ATTACH_SOCKET;
use tracing::{error, info, warn};

use crate::attach::Attach;
use crate::attribution;
use crate::audit::Audit;
use crate::cdi::Cdi;
use crate::checkpoint::{Checkpoint, CheckpointError, Contents, Entry, Found, Journal, Phase};
use crate::config::Config;
use crate::damage::DamageWatch;
use crate::descriptors::Descriptors;
use crate::devices::Devices;
use crate::events::{Event, Events, Kind};
use crate::file_system::{self, FileSystem};
use crate::inventory::DeviceSource;
use crate::live::{LiveSlice, LiveSlices};
use crate::manager::books::Books;
use crate::manager::locks::Locks;
use crate::manager::{Manager, StepError};
use crate::mps::Mps;
use crate::paths;
use crate::procfs;
use crate::region::files::{CreateRegionError, REGION_DIR, RegionDirs};
use crate::region::{OpenRegionError, Region};
use crate::slices::{Slice, SliceId, Slices};
use crate::time_sharing::TimeSharing;
use crate::{heartbeat, sampler, shim_image};

/// Maximum bytes of a Unix socket's path, without the terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Why the manager cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A directory cannot be made or locked.
    #[error("cannot use the directory {}: {source}", path.display())]
    Dir {
        /// The path of that directory.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
    /// A directory belongs to another user, or others can write to it.
    #[error(
        "the directory {} belongs to user {owner} or is writable for others; choose another, or give it to this user with \
         mode 0755", path.display()
    )]
    Unsafe {
        /// The path of that directory.
        path: PathBuf,
        /// The uid of its owner.
        owner: u32,
    },
    /// Another manager uses a directory.
    #[error(
        "another manager uses {}{}; stop it; to join a cluster, write `scheduler` and `token` into [cluster] of its \
         configuration and restart it; only a manager of other devices may have directories of its own (--runtime-dir, \
         --state-dir): two managers of a device give out more than it has",
        path.display(), holder.as_ref().map(|holder| format!(": {holder}")).unwrap_or_default()
    )]
    Locked {
        /// The path of that directory.
        path: PathBuf,
        /// The process, if the lock's file names a live one.
        holder: Option<String>,
    },
    /// Libraries cannot be loaded from the runtime directory.
    #[error(
        "the runtime directory {} is on a file system that is mounted noexec: no program could load the shim from it; mount \
         a tmpfs there (the unit run-aliquot.mount does, and --mount-runtime-dir), or choose another with --runtime-dir", path.display()
    )]
    NoExec {
        /// The path of the runtime directory.
        path: PathBuf,
    },
    /// The runtime directory's path cannot be used.
    #[error("the path of the runtime directory {} {what}; choose another with --runtime-dir", path.display())]
    Path {
        /// The path of the runtime directory.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Regions cannot be made.
    #[error(transparent)]
    Region(#[from] CreateRegionError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// Makes the directories of `config` and locks them. A manager that stands by waits for the manager that holds them.
///
/// # Errors
/// See [`OpenError`].
pub(crate) fn take_directories(config: &Config) -> Result<Locks, OpenError> {
    let runtime_dir = &config.runtime_dir;
    check_path(runtime_dir)?;
    make_own_dir(runtime_dir, paths::runtime_dir_mode(runtime_dir))?;
    // If this cannot be found out, the manager starts; a slice's first program would then fail to load the shim.
    if file_system::is_noexec(runtime_dir) {
        return Err(OpenError::NoExec { path: runtime_dir.clone() });
    }
    if let Ok(found) = FileSystem::of(runtime_dir)
        && !found.is_memory()
    {
        warn!(
            runtime_dir = %runtime_dir.display(), file_system = found.name(),
            "the driver cannot register pages of files there: progress is told by events, and shares are up to 1.5 points \
             too small; mount a tmpfs there (the unit run-aliquot.mount does, and --mount-runtime-dir), or choose \
             another directory with --runtime-dir"
        );
    }
    let mut locks = Locks::new(config.stands_by);
    locks.take(runtime_dir)?;
    if let Some(state_dir) = &config.state_dir {
        make_own_dir(state_dir, 0o700)?;
        locks.take(state_dir)?;
    }
    Ok(locks)
}

/// Checks the runtime directory's path: attach sockets below it must fit into a socket address, and the loader splits
/// its list of preloaded libraries at spaces and colons.
///
/// # Errors
/// See [`OpenError::Path`].
pub(crate) fn check_path(runtime_dir: &Path) -> Result<(), OpenError> {
    let socket = runtime_dir.join("slices").join("0".repeat(32)).join(REGION_DIR).join(ATTACH_SOCKET);
    let text = runtime_dir.to_string_lossy();
    let what = if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        "is too long for the sockets below it"
    } else if text.contains(|letter: char| letter == ':' || letter == ',' || letter.is_whitespace()) {
        "contains a space, ':' or ','"
    } else {
        return Ok(());
    };
    Err(OpenError::Path { path: runtime_dir.into(), what })
}

fn make_own_dir(path: &Path, mode: u32) -> Result<(), OpenError> {
    let error = |source| OpenError::Dir { path: path.into(), source };
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(error)?;
    if paths::is_of_this_user(path).map_err(error)? {
        return Ok(());
    }
    Err(OpenError::Unsafe { path: path.into(), owner: fs::symlink_metadata(path).map_err(error)?.uid() })
}

impl Manager {
    /// A manager of the devices of `source`, with the slices of the previous manager. `owner_gone` is called with the
    /// name of a slice whose owner has ended; it must not wait for the manager.
    ///
    /// # Errors
    /// See [`OpenError`]. A slice that cannot be taken over is not an error: it is listed, with its problem.
    pub(crate) fn open(
        config: &Config,
        descriptors: Descriptors,
        source: Box<dyn DeviceSource>,
        owner_gone: impl Fn(&str) + Send + 'static,
    ) -> Result<Manager, OpenError> {
        let checkpoint = Checkpoint::new(config.state_dir.clone());
        let found = checkpoint.load()?;
        let (written, boot_id) = (checkpoint.clone(), procfs::boot_id());
        let of_boot = boot_id.clone();
        let journal = Journal::new(move |entries| {
            let entries = entries.values().cloned().collect();
            written.save(&Contents::new(of_boot.clone(), entries))
        });
        let dirs = RegionDirs::prepare(&config.runtime_dir)?;
        let live = Arc::new(LiveSlices::default());
        let mps = Arc::new(Mps::new(config.sharing.clone()));
        let time_sharing = Arc::new(TimeSharing::new(Arc::clone(&mps), config.sharing.lease_max_ns()));
        let events = Arc::new(Events::default());
        events.record(Event::of(
            Kind::ManagerStarted,
            concat!("the node manager ", env!("CARGO_PKG_VERSION"), " was started"),
        ));
        let audit = Arc::new(Audit::new(config.audit.clone(), Arc::clone(&events)));
        let devices =
            Devices::start(source, Arc::clone(&live), Arc::clone(&audit), Arc::clone(&mps), Arc::clone(&events));
        let devices = devices.map_err(OpenError::Thread)?;
        let damage = DamageWatch::new(dirs.clone(), Arc::clone(&time_sharing), Arc::clone(&events));
        let attach = Attach::start(
            descriptors,
            Arc::clone(&time_sharing),
            Arc::clone(&events),
            devices.memory_looks(),
            owner_gone,
        );
        let manager = Manager {
            books: Books::new(config.default_priority_class),
            descriptors,
            dirs,
            cdi: Cdi::new(config.cdi.clone(), config.driver.clone(), Arc::clone(&mps)),
            journal,
            checkpoint,
            boot_id,
            devices,
            audit,
            mps,
            attach: attach.map_err(OpenError::Thread)?,
            time_sharing,
            heartbeat: heartbeat::start(Arc::clone(&live)).map_err(OpenError::Thread)?,
            sampler: sampler::start(Arc::clone(&live), damage.clone(), Arc::clone(&events))
                .map_err(OpenError::Thread)?,
            damage,
            live,
            events,
            published: parking_lot::Mutex::default(),
            started: SystemTime::now(),
            is_ending: AtomicBool::new(false),
            shortcoming: Mutex::default(),
        };
        manager.recover(found)?;
        Ok(manager)
    }

    fn recover(&self, found: Found) -> Result<(), OpenError> {
        let (found, is_lost) = self.judge(found);
        let same_boot = found.boot_id == self.boot_id;
        let (ready, begun): (Vec<Entry>, Vec<Entry>) =
            found.slices.iter().cloned().partition(|entry| entry.phase == Phase::Ready);
        for Entry { phase, slice } in begun {
            // The checkpoint's copy can be one change behind: a slice that it shows as begun may be complete.
            if is_lost && phase == Phase::Making {
                continue;
            }
            info!(slice = slice.name, ?phase, "removing a slice that was not finished");
            self.remove_rest(&slice);
        }
        let mut slices = Slices::default();
        let mut orphans = Vec::new();
        for Entry { slice, .. } in ready {
            let owner_gone =
                slice.owner.is_some_and(|owner| !same_boot || procfs::is_gone(owner.pid, owner.start_time));
            if owner_gone { orphans.push(slice) } else { slices.put(slice) }
        }
        for slice in orphans {
            self.remove_orphan(&slice);
        }
        let adopted = self.adopt(&slices, is_lost)?;
        for slice in adopted.slices {
            if slice.owner.is_some_and(|owner| procfs::is_gone(owner.pid, owner.start_time)) {
                self.remove_orphan(&slice);
            } else {
                slices.put(slice);
            }
        }
        // Regions of an earlier boot are not kept: their processes are gone, and their ledgers are meaningless.
        let is_of_this_boot =
            |id: &SliceId| self.dirs.description(*id).map_or(same_boot, |found| self.is_of_this_boot(&found));
        let mut kept: Vec<SliceId> = slices.iter().map(|slice| slice.id).filter(is_of_this_boot).collect();
        kept.extend(adopted.kept);
        for name in self.dirs.remove_residue(&kept)? {
            info!(name, "removed a region that no slice has");
        }
        for slice in slices.iter() {
            let problem = self.take_over(slice, kept.contains(&slice.id)).err();
            if let Some(problem) = &problem {
                error!(slice = slice.name, problem, "a slice cannot be taken over; it can be removed");
                self.events.record(
                    Event::of(Kind::SliceDamaged, format!("cannot be taken over: {problem}")).of_slice(&slice.name),
                );
            } else {
                let was = "was taken over from the manager before";
                self.events.record(Event::of(Kind::SliceTakenOver, was).of_slice(&slice.name));
            }
            self.books.take_over(slice.clone(), problem);
        }
        for slice in self.cdi.remove_stale(self.dirs.slices(), |name| slices.get(name).is_some()) {
            info!(slice, "removed the CDI specification of a slice that is no more");
        }
        self.save_what_was_found(&slices)
    }

    /// The slices by the checkpoint, and whether that is unreliable. If it is, the regions decide.
    fn judge(&self, found: Found) -> (Contents, bool) {
        match found {
            Found::Whole(contents) => (contents, false),
            // With the checkpoint switched off, regions that exist are from a manager that was killed.
            Found::Nothing => (Contents::new(self.boot_id.clone(), Vec::new()), !self.checkpoint.is_off()),
            Found::Copy(contents, problem) => {
                let kept_as = self.set_aside();
                error!(problem, kept_as, "the copy of the checkpoint is taken, and the regions that are there");
                (contents, true)
            }
            Found::Lost(problem) => {
                let kept_as = self.set_aside();
                error!(
                    problem,
                    kept_as, "the slices are those whose regions are there; what had none is lost: make it again"
                );
                (Contents::new(self.boot_id.clone(), Vec::new()), true)
            }
        }
    }

    fn set_aside(&self) -> Option<String> {
        self.checkpoint.set_aside().map(|path| path.display().to_string())
    }

    /// Saves the recovered state. On a full disk the manager starts all the same: the next start would find the same
    /// state.
    fn save_what_was_found(&self, slices: &Slices) -> Result<(), OpenError> {
        let entries = slices.iter().map(|slice| Entry { phase: Phase::Ready, slice: slice.clone() });
        match self.journal.begin(entries) {
            Err(error) if error.is_full_disk() => {
                error!(%error, "nothing new can be remembered until there is room; what was remembered is in force");
                Ok(())
            }
            outcome => Ok(outcome?),
        }
    }

    fn remove_orphan(&self, slice: &Slice) {
        info!(slice = slice.name, "removing a slice whose owner has ended");
        self.events.record(Event::of(Kind::SliceRemoved, "was removed: its owner has ended").of_slice(&slice.name));
        self.remove_rest(slice);
    }

    /// Removes the leftovers of a slice that must not exist any more. Its processes, if any live on, get nothing more.
    fn remove_rest(&self, slice: &Slice) {
        self.dirs.revoke(slice.id);
        let step = || -> Result<(), StepError> {
            self.cdi.withdraw(&slice.name)?;
            self.dirs.retire(slice.id)?;
            Ok(self.dirs.discard(slice.id)?)
        };
        if let Err(error) = step() {
            warn!(slice = slice.name, %error, "cannot remove what is left of a slice");
        }
    }

    /// Replaces a region that another version of the manager has made. Refuses while processes use it: they would keep
    /// their limits in the old region, without a heartbeat, and the same share could be given out twice.
    fn make_again(&self, slice: &Slice, error: &OpenRegionError) -> Result<Region, String> {
        let users =
            attribution::users_of(slice.id).map_err(|error| format!("cannot look who uses the region: {error}"))?;
        if let Some(first) = users.first() {
            return Err(format!(
                "{error}; {} processes still use it (the first: {first}): end them and restart the manager, or remove the slice",
                users.len()
            ));
        }
        info!(slice = slice.name, %error, "making a region anew");
        let make = || -> Result<Region, StepError> {
            self.dirs.retire(slice.id)?;
            self.dirs.discard(slice.id)?;
            Ok(self.dirs.create(slice)?)
        };
        make().map_err(|error| error.to_string())
    }

    /// Makes the region of a slice whose region is missing at the start. While processes still have the deleted one
    /// mapped, it makes a closed directory instead, and new processes get nothing. Otherwise the same share would be
    /// given out twice.
    fn replace_deleted(&self, slice: &Slice) -> Result<Region, String> {
        let users = attribution::users_of(slice.id)
            .map_err(|error| format!("whether its deleted region is in use cannot be told: {error}"))?;
        let Some(first) = users.first() else { return self.dirs.create(slice).map_err(|error| error.to_string()) };
        let shim = shim_image::file_name();
        self.dirs.make_closed(slice.id, &slice.users, shim.as_ref()).map_err(|error| error.to_string())?;
        Err(format!(
            "its region was deleted while no manager ran, and {} processes still use it (the first: {first}): end them, remove the \
             slice and create it again",
            users.len()
        ))
    }

    /// Puts a slice to work again, with its region if that still exists. `had_region`: the slice had a region during
    /// this boot, so if it is missing, something else has deleted it.
    fn take_over(&self, slice: &Slice, had_region: bool) -> Result<(), String> {
        self.check_descriptors(1).map_err(|error| error.to_string())?;
        let dir = self.dirs.region(slice.id);
        let is_open = self.dirs.close_open_region(slice.id).map_err(|error| error.to_string())?;
        let region = if is_open {
            self.make_again(slice, &OpenRegionError::Open { path: dir })?
        } else if dir.exists() {
            let region = match Region::open(slice.id, &dir) {
                Err(error) if error.is_of_other_version() => self.make_again(slice, &error)?,
                other => other.map_err(|error| error.to_string())?,
            };
            if !region.is_of(&slice.parts) {
                return Err(format!("{} was made for other devices", dir.display()));
            }
            if let Err(error) = self.dirs.describe(slice) {
                warn!(slice = slice.name, %error, "if the checkpoint is lost, the slice's name is");
            }
            region
        } else if had_region {
            self.replace_deleted(slice)?
        } else {
            self.dirs.create(slice).map_err(|error| error.to_string())?
        };
        let damage = region
            .damage()
            .or_else(|| region.is_revoked().then(|| "it was so before this manager was started".to_owned()));
        if damage.is_none() {
            // The checkpoint can be ahead of the region, because a resize is saved before it is done.
            region.write_limits(slice);
        }
        let inventory = self.devices.known().inventory;
        self.cdi.publish(slice, &region, &inventory).map_err(|error| error.to_string())?;
        let live = Arc::new(LiveSlice::new(slice, region));
        live.inherit();
        if let Some(damage) = damage {
            self.damage.found(&live, &damage);
        }
        self.start_slice(&live, slice, &inventory).map_err(|error| error.to_string())
    }
}
