//! Claims, and tasks that are not in the books, that have to do with each other's places.

use std::sync::Arc;

use super::Cluster;
use crate::state::peer_books::PeerBooks;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::event::EventError;
use crate::vocabulary::peers::{AntiAffinity, Peers};
use crate::vocabulary::request::Request;

impl Cluster {
    /// Where those are whom rules about peers count.
    pub(crate) fn peers(&self) -> &PeerBooks {
        &self.peers
    }

    /// Gives a claim other peers, wherever it is.
    pub(super) fn change_peers(&mut self, id: ClaimId, peers: Option<Arc<Peers>>) -> Result<(), EventError> {
        let state = self.claim_state(id)?;
        if state.claim.request.peers == peers {
            return Ok(());
        }
        let request = Request { peers, ..Request::clone(&state.claim.request) };
        let node = state.allocation.as_ref().map(|allocation| allocation.node);
        let old = self.exchange_request(id, &request)?;
        if let Some(node) = node {
            old.peers.iter().for_each(|peers| self.peers.note(node, peers, false));
            request.peers.iter().for_each(|peers| self.peers.note(node, peers, true));
        }
        Ok(())
    }

    /// Notes the tasks on a node that are not in the books, or that they are there no longer.
    pub(super) fn note_foreign(&mut self, node: NodeId, foreign: &[Arc<Peers>], is_there: bool) {
        foreign.iter().for_each(|peers| self.peers.note(node, peers, is_there));
    }

    /// The claims that are leaving a place so near that a placed claim cannot start before they are gone: their
    /// anti-affinity, or its own, keeps them apart.
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

    /// Whether a task on one node has an anti-affinity that keeps another one from another node.
    fn avoids(&self, one: &Peers, other: &Peers, node: NodeId, others_node: NodeId) -> bool {
        let domain = |node: NodeId, key: &str| self.node(node).and_then(|node| node.spec().labels.get(key));
        let is_near = |rule: &AntiAffinity| {
            let own = domain(node, &rule.topology_key);
            own.is_some() && own == domain(others_node, &rule.topology_key)
        };
        one.anti_affinity.iter().any(|rule| other.member_of.contains(&rule.group) && is_near(rule))
    }

    /// Whether the affinity or the spread of others counts a claim. If it moved, others that are placed could lose the
    /// claim that they must be near.
    pub(crate) fn is_counted_on(&self, id: ClaimId) -> bool {
        let peers = self.claims.get(id).and_then(|state| state.claim.request.peers.as_deref());
        peers.is_some_and(|peers| peers.member_of.iter().any(|group| self.classes.count_on(group)))
    }
}
