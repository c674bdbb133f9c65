//! Searches for devices that were given up, because they took too many trials. They go on between the cycles, a few trials
//! at a time, for as long as a pod needs what they find. Until then it is not known whether the pod has a place.
//!
//! Nodes that are alike have the same search. What one has found is kept: the places of nodes are counted again, and the
//! pod's devices are chosen, by the same search.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use aliquot_scheduler_core::GroupId;
use aliquot_scheduler_engine::{ClaimUid, View};

use super::super::super::Mirror;
use super::Others;
use crate::dra::whole::{Failure, Given, Search, Task};

/// Trials of a device at one time, for all searches together. Nothing else is decided meanwhile.
const TRIALS_AT_ONCE: u64 = 50_000;

/// Trials of a search before it is put off for the others. The next time it has ten times as many.
const TRIALS_FIRST: u64 = 10_000;

/// Outcomes that are kept, the newest ones.
const OUTCOMES_KEPT: usize = 256;

type Outcome = Result<Vec<Given>, Failure>;

/// Searches that were given up.
#[derive(Debug, Default)]
pub(super) struct Searches {
    unfinished: BTreeMap<Arc<Task>, Unfinished>,
    begun: u64,
    outcomes: BTreeMap<Arc<Task>, Outcome>,
    /// The tasks of the outcomes, the oldest first.
    finished: VecDeque<Arc<Task>>,
    /// By UID, what is searched for a pod that has a node, and that was not bound because its search was given up.
    for_binding: BTreeMap<String, Arc<Task>>,
}

#[derive(Debug)]
struct Unfinished {
    search: Search,
    /// It is put off after so many trials.
    trials_max: u64,
    /// Of searches with equally many trials the first one that was begun goes first.
    number: u64,
}

/// Why claims of a pod are not allocated now.
#[derive(Debug, PartialEq)]
pub(in super::super::super) struct Refusal {
    pub(in super::super::super) why: String,
    /// The search that was given up.
    pub(super) unsolved: Option<Arc<Task>>,
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal { why, unsolved: None }
    }
}

impl Searches {
    /// Finds devices, as [`Task::search`] does. What an earlier search has found is not searched again, and a search that goes
    /// on counts as given up.
    pub(super) fn search(&self, task: &Task, trials_max: u32) -> Outcome {
        if let Some(outcome) = self.outcomes.get(task) {
            return outcome.clone();
        }
        match self.unfinished.get(task) {
            Some(unfinished) => Err(unfinished.search.given_up()),
            None => task.search(trials_max),
        }
    }

    /// Begins a search, unless there is one. Nodes that are alike then share the task.
    pub(super) fn begin(&mut self, task: &mut Arc<Task>) {
        if let Some((known, _)) = self.unfinished.get_key_value(task) {
            *task = Arc::clone(known);
            return;
        }
        if self.outcomes.contains_key(task) {
            return;
        }
        match Search::begin(task) {
            Ok(search) => {
                self.begun += 1;
                let unfinished = Unfinished { search, trials_max: TRIALS_FIRST, number: self.begun };
                self.unfinished.insert(Arc::clone(task), unfinished);
            }
            Err(failure) => self.keep(Arc::clone(task), Err(failure)),
        }
    }

    fn keep(&mut self, task: Arc<Task>, outcome: Outcome) {
        self.outcomes.insert(Arc::clone(&task), outcome);
        self.finished.push_back(task);
        if self.finished.len() > OUTCOMES_KEPT
            && let Some(oldest) = self.finished.pop_front()
        {
            self.outcomes.remove(&oldest);
        }
    }

    /// Goes on with the searches, those with the fewest trials first. Returns those that are at their end.
    fn go_on(&mut self) -> BTreeSet<Arc<Task>> {
        let mut ended = BTreeSet::new();
        let mut left = TRIALS_AT_ONCE;
        while left > 0 {
            let are_others = self.unfinished.len() > 1;
            let next = self.unfinished.iter_mut().min_by_key(|(_, of)| (of.trials_max, of.number));
            let Some((task, Unfinished { search, trials_max, .. })) = next else { break };
            let task = Arc::clone(task);
            let before = search.trials();
            let outcome = search.go_on(left.min(trials_max.saturating_sub(before)));
            left = left.saturating_sub(search.trials() - before);
            match outcome {
                Some(outcome) => {
                    self.unfinished.remove(&task);
                    self.keep(Arc::clone(&task), outcome);
                    ended.insert(task);
                }
                None if search.trials() >= *trials_max => {
                    *trials_max = trials_max.saturating_mul(10);
                    if are_others {
                        search.forget_dead_ends();
                    }
                }
                None => {}
            }
        }
        ended
    }
}

