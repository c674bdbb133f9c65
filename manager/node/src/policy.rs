//! How a slice is treated: which of the slices on a device goes first, and what is done when processes get past a slice.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A slice's QoS class, which configuration, contract and command line call its priority class. What Kubernetes calls a
/// priority class is the value by which claims are scheduled.
///
/// A QoS class never takes what another slice has requested: it orders slices within their requests, and the distribution
/// of what is left over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QosClass {
    /// Gets the device after at most one shortest lease plus one kernel of the holder, while it is within its request.
    LatencyCritical,
    /// The default.
    #[default]
    Standard,
    /// Goes after the others.
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

/// The text names no priority class.
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

/// What is done about processes that get past their slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
