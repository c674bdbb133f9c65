//! The books: the slices, their parts of the devices, and the changes under way.
//!
//! Their lock is held only to decide and to note. The work of a change (files, threads, the checkpoint) is done without
//! it, so many changes are under way at once. Meanwhile a change counts with the most that it may need, whether it
//! succeeds or is rolled back. So nothing is given out twice.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_node::QosClass;
use parking_lot::{Condvar, Mutex};

use crate::slices::{Part, Slice, SliceId, Slices};

/// The slices of this node and the changes under way, behind one lock.
pub(super) struct Books {
    state: Mutex<State>,
    /// A change has ended.
    ended: Condvar,
}

struct State {
    /// The slices as they are promised.
    slices: Slices,
    /// The same slices, with the most that changes under way may need.
    reserved: Slices,
    /// Problems of slices that could not be taken over.
    problems: BTreeMap<SliceId, String>,
    /// The changes under way, by number.
    under_way: BTreeMap<u64, Change>,
    /// The number of the next change.
    next: u64,
}

/// A change of one slice, as decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there are as many as changes under way, and no list of them is moved")]
pub(super) enum Change {
    /// A slice is made.
    Make(Slice),
    /// A slice is changed.
    Resize {
        /// The slice as it was.
        before: Slice,
        /// The slice as it will be, on the same devices.
        after: Slice,
    },
    /// A slice is removed.
    Remove(Slice),
}

impl Change {
    /// The slice as it was, if there was one.
    pub(super) fn before(&self) -> Option<&Slice> {
        match self {
            Change::Make(_) => None,
            Change::Resize { before, .. } | Change::Remove(before) => Some(before),
        }
    }

    /// The slice as it will be, if there will be one.
    pub(super) fn after(&self) -> Option<&Slice> {
        match self {
            Change::Make(after) | Change::Resize { after, .. } => Some(after),
            Change::Remove(_) => None,
        }
    }

    /// The slice as it will be; for a removal, the slice as it was.
    pub(super) fn slice(&self) -> &Slice {
        match self {
            Change::Make(slice) | Change::Resize { after: slice, .. } | Change::Remove(slice) => slice,
        }
    }

    /// Whether it concerns a slice with one of these names.
    fn concerns(&self, names: &BTreeSet<&str>) -> bool {
        self.slice().cdi_names().any(|name| names.contains(name))
    }

    /// The slice with the most of each device that it has before or after.
    fn most(&self) -> Slice {
        match self {
            Change::Make(slice) | Change::Remove(slice) => slice.clone(),
            Change::Resize { before, after } => of_both(before, after, u32::max, u64::max),
        }
    }

    /// The slice with the least of each device that it has before or after; `None` if there may be no slice then.
    fn least(&self) -> Option<Slice> {
        match self {
            Change::Make(_) | Change::Remove(_) => None,
            Change::Resize { before, after } => Some(of_both(before, after, u32::min, u64::min)),
        }
    }
}

/// `after`, with what `percent` and `bytes` choose of both slices' parts.
fn of_both(before: &Slice, after: &Slice, percent: fn(u32, u32) -> u32, bytes: fn(u64, u64) -> u64) -> Slice {
    let parts = before.parts.iter().zip(&after.parts).map(|(before, after)| Part {
        core_request_percent: percent(before.core_request_percent, after.core_request_percent),
        core_limit_percent: percent(before.core_limit_percent, after.core_limit_percent),
        memory_limit_bytes: bytes(before.memory_limit_bytes, after.memory_limit_bytes),
        ..after.clone()
    });
    Slice { parts: parts.collect(), ..after.clone() }
}

impl State {
    /// The slices if each change under way with a number below `before` ends in the way that leaves the most room.
    /// Later changes count with the most that they may need.
    fn at_best(&self, before: u64) -> Slices {
        let mut slices = self.reserved.clone();
        for change in self.under_way.range(..before).map(|(_, change)| change) {
            let name = &change.slice().name;
            let is_in_force = matches!(change, Change::Make(_)) && self.slices.get(name).is_some();
            if !is_in_force {
                slices.take(name);
                change.least().into_iter().for_each(|least| slices.put(least));
            }
        }
        slices
    }
}

impl Books {
    /// Empty books. A slice that does not ask for a priority class gets `default_qos_class`.
    pub(super) fn new(default_qos_class: QosClass) -> Books {
        let slices = Slices::new(default_qos_class);
        let state =
            State { reserved: slices.clone(), slices, problems: BTreeMap::new(), under_way: BTreeMap::new(), next: 0 };
        Books { state: Mutex::new(state), ended: Condvar::new() }
    }

