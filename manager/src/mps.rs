//! MPS: on devices where the node's configuration asks for it, NVIDIA's multi-process service sets the shares, and
//! nobody waits for leases. Kernels of several slices then run at the same time, each on its part of the device's
//! multiprocessors.
//!
//! # Who holds whom to what
//!
//! * A slice's processes are told their share, the slice's limit, by `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`. The driver reads it
//!   when a process begins to use CUDA; it is in the process's own hands.
//! * The MPS server grants no client more than was set for the server. The manager sets that to the **ceiling**: the greatest
//!   limit of all slices that share by MPS. So a tenant who changes the variable has the ceiling at most, and where all slices
//!   have the same limit nobody gains anything.
//! * A process that does not go through MPS is kept off the device by its compute mode `EXCLUSIVE_PROCESS`, which
//!   the administrator sets. In another mode it has the time slices of an ordinary process.
//! * Memory is limited by the shim, as always. Guaranteed shares are kept only as far as limits are: MPS has no priorities and
//!   guarantees nothing.
//!
//! The settings of the control daemon are lost when it ends, so they are looked at again and again.

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
    /// Why shares cannot be set. Locked while the daemon is spoken to, so that two do not set different ceilings.
    problem: Mutex<Option<String>>,
    /// The ceiling that a slice needs which is being made or changed, and is not reckoned with yet.
    raising_percent: Mutex<Option<u32>>,
}

/// The ceiling stays as high as it was raised for as long as this lives.
#[derive(Debug)]
pub(crate) struct Raised<'a>(&'a Mps);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        *self.0.raising_percent.lock() = None;
    }
}

/// What a slice's processes need to be clients of the MPS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// Variables, each as `NAME=value`.
    pub environment: Vec<String>,
    /// Directories of this machine that containers get, each with its place there.
    pub mounts: Vec<(std::path::PathBuf, std::path::PathBuf)>,
}

impl Mps {
    /// The MPS of `settings`, which has not been spoken to.
    #[must_use]
    pub(crate) fn new(settings: SharingSettings) -> Mps {
        let control = Control::new(settings.mps.clone());
        Mps { control, settings, problem: Mutex::default(), raising_percent: Mutex::default() }
    }

    /// How `device` is shared.
    #[must_use]
    pub(crate) fn mode_of(&self, device: &DeviceUuid) -> SharingMode {
        self.settings.mode_of(device)
    }

    /// What the processes of a slice with these parts need; `None` if the slice shares no device by MPS.
    #[must_use]
    pub(crate) fn client(&self, parts: &[Part]) -> Option<Client> {
        // The variable is the same for all devices.
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

    /// The greatest limit of these parts that share by MPS; `None` if there is none.
    #[must_use]
    pub(crate) fn ceiling_percent(&self, parts: &[Part]) -> Option<u32> {
        self.limits(parts).max()
    }

    fn limits(&self, parts: &[Part]) -> impl Iterator<Item = u32> {
        let by_mps = parts.iter().filter(|part| self.mode_of(&part.device) == SharingMode::Mps);
        by_mps.map(|part| part.core_limit_percent)
    }

    /// Has clients get up to `ceiling_percent`, and no more, for a slice that is not yet among those from which
    /// ceilings are reckoned. Nobody lowers it until what is returned is dropped; one raises it at a time.
    ///
    /// # Errors
    /// See [`MpsError`].
    pub(crate) fn raise(&self, ceiling_percent: u32) -> Result<Raised<'_>, MpsError> {
        *self.raising_percent.lock() = Some(ceiling_percent);
        let raised = Raised(self);
        self.hold(|| None)?;
        Ok(raised)
    }

    /// Has no client get more than the ceiling that `reckon` says, unless it is being raised; `None`: only looks
    /// whether there is a control daemon.
    ///
    /// # Errors
    /// See [`MpsError`].
    pub(crate) fn hold(&self, reckon: impl FnOnce() -> Option<u32>) -> Result<(), MpsError> {
        let mut problem = self.problem.lock();
        // In this order: what is not being raised any more is reckoned with.
        let raising_percent = *self.raising_percent.lock();
        let outcome = self.set(reckon().max(raising_percent));
        *problem = outcome.as_ref().err().map(ToString::to_string);
        outcome
    }

    fn set(&self, ceiling_percent: Option<u32>) -> Result<(), MpsError> {
        let found = self.control.default_percentage()?;
        let Some(ceiling) = ceiling_percent else { return Ok(()) };
        if found != ceiling {
            self.control.set_default_percentage(ceiling)?;
            info!(percent = ceiling, "the MPS servers to come grant no client more");
        }
        // The default is for servers to come.
        for server in self.control.servers()? {
            match self.hold_server(server, ceiling) {
                Ok(()) => {}
                // A server ends with its last client, also while it is spoken of.
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

    /// Notes of each device how it is shared, and that it cannot be where MPS does not answer.
    pub(crate) fn note(&self, inventory: &mut Inventory) {
        let problem = self.problem.lock();
        for device in &mut inventory.devices {
            device.sharing = self.mode_of(&device.uuid);
            if let (SharingMode::Mps, Some(problem), Health::Healthy) = (device.sharing, &*problem, &device.health) {
                device.health = Health::Unhealthy { reason: format!("it is to be shared by MPS, but {problem}") };
            }
        }
    }
}

#[cfg(test)]
mod tests;
