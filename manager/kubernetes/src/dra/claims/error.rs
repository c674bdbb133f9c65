//! Why a claim is not prepared or given up.

use aliquot_node::{CreateError, NodeError};

use crate::dra::allocation::AllocationError;
use crate::dra::names::ClaimUidError;
use crate::dra::prepared_claims::PreparedClaimsError;

/// Why a claim is not prepared or given up.
#[derive(Debug, thiserror::Error)]
pub(in crate::dra) enum ClaimError {
    /// No claim has such a UID.
    #[error(transparent)]
    Uid(#[from] ClaimUidError),
    /// The API server does not answer, or refuses.
    #[error("cannot read {what} from the API server: {message}")]
    Api {
        /// The kind and the name of the object.
        what: String,
        /// What the API server or the connection said.
        message: String,
    },
    /// The claim cannot be prepared on this node.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A container would be in two slices, or in one that is not what it has.
    #[error("pod {pod}: {reason}")]
    Pod {
        /// The pod's name.
        pod: String,
        /// Which container, and why not.
        reason: String,
    },
    /// Nobody says which pods use it.
    #[error(
        "the claim has several requests and is reserved for {resource} {name:?}: which of them a container has can be \
         told only of pods; make a claim of each request"
    )]
    Reserved {
        /// The kind of what it is reserved for.
        resource: String,
        /// The name of what it is reserved for.
        name: String,
    },
    /// The record of prepared claims cannot be read or written.
    #[error(transparent)]
    PreparedClaims(#[from] PreparedClaimsError),
    /// The claim's slice cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The slice cannot be removed.
    #[error("cannot remove what was made for the claim: {0}")]
    Remove(#[from] NodeError),
}
