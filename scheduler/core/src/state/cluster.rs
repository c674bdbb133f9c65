//! The state: nodes, queues, pod groups and claims, and where the claims are placed.

mod claims;
mod decisions;
pub(crate) mod dump;
mod groups;
mod leaving;
pub(crate) mod limits;
mod namespaces;
mod nodes;
pub(crate) mod peer_rules;
mod peers;
mod refused;
mod resize;
mod starting;
mod truth;
mod unfit;
mod withdrawn;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use crate::state::budget::Budgets;
use crate::state::change_log::ChangeLog;
use crate::state::class::{Class, ClassId, Classes};
use crate::state::group::{Group, Groups};
use crate::state::mix_counter::MixCounter;
use crate::state::node::Node;
use crate::state::node_parts::NodeParts;
use crate::state::peer_books::PeerBooks;
use crate::state::queue::{Queue, Queues};
use crate::state::resources::Resources;
use crate::state::template::{KnownClaim, Templates};
use crate::state::topology::Topology;
use crate::state::turnover::Turnover;
use crate::state::usage::DecayedUsage;
use crate::vocabulary::chunks::Chunks;
use crate::vocabulary::claim::{Allocation, Claim, ClaimId, Displacement, LastEviction, NodeId};
use crate::vocabulary::event::{Event, EventError, Outcome};
use crate::vocabulary::mix::Mix;
use crate::vocabulary::namespace::NamespaceSpec;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::resource::Resource;
use crate::vocabulary::slab::Slab;

pub use refused::ALONE_MAX_MS;

/// The known state of the cluster. Events change it; each event is applied as a whole or not at all. Decisions change
/// it, too: the cycles of a [`Scheduler`](crate::Scheduler), [`Statement`](crate::Statement)s, and nodes that are kept.
///
/// A copy is cheap: it shares with the original what neither has changed since.
#[derive(Clone, Debug)]
pub struct Cluster {
    now_ms: u64,
    nodes: Chunks<Option<Node>, NODES_PER_CHUNK>,
    /// What nodes have in common.
    node_parts: NodeParts,
    by_name: Arc<BTreeMap<String, NodeId>>,
    topology: Arc<Topology>,
    /// Nodes that are kept for a pending group: no other claim is placed there.
    held: BTreeSet<NodeId>,
    /// Nodes that hold more claims than they have room for.
    over_committed: BTreeSet<NodeId>,
    claims: Slab<ClaimState, Claim>,
    classes: Classes,
    templates: Templates,
    changes: ChangeLog,
    /// See [`Cluster::specs_changed`].
    specs_changed: u64,
    /// See [`Cluster::totals`]. Empty after a node's specification has changed, until somebody asks.
    totals: OnceLock<Vec<u64>>,
    resources: Resources,
    queues: Queues,
    groups: Groups,
    namespaces: BTreeMap<String, NamespaceSpec>,
    /// What arriving claims have asked for.
    arrivals: MixCounter,
    turnover: Turnover,
    budgets: Budgets,
    /// Claims that have yet to leave an old place, by its node.
    leaving: BTreeMap<NodeId, BTreeSet<ClaimId>>,
    /// For each leaving claim: the claims that start after it is gone.
    waiting_for: BTreeMap<ClaimId, BTreeSet<ClaimId>>,
    /// For each claim that cannot start yet: the claims that must be gone before.
    starts_after: BTreeMap<ClaimId, Vec<ClaimId>>,
    /// Where peers are, and the rules about them.
    peers: PeerBooks,
    /// Why the plan under way evicted claims. The plan may still put them back where they were.
    causes: BTreeMap<ClaimId, Displacement>,
    /// Of the plan under way: the claims that had yet to start and lost their places, with the claims that they waited
    /// for.
    waited: BTreeMap<ClaimId, Vec<ClaimId>>,
}

#[derive(Clone, Debug)]
struct ClaimState {
    claim: KnownClaim,
    group: GroupId,
    allocation: Option<Allocation>,
    /// Since when it runs; `None`: it does not run, even if it is placed.
    started_ms: Option<u64>,
    /// The place that it has yet to leave. If the claim also runs, the plan under way has decided this and its node has
    /// not been told yet.
    leaving: Option<Box<Allocation>>,
    displaced: Option<Box<Displacement>>,
    /// What is known of its last eviction, while the eviction is under way or after it was refused.
    last_eviction: Option<Box<LastEviction>>,
    /// Whether it is no longer wanted: it asks for nothing, and holds only the place that it is leaving.
    is_withdrawn: bool,
    /// How often it failed to start where it was placed.
    failures: u32,
    /// The time before which it is not placed again, in milliseconds.
    retry_at_ms: u64,
}

