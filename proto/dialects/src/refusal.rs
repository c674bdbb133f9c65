//! Why a container's request is not translated: the wrong value, and what to do about it.

use crate::dialect::Dialect;

/// Why a container gets no part of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A value that is not valid.
    #[error("{key} is {value:?}; it must be {must}")]
    Value {
        /// The resource or annotation that has it.
        key: String,
        /// The value that was given.
        value: String,
        /// What values are valid.
        must: String,
    },
    /// Two requests that contradict each other.
    #[error("{first} and {second} cannot be asked for together; {advice}")]
    Together {
        /// A resource or annotation.
        first: String,
        /// Another one, of the same system.
        second: String,
        /// What the user can do.
        advice: &'static str,
    },
    /// A resource or annotation that is not valid without another one.
    #[error("{key} has no effect without {needs}; {advice}")]
    Alone {
        /// The one that is there.
        key: String,
        /// The one that is missing.
        needs: &'static str,
        /// What the user can do.
        advice: &'static str,
    },
    /// A resource that the node has not, because its settings are others. Kubelet takes no notice of such a resource, so
    /// it would start the container without a device.
    #[error("{key} is not among the resources of this node; {advice}")]
    NotOffered {
        /// The resource.
        key: &'static str,
        /// The setting, and what the user can ask for instead.
        advice: &'static str,
    },
    /// Resources of two systems in one container.
    #[error(
        "{first} ({}) and {second} ({}) are of two systems; use the resources of one",
        .first_dialect.title(),
        .second_dialect.title()
    )]
    Mixed {
        /// A resource or annotation.
        first: String,
        /// The system of the first one.
        first_dialect: Dialect,
        /// A resource or annotation.
        second: String,
        /// The system of the second one.
        second_dialect: Dialect,
    },
    /// A request whose amounts Aliquot's scheduler alone knows, and that it has not decided about.
    #[error(
        "{key} needs a decision of Aliquot's scheduler, which has not bound the pod; name that scheduler in the pod's schedulerName"
    )]
    Undecided {
        /// The resource that the container asks for.
        key: String,
    },
    /// A request of a system that the node does not speak.
    #[error(
        "{key} is a request in the dialect of {}, which this node does not accept; {}, or ask for aliquot.dev/gpu-core \
         and aliquot.dev/gpu-memory",
        .dialect.title(),
        added(*.dialect, *.in_place_of)
    )]
    NotSpoken {
        /// The resource or annotation.
        key: String,
        /// The system that it belongs to.
        dialect: Dialect,
        /// A dialect of the node in which the same name means something else.
        in_place_of: Option<Dialect>,
    },
}

fn added(dialect: Dialect, in_place_of: Option<Dialect>) -> String {
    match in_place_of.map(Dialect::name) {
        None => format!("add {:?} to the node's dialects", dialect.name()),
        Some(other) => {
            format!("write {:?} in place of {other:?} in the node's dialects, which cannot have both", dialect.name())
        }
    }
}

impl Refusal {
    /// Refuses a value, and says what values are valid.
    pub(crate) fn value(key: impl Into<String>, value: impl ToString, must: impl Into<String>) -> Refusal {
        Refusal::Value { key: key.into(), value: value.to_string(), must: must.into() }
    }
}
