//! The sorts of tasks that are counted separately.

use aliquot_scheduler_core::Request;

/// The sort of a task, by the devices that it asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// The task asks for no device.
    CpuOnly,
    /// A part of one device.
    Shared,
    /// The task asks for one whole device.
    OneDevice,
    /// The task asks for several devices.
    SeveralDevices,
}

impl Sort {
    /// All sorts, from the smallest request to the largest.
    pub const ALL: [Self; 4] = [Self::CpuOnly, Self::Shared, Self::OneDevice, Self::SeveralDevices];

    /// The sort of a task with this request.
    #[must_use]
    pub fn of(request: &Request) -> Self {
        match (request.devices.count, request.devices.core.get()) {
            (0, _) => Self::CpuOnly,
            (1, 1000) => Self::OneDevice,
            (1, _) => Self::Shared,
            _ => Self::SeveralDevices,
        }
    }
}
