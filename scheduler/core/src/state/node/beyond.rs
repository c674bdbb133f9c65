//! What claims hold of a node beyond its capacity.

use std::collections::BTreeMap;

use crate::vocabulary::counted;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};

/// The amounts that claims hold beyond a node's capacity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Beyond {
    pub(super) cpu: MilliCpu,
    pub(super) memory: Bytes,
    /// Of counted resources, without zeros.
    pub(super) counted: BTreeMap<String, u64>,
    /// Time and memory, for each device.
    pub(super) devices: Vec<(DeviceCore, Bytes)>,
}

impl Beyond {
    pub(super) fn is_nothing(&self) -> bool {
        let no_device = self.devices.iter().all(|held| *held == (DeviceCore::ZERO, Bytes::ZERO));
        self.cpu == MilliCpu::ZERO && self.memory == Bytes::ZERO && self.counted.is_empty() && no_device
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.cpu = [self.cpu, other.cpu].into_iter().sum();
        self.memory = [self.memory, other.memory].into_iter().sum();
        counted::add(&mut self.counted, &other.counted);
        for (own, other) in self.devices.iter_mut().zip(&other.devices) {
            *own = ([own.0, other.0].into_iter().sum(), [own.1, other.1].into_iter().sum());
        }
    }
}
