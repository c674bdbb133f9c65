//! The units that containers have, and whether each container has the device that its unit stands for.

use std::collections::BTreeSet;

use aliquot_node::Slice;

use super::resource::Resource;
use super::unit_id::{CdiName, device_of};
use crate::pod_resources::Holders;

/// The units of a resource that containers have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held<'a> {
    /// All units that containers have.
    pub(super) units: BTreeSet<&'a str>,
    /// The units of whole devices whose container has its slice on other devices, because a scheduler has decided so.
    /// The device that such a unit stands for is free. Another device is taken, although no container has its unit.
    pub(super) elsewhere: BTreeSet<&'a str>,
}

impl<'a> Held<'a> {
    pub(super) fn new(resource: &'a Resource, holders: &'a Holders, slices: &[Slice]) -> Held<'a> {
        let mut held = Held::default();
        for ids in holders.units(&resource.name) {
            held.units.extend(ids.iter().map(String::as_str));
            if !resource.is_of_whole_devices() {
                continue;
            }
            let name = CdiName::of_units(&resource.name, ids);
            if let Some(slice) = slices.iter().find(|slice| slice.content.aliases.contains(name.alias())) {
                let is_on = |id: &str| slice.content.parts.iter().any(|part| device_of(id) == Some(&part.device_uuid));
                held.elsewhere.extend(ids.iter().map(String::as_str).filter(|id| !is_on(id)));
            }
        }
        held
    }
}
