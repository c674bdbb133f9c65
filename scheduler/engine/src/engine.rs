//! The engine: observations change what it knows, cycles decide, and commands carry the decisions out.

mod check;
mod chosen;
mod claims;
mod collected;
mod configuration;
mod cycles;
mod from_dump;
mod holdings;
mod leases;
mod nodes;
mod publish;
mod records;
mod reports;
mod resizing;
mod restart;
mod steps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use aliquot_scheduler_core::placement::Policy;
use aliquot_scheduler_core::{ClaimId, Cluster, Event, EventError, NodeId, Outcome, PodGroup, Scheduler};

use crate::command::{Command, Order};
use crate::decided::Decided;
use crate::entries::{Entries, EntryId, NodeStates};
use crate::names::{Generation, NodeName};
use crate::observation::Observation;
use crate::settings::Settings;
use crate::store::{Batch, ClaimKey, Saved};
use crate::view::View;
use collected::Collected;
use cycles::Pacing;
pub(crate) use steps::amounts_in;

/// What the caller must do after a [poll](Engine::poll), in this order.
#[derive(Debug, Default)]
pub struct Ready {
    /// To be made durable first. If that fails, the caller must stop the engine and do nothing else of this.
    pub save: Option<Batch>,
    /// To be sent when that is durable.
    pub commands: Vec<Command>,
    /// To be shown to readers.
    pub view: Option<Arc<View>>,
}

/// A deadline of which the engine must take notice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// An instance's step has not been answered.
    Step(EntryId),
    /// A resize has not been answered.
    Resize(EntryId),
    /// A node may have fallen silent.
    Silence(NodeId),
    /// A node's lease may have lapsed.
    Lapse(NodeId),
}

/// The live scheduler. It owns the books, and uses neither a clock nor the network: see the [crate](crate).
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    cluster: Cluster,
    scheduler: Scheduler,
    /// What was told since the start; `None`: [`Observation::Synced`] has come, and the engine is live.
    collected: Option<Box<Collected>>,
    now_ms: u64,
    entries: Entries,
    nodes: NodeStates,
    /// Entries that the books reject for now.
    parked: BTreeSet<EntryId>,
    /// Namespaces and names of pod groups that were removed while they still had members.
    ending_groups: BTreeSet<(String, String)>,
    /// Pod groups that the books refuse, and why, by namespace and name.
    refused_groups: BTreeMap<(String, String), (PodGroup, EventError)>,
    /// The generation of the last command.
    generation: Generation,
    timers: BTreeSet<(u64, Timer)>,
    pacing: Pacing,
    decided: Arc<Decided>,
    /// Claims whose instance may differ from what the books say.
    touched: VecDeque<ClaimId>,
    commands: Vec<Command>,
    unsaved: Unsaved,
    next_memory_ms: u64,
    published: publish::Published,
}

/// How an engine decides.
pub struct Decisions {
    /// Chooses nodes and devices for claims.
    pub policy: Box<dyn Policy>,
    /// The core's other settings.
    pub settings: aliquot_scheduler_core::Settings,
    /// The time in milliseconds in which past usage loses half its weight.
    pub usage_half_life_ms: u64,
}

impl Clone for Decisions {
    fn clone(&self) -> Self {
        let Self { policy, settings, usage_half_life_ms } = self;
        Self { policy: policy.fork(), settings: *settings, usage_half_life_ms: *usage_half_life_ms }
    }
}

impl std::fmt::Debug for Decisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decisions").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What has changed since the last batch.
#[derive(Debug, Default)]
struct Unsaved {
    entries: BTreeSet<EntryId>,
    removed: Vec<ClaimKey>,
    nodes: BTreeSet<NodeId>,
    removed_nodes: Vec<NodeName>,
}

impl Unsaved {
    fn is_empty(&self) -> bool {
        let Self { entries, removed, nodes, removed_nodes } = self;
        entries.is_empty() && removed.is_empty() && nodes.is_empty() && removed_nodes.is_empty()
    }
}

impl Engine {
    /// An engine that continues from what was saved. It decides nothing until [`Observation::Synced`].
    #[must_use]
    pub fn new(decisions: Decisions, settings: Settings, saved: Saved) -> Self {
        let term = saved.term;
        Self {
            settings,
            cluster: Cluster::new(),
            scheduler: Scheduler::new(decisions.policy.fork(), decisions.settings),
            collected: Some(Box::new(Collected::new(decisions, saved))),
            now_ms: 0,
            entries: Entries::default(),
            nodes: NodeStates::default(),
            parked: BTreeSet::new(),
            ending_groups: BTreeSet::new(),
            refused_groups: BTreeMap::new(),
            generation: Generation { term, number: 0 },
            timers: BTreeSet::new(),
            pacing: Pacing::default(),
            decided: Arc::default(),
            touched: VecDeque::new(),
            commands: Vec::new(),
            unsaved: Unsaved::default(),
            next_memory_ms: 0,
            published: publish::Published::default(),
        }
    }

