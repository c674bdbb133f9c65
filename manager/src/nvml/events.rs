//! The driver's reports of critical errors. One thread per GPU waits for them. Without a waiting thread the driver
//! keeps only the last error's number, so a program's error would hide an error of the device.

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

/// How long a thread waits before it checks whether it is still needed.
const WAIT_MS: u32 = 1000;
/// Time without listening to a GPU after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A critical error that the driver has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// The UUID of the GPU.
    pub gpu: DeviceUuid,
    /// The GPU instance that has the error; `None` if the error is the GPU's and concerns all its instances. An error
    /// of one instance does not affect the others.
    pub gpu_instance: Option<u32>,
    /// NVIDIA's number of the error.
    pub xid: u64,
}

/// Listens for the errors of all GPUs.
#[derive(Default)]
pub(super) struct Events {
    shared: Arc<Shared>,
    listeners: BTreeMap<DeviceUuid, Listener>,
}

/// The state of listening to one GPU.
enum Listener {
    Thread(JoinHandle<()>),
    /// No thread listens: the GPU makes no reports, so only its silence shows that it is broken.
    Nobody,
}

#[derive(Default)]
struct Shared {
    reports: Mutex<Vec<Report>>,
    alert: OnceLock<Alert>,
}

impl Events {
    /// Registers `alert`, to be called at each report.
    pub(super) fn set_alert(&self, alert: Alert) {
        // Only the first alert is kept.
        let _ = self.shared.alert.set(alert);
    }

    /// Starts listening to a GPU that answers, unless a thread does already.
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
            // The next look tries again.
            Err(error) => return warn!(device = %uuid, %error, "cannot listen to the device's critical errors"),
        };
        let (shared, of) = (Arc::downgrade(&self.shared), uuid.clone());
        match thread::Builder::new().name("device-events".into()).spawn(move || wait(&set, &of, &shared)) {
            Ok(thread) => _ = self.listeners.insert(uuid.clone(), Listener::Thread(thread)),
            Err(error) => warn!(device = %uuid, %error, "cannot listen to the device's critical errors"),
        }
    }

    /// The reports since the last call, in order.
    pub(super) fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *self.shared.reports.lock())
    }
}

fn register(gpu: &NvmlDevice) -> Result<EventSet<'static>, NvmlError> {
    let set = gpu.nvml().create_event_set()?;
    gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|failure| failure.error)
}

/// Waits for reports until the receiver is gone or the GPU does not answer.
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
                // A look at the devices will show what is wrong.
                alert();
                drop(shared);
                return thread::sleep(RETRY_INTERVAL);
            }
        }
    }
}
