//! Priority classes on the command line.

use std::str::FromStr;

use aliquot_proto::node::v1::PriorityClass;
use aliquot_proto::scheduler::v1::PriorityClass as ClassOfJob;
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

impl From<Priority> for ClassOfJob {
    fn from(priority: Priority) -> ClassOfJob {
        match priority {
            Priority::LatencyCritical => ClassOfJob::LatencyCritical,
            Priority::Standard => ClassOfJob::Standard,
            Priority::Batch => ClassOfJob::Batch,
        }
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Priority, String> {
        ValueEnum::from_str(text, false)
            .map_err(|_| format!("{text:?} is no priority class; write latency-critical, standard or batch"))
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

/// The name of a job's class on the command line; `None`: the job names none.
pub(crate) fn name_of_job(class: ClassOfJob) -> Option<&'static str> {
    match class {
        ClassOfJob::Unspecified => None,
        ClassOfJob::LatencyCritical => Some(name(PriorityClass::LatencyCritical)),
        ClassOfJob::Standard => Some(name(PriorityClass::Standard)),
        ClassOfJob::Batch => Some(name(PriorityClass::Batch)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_read_as_it_is_written() {
        for priority in Priority::value_variants() {
            assert_eq!(name((*priority).into()).parse().as_ref(), Ok(priority));
            assert_eq!(name_of_job((*priority).into()), Some(name((*priority).into())));
        }
        assert!("urgent".parse::<Priority>().unwrap_err().contains("\"urgent\" is no priority class"));
        assert_eq!(in_request(None), PriorityClass::Unspecified as i32);
    }
}
