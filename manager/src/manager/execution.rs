//! Does the steps of a plan, and undoes them if one fails.

use std::sync::Arc;

use tracing::error;

use super::books::Change;
use super::plan::Step;
use super::{Manager, StepError};
use crate::cdi::CdiError;
use crate::checkpoint::{Entry, Phase};
use crate::inventory::Inventory;
use crate::live::LiveSlice;
use crate::mps::Raised;
use crate::refusals;
use crate::slices::Slice;

/// A change that is being carried out.
pub(super) struct Execution<'a> {
    manager: &'a Manager,
    before: Option<&'a Slice>,
    /// The slice as it will be; for a removal, the slice as it was.
    slice: &'a Slice,
    inventory: Arc<Inventory>,
    live: Option<Arc<LiveSlice>>,
    /// Keeps MPS's ceiling up until the slice counts in it.
    raised: Option<Raised<'a>>,
}

impl<'a> Execution<'a> {
    /// Begins to carry out `change` for `manager`.
    #[must_use]
    pub(super) fn new(manager: &'a Manager, change: &'a Change) -> Execution<'a> {
        let live = manager.live.get(&change.slice().name);
        let inventory = manager.devices.known().inventory;
        Execution { manager, before: change.before(), slice: change.slice(), inventory, live, raised: None }
    }

    /// Does all of `steps`, or none.
    ///
    /// # Errors
    /// A step fails. The steps before it are undone, the last one first.
    pub(super) fn prepare(&mut self, steps: &[Step]) -> Result<(), StepError> {
        for (number, step) in steps.iter().enumerate() {
            if let Err(reason) = self.act(*step) {
                for step in steps.iter().take(number).rev() {
                    // The next start removes the leftovers, because the checkpoint says that the change was begun.
                    if let Err(error) = self.undo(*step) {
                        error!(slice = self.slice.name, ?step, %error, "cannot undo a step");
                    }
                }
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Does `steps` until one fails.
    pub(super) fn finish(&mut self, steps: &[Step]) {
        for step in steps {
            if let Err(error) = self.act(*step) {
                error!(slice = self.slice.name, ?step, %error, "cannot finish a change; the next start will");
                return;
            }
        }
    }

    fn act(&mut self, step: Step) -> Result<(), StepError> {
        let Manager { dirs, cdi, mps, journal, .. } = self.manager;
        let slice = self.slice;
        match step {
            Step::Note(phase) => self.note(phase)?,
            Step::MakeRegion => self.live = Some(Arc::new(LiveSlice::new(slice, dirs.create(slice)?))),
            Step::RaiseCeiling => {
                if let Some(own_percent) = mps.ceiling_percent(&slice.parts) {
                    let of = |other: &Slice| mps.ceiling_percent(&other.parts).filter(|_| other.id != slice.id);
                    self.raised = Some(mps.raise(own_percent, || self.manager.books.greatest(of))?);
                }
            }
            Step::Publish => self.publish(slice)?,
            Step::Start => {
                if let Some(live) = &self.live {
                    self.manager.start_slice(live, slice, &self.inventory)?;
                }
            }
            Step::Describe => dirs.describe(slice)?,
            Step::Admit => dirs.admit(slice)?,
            Step::ApplyLimits => {
                if let Some(live) = &self.live {
                    live.resize(slice);
                    self.manager.time_sharing.resize(live);
                }
            }
            Step::Withdraw => cdi.withdraw(&slice.name)?,
            Step::Leave => self.set_leaving(true),
            Step::Retire => dirs.retire(slice.id)?,
            Step::Stop => match &self.live {
                Some(live) => {
                    refusals::report(live, &self.manager.events, true);
                    self.manager.stop_slice(live);
                    live.region.revoke();
                }
                // Processes may use the region of a slice that could not be taken over.
                None => dirs.revoke(slice.id),
            },
            Step::Discard => dirs.discard(slice.id)?,
            Step::Forget => journal.restore(slice.id, None)?,
        }
        Ok(())
    }

    /// Undoes a step that was done. After a change is in force, nothing is undone.
    fn undo(&mut self, step: Step) -> Result<(), StepError> {
        let Manager { dirs, cdi, journal, .. } = self.manager;
        match (step, self.before) {
            (Step::Note(_), before) => journal.restore(self.slice.id, before.map(ready))?,
            (Step::MakeRegion, _) => {
                dirs.retire(self.slice.id)?;
                dirs.discard(self.slice.id)?;
            }
            // The devices thread lowers the ceiling again at its next look.
            (Step::RaiseCeiling, _) => self.raised = None,
            (Step::Publish, None) => cdi.withdraw(&self.slice.name)?,
            (Step::Publish | Step::Withdraw, Some(before)) => self.publish(before)?,
            (Step::Start, _) => {
                if let Some(live) = &self.live {
                    self.manager.stop_slice(live);
                }
            }
            (Step::Describe, Some(before)) => dirs.describe(before)?,
            (Step::Admit, Some(before)) => dirs.admit(before)?,
            (Step::Leave, _) => self.set_leaving(false),
            (Step::Describe | Step::Admit | Step::Withdraw, None)
            | (Step::ApplyLimits | Step::Retire | Step::Stop | Step::Discard | Step::Forget, _) => {}
        }
        Ok(())
    }

    fn note(&self, phase: Phase) -> Result<(), StepError> {
        let (journal, id) = (&self.manager.journal, self.slice.id);
        match journal.set(id, Some(Entry { phase, slice: self.slice.clone() })) {
            // The disk is full, but a checkpoint without the slice is shorter and still fits.
            Err(error) if phase == Phase::Removing && error.is_full_disk() => Ok(journal.set(id, None)?),
            outcome => Ok(outcome?),
        }
    }

    /// Publishes the slice. A new slice that lacks a node of one of its devices is not made, because its containers could
    /// do nothing there. Other slices keep what they have.
    fn publish(&self, slice: &Slice) -> Result<(), StepError> {
        let Some(live) = &self.live else { return Ok(()) };
        let cdi = &self.manager.cdi;
        let missing = cdi.publish(slice, &live.region, &self.inventory)?;
        let of_device = missing.into_iter().find(|missing| missing.is_of_device);
        match of_device.filter(|_| self.before.is_none()) {
            Some(missing) => {
                cdi.withdraw(&slice.name)?;
                Err(CdiError::from(missing).into())
            }
            None => Ok(()),
        }
    }

    fn set_leaving(&self, is_leaving: bool) {
        if let Some(live) = &self.live {
            *live.is_leaving() = is_leaving;
        }
    }
}

/// The entry of a slice that is promised.
fn ready(slice: &Slice) -> Entry {
    Entry { phase: Phase::Ready, slice: slice.clone() }
}
