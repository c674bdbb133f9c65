//! The books of one device.

use crate::vocabulary::known_node::DeviceKind;
use crate::vocabulary::quantity::{Bytes, DeviceCore};
use crate::vocabulary::spec::{DeviceSpec, Health};

/// What is free on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    pub(super) core_free: DeviceCore,
    pub(super) memory_free: Bytes,
    pub(super) memory: Bytes,
    /// Memory in use that was not given to any claim.
    memory_outside: Bytes,
    pub(super) holders: u32,
    pub(super) healthy: bool,
    pub(super) usable_thousandths: u16,
}

impl Device {
    pub(super) fn new(kind: &DeviceKind) -> Self {
        let mut device = Self {
            core_free: DeviceSpec::CORE,
            memory_free: kind.memory,
            memory: kind.memory,
            memory_outside: kind.memory_outside,
            holders: 0,
            healthy: kind.health == Health::Healthy,
            usable_thousandths: 0,
        };
        device.derive();
        device
    }

    /// Device time that no claim holds.
    #[must_use]
    pub fn core_free(&self) -> DeviceCore {
        self.core_free
    }

    /// Device memory that no claim holds.
    #[must_use]
    pub fn memory_free(&self) -> Bytes {
        self.memory_free
    }

    /// All its memory.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        self.memory
    }

    /// Whether it is healthy and no claim holds any of it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holders == 0 && self.healthy
    }

    /// Whether it is healthy, so that it may be given out.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy
    }

    /// The part of the device that can still be given out in time and memory alike, in thousandths; 0 if the device is
    /// not healthy.
    #[must_use]
    pub fn usable_thousandths(&self) -> u16 {
        self.usable_thousandths
    }

    /// The value of [`Device::usable_thousandths`] after `core` and `memory` of it are taken; `None` if less is free.
    #[must_use]
    pub fn usable_after(&self, core: DeviceCore, memory: Bytes) -> Option<u16> {
        if !self.healthy {
            return None;
        }
        let core_left = self.core_free.checked_sub(core)?;
        let memory_left = self.memory_free.checked_sub(memory)?;
        Some(usable_thousandths(core_left, memory_left, self.memory))
    }

    /// How much memory can be taken so that at most `threshold_percent` of all its memory is in use, whether given out
    /// or not; `None` if more is in use already.
    #[must_use]
    pub fn memory_below(&self, threshold_percent: Option<u8>) -> Option<Bytes> {
        let Some(percent) = threshold_percent else { return Some(self.memory_free) };
        // Rounded up, so that no more than this percentage is used.
        let kept = (u128::from(self.memory.get()) * u128::from(100 - percent.min(100))).div_ceil(100);
        let kept = u64::try_from(kept).unwrap_or(u64::MAX).saturating_add(self.memory_outside.get());
        self.memory_free.checked_sub(Bytes::new(kept))
    }

    pub(super) fn derive(&mut self) {
        self.usable_thousandths = match self.healthy {
            true => usable_thousandths(self.core_free, self.memory_free, self.memory),
            false => 0,
        };
    }
}

fn usable_thousandths(core: DeviceCore, memory: Bytes, of: Bytes) -> u16 {
    // A device of which no memory is taken needs no division, nor does one whose memory is not counted (0 bytes).
    let memory = if memory == of { 1000 } else { memory.thousandths_of(of) };
    u16::try_from(core.get().min(memory)).unwrap_or(u16::MAX)
}