    /// Takes in an observation. The next [poll](Engine::poll) answers what follows from it. The observation may be
    /// acknowledged to its sender when the batch of that poll is saved.
    ///
    /// # Errors
    /// If what users or administrators want is impossible for now. A claim that the books reject waits, with this error
    /// as its reason, until they accept it.
    pub fn handle(&mut self, now_ms: u64, observation: Observation) -> Result<(), EventError> {
        self.advance(now_ms);
        match (&mut self.collected, observation) {
            (Some(_), Observation::Synced) => self.begin(),
            (None, Observation::Synced) => Ok(()),
            (Some(_), Observation::ClaimOnNode(_, _, node)) => {
                Err(chosen::refused(&node, "the scheduler does not know the cluster yet; try again"))
            }
            (Some(collected), observation) => {
                collected.take(observation);
                Ok(())
            }
            (None, Observation::Together(all)) => {
                let done = all.into_iter().map(|one| self.handle(now_ms, one));
                done.fold(Ok(()), Result::and)
            }
            (None, observation) => {
                let done = self.take(observation);
                self.issue_commands();
                done
            }
        }
    }

    fn take(&mut self, observation: Observation) -> Result<(), EventError> {
        match observation {
            Observation::Synced => Ok(()),
            Observation::Node(report) => self.node_reported(*report),
            Observation::Heartbeat(heartbeat) => {
                self.heartbeat(&heartbeat);
                Ok(())
            }
            Observation::NodeLost(node) => {
                self.node_lost(&node);
                Ok(())
            }
            Observation::NodeGone(node) => self.node_gone(&node),
            Observation::Outcome(report) => {
                self.outcome(report);
                Ok(())
            }
            Observation::Claim(uid, claim) => self.claim_wanted(uid, *claim),
            Observation::ClaimOnNode(uid, claim, node) => self.claim_on_node(uid, *claim, &node),
            Observation::ClaimResized(uid, request) => self.claim_resized(&uid, *request),
            Observation::ClaimPeers(uid, peers) => self.claim_peers(&uid, peers),
            Observation::ClaimBudget(uid, budget) => self.claim_budget(&uid, budget),
            Observation::ClaimEnded(uid) => {
                self.claim_ended(&uid);
                Ok(())
            }
            configured => self.configured(configured),
        }
    }

    /// Does what is due by now, and answers what the caller must do.
    pub fn poll(&mut self, now_ms: u64) -> Ready {
        self.advance(now_ms);
        if self.collected.is_some() {
            return Ready::default();
        }
        self.expire();
        self.cycle_if_due();
        let save = self.batch();
        Ready { save, commands: std::mem::take(&mut self.commands), view: self.publish_if_due() }
    }

    /// When the next [poll](Engine::poll) is due if no observation comes before.
    #[must_use]
    pub fn next_ms(&self) -> Option<u64> {
        if self.collected.is_some() {
            return None;
        }
        let timer = self.timers.first().map(|(at_ms, _)| *at_ms);
        let others = [timer, self.next_cycle_ms(), self.next_publication_ms(), self.next_save_ms()];
        others.into_iter().flatten().min()
    }

    /// Whether the engine decides. If not, it still collects what users, administrators and nodes tell.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.collected.is_none()
    }

    /// The term in which the engine gives commands.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.generation.term
    }

    fn advance(&mut self, now_ms: u64) {
        if now_ms <= self.now_ms {
            return;
        }
        self.now_ms = now_ms;
        if self.collected.is_none() {
            let advanced = self.cluster.apply(Event::TimeAdvanced(now_ms));
            debug_assert!(advanced.is_ok(), "{advanced:?}");
        }
    }

    /// Applies an event to the books. The claims that it changes are looked at after all events are applied.
    fn apply(&mut self, event: Event) -> Result<Outcome, EventError> {
        let outcome = self.cluster.apply(event)?;
        self.changed();
        if let Outcome::Claims { displaced, ready } = &outcome {
            self.touched.extend(displaced);
            self.touched.extend(ready);
        }
        Ok(outcome)
    }

    /// Notes that something has changed: a cycle may decide otherwise, and readers see it.
    fn changed(&mut self) {
        self.pacing.note_change(self.now_ms);
        self.published.note_change();
    }

    /// Applies an event that follows from what the books say.
    fn apply_sure(&mut self, event: Event) {
        let applied = self.apply(event);
        debug_assert!(applied.is_ok(), "{applied:?}");
    }

    fn next_generation(&mut self) -> Generation {
        self.generation.number += 1;
        self.generation
    }

    fn send(&mut self, node: NodeId, order: Order) {
        let Some(state) = self.nodes.get(node) else { return };
        self.commands.push(Command { node: state.name.clone(), session: state.session, order });
    }

    fn expire(&mut self) {
        while let Some((at_ms, timer)) = self.timers.first().copied().filter(|(at_ms, _)| *at_ms <= self.now_ms) {
            self.timers.remove(&(at_ms, timer));
            match timer {
                Timer::Step(entry) => self.step_expired(entry),
                Timer::Resize(entry) => self.resize_expired(entry),
                Timer::Silence(node) => self.maybe_silent(node),
                Timer::Lapse(node) => self.maybe_lapsed(node),
            }
            self.issue_commands();
        }
    }
}
