//! The priority class of a job's slices.

use aliquot_proto::agent::v1::PriorityClass as OfNode;
use aliquot_proto::scheduler::v1::PriorityClass as OfUser;
use serde::{Deserialize, Serialize};

/// The order in which jobs on the same device get it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PriorityClass {
    LatencyCritical,
    Standard,
    Batch,
}

impl PriorityClass {
    /// Reads a user's word; `None`: the default of the node.
    ///
    /// # Errors
    /// If the word is of a later version.
    pub(super) fn read(class: i32) -> Result<Option<Self>, String> {
        match OfUser::try_from(class) {
            Ok(OfUser::Unspecified) => Ok(None),
            Ok(OfUser::LatencyCritical) => Ok(Some(Self::LatencyCritical)),
            Ok(OfUser::Standard) => Ok(Some(Self::Standard)),
            Ok(OfUser::Batch) => Ok(Some(Self::Batch)),
            Err(_) => Err(format!("priority class {class} is not known to this scheduler")),
        }
    }

    /// The word for users.
    pub(crate) fn for_users(class: Option<Self>) -> OfUser {
        match class {
            None => OfUser::Unspecified,
            Some(Self::LatencyCritical) => OfUser::LatencyCritical,
            Some(Self::Standard) => OfUser::Standard,
            Some(Self::Batch) => OfUser::Batch,
        }
    }

    /// The word for nodes.
    pub(super) fn for_nodes(class: Option<Self>) -> OfNode {
        match class {
            None => OfNode::Unspecified,
            Some(Self::LatencyCritical) => OfNode::LatencyCritical,
            Some(Self::Standard) => OfNode::Standard,
            Some(Self::Batch) => OfNode::Batch,
        }
    }
}
