//! The driver's reports of critical errors. One thread for each GPU waits for them, since those that nobody waits for
//! are told by the last one's number only: an error of a program would hide one of the device.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use parking_lot::Mutex;
use tracing::{info, warn};

use super::{NvmlDevice, instance};
use crate::inventory::{Alert, DeviceUuid};

/// How long a thread waits before it looks whether it is still wanted.
const WAIT_MS: u32 = 1000;
/// After a failure a GPU is not listened to for so long.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A critical error that the driver has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// The GPU.
    pub gpu: DeviceUuid,
    /// The number of the GPU instance whose error it is; `None`: the error is the GPU's, and counts for all its
    /// instances. For the error of one instance the others need not stop.
    pub gpu_instance: Option<u32>,
    /// NVIDIA's number of the error.
    pub xid: u64,
}

/// Listens to the GPUs.
#[derive(Default)]
pub(super) struct Events {
    shared: Arc<Shared>,
    listeners: BTreeMap<DeviceUuid, Listener>,
}

/// Whoever listens to one GPU.
enum Listener {
    Thread(JoinHandle<()>),
    /// It makes no reports: its silence is all there is.
    Nobody,
}

#[derive(Default)]
struct Shared {
    reports: Mutex<Vec<Report>>,
    alert: OnceLock<Alert>,
}

impl Events {
    /// Has `alert` called at each report.
    pub(super) fn set_alert(&self, alert: Alert) {
        // The first one stays.
        let _ = self.shared.alert.set(alert);
    }

    /// Listens to a GPU that answers, if nobody does.
    pub(super) fn listen(&mut self, uuid: &DeviceUuid, gpu: &NvmlDevice) {
        match self.listeners.get(uuid) {
            Some(Listener::Nobody) => return,
            Some(Listener::Thread(thread)) if !thread.is_finished() => return,
            _ => {}
        }
        let set = match register(gpu) {
            Ok(set) => set,
            Err(NvmlError::NotSupported) => {
                info!(device = %uuid, "it reports no critical errors: only its silence would show that it is broken");
                self.listeners.insert(uuid.clone(), Listener::Nobody);
                return;
            }
            // It is tried again at the next look.
            Err(error) => return warn!(device = %uuid, %error, "cannot listen to the device's critical errors"),
        };
        let (shared, of) = (Arc::downgrade(&self.shared), uuid.clone());
        match thread::Builder::new().name("device-events".into()).spawn(move || wait(&set, &of, &shared)) {
            Ok(thread) => _ = self.listeners.insert(uuid.clone(), Listener::Thread(thread)),
            Err(error) => warn!(device = %uuid, %error, "cannot listen to the device's critical errors"),
        }
    }

    /// What was reported since the last time, in order.
    pub(super) fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *self.shared.reports.lock())
    }
}

fn register(gpu: &NvmlDevice) -> Result<EventSet<'static>, NvmlError> {
    let set = gpu.nvml().create_event_set()?;
    gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|failure| failure.error)
}

/// Waits for reports until nobody wants them, or the GPU does not answer.
fn wait(set: &EventSet<'_>, gpu: &DeviceUuid, shared: &Weak<Shared>) {
    loop {
        let heard = instance::wait_for_xid(set, WAIT_MS);
        let Some(shared) = shared.upgrade() else { return };
        let alert = || shared.alert.get().map(|alert| alert());
        match heard {
            Ok((xid, gpu_instance)) => {
                shared.reports.lock().push(Report { gpu: gpu.clone(), gpu_instance, xid });
                alert();
            }
            Err(NvmlError::Timeout) => {}
            Err(_) => {
                // A look tells what is wrong.
                alert();
                drop(shared);
                return thread::sleep(RETRY_INTERVAL);
            }
        }
    }
}
