//! Why a container cannot start.

use aliquot_dialects::Refusal;
use aliquot_node::{Consumer, CreateError, NodeError};
use tonic::{Code, Status};

use super::NoDevice;
use crate::pod_resources::ListError;

/// Why a container cannot start. Kubelet writes it into an event of the pod, and tries again.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum PrepareError {
    /// It is not known who asks.
    #[error(transparent)]
    List(#[from] ListError),
    /// Nobody has these units.
    #[error(
        "neither kubelet's PodResources nor its checkpoint has a container with the {count} units of {resource} that \
         begin with {first}{}", .unread.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    )]
    Nobody { resource: String, count: usize, first: String, unread: Option<String> },
    /// It is known which units the container has, but not which pod it is of.
    #[error("no pod that kubelet's PodResources lists has the UID {uid}, whose container {container:?} is to start")]
    NoPod { uid: String, container: String },
    /// The API server does not tell what the pod says.
    #[error("cannot read pod {pod} from the API server: {reason}")]
    Pod { pod: String, reason: String },
    /// The pod is another one than kubelet's.
    #[error("{container} asks for no device in the pod that the API server has; was the pod replaced?")]
    AsksForNothing { container: String },
    /// Kubelet has given its units to two pods.
    #[error(
        "kubelet has given units of {other} to this pod, too (kubernetes/kubernetes#137534); it starts when the other pod \
         has ended, or delete it, and its successor gets other units"
    )]
    GivenTwice { other: Consumer },
    /// What it asks for cannot be given.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no room.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// The node does not make the slice.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// An old slice stands in the way.
    #[error("the slice of a container that is gone cannot be removed: {0}")]
    Remove(#[from] NodeError),
}

impl PrepareError {
    /// Whether there may be room on another node, or here when others have gone.
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
