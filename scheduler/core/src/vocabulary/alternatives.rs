//! Tasks that take one of several things of devices: the first of them that can be had.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::vocabulary::device_request::{DeviceRequest, DeviceWish, FurtherRequests};

/// What a task can take of devices in place of its first choice, which its request itself describes.
///
/// On a node a task takes the first of its choices that fits there. Of several nodes it goes to one whose choice has the
/// least rank; a policy decides between nodes of equal rank.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Alternatives {
    /// What the only request of the first choice is called, for reasons. Several requests have names of their own.
    pub first_name: String,
    /// The choices after the first one, in order of preference: at least one, and [`Alternatives::CHOICES_MAX`] at most
    /// together with the first.
    pub others: Vec<Alternative>,
}

impl Alternatives {
    /// Choices of a task at most. It bounds what is tried on each node: two lists of eight that are combined have as
    /// many.
    pub const CHOICES_MAX: usize = 64;
}

/// One choice of a task, after its first one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Alternative {
    /// What its only request is called, for reasons. Several requests have names of their own.
    pub name: String,
    /// How far it is from what is wanted most; the first choice has rank 0.
    pub rank: u16,
    /// Devices and parts of devices: at least one.
    pub devices: DeviceRequest,
    /// Models of which each of these devices must be one; empty: any.
    pub models: BTreeSet<String>,
    /// Attributes that each of these devices must have, with these values.
    pub attributes: BTreeMap<String, String>,
    /// What else this choice asks for of devices; `None`: nothing.
    pub further: Option<Arc<FurtherRequests>>,
}

impl Alternative {
    pub(crate) fn first_wish(&self) -> DeviceWish<'_> {
        let Self { name, devices, models, attributes, further, .. } = self;
        let name = further.as_ref().map_or(name, |further| &further.first_name);
        DeviceWish { name: Some(name), devices, models, attributes }
    }
}
