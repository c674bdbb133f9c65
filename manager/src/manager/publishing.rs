//! Follows what is known of the devices. A slice can be put to work before the driver answers, after a reboot for
//! example, or where the driver comes in a container: what depends on the devices is done again when they are known.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tracing::{debug, warn};

use super::books::Change;
use super::{Manager, StepError};
use crate::cdi::Missing;
use crate::inventory::{Health, Inventory};
use crate::live::LiveSlice;
use crate::slices::{Slice, SliceId};

/// Which slices have been published with which inventory.
#[derive(Default)]
pub(super) struct Published {
    inventory: Inventory,
    slices: BTreeSet<SliceId>,
    /// Slices that could not be published, or that lack device nodes, which has been reported.
    failed: BTreeSet<SliceId>,
}

impl Manager {
    /// Publishes the slices that were published with other knowledge of the devices, and lets the devices be shared by
    /// what is known now. To be called after each look at the devices.
    pub(crate) fn follow_devices(&self) {
        let inventory = self.devices.known().inventory;
        self.time_sharing.note(&inventory);
        if self.cdi.dir().is_none() {
            return;
        }
        let mut published = self.published.lock();
        let facts = without_health(&inventory);
        if published.inventory != facts {
            *published = Published { inventory: facts, ..Published::default() };
        }
        let live = self.live.all();
        let ids: BTreeSet<SliceId> = live.iter().map(|live| live.id).collect();
        published.slices.retain(|id| ids.contains(id));
        published.failed.retain(|id| ids.contains(id));
        for live in live.iter().filter(|live| live.damage().is_none()) {
            if published.slices.contains(&live.id) {
                continue;
            }
            match self.publish_again(live, &inventory) {
                Ok(missing) if missing.is_empty() => _ = published.slices.insert(live.id),
                // Nodes can be made later, so the slice is published again after the next look.
                Ok(missing) => {
                    let is_new = published.failed.insert(live.id);
                    for missing in missing.iter().filter(|_| is_new) {
                        warn!(slice = live.name, "{missing}");
                    }
                }
                Err(error) if published.failed.insert(live.id) => {
                    warn!(slice = live.name, %error, "cannot publish a slice for the devices as they are now; trying again");
                }
                Err(error) => debug!(slice = live.name, %error, "still cannot publish a slice"),
            }
        }
    }

    /// Publishes `live`, unless it was removed meanwhile or the manager ends. Returns the device nodes that it lacks.
    fn publish_again(&self, live: &LiveSlice, inventory: &Inventory) -> Result<Vec<Missing>, StepError> {
        // As a change that changes nothing, so that no other change of the slice is under way.
        let unchanged = self.books.begin(&[live.name.as_str()].into(), |slices| {
            let is_there = |slice: &&Slice| slice.id == live.id && !self.is_ending.load(Ordering::Acquire);
            let slice = slices.get(&live.name).filter(is_there).ok_or(())?;
            Ok::<_, ()>(Change::Resize { before: slice.clone(), after: slice.clone() })
        });
        match unchanged {
            Ok(unchanged) => Ok(self.cdi.publish(unchanged.change().slice(), &live.region, inventory)?),
            Err(()) => Ok(Vec::new()),
        }
    }
}

/// What a container gets does not depend on its devices' health.
fn without_health(inventory: &Inventory) -> Inventory {
    let mut inventory = inventory.clone();
    inventory.devices.iter_mut().for_each(|device| device.health = Health::Healthy);
    inventory
}
