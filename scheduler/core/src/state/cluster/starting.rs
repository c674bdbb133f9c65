//! Members of a gang start together, or not at all.
//!
//! Between a decision and the start, other claims may have to leave first, and meanwhile members can be lost: a node
//! goes, a claim is removed, or a container fails. A gang never starts with fewer members than it needs. Each needed
//! member waits until all claims are gone that any of them waits for. If too few members are left, none of them starts,
//! and all of them are placed anew, together.

use std::collections::BTreeSet;

use super::Cluster;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::event::EventError;
use crate::vocabulary::pod_group::GroupId;

impl Cluster {
    /// Takes lost claims out of the books of their places, and with them the claims that cannot start without them.
    /// Returns the claims that are pending again.
    pub(super) fn lose(&mut self, mut lost: Vec<ClaimId>) -> Result<Vec<ClaimId>, EventError> {
        let mut groups = BTreeSet::new();
        for claim in &lost {
            self.displace(*claim)?;
            groups.extend(self.group_of(*claim));
        }
        for group in groups {
            lost.extend(self.release_short(group)?);
            self.start_together(group);
            self.note_staleness(group);
        }
        Ok(lost)
    }

    fn displace(&mut self, id: ClaimId) -> Result<(), EventError> {
        self.evict(id)?;
        self.wait_for_nobody(id);
        if let Some(state) = self.claims.get_mut(id) {
            state.started_ms = None;
            if state.leaving.is_none() {
                state.last_eviction = None;
            }
        }
        Ok(())
    }

    /// Takes the members of a group that have not started out of the books if they are too few to start.
    pub(super) fn release_short(&mut self, id: GroupId) -> Result<Vec<ClaimId>, EventError> {
        let released = self.too_few_to_start(id);
        for claim in &released {
            self.displace(*claim)?;
        }
        Ok(released)
    }

    /// The placed members of a group that do not run, if the group cannot reach its minimum even with all of them.
    pub(crate) fn too_few_to_start(&self, id: GroupId) -> Vec<ClaimId> {
        let Some(group) = self.groups.get(id) else { return Vec::new() };
        match group.starting_core(|claim| self.runs_on(claim)) {
            Some(_) => Vec::new(),
            None => self.yet_to_start(id),
        }
    }

    fn yet_to_start(&self, id: GroupId) -> Vec<ClaimId> {
        let members = self.groups.get(id).into_iter().flat_map(|group| group.members());
        members.filter(|claim| self.allocation(*claim).is_some() && !self.runs_on(*claim)).collect()
    }

    /// Makes the members that a group needs start at the same time, and no further member before them.
    pub(super) fn start_together(&mut self, id: GroupId) {
        let waiting = self.yet_to_start(id);
        if waiting.len() < 2 {
            return;
        }
        let core = self.groups.get(id).and_then(|group| group.starting_core(|claim| self.runs_on(claim)));
        let core = core.unwrap_or_else(|| waiting.clone());
        let all: BTreeSet<ClaimId> = core.iter().flat_map(|claim| self.starts_after(*claim)).copied().collect();
        if all.is_empty() {
            return;
        }
        for claim in waiting {
            let mut others = all.clone();
            others.extend(self.starts_after(claim));
            self.wait_for(claim, others.into_iter().collect());
        }
    }
}