/// Nodes that are copied together when one of them is changed in a copy of the cluster.
const NODES_PER_CHUNK: usize = 16;

/// How long a claim waits after it first failed to start. The wait doubles with each further failure.
const RETRY_MS: u64 = 1000;
/// The longest wait of a claim after a failed start.
pub const RETRY_MAX_MS: u64 = 300_000;
/// How often a claim may have failed to start before other claims no longer make way for each further try.
const FAILURES_MAX: u32 = 3;

/// The half-life of past usage, a week, unless a cluster is made with another one.
const HALF_LIFE_MS: u64 = 7 * 24 * 3_600_000;

impl Default for Cluster {
    fn default() -> Self {
        Self::with_usage_half_life(HALF_LIFE_MS)
    }
}

impl Cluster {
    /// An empty cluster. The half-life of past usage is a week.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty cluster with this half-life of past usage, in milliseconds.
    #[must_use]
    pub fn with_usage_half_life(half_life_ms: u64) -> Self {
        Self {
            now_ms: 0,
            nodes: Chunks::default(),
            node_parts: NodeParts::default(),
            by_name: Arc::default(),
            topology: Arc::default(),
            held: BTreeSet::new(),
            over_committed: BTreeSet::new(),
            claims: Slab::default(),
            classes: Classes::default(),
            templates: Templates::default(),
            changes: ChangeLog::default(),
            specs_changed: 0,
            totals: OnceLock::new(),
            resources: Resources::default(),
            queues: Queues::new(half_life_ms),
            groups: Groups::default(),
            namespaces: BTreeMap::new(),
            arrivals: MixCounter::new(half_life_ms, 0),
            turnover: Turnover::default(),
            budgets: Budgets::default(),
            leaving: BTreeMap::new(),
            waiting_for: BTreeMap::new(),
            starts_after: BTreeMap::new(),
            peers: PeerBooks::default(),
            causes: BTreeMap::new(),
            waited: BTreeMap::new(),
        }
    }

    /// Applies one event.
    ///
    /// # Errors
    /// If the event contradicts the state, which is then unchanged.
    pub fn apply(&mut self, event: Event) -> Result<Outcome, EventError> {
        match event {
            Event::NodeAdded(spec) => self.add_node(spec).map(Outcome::Node),
            Event::NodeRelabelled(node, spec) => self.relabel(node, &spec).map(Outcome::displaced),
            Event::NodeChanged(node, spec) => self.change_node(node, spec).map(Outcome::displaced),
            Event::NodeRemoved(node) => self.remove_node(node),
            Event::DeviceHealthChanged { node, device, health } => self.set_health(node, device, health),
            Event::TopologyChanged(levels) => self.set_topology(levels).map(|()| Outcome::Done),
            Event::ClaimAdded(claim) => self.admit(claim).map(Outcome::Claim),
            Event::ClaimRemoved(claim) => self.remove_claim(claim),
            Event::ClaimWithdrawn(claim) => self.withdraw(claim).map(Outcome::displaced),
            Event::ClaimPlaced(claim, allocation) => self.start(claim, allocation).map(Outcome::from),
            Event::ClaimSeen(claim, allocation) => self.see(claim, allocation),
            Event::ClaimRunsSince(claim, since_ms) => self.runs_since(claim, since_ms).map(|()| Outcome::Done),
            Event::ClaimSilent(claim) => self.silent(claim).map(Outcome::displaced),
            Event::ClaimEvicted(claim) => self.stop(claim).map(Outcome::displaced),
            Event::ClaimFailed(claim) => self.fail(claim).map(Outcome::displaced),
            Event::EvictionRefused(claim) => self.refuse_eviction(claim).map(Outcome::displaced),
            Event::ClaimGone(claim) => self.gone(claim).map(Outcome::from),
            Event::ClaimResized(claim, request) => self.resize(claim, request).map(|()| Outcome::Done),
            Event::ClaimPeersChanged(claim, peers) => self.change_peers(claim, peers).map(Outcome::displaced),
            Event::ClaimBudgetChanged(claim, budget) => self.change_budget(claim, budget).map(|()| Outcome::Done),
            Event::PodGroupAdded(group) => self.add_group(group).map(Outcome::Group),
            Event::PodGroupChanged(group, spec) => self.replace_group(group, spec).map(Outcome::displaced),
            Event::PodGroupRemoved(group) => self.remove_group(group).map(|()| Outcome::Done),
            Event::QueueAdded(spec) => self.add_queue(spec).map(Outcome::Queue),
            Event::QueueChanged(spec) => Ok(self.queues.change(spec, &mut self.resources).map(|()| Outcome::Done)?),
            Event::QueueRemoved(name) => self.remove_queue(&name).map(|()| Outcome::Done),
            Event::NamespaceChanged(spec) => self.set_namespace(spec).map(|()| Outcome::Done),
            Event::NamespaceRemoved(name) => self.remove_namespace(&name).map(|()| Outcome::Done),
            Event::BudgetChanged(budget) => {
                self.budgets.change(budget);
                Ok(Outcome::Done)
            }
            Event::BudgetRemoved(namespace, name) => match self.budgets.remove(&namespace, &name) {
                true => Ok(Outcome::Done),
                false => Err(EventError::UnknownBudget { namespace, name }),
            },
            Event::TimeAdvanced(then_ms) if then_ms < self.now_ms => {
                Err(EventError::TimeBackwards { now_ms: self.now_ms, then_ms })
            }
            Event::TimeAdvanced(then_ms) => {
                self.now_ms = then_ms;
                Ok(Outcome::Done)
            }
        }
    }

