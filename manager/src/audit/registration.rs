//! Whether a process uses the shim.
//!
//! The shim maps the slice's ledger when the driver is initialised, before there can be a context, and reports this to
//! the manager. If the message is lost, a sweep of the ledger finds the process by its slot. Until then, and no longer,
//! a process that has the ledger mapped is believed: a forked child has its parent's mapping and need not use the shim
//! at all. The mapping is looked up once for each program that a process runs, so an exec that drops the shim is
//! noticed.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_abi::region::SLOTS_MAX;

use crate::attribution::ProcessId;
use crate::devices::ProcessLook;
use crate::live::LiveSlice;
use crate::procfs::{Mapped, ProcessView};
use crate::region::view::{self, SlotState};

/// The longest time after which a sweep must have found a process that has a slot and whose message was lost.
const UNHEARD_NS_MAX: u64 = 12_000_000_000;

/// Cached results about processes.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// Attached processes that have the ledger mapped: [`ProcessLook::start_stack`] and the slice's number.
    known: BTreeMap<ProcessId, (u64, u64)>,
    /// Since when a process has had the ledger mapped without being attached.
    unheard_since_ns: BTreeMap<ProcessId, u64>,
}

impl Registrations {
    /// Whether the process uses the shim, at `now_ns`. A process that is ending gets the benefit of the doubt.
    pub(super) fn has(&mut self, look: &ProcessLook, slice: &LiveSlice, now_ns: u64) -> bool {
        let process = look.id;
        let is_attached = slice.slot_of(process.pid).is_some();
        let program = (look.start_stack, slice.number);
        if is_attached {
            self.unheard_since_ns.remove(&process);
            // The mapping is looked up once for each program that a process runs.
            if look.start_stack != 0 && self.known.get(&process) == Some(&program) {
                return true;
            }
        }
        match slice.maps_ledger(process.pid) {
            Mapped::Ending => true,
            Mapped::No => false,
            Mapped::Unknown | Mapped::Silent => is_attached,
            Mapped::Yes if is_attached => {
                self.known.insert(process, program);
                true
            }
            Mapped::Yes => {
                // A process with a slot is believed even if it never attaches: one that cannot find out its own
                // identity, or that attached to an earlier manager, can stay unattached for good.
                if has_slot(process.pid, slice) {
                    return true;
                }
                let since_ns = *self.unheard_since_ns.entry(process).or_insert(now_ns);
                // A process that finds no free slot cannot be found by a sweep.
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
