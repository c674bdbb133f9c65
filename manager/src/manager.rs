//! Carries out requests: the one place where slices, regions, CDI devices, checkpoint and threads meet.
//!
//! [`slices`](crate::slices), which is pure, decides what is allowed. This module then acts, under one lock, in steps
//! that can each be rolled back. A step that fails rolls back the steps before it, so an operation is done completely
//! or not at all.
//!
//! # What a crash leaves behind
//!
//! A manager can be killed between any two steps. The checkpoint names a slice, with its phase, before anything of it
//! is made and until all of it is removed. So [`recovery`] finds every operation that was begun:
//!
//! * A slice that was `making`: its region and its CDI device are removed. The caller had no answer yet.
//! * A slice that was `removing`: the same. The caller had no answer, and a repeated request finds no such slice.
//! * Regions without a slice and without users: they are removed. Those in use become slices again; if the checkpoint
//!   is lost, all of them do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use aliquot_node::{Consumer, PriorityClass};
use parking_lot::Mutex;
use tracing::{error, info};

use crate::attach::Attach;
use crate::audit::{self, Audit};
use crate::cdi::{Cdi, CdiError};
use crate::checkpoint::{Checkpoint, CheckpointError, Contents, Entry, Phase};
use crate::damage::DamageWatch;
use crate::descriptors::{Descriptors, NoDescriptors};
use crate::devices::Devices;
use crate::events::{Event, Events, Kind};
use crate::inventory::{Inventory, SharingMode};
use crate::live::{LiveSlice, LiveSlices};
use crate::measure;
use crate::mps::{Mps, MpsError, Raised};
use crate::periodic::Periodic;
use crate::refusals;
use crate::region::files::{CreateRegionError, RegionDirs};
use crate::rollback::Rollback;
use crate::size::Bytes;
use crate::slices::{
    CreateError, CreateRequest, Part, RemoveError, ResizeError, ResizeRequest, Slice, SliceId, Slices,
};
use crate::time_sharing::TimeSharing;

mod adoption;
mod locks;
mod recovery;
pub(crate) use locks::Locks;
pub(crate) use recovery::{OpenError, check_path, take_directories};

/// The slices as decided, and the problems of those that do not work.
struct State {
    slices: Slices,
    problems: BTreeMap<SliceId, String>,
}

impl State {
    fn new(default_priority_class: PriorityClass) -> State {
        State { slices: Slices::new(default_priority_class), problems: BTreeMap::new() }
    }
}

/// The manager, without its servers.
pub(crate) struct Manager {
    state: Mutex<State>,
    descriptors: Descriptors,
    dirs: RegionDirs,
    cdi: Cdi,
    checkpoint: Checkpoint,
    boot_id: String,
    live: Arc<LiveSlices>,
    events: Arc<Events>,
    audit: Arc<Audit>,
    mps: Arc<Mps>,
    devices: Devices,
    time_sharing: Arc<TimeSharing>,
    damage: DamageWatch,
    attach: Attach,
    heartbeat: Periodic,
    sampler: Periodic,
    started: SystemTime,
}

