//! Errors of preparing and unpreparing claims.

use aliquot_node::{CreateError, NodeError};

use crate::dra::allocation::AllocationError;
use crate::dra::names::ClaimUidError;
use crate::dra::prepared_claims::PreparedClaimsError;
use crate::pod_resources::ListError;

/// The reason why a claim is not prepared or unprepared.
#[derive(Debug, thiserror::Error)]
pub(in crate::dra) enum ClaimError {
    /// The text cannot be a claim's UID.
    #[error(transparent)]
    Uid(#[from] ClaimUidError),
    /// The API server does not answer, or refuses.
    #[error("cannot read {what} from the API server: {message}")]
    Api {
        /// The kind and the name of the object.
        what: String,
        /// The message of the API server or of the connection.
        message: String,
    },
    /// The claim cannot be prepared on this node.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A container would be in two slices, or in a slice with other requests than its own.
    #[error("pod {pod}: {reason}")]
    Pod {
        /// The name of the pod.
        pod: String,
        /// The container, and the reason.
        reason: String,
    },
    /// The claim is reserved for an object that is neither a pod nor a PodGroup, so its pods are not known.
    #[error(
        "the claim has several requests and is reserved for {resource} {name:?}: the requests of a container are known \
         only for pods and PodGroups; make one claim for each request"
    )]
    Reserved {
        /// The kind of that object.
        resource: String,
        /// The name of that object.
        name: String,
    },
    /// Kubelet does not list its pods.
    #[error(transparent)]
    Kubelet(#[from] ListError),
    /// Kubelet lists no pod of a PodGroup for which the claim is reserved.
    #[error(
        "the claim has several requests and is reserved for PodGroup {group:?}, of which kubelet lists no pod on this node: \
         kubelet tries again"
    )]
    NoMember {
        /// The name of the PodGroup.
        group: String,
    },
    /// The record of prepared claims cannot be read or written.
    #[error(transparent)]
    PreparedClaims(#[from] PreparedClaimsError),
    /// The claim's slice cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The slice cannot be removed.
    #[error("cannot remove the slices of the claim: {0}")]
    Remove(#[from] NodeError),
}
