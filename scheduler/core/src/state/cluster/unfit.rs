//! Places that suit their claims no more, before the claims could start.
//!
//! Between a decision and the start, a node can be cordoned, change its labels or get a taint, and tasks can come near
//! that a claim must not be near. A claim that has yet to start gives such a place up. Those that its affinity asks for can
//! go, too. Others of them can come, so this is looked at when the claim could start. A claim that runs stays.

use std::sync::Arc;

use super::Cluster;
use super::peer_rules::PeerRules;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::event::EventError;
use crate::vocabulary::peers::{AntiAffinity, PeerGroup, Peers};

impl Cluster {
    /// The claims that have yet to start on a node that takes no such claims any more.
    pub(super) fn no_longer_admitted(&self, id: NodeId) -> Vec<ClaimId> {
        let Some(node) = self.node(id) else { return Vec::new() };
        let is_admitted = |claim: &ClaimId| {
            let request = self.claims.get(*claim).map(|state| &state.claim.request);
            !node.spec().cordoned && request.is_some_and(|request| request.constraints.admit(node.spec()))
        };
        let waiting = node.claims().filter(|claim| self.started_ms(*claim).is_none());
        waiting.filter(|claim| !is_admitted(claim)).collect()
    }

    /// The tasks that a node lists now and did not list before. A claim that is leaving the node is not among them: it
    /// can be listed because it has left the books.
    pub(super) fn newly_listed(&self, id: NodeId, before: &[Arc<Peers>], now: &[Arc<Peers>]) -> Vec<Arc<Peers>> {
        let leaving = self.leaving.get(&id).into_iter().flatten().filter_map(|claim| self.claims.get(*claim));
        let leaving = leaving.filter_map(|state| state.claim.request.peers.as_deref());
        // Of a task that is leaving, some groups count no more.
        let is_one = |of: &Peers, known: &Peers| {
            of.anti_affinity == known.anti_affinity && of.member_of.is_subset(&known.member_of)
        };
        let mut known: Vec<&Peers> = before.iter().map(Arc::as_ref).chain(leaving).collect();
        let is_new = |of: &&Arc<Peers>| match known.iter().position(|known| is_one(of, known)) {
            Some(place) => {
                known.swap_remove(place);
                false
            }
            None => true,
        };
        now.iter().filter(is_new).cloned().collect()
    }

    /// Whether a placed claim's affinity would not allow its place now, because those that it must be near have gone
    /// since it was decided.
    ///
    /// A claim of the group that it must be near was perhaps the first of it, and is near itself. Topology spread does not
    /// count: a claim that is evicted for this one, and then placed elsewhere, could make the spread uneven each time.
    pub(super) fn is_out_of_place(&self, id: ClaimId) -> bool {
        let Some(state) = self.claims.get(id) else { return false };
        let node = state.allocation.as_ref().and_then(|at| self.node(at.node));
        node.zip(PeerRules::of(self, &state.claim.request)).is_some_and(|(node, rules)| rules.is_far(node.spec()))
    }

    /// Takes the claims out of the books that have yet to start, and that these tasks on a node keep from their places.
    /// Returns the claims that are pending again.
    pub(super) fn lose_what_is_avoided_by(
        &mut self,
        tasks: &[Arc<Peers>],
        node: NodeId,
    ) -> Result<Vec<ClaimId>, EventError> {
        let avoid_each_other = |claim: &ClaimId| {
            let state = self.claims.get(*claim);
            let Some((own, at)) = state.and_then(|state| {
                state.claim.request.peers.as_deref().zip(state.allocation.as_ref().map(|allocation| allocation.node))
            }) else {
                return false;
            };
            tasks.iter().any(|task| self.avoids(own, task, at, node) || self.avoids(task, own, node, at))
        };
        let lost = self.starts_after.keys().copied().filter(|claim| !tasks.is_empty() && avoid_each_other(claim));
        let lost = lost.collect();
        self.lose(lost)
    }

    /// Takes the claims out of the books that have yet to start and that an anti-affinity keeps from their places.
    /// Returns the claims that are pending again.
    pub(super) fn lose_what_is_kept_apart(&mut self) -> Result<Vec<ClaimId>, EventError> {
        let waiting = self.starts_after.keys().copied();
        let lost = waiting.filter(|claim| self.is_kept_apart(*claim)).collect();
        self.lose(lost)
    }

    /// Whether an anti-affinity, of the claim or of another task, keeps a placed claim from its place. Claims that are
    /// leaving do not count, because it starts after them. Their nodes can list them as tasks that are not in the
    /// books.
    pub(super) fn is_kept_apart(&self, id: ClaimId) -> bool {
        let Some(state) = self.claims.get(id) else { return false };
        let Some((peers, at)) = state.claim.request.peers.as_deref().zip(state.allocation.as_ref()) else {
            return false;
        };
        let domain = |node: NodeId, key: &str| self.node(node).and_then(|node| node.spec().labels.get(key));
        let is_near = |node: NodeId, key: &str| {
            let own = domain(at.node, key);
            own.is_some() && own == domain(node, key)
        };
        let leaving_near = |key: &str, is_such: &dyn Fn(&Peers) -> bool| {
            let places = self.leaving.iter().filter(|(node, _)| is_near(**node, key));
            let claims = places.flat_map(|(_, claims)| claims).filter_map(|claim| self.claims.get(*claim));
            claims.filter(|state| state.claim.request.peers.as_deref().is_some_and(is_such)).count()
        };
        let are_too_many = |near: u32, own: bool, leaving: usize| near as usize > leaving + usize::from(own);
        let avoids = |rule: &AntiAffinity| {
            let members = self.peers.members(&rule.group).filter(|(node, _)| is_near(*node, &rule.topology_key));
            let is_member = |peers: &Peers| peers.member_of.contains(&rule.group);
            let leaving = leaving_near(&rule.topology_key, &is_member);
            are_too_many(members.map(|(_, count)| count).sum(), is_member(peers), leaving)
        };
        let is_avoided = |group: &PeerGroup| {
            self.peers.avoiding(group).any(|(rule, nodes)| {
                let avoiding = nodes.iter().filter(|(node, _)| is_near(**node, &rule.topology_key));
                let has_rule = |peers: &Peers| peers.anti_affinity.contains(rule);
                let leaving = leaving_near(&rule.topology_key, &has_rule);
                are_too_many(avoiding.map(|(_, count)| *count).sum(), has_rule(peers), leaving)
            })
        };
        peers.anti_affinity.iter().any(avoids) || peers.member_of.iter().any(is_avoided)
    }
}
