//! Drives the arbiters, with one thread for each device that has had a slice.
//!
//! The policy is in `aliquot_arbiter` and knows neither clock nor memory. A thread here passes it the time and the
//! state that the regions show, and carries out its decisions: gates, ticks, wake-ups. It sleeps until the policy wants
//! to look again. If no process runs or waits, it sleeps until it is woken by a process that attaches, rings or ends,
//! or by a change of a slice.
//!
//! A device that is shared by MPS has no thread: the gates of its slices stand open permanently.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use aliquot_abi::region::gate;
use aliquot_arbiter::Share;
use aliquot_node::QosClass;
use parking_lot::Mutex;

use crate::inventory::{DeviceUuid, Inventory, SharingMode};
use crate::live::LiveSlice;
use crate::mps::Mps;
use crate::slices::Part;

mod device_thread;
mod gang_states;

pub(crate) use gang_states::GangStates;

use device_thread::{Command, DeviceThread};

/// The threads of all devices.
pub(crate) struct TimeSharing {
    mps: Arc<Mps>,
    /// The longest lease while other slices wait.
    lease_max_ns: u64,
    devices: Mutex<BTreeMap<DeviceUuid, DeviceThread>>,
}

impl TimeSharing {
    /// A set without threads. Devices that `mps` shares never get one.
    #[must_use]
    pub(crate) fn new(mps: Arc<Mps>, lease_max_ns: u64) -> TimeSharing {
        TimeSharing { mps, lease_max_ns, devices: Mutex::default() }
    }

    /// Adds a slice: from now on its devices are shared with it. `inventory` describes the devices.
    ///
    /// # Errors
    /// The kernel gives no thread; then nothing has changed for the slice.
    pub(crate) fn add(&self, live: &Arc<LiveSlice>, inventory: &Inventory) -> io::Result<()> {
        let mut devices = self.devices.lock();
        let parts = live.parts();
        for part in parts.iter().filter(|part| self.mps.mode_of(&part.device) == SharingMode::Time) {
            if !devices.contains_key(&part.device) {
                let mut thread = DeviceThread::start(&part.device, self.lease_max_ns)?;
                // Until the driver says more.
                thread.charge_all(true);
                devices.insert(part.device.clone(), thread);
            }
        }
        charge_by(inventory, &mut devices);
        for (number, part) in parts.iter().enumerate() {
            if let Some(thread) = devices.get(&part.device) {
                thread.tell(Command::Add {
                    live: Arc::clone(live),
                    part: number,
                    share: share(part, live.qos_class()),
                });
            } else {
                live.set_free(number, true);
                live.region.set_gate(number, gate::OPEN | gate::FREE);
            }
        }
        Ok(())
    }

    /// Takes in what the driver now says of the devices.
    pub(crate) fn note(&self, inventory: &Inventory) {
        charge_by(inventory, &mut self.devices.lock());
    }

    /// Applies the shares and the priority of a resized slice. They are in force when this returns.
    pub(crate) fn resize(&self, live: &LiveSlice) {
        let devices = self.devices.lock();
        for part in live.parts() {
            if let Some(thread) = devices.get(&part.device) {
                let share = share(&part, live.qos_class());
                thread.tell_and_wait(|done| Command::Resize { number: live.number, share, done });
            }
        }
    }

    /// Takes a slice out. Its gates are not touched any more when this returns.
    pub(crate) fn remove(&self, live: &LiveSlice) {
        let devices = self.devices.lock();
        for part in live.parts() {
            if let Some(thread) = devices.get(&part.device) {
                thread.tell_and_wait(|done| Command::Remove { number: live.number, done });
            }
        }
    }

    /// Wakes the arbiters of all devices of a slice, because processes have attached or ended.
    pub(crate) fn wake(&self, live: &LiveSlice) {
        let devices = self.devices.lock();
        for part in live.parts() {
            if let Some(thread) = devices.get(&part.device) {
                thread.wake();
            }
        }
    }

    /// Wakes the arbiter of the slice's device number `device`, because a process waits.
    pub(crate) fn wake_device(&self, live: &LiveSlice, device: usize) {
        if let Some(thread) =
            live.parts().get(device).and_then(|part| self.devices.lock().get(&part.device).map(DeviceThread::waker))
        {
            thread.unpark();
        }
    }

    /// Ends the threads. Gates stay as they are; from now on processes pace themselves.
    pub(crate) fn stop(&self) {
        for (_, thread) in std::mem::take(&mut *self.devices.lock()) {
            thread.stop();
        }
    }
}

/// Tells the threads of the devices in `inventory` whether the driver says how busy those are.
fn charge_by(inventory: &Inventory, threads: &mut BTreeMap<DeviceUuid, DeviceThread>) {
    for device in &inventory.devices {
        if let Some(thread) = threads.get_mut(&device.uuid) {
            thread.charge_all(!device.tells_utilisation);
        }
    }
}

fn share(part: &Part, class: QosClass) -> Share {
    Share {
        request_percent: part.core_request_percent,
        limit_percent: part.core_limit_percent,
        priority: match class {
            QosClass::LatencyCritical => 1,
            QosClass::Standard => 0,
            QosClass::Batch => -1,
        },
    }
}
