//! Instances of GPUs in MIG mode, made and destroyed by the thread that asks the driver: whoever wants one waits for
//! it.

use std::sync::mpsc;

use super::{Devices, Watch};
use crate::inventory::{Device, DeviceUuid, Partition, SourceError};

/// Something that the thread does for somebody.
pub(super) type Job = Box<dyn FnOnce(&mut Watch) + Send>;

impl Devices {
    /// Has the devices looked at now, and returns when they were.
    ///
    /// # Errors
    /// The driver does not answer.
    pub(crate) fn look(&self) -> Result<(), SourceError> {
        self.ask(|watch| {
            watch.look_at_devices();
            watch.known.borrow().problem.clone().map_or(Ok(()), |problem| Err(SourceError(problem)))
        })
    }

    /// Makes an instance, and returns it when it is known as a device.
    ///
    /// # Errors
    /// The driver refuses; then there is no new instance.
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

    /// Destroys an instance. That there is none is no error.
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

    /// Has the thread do `work`, and waits for it: what was begun must be known to have succeeded or failed.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Watch) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let (answer, answered) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |watch| {
            // Whoever asked waits for it.
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
