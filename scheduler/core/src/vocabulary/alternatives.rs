//! Tasks that accept one of several choices of devices. A task gets the first choice that it can have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::vocabulary::device_request::{DeviceRequest, DeviceWish, FurtherRequests};

/// What a task accepts in place of its first choice of devices. Its request itself describes the first choice.
///
/// On a node, a task takes the first of its choices that fits there. Of several nodes, it goes to one on which that
/// choice has the least rank. A policy decides between nodes of equal rank.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Alternatives {
    /// The name of the first choice's only request, for reasons. If the choice has several requests, each has its own
    /// name.
    pub first_name: String,
    /// The choices after the first one, in order of preference: at least one, and [`Alternatives::CHOICES_MAX`] at most
    /// together with the first.
    pub others: Vec<Alternative>,
}

impl Alternatives {
    /// The most choices that a task can have. It bounds how much is tried on each node. Two lists of eight choices that
    /// are combined have 64.
    pub const CHOICES_MAX: usize = 64;
}

/// One choice of a task, after its first one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Alternative {
    /// The name of its only request, for reasons. If the choice has several requests, each has its own name.
    pub name: String,
    /// How far it is from the choice that is wanted most; the first choice has rank 0.
    pub rank: u16,
    /// The devices, or parts of devices, that it asks for: at least one.
    pub devices: DeviceRequest,
    /// Each of these devices must be of one of these models; empty: any model.
    pub models: BTreeSet<String>,
    /// Each of these devices must have these attributes, with these values.
    pub attributes: BTreeMap<String, String>,
    /// The choice's further device requests; `None`: it has none.
    pub further: Option<Arc<FurtherRequests>>,
}

impl Alternative {
    pub(crate) fn first_wish(&self) -> DeviceWish<'_> {
        let Self { name, devices, models, attributes, further, .. } = self;
        let name = further.as_ref().map_or(name, |further| &further.first_name);
        DeviceWish { name: Some(name), devices, models, attributes }
    }
}
