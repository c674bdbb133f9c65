//! The state: nodes, claims, and who is where.

use std::collections::{BTreeMap, BTreeSet};

use crate::change_log::{Change, ChangeLog};
use crate::claim::{Allocation, Claim, ClaimId, NodeId};
use crate::class::{Class, ClassId, Classes};
use crate::event::{Event, EventError, Outcome};
use crate::node::Node;
use crate::request::Request;
use crate::slab::Slab;
use crate::spec::{Health, NodeSpec};

/// What is known of the cluster. It changes by events only, each of which is applied as a whole or not at all.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: Vec<Option<Node>>,
    by_name: BTreeMap<String, NodeId>,
    /// Nodes that are kept for somebody: nothing else is placed there.
    held: BTreeSet<NodeId>,
    claims: Slab<ClaimState, Claim>,
    classes: Classes,
    changes: ChangeLog,
}

#[derive(Clone, Debug)]
struct ClaimState {
    claim: Claim,
    class: ClassId,
    allocation: Option<Allocation>,
}

impl Cluster {
    /// An empty cluster.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one event.
    ///
    /// # Errors
    /// If the event contradicts the state, which is then unchanged.
    pub fn apply(&mut self, event: Event) -> Result<Outcome, EventError> {
        match event {
            Event::NodeAdded(spec) => self.add_node(spec).map(Outcome::Node),
            Event::NodeRelabelled(node, spec) => self.relabel(node, &spec).map(|()| Outcome::Done),
            Event::NodeRemoved(node) => self.remove_node(node).map(Outcome::Displaced),
            Event::DeviceHealthChanged { node, device, health } => {
                self.set_health(node, device, health).map(|()| Outcome::Done)
            }
            Event::ClaimAdded(claim) => self.add_claim(claim).map(Outcome::Claim),
            Event::ClaimRemoved(claim) => self.remove_claim(claim).map(|_| Outcome::Done),
            Event::ClaimPlaced(claim, allocation) => self.place(claim, allocation).map(|()| Outcome::Done),
            Event::ClaimEvicted(claim) => self.evict(claim).map(|_| Outcome::Displaced(vec![claim])),
            Event::ClaimResized(claim, request) => self.resize(claim, &request).map(|()| Outcome::Done),
        }
    }

