//! What a choice of devices leaves to be desired.

/// Preferences that a choice of devices does not meet; the less, the better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Misses {
    /// Its devices are not all in one NVLink group.
    pub(crate) nvlink: bool,
    /// Its devices are not all on one switch.
    pub(crate) switch: bool,
}
