//! Priority classes as they are written on the command line.

use aliquot_proto::node::v1::PriorityClass;
use clap::ValueEnum;

/// Which slice goes first where several want a device. It takes from nobody what they requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Priority {
    /// Gets the device within one shortest lease (2 ms) plus one kernel of its holder, as long as it is within its
    /// request
    LatencyCritical,
    /// The usual one
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

/// The number that stands for `priority` in a request; what is not asked for is left open.
pub(crate) fn in_request(priority: Option<Priority>) -> i32 {
    priority.map_or(PriorityClass::Unspecified, PriorityClass::from).into()
}

/// The name of `class`, as it is written here.
pub(crate) fn name(class: PriorityClass) -> &'static str {
    match class {
        // What a manager of before there were classes says.
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
