//! Watches the devices. One thread asks the driver, so that a driver that hangs delays no other thread. Another thread
//! speaks to the control daemon of MPS, for the same reason.
//!
//! The answers feed the inventory with each device's health, and [`processes`]: the memory that slices use beyond their
//! ledgers (contexts, modules), the device time of slices that have a device to themselves, and the audit.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

use crate::audit::Audit;
use crate::events::{Event, Events, Kind};
use crate::inventory::{Alert, DeviceSource, DeviceUuid, Health, Inventory};
use crate::live::LiveSlices;
use crate::measure;
use crate::mps::Mps;
use crate::periodic::{Periodic, Waker};
use crate::slices::Part;

mod ceiling;
mod contexts;
mod partitions;
mod processes;
mod unlisted;
use ceiling::Ceiling;
use partitions::Job;
use processes::ProcessWatch;
pub(crate) use processes::{DeviceLook, ProcessLook, store_if_changed};

/// Time between two looks at the processes on the devices, while there are slices.
const PROCESSES_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two looks at memory alone; processes can request such looks at any time.
const MEMORY_PAUSE: Duration = Duration::from_millis(20);
/// Time between two looks while the driver still holds memory of ended processes.
const ENDED_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two looks at the devices themselves.
const INVENTORY_INTERVAL: Duration = Duration::from_secs(5);

/// The devices as last seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The driver's last answer.
    pub inventory: Arc<Inventory>,
    /// Why the driver did not answer the last request; `None` if it did.
    pub problem: Option<String>,
    /// Memory in use that belongs to no slice, for the devices for which the driver reports it.
    pub memory_outside_bytes: Arc<BTreeMap<DeviceUuid, u64>>,
}

impl Known {
    /// Why a slice with these parts does not work, or might not: one of its devices is unhealthy, gone, or was
    /// partitioned.
    #[must_use]
    pub(crate) fn problem_of(&self, parts: &[Part]) -> Option<String> {
        parts.iter().find_map(|Part { device, .. }| match self.inventory.device(device) {
            // While the driver does not answer, a missing device may still exist.
            None if self.problem.is_some() => None,
            None => {
                Some(format!("device {device} is not there any more: remove the slice, and make it on another one"))
            }
            Some(found) if found.mig_enabled => Some(format!(
                "device {device} was partitioned by MIG: remove the slice, and make it on one of the instances"
            )),
            Some(found) => match &found.health {
                Health::Healthy => None,
                Health::Unhealthy { reason } => Some(format!(
                    "device {device} is unhealthy: {reason}; the slice stays, and its programs go on as far as they can"
                )),
            },
        })
    }
}

/// Handle of the thread that asks the driver.
pub(crate) struct Devices {
    known: watch::Receiver<Known>,
    jobs: mpsc::Sender<Job>,
    asked: Arc<Asked>,
    thread: Periodic,
    ceiling: Periodic,
}

/// Looks that were requested before they are due.
#[derive(Default)]
struct Asked {
    processes: AtomicBool,
    memory: AtomicBool,
}

impl Devices {
    /// Asks `source` once, and starts the thread that keeps asking.
    ///
    /// # Errors
    /// The kernel does not give all threads.
    pub(crate) fn start(
        source: Box<dyn DeviceSource>,
        slices: Arc<LiveSlices>,
        audit: Arc<Audit>,
        mps: Arc<Mps>,
        events: Arc<Events>,
    ) -> io::Result<Devices> {
        let (sender, known) = watch::channel(Known::default());
        let (jobs, waiting) = mpsc::channel();
        let now = Instant::now();
        let asked = Arc::new(Asked::default());
        let mut watch = Watch {
            known: sender,
            jobs: waiting,
            asked: Arc::clone(&asked),
            source,
            processes: ProcessWatch::new(Arc::clone(&slices), audit),
            slices: Arc::clone(&slices),
            mps: Arc::clone(&mps),
            events,
            devices_seen: now,
            processes_seen: now,
            memory_seen: now,
        };
        watch.look_at_devices();
        let mut ceiling = Ceiling::new(mps, slices, known.clone());
        if ceiling.hold() {
            // This look includes the answer of the control daemon.
            watch.look_at_devices();
        }
        let thread = Periodic::start("devices", move || Some(watch.tick()))?;
        let alert = alert(jobs.clone(), thread.waker());
        let look = Arc::clone(&alert);
        // An error means that the thread has ended; then no alert is needed.
        let _ = jobs.send(Box::new(|watch| watch.source.set_alert(alert)));
        thread.wake();
        let ceiling = Periodic::start("mps", move || Some(ceiling.tick(&*look)))?;
        Ok(Devices { known, jobs, asked, thread, ceiling })
    }

