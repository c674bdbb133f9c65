//! The books of queues: what each queue holds, and which groups wait in it.

mod dump;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::state::class::ClassId;
use crate::state::resources::{Amounts, Charge, Resources};
use crate::state::usage::DecayedUsage;
use crate::vocabulary::allowance::Allowance;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::{DEFAULT_QUEUE, QueueError, QueueId, QueueSpec};
use crate::vocabulary::resource::Resource;
use crate::vocabulary::slab::Slab;

/// The turn of a group's next unit among the pending ones of a leaf queue; the least goes first. It does not depend on
/// what is placed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Turn {
    pub(crate) priority: Reverse<i32>,
    /// What a group needs comes before what it could use beyond its minimum.
    pub(crate) elastic: bool,
    /// Of groups that are equal in all else, the oldest goes first.
    pub(crate) group: GroupId,
}

/// Everything that decides whether a single pending claim can be placed. It is kept beside the claim's turn, so that a
/// pass over thousands of turns need not look at the claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Single {
    pub(crate) class: ClassId,
    pub(crate) preemptible: bool,
}

/// Whether a queue has a bound of any kind. Most queues of a deep tree have none and are skipped quickly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Bounds {
    has_limit: bool,
    has_quota: bool,
}

impl Bounds {
    fn of(allowances: &[Option<Allowance>]) -> Self {
        let any = |is_set: fn(&Allowance) -> bool| allowances.iter().flatten().any(is_set);
        Self {
            has_limit: any(|allowance| allowance.limit.is_some()),
            has_quota: any(|allowance| allowance.quota.is_some()),
        }
    }
}

/// A queue in a cluster's state. Its amounts include those of all queues below it.
#[derive(Clone, Debug)]
pub struct Queue {
    spec: QueueSpec,
    /// By the resource's number; `None`: the queue does not name the resource.
    allowances: Vec<Option<Allowance>>,
    bounds: Bounds,
    parent: Option<QueueId>,
    children: Vec<QueueId>,
    allocated: Amounts,
    allocated_non_preemptible: Amounts,
    requested: Amounts,
    requested_non_preemptible: Amounts,
    usage: Vec<DecayedUsage>,
    used_until_ms: u64,
    /// Groups with pending members. For single claims, the value is what decides whether they can be placed.
    waiting: Arc<BTreeMap<Turn, Option<Single>>>,
    /// Groups with placed members.
    placed: Arc<BTreeSet<Turn>>,
    /// The number of declared pod groups of this queue, with members or without.
    declared_groups: usize,
}

impl Queue {
    /// How it is configured.
    #[must_use]
    pub fn spec(&self) -> &QueueSpec {
        &self.spec
    }

    /// Its parent.
    #[must_use]
    pub fn parent(&self) -> Option<QueueId> {
        self.parent
    }

    /// The queues right below it, the oldest first.
    #[must_use]
    pub fn children(&self) -> &[QueueId] {
        &self.children
    }

    /// What it may have of the resource with this number.
    pub(crate) fn allowance(&self, number: usize) -> Allowance {
        self.named_allowance(number).unwrap_or(Allowance::UNNAMED)
    }

    /// Like [`Queue::allowance`], but `None` if the queue does not name the resource.
    pub(crate) fn named_allowance(&self, number: usize) -> Option<Allowance> {
        self.allowances.get(number).copied().flatten()
    }

    /// Whether it has a bound that such claims can exceed: any limit, or a quota if they may not be evicted.
    pub(crate) fn may_bind(&self, preemptible: bool) -> bool {
        self.bounds.has_limit || (self.bounds.has_quota && !preemptible)
    }

    /// What its claims hold, by the resource's number.
    pub(crate) fn allocated(&self) -> &Amounts {
        &self.allocated
    }

    /// What its claims that may not be evicted hold.
    pub(crate) fn allocated_non_preemptible(&self) -> &Amounts {
        &self.allocated_non_preemptible
    }

