//! Watches the devices: one thread that asks the driver, so that a driver that hangs holds up nobody else.
//!
//! From its answers come the inventory with each device's health, what slices use of a device beyond their ledgers (contexts,
//! modules), and the device time of slices that have a device to themselves.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tracing::{debug, info, warn};

use crate::inventory::{DeviceProcess, DeviceSource, DeviceUuid, Health, Inventory, UtilisationSample};
use crate::live::{LiveSlice, LiveSlices};
use crate::periodic::Periodic;
use crate::region::view;

/// Between two looks at the processes on the devices, while there are any of slices.
const PROCESSES_INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks at the devices themselves.
const INVENTORY_INTERVAL: Duration = Duration::from_secs(5);

/// What is known of the devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// As the driver last told it.
    pub inventory: Arc<Inventory>,
    /// Why the driver did not answer the last time it was asked.
    pub problem: Option<String>,
}

/// The thread.
pub(crate) struct Devices {
    known: Arc<RwLock<Known>>,
    thread: Periodic,
}

impl Devices {
    /// Asks `source` once, and starts the thread that goes on asking.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub(crate) fn start(source: Box<dyn DeviceSource>, slices: Arc<LiveSlices>) -> io::Result<Devices> {
        let known = Arc::new(RwLock::new(Known::default()));
        let now = Instant::now();
        let mut watch = Watch {
            known: Arc::clone(&known),
            source,
            slices,
            since_us: BTreeMap::new(),
            free_before: Vec::new(),
            devices_seen: now,
            processes_seen: now,
        };
        watch.look_at_devices();
        Ok(Devices { known, thread: Periodic::start("devices", move || Some(watch.tick()))? })
    }

    /// What is known of the devices now.
    #[must_use]
    pub(crate) fn known(&self) -> Known {
        self.known.read().clone()
    }

    /// Has the thread look at slices with processes now.
    pub(crate) fn wake(&self) {
        self.thread.wake();
    }

    /// Ends the thread; not before an answer of the driver that it waits for.
    pub(crate) fn stop(&self) {
        self.thread.stop();
    }
}

struct Watch {
    known: Arc<RwLock<Known>>,
    source: Box<dyn DeviceSource>,
    slices: Arc<LiveSlices>,
    /// Up to when, by the driver's clock, samples of a device were taken.
    since_us: BTreeMap<DeviceUuid, u64>,
    /// The slices, with the number of the part, that had a device to themselves at the last look.
    free_before: Vec<(u64, usize)>,
    devices_seen: Instant,
    processes_seen: Instant,
}

impl Watch {
    /// Looks at what is due. Returns how long to wait.
    fn tick(&mut self) -> Duration {
        if self.devices_seen.elapsed() >= INVENTORY_INTERVAL {
            self.devices_seen = Instant::now();
            self.look_at_devices();
        }
        let elapsed = self.processes_seen.elapsed();
        self.processes_seen = Instant::now();
        self.look_at_processes(elapsed);
        if self.slices.all().is_empty() { INVENTORY_INTERVAL } else { PROCESSES_INTERVAL }
    }

    fn look_at_devices(&mut self) {
        let before = self.known.read().clone();
        let known = match self.source.inventory() {
            Ok(inventory) => Known { inventory: Arc::new(inventory), problem: None },
            // What was known stays, so that slices keep their devices; nothing new is given out of them.
            Err(error) => Known { inventory: Arc::new(silent(&before.inventory, &error.0)), problem: Some(error.0) },
        };
        report(&before, &known);
        *self.known.write() = known;
    }

    fn look_at_processes(&mut self, elapsed: Duration) {
        let mut by_device: BTreeMap<DeviceUuid, Vec<(Arc<LiveSlice>, usize)>> = BTreeMap::new();
        for live in self.slices.all() {
            for (number, part) in live.parts().into_iter().enumerate() {
                if !live.processes().is_empty() {
                    by_device.entry(part.device).or_default().push((Arc::clone(&live), number));
                }
            }
        }
        let mut free_now = Vec::new();
        for (device, members) in &by_device {
            for (live, number) in members {
                self.reconcile_overhead(device, live, *number);
            }
            for (live, number) in members.iter().filter(|(live, number)| live.is_free(*number)) {
                free_now.push((live.number, *number));
                self.charge_free(device, live, *number, elapsed);
            }
        }
        self.free_before = free_now;
    }

