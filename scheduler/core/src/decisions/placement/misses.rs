//! The preferences that a choice of devices misses.

/// Preferences about devices that are missed; the least is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Misses {
    /// Whether the devices are not all in one NVLink group.
    pub(crate) nvlink: bool,
    /// Whether the devices are not all on one switch.
    pub(crate) switch: bool,
}
