//! Turns regions that the checkpoint does not name into slices again.
//!
//! A region that processes use is never removed, whatever the checkpoint says: the processes hold memory and time that
//! must not be given out again. If the checkpoint is lost, only the regions still show the manager's promises. A
//! region's limits give devices and shares; its manifest gives the rest.

use std::collections::BTreeSet;
use std::time::SystemTime;

use aliquot_node::QosClass;
use tracing::{error, warn};

use crate::attribution;
use crate::inventory::{DeviceUuid, Inventory};
use crate::manager::Manager;
use crate::region::files::CreateRegionError;
use crate::region::manifest::Manifest;
use crate::region::{Region, Shares};
use crate::slices::{Part, Published, Slice, SliceId, Slices};

/// The result for the regions without a slice.
#[derive(Debug, Default)]
pub(super) struct Adopted {
    /// The slices made from regions.
    pub slices: Vec<Slice>,
    /// Regions that stay although their slices are unknown.
    pub kept: Vec<SliceId>,
}

impl Manager {
    /// Examines the regions whose slices are not in `known`. If the checkpoint `is_lost`, all of them become slices
    /// again.
    ///
    /// # Errors
    /// The regions cannot be listed.
    pub(super) fn adopt(&self, known: &Slices, is_lost: bool) -> Result<Adopted, CreateRegionError> {
        let mut adopted = Adopted::default();
        let ids: BTreeSet<SliceId> = known.iter().map(|slice| slice.id).collect();
        let mut names: BTreeSet<String> = known.iter().map(|slice| slice.name.clone()).collect();
        for id in self.dirs.ids()?.into_iter().filter(|id| !ids.contains(id)) {
            if !is_lost && users_of(id).is_none() {
                continue;
            }
            let Some(mut slice) = self.slice_of_region(id) else {
                if let Some(processes) = users_of(id) {
                    error!(
                        %id,
                        ?processes,
                        "a region in use cannot be understood, and what it holds may be given out again: end its processes"
                    );
                    adopted.kept.push(id);
                }
                continue;
            };
            if names.contains(&slice.name) {
                slice.name = recovered_name(id);
            }
            if is_lost {
                warn!(slice = slice.name, %id, "a slice is known from its region");
            } else {
                warn!(slice = slice.name, %id, "processes use the region of a slice that the checkpoint does not have: it is a slice again");
            }
            names.insert(slice.name.clone());
            adopted.slices.push(slice);
        }
        Ok(adopted)
    }

    /// The slice that a region describes.
    fn slice_of_region(&self, id: SliceId) -> Option<Slice> {
        let described = self.dirs.description(id);
        if let Some(manifest) = described.as_ref().filter(|manifest| !self.is_of_this_boot(manifest)) {
            // The region is from an earlier boot and is made anew, so its manifest decides.
            return Some(manifest.slice.clone());
        }
        let region = match Region::open(id, &self.dirs.region(id)) {
            Ok(region) => region,
            Err(error) => {
                warn!(%id, %error, "cannot read the limits of a region");
                return described.map(|manifest| manifest.slice);
            }
        };
        let described_parts = described.as_ref().map(|manifest| &*manifest.slice.parts).unwrap_or_default();
        let parts = parts_of(&region, described_parts, &self.devices.known().inventory);
        let slice = described.map_or_else(|| undescribed(id), |manifest| manifest.slice);
        Some(Slice { parts, host_memory_limit_bytes: region.host_memory_limit_bytes(), ..slice })
    }

    /// Whether the manifest was written during this boot.
    pub(super) fn is_of_this_boot(&self, manifest: &Manifest) -> bool {
        manifest.boot_id == self.boot_id
    }
}

/// The processes that use a region; `None` if there are none. An empty list means that they could not be listed, and
/// that there may be some.
fn users_of(id: SliceId) -> Option<Vec<u32>> {
    let users = attribution::users_of(id).map(Some).unwrap_or_default();
    users.map_or(Some(Vec::new()), |users| Some(users).filter(|users| !users.is_empty()))
}

fn recovered_name(id: SliceId) -> String {
    format!("recovered-{:.8}", id.to_string())
}

/// A slice of which only the region's limits are known.
fn undescribed(id: SliceId) -> Slice {
    Slice {
        name: recovered_name(id),
        id,
        parts: Vec::new(),
        host_memory_limit_bytes: 0,
        qos_class: QosClass::default(),
        audit_policy: None,
        published: Published::default(),
        created: SystemTime::now(),
        description: "known from its region only".into(),
        pod_uid: None,
        owner: None,
        users: BTreeSet::new(),
    }
}

/// The parts that the region has. `described` are those of its manifest, if it has one.
fn parts_of(region: &Region, described: &[Part], inventory: &Inventory) -> Vec<Part> {
    let part = |(number, (uuid, shares)): (usize, ([u8; 16], Shares))| Part {
        device: device_of(uuid, described.get(number), inventory),
        core_request_percent: shares.core_request_percent,
        core_limit_percent: shares.core_limit_percent,
        memory_limit_bytes: shares.memory_limit_bytes,
    };
    region.parts().enumerate().map(part).collect()
}

/// The device with this UUID, of which the region does not tell whether it is a GPU or a MIG instance. A device that is
/// neither described nor listed, because the driver does not answer yet, is assumed to be a whole GPU.
fn device_of(uuid: [u8; 16], described: Option<&Part>, inventory: &Inventory) -> DeviceUuid {
    let described = described.map(|part| &part.device);
    let listed = inventory.devices.iter().map(|device| &device.uuid);
    let known = described.into_iter().chain(listed).find(|device| device.bytes() == Some(uuid));
    known.cloned().unwrap_or_else(|| DeviceUuid::of_gpu(uuid))
}