    /// Writes down what the slice's processes use of the device beyond what its ledger knows.
    fn reconcile_overhead(&mut self, device: &DeviceUuid, live: &LiveSlice, number: usize) {
        let ledger = live.region.ledger();
        let before = view::account(ledger, number).used_bytes;
        let processes = match self.source.processes(device) {
            Ok(processes) => processes,
            Err(error) => return debug!(%device, %error, "cannot tell what processes use"),
        };
        let pids: Vec<u32> = live.processes().iter().map(|process| process.pid).collect();
        let Some(seen) = memory_of(&processes, &pids) else { return };
        // An allocation between the two looks is no overhead.
        let known = before.max(view::account(ledger, number).used_bytes);
        live.region.device_limits(number).memory_overhead_bytes.store(seen.saturating_sub(known), Ordering::Relaxed);
    }

    /// Charges a slice that has the device to itself by the driver's samples: nobody else measures it then.
    fn charge_free(&mut self, device: &DeviceUuid, live: &LiveSlice, number: usize, elapsed: Duration) {
        let since_us = self.since_us.get(device).copied().unwrap_or(0);
        let samples = match self.source.utilisation(device, since_us) {
            Ok(samples) => samples,
            Err(error) => return debug!(%device, %error, "cannot tell how busy processes are"),
        };
        if let Some(newest_us) = samples.iter().map(|sample| sample.time_us).max() {
            self.since_us.insert(device.clone(), newest_us);
        }
        if !self.free_before.contains(&(live.number, number)) {
            return;
        }
        let pids: Vec<u32> = live.processes().iter().map(|process| process.pid).collect();
        let busy_ns = elapsed.as_nanos() * u128::from(busy_percent(&samples, &pids)) / 100;
        live.counters(number).free_ns.fetch_add(u64::try_from(busy_ns).unwrap_or(0), Ordering::Relaxed);
    }
}

/// The memory of those of `processes` that are in `pids`; `None` if the driver does not tell that of one of them.
fn memory_of(processes: &[DeviceProcess], pids: &[u32]) -> Option<u64> {
    let ours = processes.iter().filter(|process| pids.contains(&process.pid));
    ours.map(|process| process.memory_bytes).try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
}

/// How busy the processes `pids` kept the device together: the sum of each one's mean, at most 100.
fn busy_percent(samples: &[UtilisationSample], pids: &[u32]) -> u32 {
    let mut by_pid: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| pids.contains(&sample.pid)) {
        let (sum, count) = by_pid.entry(sample.pid).or_default();
        (*sum, *count) = (*sum + u64::from(sample.busy_percent), *count + 1);
    }
    let busy: u64 = by_pid.values().map(|(sum, count)| sum / count).sum();
    u32::try_from(busy.min(100)).unwrap_or(100)
}

/// The inventory when the driver does not answer: the same devices, none of them healthy.
fn silent(inventory: &Inventory, reason: &str) -> Inventory {
    let mut inventory = inventory.clone();
    for device in &mut inventory.devices {
        device.health = Health::Unhealthy { reason: format!("the driver does not answer: {reason}") };
    }
    inventory
}

/// Logs what has changed.
fn report(before: &Known, now: &Known) {
    match (&before.problem, &now.problem) {
        (before, Some(problem)) if before.as_ref() != Some(problem) => {
            warn!(%problem, "no devices can be given out; `aliquot doctor` says what to do");
        }
        (Some(_), None) => info!("the driver answers again"),
        _ => {}
    }
    for device in &now.inventory.devices {
        let former = before.inventory.device(&device.uuid).map(|device| &device.health);
        match (&device.health, former) {
            (Health::Unhealthy { reason }, former) if former != Some(&device.health) => {
                warn!(device = %device.uuid, reason, "a device is unhealthy");
            }
            (Health::Healthy, Some(Health::Unhealthy { .. })) => info!(device = %device.uuid, "a device has recovered"),
            (Health::Healthy, None) => info!(device = %device.uuid, model = device.model, "found a device"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slice_s_own_processes_count_and_an_unknown_one_makes_all_unknown() {
        let process = |pid, memory_bytes| DeviceProcess { pid, memory_bytes };
        let processes = [process(1, Some(10)), process(2, Some(20)), process(3, None)];
        assert_eq!(memory_of(&processes, &[1, 2]), Some(30));
        assert_eq!(memory_of(&processes, &[2, 9]), Some(20));
        assert_eq!(memory_of(&processes, &[1, 3]), None);
    }

    #[test]
    fn several_samples_of_a_process_are_averaged_and_processes_added() {
        let sample = |pid, busy_percent| UtilisationSample { pid, time_us: 0, busy_percent };
        let samples = [sample(1, 20), sample(1, 40), sample(2, 50), sample(3, 100)];
        assert_eq!(busy_percent(&samples, &[1, 2]), 80);
        assert_eq!(busy_percent(&samples, &[1, 3]), 100);
        assert_eq!(busy_percent(&samples, &[]), 0);
    }
}
