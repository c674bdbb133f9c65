//! MPS: on devices where the node's configuration asks for it, NVIDIA's multi-process service enforces the shares in
//! place of leases. Kernels of several slices then run at the same time, each on its part of the device's
//! multiprocessors.
//!
//! # The limits, and how each is enforced
//!
//! * The processes of a slice get their share, which is the slice's limit, in `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`. The
//!   driver reads it when a process begins to use CUDA. A process can change it.
//! * The MPS server grants no client more than the server's own setting. The manager sets that to the **ceiling**: the
//!   greatest limit of all slices that share by MPS. So a tenant that changes the variable gets at most the ceiling,
//!   and gains nothing if all slices have the same limit.
//! * A process that avoids MPS is kept off the device by the compute mode `EXCLUSIVE_PROCESS`, which the administrator
//!   sets. In another mode it gets the time slices of an ordinary process.
//! * The shim limits memory, as always. Guaranteed shares hold only as far as limits do: MPS has no priorities and
//!   guarantees nothing.
//!
//! The control daemon loses its settings when it ends, so the manager checks them at every look.

use parking_lot::Mutex;
use tracing::{debug, info};

use crate::config::SharingSettings;
use crate::inventory::{DeviceUuid, Health, Inventory, SharingMode};
use crate::slices::Part;

mod control;

use control::Control;
pub(crate) use control::MpsError;

/// The MPS of this machine.
#[derive(Debug)]
pub(crate) struct Mps {
    settings: SharingSettings,
    control: Control,
    /// Locked during each conversation with the daemon, so that two threads do not set different ceilings.
    conversation: Mutex<()>,
    /// Why shares could not be set in the last conversation; `None` if they could.
    problem: Mutex<Option<String>>,
    /// The percentages that slices need while they are being made or changed, and do not count yet.
    raising_percents: Mutex<Vec<u32>>,
}

/// Keeps the ceiling at least at `percent` while it lives.
#[derive(Debug)]
pub(crate) struct Raised<'a> {
    mps: &'a Mps,
    percent: u32,
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        let mut raising = self.mps.raising_percents.lock();
        if let Some(at) = raising.iter().position(|percent| *percent == self.percent) {
            raising.swap_remove(at);
        }
    }
}

/// The variables and mounts that make a slice's processes clients of the MPS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// Variables, each as `NAME=value`.
    pub environment: Vec<String>,
    /// Directories of this machine that containers get, each with its path in the container.
    pub mounts: Vec<(std::path::PathBuf, std::path::PathBuf)>,
}

impl Mps {
    /// The MPS of `settings`. Sends no command yet.
    #[must_use]
    pub(crate) fn new(settings: SharingSettings) -> Mps {
        let control = Control::new(settings.mps.clone());
        let conversation = Mutex::default();
        Mps { settings, control, conversation, problem: Mutex::default(), raising_percents: Mutex::default() }
    }

    /// How `device` is shared.
    #[must_use]
    pub(crate) fn mode_of(&self, device: &DeviceUuid) -> SharingMode {
        self.settings.mode_of(device)
    }

    /// Variables and mounts for a slice with these parts; `None` if the slice shares no device by MPS.
    #[must_use]
    pub(crate) fn client(&self, parts: &[Part]) -> Option<Client> {
        // One variable applies to all devices, so the lowest limit counts.
        let percent = self.limits(parts).min()?;
        let mps = &self.settings.mps;
        Some(Client {
            environment: vec![
                format!("CUDA_MPS_PIPE_DIRECTORY={}", mps.pipe_directory.display()),
                format!("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}"),
            ],
            mounts: vec![
                (mps.pipe_directory.clone(), mps.pipe_directory.clone()),
                (mps.shm_directory.clone(), "/dev/shm".into()),
            ],
        })
    }

    /// The greatest limit among the parts that share by MPS; `None` if there are none.
    #[must_use]
    pub(crate) fn ceiling_percent(&self, parts: &[Part]) -> Option<u32> {
        self.limits(parts).max()
    }

    fn limits(&self, parts: &[Part]) -> impl Iterator<Item = u32> {
        let by_mps = parts.iter().filter(|part| self.mode_of(&part.device) == SharingMode::Mps);
        by_mps.map(|part| part.core_limit_percent)
    }

    /// Raises the ceiling for a slice that does not count in ceilings yet: to `percent`, or to the value of `reckon`
    /// for the other slices if that is higher. The ceiling does not fall below `percent` until the returned guard is
    /// dropped.
    ///
    /// # Errors
    /// See [`MpsError`].
    pub(crate) fn raise(&self, percent: u32, reckon: impl FnOnce() -> Option<u32>) -> Result<Raised<'_>, MpsError> {
        self.raising_percents.lock().push(percent);
        let raised = Raised { mps: self, percent };
        self.hold(reckon)?;
        Ok(raised)
    }

    /// Sets the ceiling to what `reckon` returns, or to the highest raised value if that is higher. If both are `None`, only
    /// checks whether there is a control daemon. Waits for the daemon's answers, and for conversations of other threads.
    ///
    /// # Errors
    /// See [`MpsError`].
    pub(crate) fn hold(&self, reckon: impl FnOnce() -> Option<u32>) -> Result<(), MpsError> {
        let _conversation = self.conversation.lock();
        // The raised values are read before `reckon` runs: when a guard is dropped, its slice already counts in `reckon`.
        let raising_percent = self.raising_percents.lock().iter().copied().max();
        let outcome = self.set(reckon().max(raising_percent));
        *self.problem.lock() = outcome.as_ref().err().map(ToString::to_string);
        outcome
    }

    fn set(&self, ceiling_percent: Option<u32>) -> Result<(), MpsError> {
        let found = self.control.default_percentage()?;
        let Some(ceiling) = ceiling_percent else { return Ok(()) };
        if found != ceiling {
            self.control.set_default_percentage(ceiling)?;
            info!(percent = ceiling, "the MPS servers to come grant no client more");
        }
        // The default applies only to servers that start later.
        for server in self.control.servers()? {
            match self.hold_server(server, ceiling) {
                Ok(()) => {}
                // A server ends with its last client, possibly during this conversation.
                Err(error) if !self.control.servers()?.contains(&server) => {
                    debug!(server, %error, "an MPS server has ended")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn hold_server(&self, server: u32, ceiling: u32) -> Result<(), MpsError> {
        if self.control.percentage_of(server)? != ceiling {
            self.control.set_percentage_of(server, ceiling)?;
            info!(server, percent = ceiling, "the MPS server grants no client more from now on");
        }
        Ok(())
    }

    /// Whether any device of `inventory` is shared by MPS.
    #[must_use]
    pub(crate) fn is_used(&self, inventory: &Inventory) -> bool {
        inventory.devices.iter().any(|device| self.mode_of(&device.uuid) == SharingMode::Mps)
    }

    /// Why shares could not be set in the last conversation with the daemon; `None` if they could.
    #[must_use]
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Notes the sharing mode of each device, and makes MPS devices unhealthy if MPS does not answer. Does not wait for
    /// the daemon.
    pub(crate) fn note(&self, inventory: &mut Inventory) {
        let problem = self.problem();
        for device in &mut inventory.devices {
            device.sharing = self.mode_of(&device.uuid);
            if let (SharingMode::Mps, Some(problem), Health::Healthy) = (device.sharing, &problem, &device.health) {
                device.health = Health::Unhealthy { reason: format!("it is to be shared by MPS, but {problem}") };
            }
        }
    }
}

#[cfg(test)]
mod tests;
