//! Priority classes on the command line.

use aliquot_proto::node::v1::PriorityClass;
use clap::ValueEnum;

/// The order of slices that want the same device. A class never takes time that another slice has requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Priority {
    /// Gets the device after at most 2 ms plus one kernel of the holder, while it is within its request. After a pause
    /// of less than 2 ms: 5 ms plus one kernel
    LatencyCritical,
    /// The default
    Standard,
    /// Goes after the others
    Batch,
}

impl From<Priority> for PriorityClass {
    fn from(priority: Priority) -> PriorityClass {
        match priority {
            Priority::LatencyCritical => PriorityClass::LatencyCritical,
            Priority::Standard => PriorityClass::Standard,
            Priority::Batch => PriorityClass::Batch,
        }
    }
}

/// The value of `priority` in a request; unspecified if it is not given.
pub(crate) fn in_request(priority: Option<Priority>) -> i32 {
    priority.map_or(PriorityClass::Unspecified, PriorityClass::from).into()
}

/// The name of `class` on the command line.
pub(crate) fn name(class: PriorityClass) -> &'static str {
    match class {
        // Unspecified comes from managers that had no priority classes yet.
        PriorityClass::Unspecified | PriorityClass::Standard => "standard",
        PriorityClass::LatencyCritical => "latency-critical",
        PriorityClass::Batch => "batch",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_read_as_it_is_written() {
        for priority in Priority::value_variants() {
            assert_eq!(Priority::from_str(name((*priority).into()), false).as_ref(), Ok(priority));
        }
        assert_eq!(in_request(None), PriorityClass::Unspecified as i32);
    }
}
