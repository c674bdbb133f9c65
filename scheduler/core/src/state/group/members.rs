//! Who belongs to a group.

use std::collections::BTreeMap;

use crate::vocabulary::claim::ClaimId;

/// A member of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub(crate) claim: ClaimId,
    pub(crate) sub_group: usize,
    pub(crate) placed: bool,
    /// Nobody wants it any more: it is never placed again, and counts for nothing.
    pub(crate) withdrawn: bool,
}

impl Member {
    /// Whether it is to be placed.
    pub(crate) fn waits(&self) -> bool {
        !self.placed && !self.withdrawn
    }
}

/// Members by sequence number of the claim. Most groups are single claims: the oldest member is kept without a map.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    /// Older than all others.
    first: Option<(u64, Member)>,
    others: BTreeMap<u64, Member>,
}

impl Members {
    pub(super) fn get(&self, sequence: &u64) -> Option<&Member> {
        let first = self.first.iter().find(|(first, _)| first == sequence).map(|(_, member)| member);
        first.or_else(|| self.others.get(sequence))
    }

    pub(super) fn get_mut(&mut self, sequence: &u64) -> Option<&mut Member> {
        let first = self.first.iter_mut().find(|(first, _)| first == sequence).map(|(_, member)| member);
        first.or_else(|| self.others.get_mut(sequence))
    }

    /// Adds a member that is younger than all others.
    pub(super) fn insert(&mut self, sequence: u64, member: Member) {
        match self.is_empty() {
            true => self.first = Some((sequence, member)),
            false => _ = self.others.insert(sequence, member),
        }
    }

    pub(super) fn remove(&mut self, sequence: &u64) {
        if self.first.take_if(|(first, _)| first == sequence).is_none() {
            self.others.remove(sequence);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// The oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&u64, &Member)> {
        self.first.iter().map(|(sequence, member)| (sequence, member)).chain(&self.others)
    }

    /// The oldest first.
    pub(super) fn values(&self) -> impl Iterator<Item = &Member> {
        self.iter().map(|(_, member)| member)
    }
}
