//! Carries out requests: the one place where slices, regions, CDI devices, checkpoint and threads meet.
//!
//! [`slices`](crate::slices), which is pure, decides what is allowed. The decision is noted in the [`books`], whose
//! lock is held only for that. Then a [`plan`] lists the steps of the change, and [`execution`] does them. A step that
//! fails rolls back the steps before it, so a change is done completely or not at all. Many changes are under way at
//! once, and share the writes of the checkpoint.
//!
//! # Leftovers of a crash
//!
//! A manager can be killed between any two steps. The checkpoint names a slice, with its phase, before any file of it
//! is made and until all of it is removed. So [`recovery`] finds every operation that was begun:
//!
//! * A slice that was `making`: its region and its CDI device are removed. The caller had no answer yet.
//! * A slice that was `removing`: the same. The caller had no answer, and a repeated request finds no such slice.
//! * Regions without a slice and without users: they are removed. Regions in use become slices again; if the checkpoint
//!   is lost, all regions do.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use aliquot_node::{Consumer, Shortcoming};
use tracing::{error, info, warn};

use crate::attach::Attach;
use crate::attribution;
use crate::audit::{self, Audit};
use crate::cdi::{Cdi, CdiError};
use crate::checkpoint::{Checkpoint, CheckpointError, Journal};
use crate::damage::DamageWatch;
use crate::descriptors::{Descriptors, NoDescriptors};
use crate::devices::Devices;
use crate::events::{Event, Events, Kind};
use crate::inventory::{Inventory, SharingMode};
use crate::live::{LiveSlice, LiveSlices};
use crate::measure;
use crate::mps::{Mps, MpsError};
use crate::periodic::Periodic;
use crate::region::files::{CreateRegionError, RegionDirs};
use crate::slices::{CreateError, CreateRequest, RemoveError, ResizeError, ResizeRequest, Slice, SliceId, Slices};
use crate::time_sharing::TimeSharing;

mod adoption;
mod books;
mod execution;
mod locks;
mod plan;
mod publishing;
mod recovery;
mod words;

use books::{Books, Change, Ongoing};
use execution::Execution;
pub(crate) use locks::Locks;
use plan::{ChangePlan, Circumstances};
use publishing::Published;
pub(crate) use recovery::{OpenError, check_path, take_directories};

/// Time until a slice is removed although the driver still holds memory of its ended processes. An H100 takes 3.5 s for
/// a process with 20 GiB of page-locked memory. The command line waits for 30 s, and the agent for 40 s.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(25);
/// Time between two looks whether it does.
const MEMORY_WAIT_STEP: Duration = Duration::from_millis(5);

