//! Whether a process has the shim at work.
//!
//! The shim maps the slice's ledger when the driver is initialised, before there can be a context, and says so to the
//! manager. A message can be lost; then a sweep of the ledger finds the process by its slot. So whoever has the ledger
//! mapped is believed for as long as that can take: a child that was forked off has the mapping of its parent, and need
//! not use the shim at all. The mapping is looked for once in each program that a process runs, so an exec that drops
//! the shim is seen.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_abi::region::SLOTS_MAX;

use crate::attribution::ProcessId;
use crate::live::LiveSlice;
use crate::procfs::{Mapped, ProcessView, Stat};
use crate::region::view::{self, SlotState};

/// Within this time a sweep finds whoever has a slot and was not heard.
const UNHEARD_NS_MAX: u64 = 12_000_000_000;

/// What was found out about processes before.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// Processes that are attached and have the ledger mapped: in which program of theirs, by where its stack begins,
    /// and of which slice.
    known: BTreeMap<ProcessId, (u64, u64)>,
    /// Since when processes have the ledger mapped and are not attached.
    unheard_since_ns: BTreeMap<ProcessId, u64>,
}

impl Registrations {
    /// Whether the process has the shim at work, at `now_ns`. One that is ending is not spoken ill of.
    pub(super) fn has(&mut self, process: ProcessId, slice: &LiveSlice, now_ns: u64) -> bool {
        let Some(stat) = Stat::of(process.pid) else { return true };
        let is_attached = slice.processes().iter().any(|attached| attached.pid == process.pid);
        let program = (stat.start_stack, slice.number);
        if is_attached {
            self.unheard_since_ns.remove(&process);
            // In each program that a process runs, it is looked for once.
            if stat.start_stack != 0 && self.known.get(&process) == Some(&program) {
                return true;
            }
        }
        match slice.maps_ledger(process.pid) {
            Mapped::Ending => true,
            Mapped::No => false,
            Mapped::Unknown => is_attached,
            Mapped::Yes if is_attached => {
                self.known.insert(process, program);
                true
            }
            Mapped::Yes => {
                // Heard or not, it has a slot: a process that cannot find out who it is, or that attached to a manager
                // before this one, can stay unheard for good.
                if has_slot(process.pid, slice) {
                    return true;
                }
                let since_ns = *self.unheard_since_ns.entry(process).or_insert(now_ns);
                // Without a slot it is not found by a sweep.
                now_ns.saturating_sub(since_ns) < UNHEARD_NS_MAX || !has_free_slot(slice)
            }
        }
    }

    /// Forgets all processes but `present`.
    pub(super) fn keep(&mut self, present: &BTreeSet<ProcessId>) {
        self.known.retain(|process, _| present.contains(process));
        self.unheard_since_ns.retain(|process, _| present.contains(process));
    }
}

/// Whether a slot of the slice names the process.
fn has_slot(pid: u32, slice: &LiveSlice) -> bool {
    let ledger = slice.region.ledger();
    let names = |process: &ProcessView, state: SlotState| match state {
        SlotState::Attached(identity, _) => process.is(identity),
        SlotState::Free | SlotState::Between { .. } => false,
    };
    ProcessView::of(pid).is_some_and(|process| view::slots(ledger).any(|(_, state)| names(&process, state)))
}

fn has_free_slot(slice: &LiveSlice) -> bool {
    view::slots(slice.region.ledger()).count() < SLOTS_MAX - 1
}