    /// The time of the last [`Event::TimeAdvanced`], in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
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
        (0..).map(NodeId).zip(self.nodes.iter()).filter_map(|(id, node)| Some((id, node.as_ref()?)))
    }

    /// The levels of the topology, and the domains that the nodes form.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether a node is kept for a pending group, so that an engine places no other claim there.
    #[must_use]
    pub fn is_held(&self, id: NodeId) -> bool {
        self.held.contains(&id)
    }

    /// The nodes that are kept for pending groups.
    pub(crate) fn held_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.held.iter().copied()
    }

    /// The nodes that hold more claims than they have room for, because these claims were seen running there.
    pub fn over_committed(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.over_committed.iter().copied()
    }

    /// The number of the next node to be added: one more than the greatest number of a node so far.
    #[must_use]
    pub fn node_slots(&self) -> usize {
        self.nodes.len()
    }

    /// A claim.
    #[must_use]
    pub fn claim(&self, id: ClaimId) -> Option<&KnownClaim> {
        self.claim_state(id).ok().map(|state| &state.claim)
    }

    /// Where a claim is placed, if it is.
    #[must_use]
    pub fn allocation(&self, id: ClaimId) -> Option<&Allocation> {
        self.claim_state(id).ok()?.allocation.as_ref()
    }

    /// Since when a claim runs, in milliseconds. A claim whose place other claims have yet to leave does not run yet.
    #[must_use]
    pub fn started_ms(&self, id: ClaimId) -> Option<u64> {
        self.claim_state(id).ok()?.started_ms
    }

    /// The place that a claim was evicted or moved from and has not left yet.
    #[must_use]
    pub fn leaving(&self, id: ClaimId) -> Option<&Allocation> {
        self.claim_state(id).ok()?.leaving.as_deref()
    }

    /// Whether a claim was withdrawn but is not gone yet.
    #[must_use]
    pub fn is_withdrawn(&self, id: ClaimId) -> bool {
        self.claim_state(id).is_ok_and(|state| state.is_withdrawn)
    }

    /// The claims that must be gone before this placed claim can start.
    #[must_use]
    pub fn starts_after(&self, id: ClaimId) -> &[ClaimId] {
        self.starts_after.get(&id).map_or(&[], Vec::as_slice)
    }

    /// How often a claim failed to start where it was placed, and when it may be placed again, in milliseconds.
    #[must_use]
    pub fn failures(&self, id: ClaimId) -> (u32, u64) {
        self.claim_state(id).map_or((0, 0), |state| (state.failures, state.retry_at_ms))
    }

    /// The time from which other claims may make way for a claim, in milliseconds. A claim that has often failed to
    /// start is soon tried again in free room. But whatever kept it from starting must have had time to end before
    /// other claims stop for one more try.
    pub(crate) fn may_displace_from_ms(&self, id: ClaimId) -> u64 {
        let (failures, retry_at_ms) = self.failures(id);
        if failures < FAILURES_MAX { retry_at_ms } else { retry_at_ms.saturating_add(RETRY_MAX_MS) }
    }

    /// Why a claim was last evicted.
    #[must_use]
    pub fn displaced(&self, id: ClaimId) -> Option<&Displacement> {
        self.causes.get(&id).or(self.claim_state(id).ok()?.displaced.as_deref())
    }

    /// The number of a claim in the order in which claims were added.
    #[must_use]
    pub fn sequence(&self, id: ClaimId) -> Option<u64> {
        self.claim_state(id).ok().map(|_| id.number())
    }

    /// The class of a claim's request.
    #[must_use]
    pub fn class_of(&self, id: ClaimId) -> Option<ClassId> {
        self.claim_state(id).ok().map(|state| state.claim.class)
    }

    /// The pod group that a claim is a member of, or that was made for it alone.
    #[must_use]
    pub fn group_of(&self, id: ClaimId) -> Option<GroupId> {
        self.claim_state(id).ok().map(|state| state.group)
    }

    /// A class; `None` once no claim is in it.
    #[must_use]
    pub fn class(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(id)
    }

    /// The classes of all claims.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (ClassId, &Class)> {
        self.classes.iter()
    }

    /// A pod group.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id)
    }

    /// A pod group's name, or the name of the claim that it was made for. Empty if there is no such group, or no
    /// longer.
    #[must_use]
    pub fn group_name(&self, id: GroupId) -> String {
        let Some(group) = self.group(id) else { return String::new() };
        let of_claim = || Some(self.claim(group.first_member()?)?.name.to_string());
        if group.is_declared() { group.spec().name.clone() } else { of_claim().unwrap_or_default() }
    }

    /// A declared pod group's id, by its namespace and name.
    #[must_use]
    pub fn group_named(&self, namespace: &str, name: &str) -> Option<GroupId> {
        self.groups.named(namespace, name)
    }

    /// The pod groups, single claims' included. The order depends only on the events so far.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter()
    }

    /// The pod groups that were declared.
    pub(crate) fn declared_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.declared()
    }

    /// A queue.
    #[must_use]
    pub fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.queues.get(id)
    }

    /// A queue's id, by its name.
    #[must_use]
    pub fn queue_named(&self, name: &str) -> Option<QueueId> {
        self.queues.named(name)
    }

    /// A namespace that has a quota or bounds.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<&NamespaceSpec> {
        self.namespaces.get(name)
    }

    /// What a queue and the queues below it hold of a resource, in the resource's unit.
    #[must_use]
    pub fn allocated(&self, queue: QueueId, resource: &Resource) -> u64 {
        let number = self.resources.find(resource);
        number.zip(self.queues.get(queue)).map_or(0, |(number, queue)| queue.allocated().get(number))
    }

    /// The claims, with their places. The order depends only on the events so far.
    pub fn claims(&self) -> impl Iterator<Item = (ClaimId, &KnownClaim, Option<&Allocation>)> {
        self.claims.iter().map(|(key, state)| (key, &state.claim, state.allocation.as_ref()))
    }

    /// Number of claims.
    #[must_use]
    pub fn claim_count(&self) -> usize {
        self.claims.len()
    }

    /// The log of changes, for readers that keep something about every node.
    pub(crate) fn changes(&self) -> &ChangeLog {
        &self.changes
    }

    /// How often nodes were added, removed or changed in more than their free amounts, or the levels of the topology
    /// changed. As long as it stays the same, the same claims fit on an empty cluster.
    pub(crate) fn specs_changed(&self) -> u64 {
        self.specs_changed
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Brings all queues' usage up to the present.
    pub(crate) fn note_usage(&mut self) {
        let totals = self.totals();
        self.queues.use_until(self.now_ms, &totals);
    }

    /// The mix that is expected from the claims that came lately; `None` if it has hardly changed since the last one.
    pub(crate) fn new_mix(&mut self) -> Option<Mix> {
        self.arrivals.mix(self.now_ms)
    }

    /// The expected mix that was last given.
    pub(crate) fn known_mix(&self) -> Option<&Mix> {
        self.arrivals.given()
    }

    /// How much of the running work has lately ended, in eighths; 0 as long as no claim ends.
    pub(crate) fn turnover(&self) -> u8 {
        self.turnover.eighths()
    }

    /// The cluster's capacity of each resource over time, by the resource's number, decayed like the queues' usage.
    pub(crate) fn capacity_used(&self) -> &[DecayedUsage] {
        self.queues.capacity()
    }

    fn claim_state(&self, id: ClaimId) -> Result<&ClaimState, EventError> {
        self.claims.get(id).ok_or(EventError::NoSuchClaim(id))
    }
}
