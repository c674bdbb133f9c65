//! Why a node does not do what it is asked for.

/// Why a slice is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// There is one of that name with another content.
    #[error("a slice named {name:?} exists, and is another one: {difference}")]
    Differs {
        /// The name.
        name: String,
        /// What differs, and how.
        difference: String,
    },
    /// It can never be made so.
    #[error("{0}")]
    Invalid(String),
    /// There is no room for it now, or its device is ill.
    #[error("{0}")]
    Unavailable(String),
    /// A step failed.
    #[error(transparent)]
    Failed(#[from] NodeError),
}

/// The node could not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NodeError(pub String);