/// The manager, without its servers.
pub(crate) struct Manager {
    books: Books,
    descriptors: Descriptors,
    dirs: RegionDirs,
    cdi: Cdi,
    checkpoint: Checkpoint,
    /// Gathers changes of the checkpoint, and writes them.
    journal: Journal,
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
    published: parking_lot::Mutex<Published>,
    started: SystemTime,
    /// Whether [`Manager::stop`] was called.
    is_ending: AtomicBool,
    /// What the cluster lacks, of which the node is a part.
    shortcoming: Mutex<Option<Shortcoming>>,
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
    /// A step of the change failed.
    #[error(transparent)]
    Failed(#[from] StepError),
}

/// Why a slice is not changed.
#[derive(Debug, thiserror::Error)]
pub enum ResizeSliceError {
    /// The request is not allowed.
    #[error(transparent)]
    Refused(#[from] ResizeError),
    /// Its region is damaged, or in use although it could not be taken over.
    #[error("slice {name:?} cannot be changed: {problem}")]
    Damaged {
        /// The name of the slice.
        name: String,
        /// What is wrong, and what to do about it.
        problem: String,
    },
    /// A step of the change failed.
    #[error(transparent)]
    Failed(#[from] StepError),
}

/// Why a slice is not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveSliceError {
    /// The request is not allowed.
    #[error(transparent)]
    Refused(#[from] RemoveError),
    /// A step of the change failed.
    #[error(transparent)]
    Failed(#[from] StepError),
}

/// A slice as clients see it.
#[derive(Clone, Debug)]
pub(crate) struct SliceView {
    /// The slice, as the manager knows it.
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
    /// Facts that the slice's user should know although nothing is wrong.
    pub warnings: Vec<String>,
}

impl Manager {
    /// When it was started.
    #[must_use]
    pub(crate) fn started(&self) -> SystemTime {
        self.started
    }

    /// What the cluster lacks, as its adapter has found.
    #[must_use]
    pub(crate) fn shortcoming(&self) -> Option<Shortcoming> {
        self.shortcoming.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records what the cluster lacks, if anything.
    pub(crate) fn set_shortcoming(&self, shortcoming: Option<Shortcoming>) {
        *self.shortcoming.lock().unwrap_or_else(PoisonError::into_inner) = shortcoming;
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

    /// The recent events of this node.
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
        self.list_beginning_with("")
    }

    /// The slices whose names begin with `prefix`, in the order of their names.
    #[must_use]
    pub(crate) fn list_beginning_with(&self, prefix: &str) -> Vec<SliceView> {
        let listed = self.books.list_beginning_with(prefix);
        listed.into_iter().map(|(slice, problem)| self.view(slice, problem)).collect()
    }

    /// Whether there is a slice of that name.
    #[must_use]
    pub(crate) fn has(&self, name: &str) -> bool {
        self.books.get(name).is_some()
    }

    /// The slice of that name.
    #[must_use]
    pub(crate) fn get(&self, name: &str) -> Option<SliceView> {
        self.books.get(name).map(|(slice, problem)| self.view(slice, problem))
    }

    fn view(&self, slice: Slice, problem: Option<String>) -> SliceView {
        let live = self.live.get(&slice.name);
        SliceView {
            region_path: self.dirs.region(slice.id),
            shim_path: live.as_ref().map(|live| live.region.shim_path().into()).unwrap_or_default(),
            stand_in_path: live.as_ref().and_then(|live| live.region.stand_in()).map(Into::into),
            cdi_device: self.cdi.device(&slice.name),
            environment: self.mps.client(&slice.parts).map(|client| client.environment).unwrap_or_default(),
            processes: live.as_ref().map_or(0, |live| live.processes().len()),
            consumers: live.as_ref().map(|live| live.consumers()).unwrap_or_default(),
            warnings: live.as_ref().map_or_else(Vec::new, |live| self.warnings(live)),
            problem: problem
                .or_else(|| live.and_then(|live| live.damage()).map(|damage| damage.problem()))
                .or_else(|| self.devices.known().problem_of(&slice.parts)),
            slice,
        }
    }

    /// Facts that a slice's user should know although nothing is wrong.
    fn warnings(&self, live: &LiveSlice) -> Vec<String> {
        let mut warnings = measure::warnings(live);
        let findings = self.audit.findings();
        let by_time = live.parts().into_iter().map(|part| part.device);
        for device in by_time.filter(|device| self.mps.mode_of(device) == SharingMode::Time) {
            if audit::has_mps_server(&findings, &device) {
                warnings.push(format!(
                    "an MPS server serves device {device}: shares hold, but its clients cannot be audited; stop it, or let \
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
        let id = random_id().map_err(StepError::Random)?;
        let names = std::iter::once(&request.name).chain(&request.published.aliases).map(String::as_str);
        let ongoing = self.books.begin(&names.collect(), |slices| {
            let inventory = self.devices.known().inventory;
            let slice = slices.create(&inventory, request.clone(), id, SystemTime::now())?;
            Ok::<_, CreateError>(Change::Make(slice))
        })?;
        // The slice of this request is already among those that are being made.
        self.check_descriptors(self.books.making()).map_err(StepError::from)?;
        self.carry_out(&ongoing)?;
        let view = self.view_of(ongoing.change());
        info!(slice = view.slice.name, %id, "made a slice");
        let what = format!("was made with {}", words::has(&view.slice));
        self.events.record(Event::of(Kind::SliceMade, what).of_slice(&view.slice.name));
        Ok(view)
    }

    /// Checks whether `new` more slices could be watched.
    fn check_descriptors(&self, new: usize) -> Result<(), NoDescriptors> {
        self.descriptors.check_room(new, self.live.all().iter().map(|live| live.processes().len()))
    }

    /// Changes a slice.
    ///
    /// # Errors
    /// The slice may not be changed, or a step fails. Then nothing has changed.
    pub(crate) fn resize(&self, name: &str, request: &ResizeRequest) -> Result<SliceView, ResizeSliceError> {
        let ongoing = self.books.begin(&[name].into(), |slices| {
            let inventory = self.devices.known().inventory;
            let after = slices.resize(&inventory, name, request)?;
            let before = slices.get(name).unwrap_or(&after).clone();
            Ok::<_, ResizeError>(Change::Resize { before, after })
        })?;
        if let Some(live) = self.live.get(name) {
            self.damage.look(&live);
            if let Some(damage) = live.damage() {
                return Err(ResizeSliceError::Damaged { name: name.to_owned(), problem: damage.problem() });
            }
        } else if let Some(problem) = self.why_unchangeable(ongoing.change().slice().id) {
            return Err(ResizeSliceError::Damaged { name: name.to_owned(), problem });
        }
        let circumstances = self.carry_out(&ongoing)?;
        let mut view = self.view_of(ongoing.change());
        info!(slice = name, "changed a slice");
        let what = match ongoing.change() {
            Change::Resize { before, after } => format!("was changed: {}", words::changes(before, after)),
            _ => "was changed".to_owned(),
        };
        self.events.record(Event::of(Kind::SliceChanged, what).of_slice(name));
        if circumstances.has_new_client && view.processes > 0 {
            view.warnings.push(format!(
                "its share is set by MPS when a process begins to use CUDA: the {} processes in it keep the share that they have",
                view.processes
            ));
        }
        Ok(view)
    }

    /// Why a slice that could not be taken over cannot be changed: processes have its limits mapped, and this manager
    /// does not write to them, so they would keep what the change takes from them.
    fn why_unchangeable(&self, id: SliceId) -> Option<String> {
        match attribution::users_of(id) {
            Ok(users) => {
                let first = users.first()?;
                Some(format!(
                    "it could not be taken over, and {} processes still use its region (the first: {first}): end them, or \
                     remove the slice",
                    users.len()
                ))
            }
            Err(error) => {
                Some(format!("it could not be taken over, and whether its region is in use cannot be told: {error}"))
            }
        }
    }

    /// Removes a slice. What the driver still holds of its ended processes is nobody's until the driver has freed it, so
    /// the slice keeps its place until then; requests that need the room wait meanwhile. When the manager ends, the
    /// removal no longer waits.
    ///
    /// # Errors
    /// The slice may not be removed, or a step fails. Then nothing has changed.
    pub(crate) fn remove(&self, name: &str, force: bool) -> Result<(), RemoveSliceError> {
        let mut attached = 0;
        let ongoing = self.books.begin(&[name].into(), |slices| {
            attached = self.live.get(name).map_or(0, |live| live.processes().len());
            let slice = slices.remove(name, attached, force)?;
            Ok::<_, RemoveError>(Change::Remove(slice.clone()))
        })?;
        if let Some(live) = self.live.get(name) {
            self.wait_for_memory(&live);
            // Others may have come meanwhile.
            attached = live.processes().len();
            if attached > 0 && !force {
                return Err(RemoveError::InUse { name: name.into(), attached }.into());
            }
        }
        self.carry_out(&ongoing)?;
        info!(slice = name, "removed a slice");
        let of = if attached == 0 { String::new() } else { format!(" from {attached} processes") };
        self.events.record(Event::of(Kind::SliceRemoved, format!("was removed{of}")).of_slice(name));
        Ok(())
    }

    /// Waits until the driver has freed the memory of the slice's ended processes, for a bounded time.
    fn wait_for_memory(&self, live: &LiveSlice) {
        // Without a checkpoint the slices end with this manager, and no other slice comes after them.
        if self.checkpoint.is_off() {
            return;
        }
        let begun = Instant::now();
        while live.awaits_memory() && !self.is_ending.load(Ordering::Acquire) {
            if begun.elapsed() > MEMORY_WAIT_MAX {
                warn!(slice = live.name, "the driver still holds memory of processes of a slice that is removed");
                return;
            }
            thread::sleep(MEMORY_WAIT_STEP);
        }
    }

    /// Carries out a change that was decided on. Returns the circumstances that its plan depended on.
    ///
    /// # Errors
    /// A step fails. Then nothing has changed.
    fn carry_out(&self, ongoing: &Ongoing<'_>) -> Result<Circumstances, StepError> {
        let change = ongoing.change();
        let circumstances = self.circumstances(change);
        let plan = ChangePlan::of(change, circumstances);
        let mut execution = Execution::new(self, change);
        execution.prepare(&plan.steps)?;
        execution.finish(&plan.effect);
        ongoing.succeeded();
        execution.finish(&plan.rest);
        Ok(circumstances)
    }

    fn circumstances(&self, change: &Change) -> Circumstances {
        let parts = |slice: Option<&Slice>| slice.map(|slice| slice.parts.clone()).unwrap_or_default();
        let (before, after) = (parts(change.before()), parts(change.after()));
        Circumstances {
            is_live: self.live.get(&change.slice().name).is_some(),
            // A change that does not concern MPS must work while MPS does not answer.
            needs_ceiling: self.mps.ceiling_percent(&before) != self.mps.ceiling_percent(&after),
            has_new_client: self.mps.client(&before) != self.mps.client(&after),
        }
    }

    /// The slice that a change has made or changed. If it has a problem of its own, the view names that.
    fn view_of(&self, change: &Change) -> SliceView {
        let problem = self.books.get(&change.slice().name).and_then(|(_, problem)| problem);
        self.view(change.slice().clone(), problem)
    }

    /// Puts a slice to work: from now on its processes can attach and get device time.
    fn start_slice(&self, live: &Arc<LiveSlice>, slice: &Slice, inventory: &Inventory) -> Result<(), StepError> {
        // Done first, so that processes that already run see a live manager.
        live.region.beat(crate::clock::monotonic_ns());
        if live.damage().is_none() {
            self.time_sharing.add(live, inventory).map_err(StepError::TimeSharing)?;
        }
        if let Err(error) = self.attach.add(live, slice.owner) {
            self.time_sharing.remove(live);
            return Err(StepError::Attach(error));
        }
        self.live.put(Arc::clone(live));
        // While there are other slices, these threads find this one at their next tick.
        self.heartbeat.rouse();
        self.sampler.rouse();
        self.devices.wake();
        Ok(())
    }

    fn stop_slice(&self, live: &LiveSlice) {
        *live.is_leaving() = true;
        self.live.take(&live.name);
        self.attach.remove(live);
        self.time_sharing.remove(live);
    }

    /// The inventory, and a copy of the slices.
    #[must_use]
    pub(crate) fn given(&self) -> (Arc<Inventory>, Slices) {
        (self.devices.known().inventory, self.books.slices())
    }

    /// Removes all slices if there is no checkpoint, because no later manager could take them over.
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
        self.is_ending.store(true, Ordering::Release);
        self.books.wait_for_changes();
        self.remove_what_nobody_remembers();
        self.attach.stop();
        self.time_sharing.stop();
        self.heartbeat.stop();
        self.sampler.stop();
        self.devices.stop();
    }
}

/// A random id. Ids must be unguessable: a process whose mounts show an id counts as one of that slice.
fn random_id() -> io::Result<SliceId> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(SliceId::from_random(u128::from_ne_bytes(bits)))
}