    /// The most that its claims, placed or pending, can be charged.
    pub(crate) fn requested(&self) -> &Amounts {
        &self.requested
    }

    /// The part of [`Queue::requested`] that claims ask for that may not be evicted.
    pub(crate) fn requested_non_preemptible(&self) -> &Amounts {
        &self.requested_non_preemptible
    }

    /// What it has used up to the last change, by the resource's number.
    pub(crate) fn usage(&self) -> &[DecayedUsage] {
        &self.usage
    }

    /// Groups with pending members, in order. For single claims, the value is what decides whether they can be placed.
    pub(crate) fn waiting(&self) -> &BTreeMap<Turn, Option<Single>> {
        &self.waiting
    }

    /// Groups with placed members, in order, except that elastic members stand with their group.
    pub(crate) fn placed(&self) -> &BTreeSet<Turn> {
        &self.placed
    }

    fn use_until(&mut self, now_ms: u64, half_life_ms: u64) {
        if now_ms <= self.used_until_ms {
            return;
        }
        let since = self.used_until_ms;
        self.usage.resize(self.allocated.len().max(self.usage.len()), DecayedUsage::new(half_life_ms, since));
        for (number, usage) in self.usage.iter_mut().enumerate() {
            usage.hold(self.allocated.get(number), now_ms);
        }
        self.used_until_ms = now_ms;
    }
}

/// The books of a queue that a claim's coming or going can change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Book {
    /// Amounts held by claims that may be evicted.
    Preemptible,
    /// Amounts held by claims that may not be evicted.
    NonPreemptible,
    /// Amounts that claims ask for which may be evicted.
    Requested,
    /// Amounts that claims ask for which may not be evicted.
    RequestedNonPreemptible,
}

/// The tree of queues.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    queues: Slab<Queue, QueueSpec>,
    by_name: BTreeMap<String, QueueId>,
    /// The queues at the top of the tree, the oldest first.
    roots: Vec<QueueId>,
    half_life_ms: u64,
    /// The cluster's capacity of each resource over time.
    capacity: Vec<DecayedUsage>,
}

impl Queues {
    /// A tree with only the default queue.
    pub(crate) fn new(half_life_ms: u64) -> Self {
        let mut queues = Self {
            queues: Slab::default(),
            by_name: BTreeMap::new(),
            roots: Vec::new(),
            half_life_ms,
            capacity: Vec::new(),
        };
        let spec = QueueSpec { name: DEFAULT_QUEUE.to_owned(), ..QueueSpec::default() };
        queues.insert(spec, None, Vec::new(), 0);
        queues
    }

    pub(crate) fn get(&self, id: QueueId) -> Option<&Queue> {
        self.queues.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: QueueId) -> Option<&mut Queue> {
        self.queues.get_mut(id)
    }

    pub(crate) fn named(&self, name: &str) -> Option<QueueId> {
        self.by_name.get(name).copied()
    }