impl Others {
    /// The searches that pods need which wait.
    fn needed(&self) -> BTreeSet<Arc<Task>> {
        let waited_for: BTreeSet<u64> =
            self.kinds.values().filter(|kind| !kind.pods.is_empty()).map(|kind| kind.number).collect();
        let of_nodes = self.places.values().flatten().filter(|(kind, _)| waited_for.contains(kind));
        let all = of_nodes.flat_map(|(_, places)| &places.unsolved).chain(self.searches.for_binding.values());
        // To compare tasks takes time, and most nodes share one.
        let different: BTreeMap<*const Task, &Arc<Task>> = all.map(|task| (Arc::as_ptr(task), task)).collect();
        different.into_values().cloned().collect()
    }

    /// Begins the searches for a kind that a pod is of again.
    pub(super) fn begin_searches_of(&mut self, kind: u64) {
        let Others { places, searches, .. } = self;
        let of_kind = places.values_mut().filter_map(|places| places.get_mut(&kind));
        of_kind.flat_map(|places| &mut places.unsolved).for_each(|task| searches.begin(task));
    }

    /// Ends the searches that no pod needs any more.
    fn end_searches(&mut self) {
        let needed = self.needed();
        self.searches.unfinished.retain(|task, _| needed.contains(task));
    }

    /// Notes that the search for the devices of a pod that has a node was given up.
    fn note_unsolved(&mut self, uid: &str, mut task: Arc<Task>) {
        self.searches.begin(&mut task);
        self.searches.for_binding.insert(uid.to_owned(), task);
    }

    /// Forgets the search for a pod that has a node: it has its devices, or waits no more.
    pub(super) fn forget_unsolved(&mut self, uid: &str) {
        self.searches.for_binding.remove(uid);
    }
}

impl Mirror {
    /// Whether there are searches to go on with.
    pub(crate) fn has_searches(&self) -> bool {
        !self.device_claims.others.searches.unfinished.is_empty()
    }

    /// How many searches there are to go on with.
    #[cfg(test)]
    pub(in super::super::super) fn searches(&self) -> usize {
        self.device_claims.others.searches.unfinished.len()
    }

    /// Goes on with searches that were given up. The places on nodes for which something is found are counted again.
    pub(crate) fn go_on_searching(&mut self) {
        if !self.has_searches() {
            return;
        }
        let others = &mut self.device_claims.others;
        others.end_searches();
        let ended = others.searches.go_on();
        if ended.is_empty() {
            return;
        }
        for (node, places) in &mut others.places {
            let before = places.len();
            places.retain(|_, of| !of.unsolved.iter().any(|task| ended.contains(task)));
            if places.len() < before {
                self.changed_nodes.insert(node.clone());
            }
        }
    }

    /// Notes why a pod's claims were not allocated.
    pub(in super::super::super) fn note_refusal(&mut self, uid: &str, refusal: &Refusal) {
        let others = &mut self.device_claims.others;
        match &refusal.unsolved {
            Some(task) => others.note_unsolved(uid, Arc::clone(task)),
            None => others.forget_unsolved(uid),
        }
    }

    /// The groups of waiting pods for which nodes are still searched.
    pub(crate) fn searched_groups(&self, view: &View) -> BTreeSet<GroupId> {
        if !self.has_searches() {
            return BTreeSet::new();
        }
        let kinds = self.device_claims.others.kinds.values();
        let is_searched = |uid: &&String| self.searched_for(uid).is_some();
        // Pods of one kind are searched for together.
        let searched = kinds.filter(|kind| kind.pods.first().as_ref().is_some_and(is_searched));
        let uids = searched.flat_map(|kind| &kind.pods).map(|uid| ClaimUid::from(uid.as_str()));
        uids.filter_map(|uid| view.cluster().group_of(view.claim_id(&uid)?)).collect()
    }

    /// Says for a pod which nodes are still searched for devices; `None`: none is.
    pub(in super::super::super) fn searched_for(&self, uid: &str) -> Option<String> {
        let others = &self.device_claims.others;
        if !self.has_searches() {
            return None;
        }
        let number = others.kinds.get(others.kind_of.get(uid)?)?.number;
        let is_searched = |places: &BTreeMap<u64, super::Places>| {
            places.get(&number).is_some_and(|of| of.free == 0 && !of.unsolved.is_empty())
        };
        let mut nodes = others.places.iter().filter(|(_, places)| is_searched(places)).map(|(node, _)| node);
        let first = nodes.next()?;
        let more = match nodes.count() {
            0 => String::new(),
            1 => " and another node".to_owned(),
            more => format!(" and {more} other nodes"),
        };
        Some(format!(
            "it is not known yet whether node {first}{more} can give the pod its devices of other drivers: there are very \
             many ways to choose them, and the search goes on"
        ))
    }
}
