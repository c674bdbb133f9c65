//! Whether nodes can be reached, and until when their instances may run.

use aliquot_scheduler_core::{ClaimId, Event, EventError, Node, NodeId, NodeSpec};

use super::steps::Loss;
use super::{Engine, Timer};
use crate::command::Order;
use crate::entries::Entry;
use crate::names::NodeName;
use crate::observation::Heartbeat;

impl Engine {
    pub(super) fn heartbeat(&mut self, heartbeat: &Heartbeat) {
        let Heartbeat { node, session, sequence } = heartbeat;
        let Some(id) = self.cluster.node_named(node.as_str()) else {
            self.ask_for_report(node, *session);
            return;
        };
        let Some(state) = self.nodes.get(id) else { return };
        if state.session < *session {
            self.ask_for_report(node, *session);
        } else if state.session == *session {
            if self.has_lapsed(id) {
                self.send(id, Order::EndSession { term: self.generation.term });
                return;
            }
            let (has_reported, is_refused) = (state.has_reported, state.is_refused);
            self.heard(id, *session, *sequence);
            if !has_reported {
                // What the node said before the start was complete was not kept.
                self.ask_for_report(node, *session);
            }
            self.renew(id, *sequence);
            self.set_up(id, has_reported && !is_refused);
        }
    }

    /// Whether a node's lease has lapsed in its last session, so that nothing runs there.
    pub(super) fn has_lapsed(&self, id: NodeId) -> bool {
        self.settings.lease.is_some() && self.nodes.get(id).is_some_and(|state| state.lease_until_ms.is_none())
    }

    fn ask_for_report(&mut self, node: &NodeName, session: u64) {
        let order = Order::Report { term: self.generation.term };
        self.commands.push(crate::command::Command { node: node.clone(), session, order });
    }

    /// Notes a message from a node; answers whether it is of the node's present session and newer than all messages
    /// before.
    pub(super) fn heard(&mut self, id: NodeId, session: u64, sequence: u64) -> bool {
        let now_ms = self.now_ms;
        let Some(state) = self.nodes.get_mut(id).filter(|state| state.session == session) else { return false };
        state.heard_ms = now_ms;
        let is_news = state.sequence < sequence;
        state.sequence = state.sequence.max(sequence);
        is_news
    }

    /// Renews the lease of a node.
    pub(super) fn renew(&mut self, id: NodeId, sequence: u64) {
        let Some(lease) = self.settings.lease else { return };
        let Some(state) = self.nodes.get_mut(id) else { return };
        let until_ms = self.now_ms.saturating_add(lease.lease_ms).saturating_add(lease.margin_ms);
        let before_ms = state.lease_until_ms;
        // A lease from before a restart may end later than this one.
        let ends_later = before_ms.is_some_and(|before_ms| before_ms > until_ms);
        state.lease_until_ms = before_ms.max(Some(until_ms));
        self.published.note_renewal();
        let longest_ms = if ends_later { state.lease_ms.max(lease.lease_ms) } else { lease.lease_ms };
        if state.lease_ms != longest_ms {
            state.lease_ms = longest_ms;
            self.unsaved.nodes.insert(id);
        }
        if before_ms.is_none() {
            self.timers.insert((until_ms, Timer::Lapse(id)));
        }
        self.send(id, Order::Renew { sequence, lease_ms: lease.lease_ms, term: self.generation.term });
    }

    /// Opens a node for new claims, or closes it.
    pub(super) fn set_up(&mut self, id: NodeId, is_up: bool) {
        let silence_ms = self.settings.lease.map(|lease| lease.silence_ms);
        let Some(state) = self.nodes.get_mut(id).filter(|state| state.is_up != is_up) else { return };
        state.is_up = is_up;
        let silent_ms = state.heard_ms.saturating_add(silence_ms.unwrap_or(0));
        let cordoned = state.is_cordoned || !is_up;
        if is_up && silence_ms.is_some() {
            self.timers.insert((silent_ms, Timer::Silence(id)));
        }
        if let Some(node) = self.cluster.node(id) {
            let spec = NodeSpec { cordoned, ..node.spec().into() };
            self.apply_sure(Event::NodeRelabelled(id, spec));
        }
        if !is_up {
            self.give_up_places(id);
        }
    }

    /// Gives up the places of claims that have a place on this node and no instance there: they are placed anew.
    fn give_up_places(&mut self, id: NodeId) {
        let there: Vec<ClaimId> = self.cluster.node(id).into_iter().flat_map(Node::claims).collect();
        for claim in there {
            let has_instance = |entry: &Entry| entry.instance().is_some();
            let entry = self.entries.of_claim(claim).and_then(|id| self.entries.get(id));
            let is_there = self.cluster.started_ms(claim).is_some() && entry.is_some_and(has_instance);
            // Another claim of the same gang may have given this one's place up too.
            let is_placed = self.cluster.allocation(claim).is_some_and(|at| at.node == id);
            if is_placed && !is_there {
                self.apply_sure(Event::ClaimEvicted(claim));
            }
        }
    }

    pub(super) fn maybe_silent(&mut self, id: NodeId) {
        let (Some(lease), Some(state)) = (self.settings.lease, self.nodes.get(id)) else { return };
        let silent_ms = state.heard_ms.saturating_add(lease.silence_ms);
        match (state.is_up, silent_ms > self.now_ms) {
            (false, _) => {}
            (true, true) => _ = self.timers.insert((silent_ms, Timer::Silence(id))),
            (true, false) => self.set_up(id, false),
        }
    }

    pub(super) fn node_lost(&mut self, node: &NodeName) {
        if let Some(id) = self.cluster.node_named(node.as_str()) {
            self.set_up(id, false);
        }
    }

    pub(super) fn maybe_lapsed(&mut self, id: NodeId) {
        let Some(until_ms) = self.nodes.get(id).and_then(|state| state.lease_until_ms) else { return };
        if until_ms > self.now_ms {
            self.timers.insert((until_ms, Timer::Lapse(id)));
            return;
        }
        self.set_up(id, false);
        self.lose_all(id);
        let Some(state) = self.nodes.get_mut(id) else { return };
        state.lease_until_ms = None;
        self.unsaved.nodes.insert(id);
    }

    /// Marks all instances of a node as lost.
    fn lose_all(&mut self, id: NodeId) {
        let there = self.nodes.get(id).map(|state| state.instances.clone()).unwrap_or_default();
        for entry in there.iter() {
            self.lose(*entry, Loss::NodeLost);
        }
    }

    pub(super) fn node_gone(&mut self, node: &NodeName) -> Result<(), EventError> {
        let Some(id) = self.cluster.node_named(node.as_str()) else { return Ok(()) };
        self.set_up(id, false);
        self.lose_all(id);
        self.apply(Event::NodeRemoved(id))?;
        self.nodes.set(id, None);
        self.unsaved.nodes.remove(&id);
        self.unsaved.removed_nodes.push(node.clone());
        Ok(())
    }
}
