//! Devices that requests have parts of, as they have of our driver's. A device has another number for each request, so the
//! search takes each as one of its own. Here it is counted what the parts of one device take together.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Bytes, DeviceCore};

use super::super::{Free, Taken};
use super::Given;

/// What is free of these devices, and what requests take of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Parts {
    free: Vec<Free>,
    /// By the device's number for a request.
    takes: BTreeMap<usize, Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// The place of the device in `free`.
    of: usize,
    core: DeviceCore,
    memory: Bytes,
    goes_as_a_whole: bool,
}

impl Parts {
    /// Adds a device of which this is free. Returns its place.
    pub(crate) fn add(&mut self, free: Free) -> usize {
        self.free.push(free);
        self.free.len() - 1
    }

    /// Notes what a request takes of the device at this place, which has this number for the request.
    pub(crate) fn takes(&mut self, number: usize, of: usize, takes: &Taken) {
        let (core, memory, goes_as_a_whole) = (takes.core, takes.memory, takes.consumed.is_none());
        self.takes.insert(number, Part { of, core, memory, goes_as_a_whole });
    }

    /// Whether no device is known of which requests have parts.
    pub(super) fn is_empty(&self) -> bool {
        self.takes.is_empty()
    }

    /// Whether the devices have room for all parts that are given.
    pub(super) fn have_room(&self, given: &[Given]) -> bool {
        let mut left: BTreeMap<usize, Free> = BTreeMap::new();
        let mut parts = given.iter().flat_map(|given| &given.devices).filter_map(|number| self.takes.get(number));
        parts.all(|part| {
            let Some(free) = left.get(&part.of).or_else(|| self.free.get(part.of)).copied() else { return false };
            left.insert(part.of, free.without(part.core, part.memory));
            free.has(part.core, part.memory, part.goes_as_a_whole)
        })
    }
}
