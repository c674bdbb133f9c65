//! Rules about peers: between claims, and between claims and tasks that are not in the books.

use std::sync::Arc;

use super::Cluster;
use crate::state::peer_books::PeerBooks;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::event::EventError;
use crate::vocabulary::peers::{AntiAffinity, Peers};
use crate::vocabulary::request::Request;

impl Cluster {
    /// Where the peers are that rules count.
    pub(crate) fn peers(&self) -> &PeerBooks {
        &self.peers
    }

    /// Changes a claim's peers, whether it is placed or not. Returns the claims that are pending again because it keeps
    /// them from their places now, or because others keep it from its own.
    pub(super) fn change_peers(&mut self, id: ClaimId, peers: Option<Arc<Peers>>) -> Result<Vec<ClaimId>, EventError> {
        let state = self.claim_state(id)?;
        if state.claim.request.peers == peers {
            return Ok(Vec::new());
        }
        let request = Request { peers, ..Request::clone(&state.claim.request) };
        let node = state.allocation.as_ref().map(|allocation| allocation.node);
        let old = self.exchange_request(id, &request)?;
        let Some(node) = node else { return Ok(Vec::new()) };
        old.peers.iter().for_each(|peers| self.peers.note(node, peers, false));
        request.peers.iter().for_each(|peers| self.peers.note(node, peers, true));
        match self.started_ms(id) {
            Some(_) => self.lose_what_is_avoided_by(request.peers.as_slice(), node),
            None if self.is_kept_apart(id) => self.lose(vec![id]),
            None => Ok(Vec::new()),
        }
    }

    /// Notes the tasks on a node that are not in the books, or that they are gone.
    pub(super) fn note_foreign(&mut self, node: NodeId, foreign: &[Arc<Peers>], is_there: bool) {
        foreign.iter().for_each(|peers| self.peers.note(node, peers, is_there));
    }

    /// Claims that have to be gone before a placed claim can start, because an anti-affinity, theirs or its own, keeps
    /// them apart.
    pub(super) fn leaving_too_near(&self, id: ClaimId) -> Vec<ClaimId> {
        let Some(state) = self.claims.get(id) else { return Vec::new() };
        let Some((peers, at)) = state.claim.request.peers.as_deref().zip(state.allocation.as_ref()) else {
            return Vec::new();
        };
        let is_too_near = |other: &ClaimId, node: NodeId| {
            let other = self.claims.get(*other).and_then(|other| other.claim.request.peers.as_deref());
            other.is_some_and(|other| {
                self.avoids(peers, other, at.node, node) || self.avoids(other, peers, node, at.node)
            })
        };
        let leaving = self.leaving.iter().flat_map(|(node, claims)| claims.iter().map(|claim| (*claim, *node)));
        let near = leaving.filter(|(other, node)| *other != id && is_too_near(other, *node));
        near.map(|(other, _)| other).collect()
    }

    /// Whether an anti-affinity of the task `one` on `node` keeps the task `other` from `others_node`.
    pub(super) fn avoids(&self, one: &Peers, other: &Peers, node: NodeId, others_node: NodeId) -> bool {
        let domain = |node: NodeId, key: &str| self.node(node).and_then(|node| node.spec().labels.get(key));
        let is_near = |rule: &AntiAffinity| {
            let own = domain(node, &rule.topology_key);
            own.is_some() && own == domain(others_node, &rule.topology_key)
        };
        one.anti_affinity.iter().any(|rule| other.member_of.contains(&rule.group) && is_near(rule))
    }

    /// Whether the affinity or the spread of other claims counts this claim. If it moved, placed claims could lose a
    /// claim that they must be near.
    pub(crate) fn is_counted_on(&self, id: ClaimId) -> bool {
        let peers = self.claims.get(id).and_then(|state| state.claim.request.peers.as_deref());
        peers.is_some_and(|peers| peers.member_of.iter().any(|group| self.classes.count_on(group)))
    }
}
