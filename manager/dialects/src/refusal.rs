//! Why a container's request is not translated: what was wrong, with which value, and what to do.

use crate::dialect::Dialect;

/// Why a container gets no part of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// One value can never be right.
    #[error("{key} is {value:?}; it must be {must}")]
    Value {
        /// The resource or annotation.
        key: String,
        /// What it says.
        value: String,
        /// What it must be.
        must: String,
    },
    /// Two things that say different things about the same.
    #[error("{first} and {second} cannot be asked for together; {advice}")]
    Together {
        /// A resource or annotation.
        first: String,
        /// Another one of the same system.
        second: String,
        /// What to do.
        advice: &'static str,
    },
    /// Something that means nothing by itself.
    #[error("{key} means nothing without {needs}; {advice}")]
    Alone {
        /// The resource or annotation.
        key: String,
        /// What is missing.
        needs: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// Resources of two systems.
    #[error(
        "{first} ({}) and {second} ({}) are of two systems; ask in the words of one",
        .first_dialect.title(),
        .second_dialect.title()
    )]
    Mixed {
        /// A resource or annotation.
        first: String,
        /// Its system.
        first_dialect: Dialect,
        /// A resource or annotation.
        second: String,
        /// Its system.
        second_dialect: Dialect,
    },
    /// The node does not speak it.
    #[error(
        "{key} is a request in the words of {}, which this node does not speak; add {:?} to the node's dialects, \
         or ask for aliquot.dev/gpu-core and aliquot.dev/gpu-memory",
        .dialect.title(),
        .dialect.name()
    )]
    NotSpoken {
        /// The resource or annotation.
        key: String,
        /// Its system.
        dialect: Dialect,
    },
}

impl Refusal {
    /// A value that must be something else.
    pub(crate) fn value(key: impl Into<String>, value: impl ToString, must: impl Into<String>) -> Refusal {
        Refusal::Value { key: key.into(), value: value.to_string(), must: must.into() }
    }
}
