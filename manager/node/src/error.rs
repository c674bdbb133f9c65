//! Errors of a node.

/// Why a slice is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// There is a slice of that name with another content.
    #[error("there is already a different slice named {name:?}: {difference}")]
    Differs {
        /// The name of both slices.
        name: String,
        /// The difference, in words.
        difference: String,
    },
    /// No node could ever make such a slice.
    #[error("{0}")]
    Invalid(String),
    /// There is no room for it now, or its device has a problem.
    #[error("{0}")]
    Unavailable(String),
    /// The node failed while it made the slice.
    #[error(transparent)]
    Failed(#[from] NodeError),
}

/// The node could not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NodeError(pub String);
