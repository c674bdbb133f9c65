//! How a slice is treated: its order among the slices of a device, and what is done about processes that get past it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A slice's QoS class. Configuration, contract and command line call it the priority class; Kubernetes uses that name
/// for the value by which claims are scheduled.
///
/// A QoS class never takes what another slice has requested: it orders slices within their requests, and the distribution
/// of what is left over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QosClass {
    /// Gets the device after at most 2 ms plus one kernel of the holder, while it is within its request. After a pause of
    /// less than 2 ms: 5 ms plus one kernel.
    LatencyCritical,
    /// Used unless a slice or the configuration says otherwise.
    #[default]
    Standard,
    /// Goes after the other classes.
    Batch,
}

impl QosClass {
    /// All classes, the first to go first.
    pub const ALL: [QosClass; 3] = [QosClass::LatencyCritical, QosClass::Standard, QosClass::Batch];

    /// Its name in configuration and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::LatencyCritical => "latency-critical",
            QosClass::Standard => "standard",
            QosClass::Batch => "batch",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not the name of a priority class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("priority class {0:?} is not known; use latency-critical, standard or batch")]
pub struct UnknownQosClass(String);

impl FromStr for QosClass {
    type Err = UnknownQosClass;

    fn from_str(text: &str) -> Result<QosClass, UnknownQosClass> {
        let named = QosClass::ALL.into_iter().find(|class| class.as_str() == text);
        named.ok_or_else(|| UnknownQosClass(text.to_owned()))
    }
}

/// What is done about processes that get past their slice. The stricter policy is the greater one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditPolicy {
    /// The processes are reported.
    #[default]
    Report,
    /// The processes are ended with SIGKILL, and reported.
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_class_is_read_by_the_name_that_it_has_in_output() {
        for class in QosClass::ALL {
            assert_eq!(class.to_string().parse(), Ok(class));
        }
        let error = "Standard".parse::<QosClass>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "priority class \"Standard\" is not known; use latency-critical, standard or batch"
        );
    }
}
