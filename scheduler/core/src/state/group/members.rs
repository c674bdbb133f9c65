//! The members of a group.

use std::collections::BTreeMap;

use crate::vocabulary::claim::ClaimId;

/// A member of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub(crate) claim: ClaimId,
    pub(crate) sub_group: u32,
    pub(crate) placed: bool,
    /// Whether it was withdrawn: it is never placed again, and counts for nothing.
    pub(crate) withdrawn: bool,
}

impl Member {
    /// Whether it is pending.
    pub(crate) fn waits(&self) -> bool {
        !self.placed && !self.withdrawn
    }
}

/// Members, the oldest first. Most groups are single claims, which need no map.
#[derive(Clone, Debug)]
#[expect(clippy::box_collection, reason = "without the box, each single claim would take the room of a map")]
pub(super) enum Members {
    OneAtMost(Option<Member>),
    Several(Box<BTreeMap<ClaimId, Member>>),
}

impl Default for Members {
    fn default() -> Self {
        Self::OneAtMost(None)
    }
}

impl Members {
    pub(super) fn get(&self, claim: ClaimId) -> Option<&Member> {
        match self {
            Self::OneAtMost(only) => only.as_ref().filter(|member| member.claim == claim),
            Self::Several(members) => members.get(&claim),
        }
    }

    pub(super) fn get_mut(&mut self, claim: ClaimId) -> Option<&mut Member> {
        match self {
            Self::OneAtMost(only) => only.as_mut().filter(|member| member.claim == claim),
            Self::Several(members) => members.get_mut(&claim),
        }
    }

    pub(super) fn insert(&mut self, member: Member) {
        match self {
            Self::OneAtMost(only @ None) => *only = Some(member),
            Self::OneAtMost(Some(only)) => {
                let both = [*only, member].map(|member| (member.claim, member));
                *self = Self::Several(Box::new(BTreeMap::from(both)));
            }
            Self::Several(members) => _ = members.insert(member.claim, member),
        }
    }

    pub(super) fn remove(&mut self, claim: ClaimId) {
        match self {
            Self::OneAtMost(only) => _ = only.take_if(|member| member.claim == claim),
            Self::Several(members) => _ = members.remove(&claim),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::OneAtMost(only) => usize::from(only.is_some()),
            Self::Several(members) => members.len(),
        }
    }

    /// All members, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        let (only, several) = match self {
            Self::OneAtMost(only) => (only.as_ref(), None),
            Self::Several(members) => (None, Some(members.values())),
        };
        only.into_iter().chain(several.into_iter().flatten())
    }
}