    /// The queues at the top, the oldest first.
    pub(crate) fn roots(&self) -> &[QueueId] {
        &self.roots
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    /// The queue and those above it.
    pub(crate) fn path(&self, id: QueueId) -> impl Iterator<Item = (QueueId, &Queue)> {
        let first = self.queues.get(id).map(|queue| (id, queue));
        std::iter::successors(first, |(_, queue)| {
            queue.parent.and_then(|parent| Some((parent, self.queues.get(parent)?)))
        })
    }

    /// All queues, parents before their children and, among siblings, the oldest first.
    pub(crate) fn parents_first(&self) -> Vec<QueueId> {
        let mut order = self.roots.clone();
        let mut next = 0;
        while let Some(queue) = order.get(next).and_then(|id| self.queues.get(*id)) {
            order.extend_from_slice(&queue.children);
            next += 1;
        }
        order
    }

    fn insert(
        &mut self,
        spec: QueueSpec,
        parent: Option<QueueId>,
        allowances: Vec<Option<Allowance>>,
        now_ms: u64,
    ) -> QueueId {
        let name = spec.name.clone();
        let queue = Queue {
            spec,
            bounds: Bounds::of(&allowances),
            allowances,
            parent,
            children: Vec::new(),
            allocated: Amounts::default(),
            allocated_non_preemptible: Amounts::default(),
            requested: Amounts::default(),
            requested_non_preemptible: Amounts::default(),
            usage: Vec::new(),
            used_until_ms: now_ms,
            waiting: Arc::default(),
            placed: Arc::default(),
            declared_groups: 0,
        };
        let id = self.queues.insert(queue);
        self.by_name.insert(name, id);
        match parent.and_then(|parent| self.queues.get_mut(parent)) {
            Some(parent) => parent.children.push(id),
            None => self.roots.push(id),
        }
        id
    }

    /// Adds a queue.
    pub(crate) fn add(
        &mut self,
        spec: QueueSpec,
        resources: &mut Resources,
        now_ms: u64,
    ) -> Result<QueueId, QueueError> {
        if self.by_name.contains_key(&spec.name) {
            return Err(QueueError::Exists(spec.name));
        }
        let parent = match &spec.parent {
            None => None,
            Some(name) => {
                let id = self.named(name).ok_or_else(|| QueueError::Unknown(name.clone()))?;
                if name == DEFAULT_QUEUE {
                    return Err(QueueError::BelowDefault(spec.name));
                }
                if self.get(id).is_none_or(Queue::is_used) {
                    return Err(QueueError::ParentHasClaims(name.clone()));
                }
                Some(id)
            }
        };
        let allowances = numbered(&spec.allowances, resources);
        Ok(self.insert(spec, parent, allowances, now_ms))
    }

    /// Changes a queue's configuration. The queue keeps its place in the tree.
    pub(crate) fn change(&mut self, spec: QueueSpec, resources: &mut Resources) -> Result<(), QueueError> {
        let id = self.named(&spec.name).ok_or_else(|| QueueError::Unknown(spec.name.clone()))?;
        let Some(queue) = self.queues.get_mut(id) else { return Err(QueueError::Unknown(spec.name)) };
        if queue.spec.parent != spec.parent {
            return Err(QueueError::Moved(spec.name));
        }
        queue.allowances = numbered(&spec.allowances, resources);
        queue.bounds = Bounds::of(&queue.allowances);
        queue.spec = spec;
        Ok(())
    }

    /// Removes a queue. Nothing may be in it or below it.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), QueueError> {
        let id = self.named(name).ok_or_else(|| QueueError::Unknown(name.to_owned()))?;
        if name == DEFAULT_QUEUE {
            return Err(QueueError::Default);
        }
        if self.get(id).is_none_or(|queue| queue.is_used() || !queue.children.is_empty()) {
            return Err(QueueError::InUse(name.to_owned()));
        }
        self.by_name.remove(name);
        let parent = self.queues.remove(id).and_then(|queue| queue.parent);
        match parent.and_then(|parent| self.queues.get_mut(parent)) {
            Some(parent) => parent.children.retain(|child| *child != id),
            None => self.roots.retain(|root| *root != id),
        }
        Ok(())
    }

    /// The leaf queue of this name.
    pub(crate) fn leaf(&self, name: &str) -> Result<QueueId, QueueError> {
        let id = self.named(name).ok_or_else(|| QueueError::Unknown(name.to_owned()))?;
        match self.get(id).is_some_and(|queue| queue.children.is_empty()) {
            true => Ok(id),
            false => Err(QueueError::NotALeaf(name.to_owned())),
        }
    }