    /// The devices as last seen.
    #[must_use]
    pub(crate) fn known(&self) -> Known {
        self.known.borrow().clone()
    }

    /// The devices as last seen, updated after each look.
    #[must_use]
    pub(crate) fn watch(&self) -> watch::Receiver<Known> {
        self.known.clone()
    }

    /// Makes the thread look at processes now.
    pub(crate) fn wake(&self) {
        self.asked.processes.store(true, Ordering::Release);
        self.thread.wake();
    }

    /// A function for the attach thread: makes the thread look at the slices' device memory, at once or after the
    /// minimum pause.
    pub(crate) fn memory_looks(&self) -> impl Fn() + Send + use<> {
        let (asked, thread) = (Arc::clone(&self.asked), self.thread.waker());
        move || {
            if !asked.memory.swap(true, Ordering::AcqRel) {
                thread.wake();
            }
        }
    }

    /// Ends the threads, after any driver call or answer of MPS that they are waiting for.
    pub(crate) fn stop(&self) {
        self.ceiling.stop();
        self.thread.stop();
    }
}

/// Makes the thread look at the devices when a source reports that their health may have changed. All reports that come
/// before a look begins share that look.
fn alert(jobs: mpsc::Sender<Job>, thread: Waker) -> Alert {
    let is_asked = Arc::new(AtomicBool::new(false));
    Arc::new(move || {
        if is_asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let is_asked = Arc::clone(&is_asked);
        let look = move |watch: &mut Watch| {
            is_asked.swap(false, Ordering::AcqRel);
            watch.look_at_devices();
        };
        // An error means that the thread has ended; then no look is needed.
        let _ = jobs.send(Box::new(look));
        thread.wake();
    })
}

struct Watch {
    known: watch::Sender<Known>,
    jobs: mpsc::Receiver<Job>,
    asked: Arc<Asked>,
    source: Box<dyn DeviceSource>,
    slices: Arc<LiveSlices>,
    mps: Arc<Mps>,
    events: Arc<Events>,
    processes: ProcessWatch,
    devices_seen: Instant,
    processes_seen: Instant,
    memory_seen: Instant,
}

impl Watch {
    /// Carries out jobs and looks that are due. Returns how long to wait.
    fn tick(&mut self) -> Duration {
        let mut has_worked = false;
        while let Ok(job) = self.jobs.try_recv() {
            job(self);
            has_worked = true;
        }
        if self.devices_seen.elapsed() >= INVENTORY_INTERVAL {
            self.devices_seen = Instant::now();
            self.look_at_devices();
        }
        let is_asked = self.asked.processes.swap(false, Ordering::AcqRel);
        let interval = || if self.slices.all().is_empty() { INVENTORY_INTERVAL } else { PROCESSES_INTERVAL };
        let (elapsed, interval) = (self.processes_seen.elapsed(), interval());
        if !has_worked && !is_asked && elapsed < interval {
            return self.look_at_memory().min(interval - elapsed);
        }
        // A request that comes from here on may be too late for this look, so it must stay set.
        self.asked.memory.store(false, Ordering::Release);
        let now = Instant::now();
        (self.processes_seen, self.memory_seen) = (now, now);
        let inventory = Arc::clone(&self.known.borrow().inventory);
        self.processes.look(self.source.as_mut(), &inventory, elapsed);
        if self.processes.awaits_memory() { ENDED_INTERVAL } else { interval }
    }

