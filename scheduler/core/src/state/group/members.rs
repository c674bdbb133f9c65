//! The members of a group.

use std::collections::BTreeMap;

use crate::vocabulary::claim::ClaimId;

/// A member of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub(crate) claim: ClaimId,
    pub(crate) sub_group: usize,
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

/// Members by sequence number of the claim. Most groups are single claims, which need no map.
#[derive(Clone, Debug)]
pub(super) enum Members {
    OneAtMost(Option<(u64, Member)>),
    Several(BTreeMap<u64, Member>),
}

impl Default for Members {
    fn default() -> Self {
        Self::OneAtMost(None)
    }
}

impl Members {
    pub(super) fn get(&self, sequence: &u64) -> Option<&Member> {
        match self {
            Self::OneAtMost(only) => only.as_ref().filter(|(of, _)| of == sequence).map(|(_, member)| member),
            Self::Several(members) => members.get(sequence),
        }
    }

    pub(super) fn get_mut(&mut self, sequence: &u64) -> Option<&mut Member> {
        match self {
            Self::OneAtMost(only) => only.as_mut().filter(|(of, _)| of == sequence).map(|(_, member)| member),
            Self::Several(members) => members.get_mut(sequence),
        }
    }

    pub(super) fn insert(&mut self, sequence: u64, member: Member) {
        match self {
            Self::OneAtMost(only @ None) => *only = Some((sequence, member)),
            Self::OneAtMost(Some(only)) => *self = Self::Several(BTreeMap::from([*only, (sequence, member)])),
            Self::Several(members) => _ = members.insert(sequence, member),
        }
    }

    pub(super) fn remove(&mut self, sequence: &u64) {
        match self {
            Self::OneAtMost(only) => _ = only.take_if(|(of, _)| of == sequence),
            Self::Several(members) => _ = members.remove(sequence),
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

    /// All members with their sequence numbers, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&u64, &Member)> {
        let (only, several) = match self {
            Self::OneAtMost(only) => (only.as_ref(), None),
            Self::Several(members) => (None, Some(members)),
        };
        only.into_iter().map(|(sequence, member)| (sequence, member)).chain(several.into_iter().flatten())
    }

    /// All members, the oldest first.
    pub(super) fn values(&self) -> impl Iterator<Item = &Member> {
        self.iter().map(|(_, member)| member)
    }
}
