//! Checks of pod groups.

use super::PodGroup;

/// The most members that a group may need. No cluster has room for more: such a group is a mistake, and would wait for
/// ever.
const MEMBERS_MAX: u32 = 1_000_000;

/// Why a pod group is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GroupError {
    /// The group has no name, but members name the group that they belong to.
    #[error("a pod group of namespace {namespace:?} has no name; claims name the group that they are members of")]
    Unnamed {
        /// The namespace.
        namespace: String,
    },
    /// A sub-group has no name, but members name the sub-group that they belong to.
    #[error("pod group {0:?} has a sub-group without a name; claims name the sub-group that they belong to")]
    SubGroupUnnamed(String),
    /// Two sub-groups have the same name, so claims could only be in one of them.
    #[error("pod group {group:?} has two sub-groups named {sub_group:?}; give each a name of its own")]
    SubGroupTwice {
        /// The group.
        group: String,
        /// The name.
        sub_group: String,
    },
    /// It needs more members than any cluster has room for.
    #[error("pod group {group:?} needs {members} members, which is more than {MEMBERS_MAX}; lower the minimum")]
    TooManyMembers {
        /// The group.
        group: String,
        /// The number of members that it needs.
        members: u64,
    },
    /// Its members could have no device on any node.
    #[error("pod group {0:?} may have 0 devices on a node; allow at least 1, or leave the bound out")]
    NoDevices(String),
}

impl PodGroup {
    /// Checks everything that does not depend on the cluster. Topology levels may be added later.
    pub(crate) fn validate(&self) -> Result<(), GroupError> {
        let group = || self.name.clone();
        if self.name.is_empty() {
            return Err(GroupError::Unnamed { namespace: self.namespace.clone() });
        }
        for (number, sub_group) in self.sub_groups.iter().enumerate() {
            if sub_group.name.is_empty() {
                return Err(GroupError::SubGroupUnnamed(group()));
            }
            if self.sub_groups.iter().take(number).any(|other| other.name == sub_group.name) {
                return Err(GroupError::SubGroupTwice { group: group(), sub_group: sub_group.name.clone() });
            }
        }
        let of_sub_groups = self.sub_groups.iter().map(|sub_group| u64::from(sub_group.min_members)).sum();
        let members = u64::from(self.min_members).max(of_sub_groups);
        if members > u64::from(MEMBERS_MAX) {
            return Err(GroupError::TooManyMembers { group: group(), members });
        }
        if self.spread.max_devices_per_node == Some(0) {
            return Err(GroupError::NoDevices(group()));
        }
        Ok(())
    }
}
