//! Makes and destroys instances of GPUs in MIG mode. The thread that asks the driver does the work, and the caller
//! waits for it.

use std::sync::mpsc;

use aliquot_node::Partition;

use super::{Devices, Watch};
use crate::inventory::{Device, DeviceUuid, SourceError};

/// Work that the thread does for a caller.
pub(super) type Job = Box<dyn FnOnce(&mut Watch) + Send>;

impl Devices {
    /// Makes the thread look at the devices now, and returns when it has.
    ///
    /// # Errors
    /// The driver does not answer.
    pub(crate) fn look(&self) -> Result<(), SourceError> {
        self.ask(|watch| {
            watch.look_at_devices();
            watch.known.borrow().problem.clone().map_or(Ok(()), |problem| Err(SourceError(problem)))
        })
    }

    /// Makes an instance, and returns it once it is known as a device.
    ///
    /// # Errors
    /// The driver refuses. Then there is no new instance.
    pub(crate) fn create_instance(&self, partition: &Partition) -> Result<Device, SourceError> {
        let partition = partition.clone();
        self.ask(move |watch| {
            watch.source.create_instance(&partition)?;
            watch.look_at_devices();
            let inventory = watch.known.borrow().inventory.clone();
            if let Some(device) = inventory.devices.iter().find(|device| is_at(device, &partition)) {
                return Ok(device.clone());
            }
            watch.source.destroy_instance(&partition)?;
            Err(SourceError(format!("{partition} was made, and then the driver did not list it")))
        })
    }

    /// Destroys an instance. It is no error if there is none.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn destroy_instance(&self, partition: &Partition) -> Result<(), SourceError> {
        let partition = partition.clone();
        self.ask(move |watch| {
            let outcome = watch.source.destroy_instance(&partition);
            watch.look_at_devices();
            outcome
        })
    }

    /// Makes the thread do `work`, and waits for it: the caller must know whether it succeeded or failed.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Watch) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let (answer, answered) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |watch| {
            // The caller waits for the answer.
            let _ = answer.send(work(watch));
        });
        let ended = || SourceError("the manager is ending".into());
        self.jobs.send(job).map_err(|_| ended())?;
        self.thread.wake();
        answered.recv().map_err(|_| ended())?
    }
}

fn is_at(device: &Device, partition: &Partition) -> bool {
    device.mig_instance.as_ref().is_some_and(|instance| {
        instance.gpu == DeviceUuid::new(&*partition.gpu_uuid) && instance.placement == Some(partition.placement)
    })
}
