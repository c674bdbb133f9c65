//! Why a container cannot start.

use aliquot_dialects::Refusal;
use aliquot_node::{Consumer, CreateError, NodeError};
use tonic::{Code, Status};

use super::NoDevice;
use crate::pod_resources::ListError;

/// Why a container cannot start. Kubelet writes it into an event of the pod, and tries again.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum PrepareError {
    /// It is not known which container asks.
    #[error(transparent)]
    List(#[from] ListError),
    /// No container has these units.
    #[error(
        "neither kubelet's PodResources nor its checkpoint has a container with these {count} units of {resource}: \
         {first} and the following{}", .unread.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    )]
    Nobody { resource: String, count: usize, first: String, unread: Option<String> },
    /// The container with these units is known, but not its pod.
    #[error(
        "kubelet wants to start container {container:?} of the pod with UID {uid}, but its PodResources lists no such pod"
    )]
    NoPod { uid: String, container: String },
    /// The API server does not give the pod.
    #[error("cannot read pod {pod} from the API server: {reason}")]
    Pod { pod: String, reason: String },
    /// The API server has another pod than kubelet.
    #[error("{container} asks for no device in the pod that the API server has; was the pod replaced?")]
    AsksForNothing { container: String },
    /// Kubelet has given the same units to two pods.
    #[error(
        "kubelet has given units of {other} also to this pod (kubernetes/kubernetes#137534); it starts when the other pod \
         has ended; or delete this pod, and its replacement gets other units"
    )]
    GivenTwice { other: Consumer },
    /// The request cannot be understood, or can never be fulfilled.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no room now.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// The node fails to make the slice.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The slice of an ended container cannot be removed.
    #[error("the slice of a container that is gone cannot be removed: {0}")]
    Remove(#[from] NodeError),
}

impl PrepareError {
    /// Whether another node may have room, or this one may once others have gone.
    pub(super) fn is_want_of_room(&self) -> bool {
        matches!(self, PrepareError::NoDevice(_) | PrepareError::Create(CreateError::Unavailable(_)))
    }
}

impl From<PrepareError> for Status {
    fn from(error: PrepareError) -> Status {
        let code = match &error {
            PrepareError::List(_) | PrepareError::Pod { .. } | PrepareError::GivenTwice { .. } => Code::Unavailable,
            PrepareError::Nobody { .. } | PrepareError::NoPod { .. } | PrepareError::AsksForNothing { .. } => {
                Code::NotFound
            }
            PrepareError::Refused(_) | PrepareError::Create(CreateError::Invalid(_)) => Code::InvalidArgument,
            PrepareError::NoDevice(_) | PrepareError::Create(CreateError::Unavailable(_)) => Code::ResourceExhausted,
            PrepareError::Create(_) | PrepareError::Remove(_) => Code::Internal,
        };
        Status::new(code, error.to_string())
    }
}