/// Why a step cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The checkpoint cannot be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The region cannot be made.
    #[error(transparent)]
    Region(#[from] CreateRegionError),
    /// Too few descriptors are left to watch it.
    #[error(transparent)]
    Descriptors(#[from] NoDescriptors),
    /// The CDI device cannot be published.
    #[error(transparent)]
    Cdi(#[from] CdiError),
    /// MPS cannot be given the slice's share.
    #[error(transparent)]
    Mps(#[from] MpsError),
    /// The manager cannot listen for processes of the slice.
    #[error("cannot listen for processes of the slice: {0}")]
    Attach(#[source] io::Error),
    /// There is no thread to share the device.
    #[error("cannot start a thread to share the device: {0}")]
    TimeSharing(#[source] io::Error),
    /// The system gives no random number.
    #[error("cannot read /dev/urandom: {0}")]
    Random(#[source] io::Error),
}

/// Why a slice is not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateSliceError {
    /// The request is not allowed.
    #[error(transparent)]
    Refused(#[from] CreateError),
    /// A step failed.
    #[error(transparent)]
    Failed(#[from] StepError),
}

/// Why a slice is not changed.
#[derive(Debug, thiserror::Error)]
pub enum ResizeSliceError {
    /// The request is not allowed.
    #[error(transparent)]
    Refused(#[from] ResizeError),
    /// Its region is damaged.
    #[error("slice {name:?} cannot be changed: {problem}")]
    Damaged {
        /// Its name.
        name: String,
        /// What is wrong, and what to do about it.
        problem: String,
    },
    /// A step failed.
    #[error(transparent)]
    Failed(#[from] StepError),
}

/// Why a slice is not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveSliceError {
    /// The request is not allowed.
    #[error(transparent)]
    Refused(#[from] RemoveError),
    /// A step failed.
    #[error(transparent)]
    Failed(#[from] StepError),
}

/// A slice as clients see it.
#[derive(Clone, Debug)]
pub(crate) struct SliceView {
    /// The slice.
    pub slice: Slice,
    /// The directory of its region.
    pub region_path: PathBuf,
    /// The library to preload; empty if the slice has no region.
    pub shim_path: PathBuf,
    /// The library to preload after it; `None` if there is none.
    pub stand_in_path: Option<PathBuf>,
    /// Its name in CDI.
    pub cdi_device: Option<String>,
    /// Variables, each as `NAME=value`, that its processes need besides those for devices and shim.
    pub environment: Vec<String>,
    /// Number of processes attached now.
    pub processes: usize,
    /// The containers of pods that run in it, as far as they are known.
    pub consumers: Arc<BTreeSet<Consumer>>,
    /// Why it does not work as it should.
    pub problem: Option<String>,
    /// What its user should know although nothing is wrong.
    pub warnings: Vec<String>,
}

impl Manager {
    /// When it was started.
    #[must_use]
    pub(crate) fn started(&self) -> SystemTime {
        self.started
    }

    /// The thread that watches the devices.
    #[must_use]
    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// The audit's findings and policy.
    #[must_use]
    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// The slices at work.
    #[must_use]
    pub(crate) fn live(&self) -> &LiveSlices {
        &self.live
    }

    /// The recent events.
    #[must_use]
    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// The directory below which regions are kept.
    #[must_use]
    pub(crate) fn runtime_dir(&self) -> &Path {
        self.dirs.runtime_dir()
    }

    /// The directory in which slices are published; `None` if publishing is off.
    #[must_use]
    pub(crate) fn cdi_dir(&self) -> Option<&Path> {
        self.cdi.dir()
    }

    /// The thread that listens for processes.
    #[must_use]
    pub(crate) fn attach(&self) -> &Attach {
        &self.attach
    }

    /// All slices, in the order of their names.
    #[must_use]
    pub(crate) fn list(&self) -> Vec<SliceView> {
        let state = self.state.lock();
        state.slices.iter().map(|slice| self.view(&state, slice)).collect()
    }

    /// Whether there is a slice of that name.
    #[must_use]
    pub(crate) fn has(&self, name: &str) -> bool {
        self.state.lock().slices.get(name).is_some()
    }

    /// The slice of that name.
    #[must_use]
    pub(crate) fn get(&self, name: &str) -> Option<SliceView> {
        let state = self.state.lock();
        state.slices.get(name).map(|slice| self.view(&state, slice))
    }

    fn view(&self, state: &State, slice: &Slice) -> SliceView {
        let live = self.live.get(&slice.name);
        SliceView {
            slice: slice.clone(),
            region_path: self.dirs.region(slice.id),
            shim_path: live.as_ref().map(|live| live.region.shim_path().into()).unwrap_or_default(),
            stand_in_path: live.as_ref().and_then(|live| live.region.stand_in()).map(Into::into),
            cdi_device: self.cdi.device(&slice.name),
            environment: self.mps.client(&slice.parts).map(|client| client.environment).unwrap_or_default(),
            processes: live.as_ref().map_or(0, |live| live.processes().len()),
            consumers: live.as_ref().map(|live| live.consumers()).unwrap_or_default(),
            warnings: live.as_ref().map_or_else(Vec::new, |live| self.warnings(live)),
            problem: state
                .problems
                .get(&slice.id)
                .cloned()
                .or_else(|| live.and_then(|live| live.damage()).map(|damage| damage.problem()))
                .or_else(|| self.devices.known().problem_of(&slice.parts)),
        }
    }

    /// What a slice's user should know although nothing is wrong.
    fn warnings(&self, live: &LiveSlice) -> Vec<String> {
        let mut warnings = measure::warnings(live);
        let findings = self.audit.findings();
        let by_time = live.parts().into_iter().map(|part| part.device);
        for device in by_time.filter(|device| self.mps.mode_of(device) == SharingMode::Time) {
            if audit::has_mps_server(&findings, &device) {
                warnings.push(format!(
                    "an MPS server serves device {device}: shares hold, but what its clients use is not audited; stop it, or let \
                     it set the shares ([sharing] mode = \"mps\" in the manager's configuration)"
                ));
            }
        }
        warnings
    }

    /// Makes a slice.
    ///
    /// # Errors
    /// The slice may not be made, or a step fails. Then nothing has changed.
    pub(crate) fn create(&self, request: CreateRequest) -> Result<SliceView, CreateSliceError> {
        let mut state = self.state.lock();
        let inventory = self.devices.known().inventory;
        let id = random_id().map_err(StepError::Random)?;
        let slice = state.slices.create(&inventory, request, id, SystemTime::now())?;
        self.check_descriptors().map_err(StepError::from)?;
        let mut rollback = Rollback::default();
        self.save(&state.slices, Some((Phase::Making, &slice))).map_err(StepError::from)?;
        rollback.did("note the slice", || self.save(&state.slices, None));
        let region = self.dirs.create(&slice).map_err(StepError::from)?;
        rollback.did("make the region", || self.dirs.retire(slice.id).and_then(|()| self.dirs.discard(slice.id)));
        // If the slice is not made after all, the devices thread lowers the ceiling again at its next look.
        let _raised = self.raise_ceiling(&state.slices, &slice)?;
        self.cdi.publish(&slice, &region, &inventory).map_err(StepError::from)?;
        rollback.did("publish the slice", || self.cdi.withdraw(&slice.name));
        let live = Arc::new(LiveSlice::new(&slice, region));
        self.start_slice(&live, &slice, &inventory)?;
        rollback.did("start the slice", move || {
            self.stop_slice(&live);
            Ok::<_, StepError>(())
        });
        self.save(&state.slices, Some((Phase::Ready, &slice))).map_err(StepError::from)?;
        rollback.commit();
        info!(slice = slice.name, %id, "made a slice");
        self.events.record(Event::of(Kind::SliceMade, format!("was made with {}", has(&slice))).of_slice(&slice.name));
        state.slices.put(slice.clone());
        Ok(self.view(&state, &slice))
    }

    /// Checks whether another slice could be watched.
    fn check_descriptors(&self) -> Result<(), NoDescriptors> {
        self.descriptors.check_room(self.live.all().iter().map(|live| live.processes().len()))
    }

    /// Changes a slice.
    ///
    /// # Errors
    /// The slice may not be changed, or a step fails. Then nothing has changed.
    pub(crate) fn resize(&self, name: &str, request: &ResizeRequest) -> Result<SliceView, ResizeSliceError> {
        let mut state = self.state.lock();
        let inventory = self.devices.known().inventory;
        let slice = state.slices.resize(&inventory, name, request)?;
        let before = state.slices.get(name).map(|before| before.parts.as_slice()).unwrap_or_default();
        let stale_client = self.mps.client(before) != self.mps.client(&slice.parts);
        // A change that does not concern MPS must work while MPS does not answer.
        let has_new_ceiling = self.mps.ceiling_percent(before) != self.mps.ceiling_percent(&slice.parts);
        let _raised = if has_new_ceiling { self.raise_ceiling(&state.slices, &slice)? } else { None };
        let live = self.live.get(name);
        if let Some(live) = &live {
            self.damage.look(live);
            if let Some(damage) = live.damage() {
                return Err(ResizeSliceError::Damaged { name: name.to_owned(), problem: damage.problem() });
            }
        }
        let old = state.slices.get(name).cloned();
        let mut rollback = Rollback::default();
        self.save(&state.slices, Some((Phase::Ready, &slice))).map_err(StepError::from)?;
        rollback.did("note the change", || self.save(&state.slices, None));
        if live.is_some() {
            self.dirs.describe(&slice).map_err(StepError::from)?;
            rollback.did("describe the change", || old.as_ref().map_or(Ok(()), |old| self.dirs.describe(old)));
            if old.as_ref().is_some_and(|old| old.users != slice.users) {
                self.dirs.admit(&slice).map_err(StepError::from)?;
                rollback.did("let users in", || old.as_ref().map_or(Ok(()), |old| self.dirs.admit(old)));
            }
        }
        if let Some(live) = live.as_ref().filter(|_| stale_client) {
            self.cdi.publish(&slice, &live.region, &inventory).map_err(StepError::from)?;
        }
        rollback.commit();
        if let Some(live) = live {
            live.resize(&slice);
            self.time_sharing.resize(&live);
        }
        state.slices.put(slice.clone());
        info!(slice = name, "changed a slice");
        self.events.record(Event::of(Kind::SliceChanged, format!("was changed to {}", has(&slice))).of_slice(name));
        let mut view = self.view(&state, &slice);
        if stale_client && view.processes > 0 {
            view.warnings.push(format!(
                "its share is set by MPS when a process begins to use CUDA: the {} processes in it keep the share that they have",
                view.processes
            ));
        }
        Ok(view)
    }

    /// Raises MPS's ceiling to what the slice may have, if it shares by MPS. The returned guard keeps it there until
    /// the slice is at work.
    fn raise_ceiling(&self, slices: &Slices, slice: &Slice) -> Result<Option<Raised<'_>>, StepError> {
        let Some(own_percent) = self.mps.ceiling_percent(&slice.parts) else { return Ok(None) };
        let others = slices.iter().filter(|other| other.id != slice.id);
        let ceiling_percent =
            others.filter_map(|other| self.mps.ceiling_percent(&other.parts)).fold(own_percent, u32::max);
        Ok(Some(self.mps.raise(ceiling_percent)?))
    }

    /// Removes a slice.
    ///
    /// # Errors
    /// The slice may not be removed, or a step fails. Then nothing has changed.
    pub(crate) fn remove(&self, name: &str, force: bool) -> Result<(), RemoveSliceError> {
        let mut state = self.state.lock();
        let live = self.live.get(name);
        let attached = live.as_ref().map_or(0, |live| live.processes().len());
        let slice = state.slices.remove(name, attached, force)?.clone();
        let inventory = self.devices.known().inventory;
        let mut rollback = Rollback::default();
        let noted = match self.save(&state.slices, Some((Phase::Removing, &slice))) {
            // The disk is full, but a checkpoint without the slice is shorter and still fits.
            Err(error) if error.is_full_disk() => self.save_entries(&state.slices, |other| other.id != slice.id, None),
            outcome => outcome,
        };
        noted.map_err(StepError::from)?;
        rollback.did("note the removal", || self.save(&state.slices, None));
        self.cdi.withdraw(name).map_err(StepError::from)?;
        if let Some(live) = &live {
            rollback.did("withdraw the slice", || self.cdi.publish(&slice, &live.region, &inventory));
        }
        if let Some(live) = &live {
            *live.is_leaving() = true;
            rollback.did("take the region out of sight", || {
                *live.is_leaving() = false;
                Ok::<_, StepError>(())
            });
        }
        self.dirs.retire(slice.id).map_err(StepError::from)?;
        rollback.commit();
        if let Some(live) = live {
            refusals::report(&live, &self.events, true);
            self.stop_slice(&live);
            live.region.revoke();
        }
        state.slices.take(name);
        state.problems.remove(&slice.id);
        // From here on the slice is gone. A step that fails now is repeated at the next start.
        let finished =
            self.dirs.discard(slice.id).map_err(StepError::from).and_then(|()| Ok(self.save(&state.slices, None)?));
        if let Err(error) = finished {
            error!(slice = name, %error, "cannot remove the rest of a slice; the next start will");
        }
        info!(slice = name, id = %slice.id, "removed a slice");
        let of = if attached == 0 { String::new() } else { format!(" from {attached} processes") };
        self.events.record(Event::of(Kind::SliceRemoved, format!("was removed{of}")).of_slice(name));
        Ok(())
    }

    /// Puts a slice to work: from now on its processes can attach and get device time.
    fn start_slice(&self, live: &Arc<LiveSlice>, slice: &Slice, inventory: &Inventory) -> Result<(), StepError> {
        // First of all, so that processes that already run see a live manager.
        live.region.beat(crate::clock::monotonic_ns());
        if live.damage().is_none() {
            self.time_sharing.add(live, inventory).map_err(StepError::TimeSharing)?;
        }
        if let Err(error) = self.attach.add(live, slice.owner) {
            self.time_sharing.remove(live);
            return Err(StepError::Attach(error));
        }
        self.live.put(Arc::clone(live));
        self.heartbeat.wake();
        self.sampler.wake();
        self.devices.wake();
        Ok(())
    }

    fn stop_slice(&self, live: &LiveSlice) {
        *live.is_leaving() = true;
        self.live.take(&live.name);
        self.attach.remove(live);
        self.time_sharing.remove(live);
    }

    /// Writes the checkpoint: `slices`, with `changed` added or replacing the slice of the same id.
    fn save(&self, slices: &Slices, changed: Option<(Phase, &Slice)>) -> Result<(), CheckpointError> {
        self.save_entries(slices, |slice| changed.is_none_or(|(_, changed)| changed.id != slice.id), changed)
    }

    fn save_entries(
        &self,
        slices: &Slices,
        is_kept: impl Fn(&Slice) -> bool,
        changed: Option<(Phase, &Slice)>,
    ) -> Result<(), CheckpointError> {
        let kept = slices.iter().filter(|slice| is_kept(slice));
        let mut entries: Vec<Entry> = kept.map(|slice| Entry { phase: Phase::Ready, slice: slice.clone() }).collect();
        entries.extend(changed.map(|(phase, slice)| Entry { phase, slice: slice.clone() }));
        self.checkpoint.save(&Contents::new(self.boot_id.clone(), entries))
    }

    /// The inventory, and a copy of the slices.
    #[must_use]
    pub(crate) fn given(&self) -> (Arc<Inventory>, Slices) {
        (self.devices.known().inventory, self.state.lock().slices.clone())
    }

    /// Removes all slices if there is no checkpoint: no later manager could take them over.
    fn remove_what_nobody_remembers(&self) {
        if self.checkpoint.is_off() {
            for view in self.list() {
                if let Err(error) = self.remove(&view.slice.name, true) {
                    error!(slice = view.slice.name, %error, "cannot remove a slice");
                }
            }
        }
    }

    /// Ends the threads. Regions stay as they are, so processes in slices stay limited.
    pub(crate) fn stop(&self) {
        self.remove_what_nobody_remembers();
        self.attach.stop();
        self.time_sharing.stop();
        self.heartbeat.stop();
        self.sampler.stop();
        self.devices.stop();
    }
}

/// The parts of a slice, in words.
fn has(slice: &Slice) -> String {
    let of_part = |part: &Part| {
        format!(
            "{} to {} % and {} of {}",
            part.core_request_percent,
            part.core_limit_percent,
            Bytes(part.memory_limit_bytes),
            part.device
        )
    };
    slice.parts.iter().map(of_part).collect::<Vec<_>>().join(", ")
}

/// Ids must be unguessable: a process whose mounts show an id counts as one of that slice.
fn random_id() -> io::Result<SliceId> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(SliceId::from_random(u128::from_ne_bytes(bits)))
}