    /// Adds to a book of a queue and of all queues above it.
    pub(crate) fn charge(&mut self, id: QueueId, book: Book, charge: &Charge, now_ms: u64) {
        self.each_above(id, |queue, half_life_ms| {
            queue.use_until(now_ms, half_life_ms);
            match book {
                Book::Requested => queue.requested.add(charge),
                Book::RequestedNonPreemptible => {
                    queue.requested.add(charge);
                    queue.requested_non_preemptible.add(charge);
                }
                Book::Preemptible => queue.allocated.add(charge),
                Book::NonPreemptible => {
                    queue.allocated.add(charge);
                    queue.allocated_non_preemptible.add(charge);
                }
            }
        });
    }

    /// Takes back what [`Queues::charge`] added.
    pub(crate) fn refund(&mut self, id: QueueId, book: Book, charge: &Charge, now_ms: u64) {
        self.each_above(id, |queue, half_life_ms| {
            queue.use_until(now_ms, half_life_ms);
            match book {
                Book::Requested => queue.requested.subtract(charge),
                Book::RequestedNonPreemptible => {
                    queue.requested.subtract(charge);
                    queue.requested_non_preemptible.subtract(charge);
                }
                Book::Preemptible => queue.allocated.subtract(charge),
                Book::NonPreemptible => {
                    queue.allocated.subtract(charge);
                    queue.allocated_non_preemptible.subtract(charge);
                }
            }
        });
    }

    fn each_above(&mut self, id: QueueId, change: impl Fn(&mut Queue, u64)) {
        let half_life_ms = self.half_life_ms;
        let mut next = Some(id);
        while let Some(queue) = next.and_then(|id| self.queues.get_mut(id)) {
            change(queue, half_life_ms);
            next = queue.parent;
        }
    }

    /// Clears what all queues ask for.
    pub(crate) fn clear_requested(&mut self) {
        for id in self.parents_first() {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.requested = Amounts::default();
                queue.requested_non_preemptible = Amounts::default();
            }
        }
    }

    /// Brings the usage of all queues up to date, with `totals` as the cluster's capacity since the last call.
    pub(crate) fn use_until(&mut self, now_ms: u64, totals: &[u64]) {
        let half_life_ms = self.half_life_ms;
        for id in self.parents_first() {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.use_until(now_ms, half_life_ms);
            }
        }
        self.capacity.resize(totals.len().max(self.capacity.len()), DecayedUsage::new(half_life_ms, now_ms));
        for (capacity, total) in self.capacity.iter_mut().zip(totals) {
            capacity.hold(*total, now_ms);
        }
    }

    /// The cluster's capacity of each resource over time, by the resource's number.
    pub(crate) fn capacity(&self) -> &[DecayedUsage] {
        &self.capacity
    }
}

impl Queue {
    fn is_used(&self) -> bool {
        !self.waiting.is_empty() || !self.placed.is_empty() || self.declared_groups > 0
    }

    /// Notes that a pod group of this queue was declared, or that it no longer is.
    pub(crate) fn note_declared_group(&mut self, is_declared: bool) {
        self.declared_groups =
            if is_declared { self.declared_groups + 1 } else { self.declared_groups.saturating_sub(1) };
    }

    pub(crate) fn note_waiting(&mut self, turn: Turn, single: Option<Single>) {
        Arc::make_mut(&mut self.waiting).insert(turn, single);
    }

    pub(crate) fn forget_waiting(&mut self, turn: &Turn) {
        Arc::make_mut(&mut self.waiting).remove(turn);
    }

    pub(crate) fn note_placed(&mut self, turn: Turn, placed: bool) {
        match placed {
            true => Arc::make_mut(&mut self.placed).insert(turn),
            false => Arc::make_mut(&mut self.placed).remove(&turn),
        };
    }
}

fn numbered(allowances: &BTreeMap<Resource, Allowance>, resources: &mut Resources) -> Vec<Option<Allowance>> {
    let mut by_number = Vec::new();
    for (resource, allowance) in allowances {
        let number = resources.number(resource);
        if by_number.len() <= number {
            by_number.resize(number + 1, None);
        }
        by_number[number] = Some(*allowance);
    }
    by_number
}