    /// Looks at memory if that was requested and the last look was long enough ago: a tenant may request as often as it
    /// likes. Returns how long to wait.
    fn look_at_memory(&mut self) -> Duration {
        const UNTIL_ASKED: Duration = INVENTORY_INTERVAL;
        let pause = if self.asked.memory.load(Ordering::Acquire) {
            MEMORY_PAUSE
        } else if self.processes.awaits_memory() {
            ENDED_INTERVAL
        } else {
            return UNTIL_ASKED;
        };
        let elapsed = self.memory_seen.elapsed();
        if elapsed < pause {
            return pause - elapsed;
        }
        self.asked.memory.store(false, Ordering::Release);
        self.memory_seen = Instant::now();
        let inventory = Arc::clone(&self.known.borrow().inventory);
        self.processes.look_at_memory(self.source.as_mut(), &inventory);
        if self.processes.awaits_memory() { ENDED_INTERVAL } else { UNTIL_ASKED }
    }

    fn look_at_devices(&mut self) {
        let before = self.known.borrow().clone();
        let known = match self.source.inventory() {
            Ok(mut inventory) => {
                self.mps.note(&mut inventory);
                let memory_outside_bytes = Arc::new(self.memory_outside(&inventory));
                Known { inventory: Arc::new(inventory), problem: None, memory_outside_bytes }
            }
            // The known devices stay, so that slices keep theirs; no new slice is made on them.
            Err(error) => {
                let inventory = Arc::new(silent(&before.inventory, &error.0));
                Known { inventory, problem: Some(error.0), ..Known::default() }
            }
        };
        report(&before, &known, &self.events);
        self.known.send_replace(known);
    }

    /// Memory in use that belongs to no slice: memory of programs outside of slices, and of slices beyond their limits.
    fn memory_outside(&mut self, inventory: &Inventory) -> BTreeMap<DeviceUuid, u64> {
        let mut within: BTreeMap<DeviceUuid, u64> = BTreeMap::new();
        for live in self.slices.all() {
            for (device, bytes) in measure::used_within_limits(&live) {
                *within.entry(device).or_default() += bytes;
            }
        }
        let usable = inventory.devices.iter().filter(|device| !device.mig_enabled);
        let outside = usable.filter_map(|device| {
            let used_bytes = self.source.used_bytes(&device.uuid).ok().flatten()?;
            let within_bytes = within.get(&device.uuid).copied().unwrap_or(0);
            Some((device.uuid.clone(), used_bytes.saturating_sub(within_bytes)))
        });
        outside.collect()
    }
}

/// The inventory while the driver does not answer: the same devices, all unhealthy.
fn silent(inventory: &Inventory, reason: &str) -> Inventory {
    let mut inventory = inventory.clone();
    for device in &mut inventory.devices {
        device.health = Health::Unhealthy { reason: format!("the driver does not answer: {reason}") };
    }
    inventory
}

/// Logs and records what has changed.
fn report(before: &Known, now: &Known, events: &Events) {
    match (&before.problem, &now.problem) {
        (before, Some(problem)) if before.as_ref() != Some(problem) => {
            warn!(%problem, "no devices can be given out; `aliquot doctor` says what to do");
            events.record(Event::of(Kind::DriverSilent, format!("no devices can be given out: {problem}")));
        }
        (Some(_), None) => {
            info!("the driver answers again");
            events.record(Event::of(Kind::DriverAnswers, "the driver answers again"));
        }
        _ => {}
    }
    for device in &before.inventory.devices {
        if now.inventory.device(&device.uuid).is_none() {
            warn!(device = %device.uuid, "a device is gone");
            events.record(Event::of(Kind::DeviceGone, "is gone").of_device(&device.uuid));
        }
    }
    for device in &now.inventory.devices {
        let former = before.inventory.device(&device.uuid).map(|device| &device.health);
        let event = match (&device.health, former) {
            (Health::Unhealthy { reason }, former) if former != Some(&device.health) => {
                warn!(device = %device.uuid, reason, "a device is unhealthy");
                Event::of(Kind::DeviceUnhealthy, format!("is unhealthy: {reason}"))
            }
            (Health::Healthy, Some(Health::Unhealthy { .. })) => {
                info!(device = %device.uuid, "a device has recovered");
                Event::of(Kind::DeviceRecovered, "has recovered")
            }
            (Health::Healthy, None) => {
                info!(device = %device.uuid, model = device.model, "found a device");
                Event::of(Kind::DeviceFound, format!("was found: {}", device.model))
            }
            _ => continue,
        };
        events.record(event.of_device(&device.uuid));
    }
}