    /// Adds a slice that an earlier manager has made, with its problem if it has one.
    pub(super) fn take_over(&self, slice: Slice, problem: Option<String>) {
        let mut state = self.state.lock();
        state.problems.extend(problem.map(|problem| (slice.id, problem)));
        state.reserved.put(slice.clone());
        state.slices.put(slice);
    }

    /// Begins the change that `decide` decides on, and that concerns the slices `names`. Changes of the same slice wait
    /// for each other. A refusal waits for the changes that were under way before, unless none of their ends could help.
    ///
    /// # Errors
    /// Returns the error of `decide`; then nothing has changed.
    pub(super) fn begin<E>(
        &self,
        names: &BTreeSet<&str>,
        mut decide: impl FnMut(&Slices) -> Result<Change, E>,
    ) -> Result<Ongoing<'_>, E> {
        let mut state = self.state.lock();
        let arrival = state.next;
        loop {
            if !state.under_way.values().any(|change| change.concerns(names)) {
                match decide(&state.reserved) {
                    Ok(change) => return Ok(self.note(&mut state, change)),
                    Err(refusal) if state.under_way.range(..arrival).next().is_none() => return Err(refusal),
                    Err(refusal) if decide(&state.at_best(arrival)).is_err() => return Err(refusal),
                    Err(_) => {}
                }
            }
            self.ended.wait(&mut state);
        }
    }

    fn note(&self, state: &mut State, change: Change) -> Ongoing<'_> {
        let number = state.next;
        state.next += 1;
        state.reserved.put(change.most());
        state.under_way.insert(number, change.clone());
        Ongoing { books: self, number, change }
    }

    /// The slices whose names begin with `prefix`, in the order of their names, each with its problem if it has one.
    pub(super) fn list_beginning_with(&self, prefix: &str) -> Vec<(Slice, Option<String>)> {
        let state = self.state.lock();
        let slices = state.slices.beginning_with(prefix);
        slices.map(|slice| (slice.clone(), state.problems.get(&slice.id).cloned())).collect()
    }

    /// The slice of that name, with its problem if it has one.
    pub(super) fn get(&self, name: &str) -> Option<(Slice, Option<String>)> {
        let state = self.state.lock();
        state.slices.get(name).map(|slice| (slice.clone(), state.problems.get(&slice.id).cloned()))
    }

    /// A copy of the slices.
    pub(super) fn slices(&self) -> Slices {
        self.state.lock().slices.clone()
    }

    /// The greatest value of `of` among the slices, with the most that changes under way may need.
    pub(super) fn greatest<T: Ord>(&self, of: impl Fn(&Slice) -> Option<T>) -> Option<T> {
        self.state.lock().reserved.iter().filter_map(of).max()
    }

    /// How many slices are being made.
    pub(super) fn making(&self) -> usize {
        self.state.lock().under_way.values().filter(|change| matches!(change, Change::Make(_))).count()
    }

    /// Waits until no change is under way.
    pub(super) fn wait_for_changes(&self) {
        let mut state = self.state.lock();
        while !state.under_way.is_empty() {
            self.ended.wait(&mut state);
        }
    }
}

/// A change under way. If it is dropped before [`Ongoing::succeeded`], nothing has changed.
pub(super) struct Ongoing<'a> {
    books: &'a Books,
    number: u64,
    change: Change,
}

impl Ongoing<'_> {
    /// The change, as it was decided.
    pub(super) fn change(&self) -> &Change {
        &self.change
    }

    /// Notes that the change is in force. Other changes of the slice wait until this value is dropped.
    pub(super) fn succeeded(&self) {
        let mut state = self.books.state.lock();
        match &self.change {
            Change::Make(slice) | Change::Resize { after: slice, .. } => state.slices.put(slice.clone()),
            Change::Remove(slice) => {
                state.slices.take(&slice.name);
                state.problems.remove(&slice.id);
            }
        }
    }
}

impl Drop for Ongoing<'_> {
    fn drop(&mut self) {
        let mut state = self.books.state.lock();
        state.under_way.remove(&self.number);
        let name = &self.change.slice().name;
        state.reserved.take(name);
        if let Some(slice) = state.slices.get(name).cloned() {
            state.reserved.put(slice);
        }
        self.books.ended.notify_all();
    }
}

#[cfg(test)]
mod tests;
