//! The users of a claim: pods, and Kubernetes' own PodGroups, whose pods use it together.

use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::ClaimFacts;

/// Where the API server has PodGroups.
const GROUPS_API: &str = "scheduling.k8s.io";
const GROUPS: &str = "podgroups";

/// A pod that may use claims, for itself or as a member of its PodGroup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User<'a> {
    pub(crate) uid: &'a str,
    /// The name of its PodGroup.
    pub(crate) group: Option<&'a str>,
}

impl ClaimFacts {
    /// Whether the claim is reserved for a pod, or for its PodGroup. A pod knows only the name of its group.
    pub(crate) fn is_reserved_for(&self, pod: User<'_>) -> bool {
        let is_its_group = |of: &ResourceClaimConsumerReference| is_group(of) && pod.group == Some(&of.name);
        self.reserved_for.iter().any(|of| of.uid == pod.uid || is_its_group(of))
    }

    /// Whether one of its users, pods and PodGroups, has this UID.
    pub(crate) fn has_user(&self, uid: &str) -> bool {
        self.reserved_for.iter().any(|user| user.uid == uid)
    }

    /// Whether the claim is reserved for any user other than the one with this UID.
    pub(crate) fn has_users_beside(&self, uid: &str) -> bool {
        self.reserved_for.iter().any(|user| user.uid != uid)
    }

    /// Whether the claim is reserved for a PodGroup, whatever other users it has.
    pub(crate) fn is_of_group(&self) -> bool {
        self.reserved_for.iter().any(is_group)
    }
}

pub(crate) fn pod_as_user(name: &str, uid: &str) -> ResourceClaimConsumerReference {
    let (resource, name, uid) = ("pods".to_owned(), name.to_owned(), uid.to_owned());
    ResourceClaimConsumerReference { api_group: None, resource, name, uid }
}

pub(crate) fn group_as_user(name: &str, uid: &str) -> ResourceClaimConsumerReference {
    let api_group = Some(GROUPS_API.to_owned());
    ResourceClaimConsumerReference { api_group, resource: GROUPS.to_owned(), ..pod_as_user(name, uid) }
}

/// Whether a user of a claim is a PodGroup.
pub(crate) fn is_group(user: &ResourceClaimConsumerReference) -> bool {
    user.api_group.as_deref() == Some(GROUPS_API) && user.resource == GROUPS
}

/// The PodGroup that a claim was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupOwner {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The PodGroup that owns a claim; `None`: the owner is something else.
pub(super) fn group_of_owner(owner: &OwnerReference) -> Option<GroupOwner> {
    let is_group = owner.kind == "PodGroup" && owner.api_version.split('/').next() == Some(GROUPS_API);
    is_group.then(|| GroupOwner { name: owner.name.clone(), uid: owner.uid.clone() })
}