    /// A node, by its id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index())?.as_ref()
    }

    /// A node's id, by its name.
    #[must_use]
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// The nodes, in the order in which they were added.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        (0..).map(NodeId).zip(&self.nodes).filter_map(|(id, node)| Some((id, node.as_ref()?)))
    }

    /// Whether a node is kept for somebody, so that an engine places nothing there.
    #[must_use]
    pub fn is_held(&self, id: NodeId) -> bool {
        self.held.contains(&id)
    }

    /// One more than the greatest number of a node's id so far.
    #[must_use]
    pub fn node_slots(&self) -> usize {
        self.nodes.len()
    }

    /// A claim.
    #[must_use]
    pub fn claim(&self, id: ClaimId) -> Option<&Claim> {
        self.claim_state(id).ok().map(|state| &state.claim)
    }

    /// Where a claim is placed, if it is.
    #[must_use]
    pub fn allocation(&self, id: ClaimId) -> Option<&Allocation> {
        self.claim_state(id).ok()?.allocation.as_ref()
    }

    /// The class of a claim's request.
    #[must_use]
    pub fn class_of(&self, id: ClaimId) -> Option<ClassId> {
        self.claim_state(id).ok().map(|state| state.class)
    }

    /// A class; `None` when no claim is in it any more.
    #[must_use]
    pub fn class(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(id)
    }

    /// The claims, in an order that depends on nothing but the events so far.
    pub fn claims(&self) -> impl Iterator<Item = (ClaimId, &Claim, Option<&Allocation>)> {
        self.claims.iter().map(|(key, state)| (key, &state.claim, state.allocation.as_ref()))
    }

    /// Number of claims.
    #[must_use]
    pub fn claim_count(&self) -> usize {
        self.claims.len()
    }

    /// The changes of nodes, for who keeps something about each node.
    pub(crate) fn changes(&self) -> &ChangeLog {
        &self.changes
    }

    fn claim_state(&self, id: ClaimId) -> Result<&ClaimState, EventError> {
        self.claims.get(id).ok_or(EventError::NoSuchClaim(id))
    }

    fn node_mut(&mut self, id: NodeId) -> Result<&mut Node, EventError> {
        self.nodes.get_mut(id.index()).and_then(Option::as_mut).ok_or(EventError::NoSuchNode(id))
    }

    fn note(&mut self, node: NodeId, spec: bool) {
        self.changes.push(Change { node, spec }, self.nodes.len());
    }

    fn add_node(&mut self, spec: NodeSpec) -> Result<NodeId, EventError> {
        if self.by_name.contains_key(&spec.name) {
            return Err(EventError::NodeExists(spec.name));
        }
        let id = NodeId(u32::try_from(self.nodes.len()).expect("fewer than 2^32 nodes"));
        self.by_name.insert(spec.name.clone(), id);
        self.nodes.push(Some(Node::new(spec)));
        self.note(id, true);
        Ok(id)
    }

    fn relabel(&mut self, id: NodeId, spec: &NodeSpec) -> Result<(), EventError> {
        self.node_mut(id)?.set_labels_and_taints(spec);
        self.note(id, true);
        Ok(())
    }

    fn remove_node(&mut self, id: NodeId) -> Result<Vec<ClaimId>, EventError> {
        let slot = self.nodes.get_mut(id.index()).and_then(Option::take);
        let node = slot.ok_or(EventError::NoSuchNode(id))?;
        self.by_name.remove(&node.spec().name);
        self.held.remove(&id);
        let displaced: Vec<ClaimId> = node.claims().collect();
        for claim in &displaced {
            if let Some(state) = self.claims.get_mut(*claim) {
                state.allocation = None;
            }
        }
        self.note(id, true);
        Ok(displaced)
    }

    fn set_health(&mut self, id: NodeId, device: u16, health: Health) -> Result<(), EventError> {
        if !self.node_mut(id)?.set_health(device, health) {
            return Err(EventError::NoSuchDevice { node: id, device });
        }
        self.note(id, true);
        Ok(())
    }

    fn add_claim(&mut self, claim: Claim) -> Result<ClaimId, EventError> {
        claim.request.validate()?;
        let class = self.classes.join(&claim.request);
        Ok(self.claims.insert(ClaimState { claim, class, allocation: None }))
    }

    fn remove_claim(&mut self, id: ClaimId) -> Result<Claim, EventError> {
        if self.claim_state(id)?.allocation.is_some() {
            self.evict(id)?;
        }
        let state = self.claims.remove(id).ok_or(EventError::NoSuchClaim(id))?;
        self.classes.leave(state.class);
        Ok(state.claim)
    }

    /// Keeps a node for somebody, or opens it to all again.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn set_held(&mut self, id: NodeId, held: bool) -> Result<(), EventError> {
        self.node_mut(id)?;
        let changed = if held { self.held.insert(id) } else { self.held.remove(&id) };
        if changed {
            self.note(id, true);
        }
        Ok(())
    }

    /// Places a claim.
    pub(crate) fn place(&mut self, id: ClaimId, allocation: Allocation) -> Result<(), EventError> {
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        if state.allocation.is_some() {
            return Err(EventError::Placed(id));
        }
        let node = allocation.node;
        let books = self.nodes.get_mut(node.index()).and_then(Option::as_mut).ok_or(EventError::NoSuchNode(node))?;
        let taken = books.take(id, &state.claim.request, &allocation);
        taken.map_err(|reason| EventError::NotEnough { node, reason })?;
        state.allocation = Some(allocation);
        self.note(node, false);
        Ok(())
    }

    /// Takes a claim from where it is placed, and says where that was.
    pub(crate) fn evict(&mut self, id: ClaimId) -> Result<Allocation, EventError> {
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        let allocation = state.allocation.take().ok_or(EventError::NotPlaced(id))?;
        let node = allocation.node;
        if let Some(books) = self.nodes.get_mut(node.index()).and_then(Option::as_mut) {
            books.give_back(id, &state.claim.request, &allocation);
        }
        self.note(node, false);
        Ok(allocation)
    }

    fn resize(&mut self, id: ClaimId, request: &Request) -> Result<(), EventError> {
        request.validate()?;
        let before = self.claim_state(id)?.allocation.clone();
        if let Some(before) = &before {
            let mut after = before.clone();
            let node = self.node(before.node).ok_or(EventError::NoSuchNode(before.node))?;
            for part in &mut after.devices {
                let memory = node.devices().get(usize::from(part.device)).map_or(part.memory, |device| device.memory());
                (part.core, part.memory) = (request.devices.core, request.devices.memory.on(memory));
            }
            self.evict(id)?;
            let old = self.exchange_request(id, request)?;
            if let Err(error) = self.place(id, after) {
                self.exchange_request(id, &old)?;
                self.place(id, before.clone())?;
                return Err(error);
            }
        } else {
            self.exchange_request(id, request)?;
        }
        Ok(())
    }

    /// Gives a claim another request and returns the old one.
    fn exchange_request(&mut self, id: ClaimId, request: &Request) -> Result<Request, EventError> {
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        let class = self.classes.join(request);
        self.classes.leave(std::mem::replace(&mut state.class, class));
        Ok(std::mem::replace(&mut state.claim.request, request.clone()))
    }
}
