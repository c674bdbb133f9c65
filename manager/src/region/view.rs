//! Reads the manager's values from a ledger. Processes of the container have written them, so every value is bounded
//! here before it is used.

use std::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::ledger::{self, BYTES_MASK, Identity, MANAGER_PID, OPERATION};
use aliquot_abi::region::{ACCOUNTS, DEVICES_MAX, HOST_ACCOUNT, Ledger, NO_SLOT, SLOTS_MAX, SlotDevice, owner};
use aliquot_abi::rounding::{Look, Looked};

/// A container's use of one memory, by its ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountView {
    /// The bytes in use now.
    pub used_bytes: u64,
    /// The greatest value so far.
    pub peak_bytes: u64,
    /// Requests that were refused because of the limit.
    pub refused: u64,
}

/// The work of all processes of a container on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotSum {
    /// Threads that wait at the gate.
    pub waiting: u64,
    /// Time that launches of the present processes have waited.
    pub throttled_ns: u64,
    /// Number of their launches.
    pub launches: u64,
    /// Number of their copies and memsets.
    pub copies: u64,
    /// Bytes moved by their copies and memsets.
    pub copied_bytes: u64,
    /// Time that their threads waited for copies and memsets to finish.
    pub copy_ns: u64,
}

/// A slot's work on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkView {
    /// A thread waits at the gate.
    pub waiting: bool,
    /// All marked work is done.
    pub drained: bool,
    /// Number of the newest marker.
    pub marker_submitted: u64,
    /// Since when work has been in flight without a drain.
    pub busy_since_ns: u64,
}

/// A slot's work counters for one device, compared between two looks to find out whether there was work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// All marked work is done, and no thread waits.
    pub is_drained: bool,
    marker_submitted: u64,
    launches: u64,
    copies: u64,
}

/// Whether a slot is in use, and by which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// No process uses the slot.
    Free,
    /// In use by this process, taken with this generation.
    Attached(Identity, u32),
    /// Being taken or given back.
    Between {
        /// The slot's state word, to see whether it changes.
        word: u64,
        /// The process that takes the slot or gives it back. Facts that the ledger does not hold are 0.
        by: Identity,
    },
}

/// The state of the slot `index`.
#[must_use]
pub(crate) fn slot(ledger: &Ledger, index: usize) -> SlotState {
    let Some(word) = ledger.owners.get(index) else { return SlotState::Free };
    let word = word.load(Ordering::Acquire);
    match owner::state(word) {
        owner::ATTACHED => match ledger::identity(ledger, index) {
            Some(identity) => SlotState::Attached(identity, owner::generation(word)),
            None => SlotState::Free,
        },
        // A process that is taking a slot has not written its whole identity yet.
        owner::CLAIMED => SlotState::Between { word, by: someone(owner::pid(word), 0) },
        // Only a process in the same pid namespace can find out that the owner is dead, so the namespace is the
        // owner's.
        owner::RECLAIMING => {
            let namespace = ledger.slots.get(index).map_or(0, |slot| slot.pid_namespace.load(Ordering::Relaxed));
            SlotState::Between { word, by: someone(owner::pid(word), namespace) }
        }
        owner::FREE => SlotState::Free,
        // The word is not a state of the protocol: whatever wrote it, no process will complete the change. So the slot
        // counts as abandoned by a manager.
        _ => SlotState::Between { word, by: someone(MANAGER_PID, 0) },
    }
}

fn someone(pid: u32, pid_namespace: u64) -> Identity {
    Identity { pid, start_time: 0, pid_namespace }
}

/// The slots in use. Other slots are not touched, because their memory may not be allocated.
pub(crate) fn slots(ledger: &Ledger) -> impl Iterator<Item = (usize, SlotState)> + '_ {
    (NO_SLOT + 1..SLOTS_MAX).map(|index| (index, slot(ledger, index))).filter(|(_, state)| *state != SlotState::Free)
}

/// The values of account number `number`.
#[must_use]
pub(crate) fn account(ledger: &Ledger, number: usize) -> AccountView {
    let Some(account) = ledger.account(number) else { return AccountView::default() };
    let used_bytes = ledger::used_bytes(account);
    AccountView {
        used_bytes,
        peak_bytes: account.peak_bytes.load(Ordering::Relaxed).min(BYTES_MASK).max(used_bytes),
        refused: account.refused.load(Ordering::Relaxed),
    }
}

/// Begins a look at the memory of device number `device`. `indices` are the slots of the processes that use it.
#[must_use]
pub(crate) fn begin_look(ledger: &Ledger, device: usize, indices: impl Iterator<Item = usize>) -> Option<Look> {
    Some(Look::begin(ledger.devices.get(device)?, parts(ledger, indices, device)))
}

/// Ends the look. `indices` are the slots of the processes that use the memory now.
#[must_use]
pub(crate) fn end_look(
    ledger: &Ledger,
    device: usize,
    indices: impl Iterator<Item = usize>,
    look: Look,
) -> Option<Looked> {
    Some(look.end(ledger.devices.get(device)?, parts(ledger, indices, device)))
}

/// Device number `device` in the slots `indices`.
fn parts(ledger: &Ledger, indices: impl Iterator<Item = usize>, device: usize) -> impl Iterator<Item = &SlotDevice> {
    indices.filter_map(move |index| ledger.slots.get(index)?.devices.get(device))
}

/// Bytes that the owner of slot `index` holds on each of the first `device_count` devices.
#[must_use]
pub(crate) fn held_bytes(ledger: &Ledger, index: usize, device_count: usize) -> Vec<u64> {
    let Some(slot) = ledger.slots.get(index) else { return vec![0; device_count] };
    slot.devices.iter().take(device_count).map(|part| ledger::held_bytes(&part.memory)).collect()
}

/// A slot's information on its owner's contexts on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextView {
    /// The number of contexts.
    pub count: u64,
    /// Bytes that its owner holds, minus those reserved for contexts.
    pub other_bytes: u64,
}

/// The contexts of the owner of slot `index` on device number `device`.
#[must_use]
pub(crate) fn contexts(ledger: &Ledger, index: usize, device: usize) -> Option<ContextView> {
    let part = ledger.slots.get(index)?.devices.get(device)?;
    // In this order, so that the memory of each counted context is already in the figures.
    let count = part.contexts.load(Ordering::Acquire);
    let other_bytes = ledger::held_bytes(&part.memory).saturating_sub(part.context_bytes.load(Ordering::Relaxed));
    Some(ContextView { count, other_bytes })
}

/// Bytes that the owner of slot `index` holds in account number `number`.
#[must_use]
pub(crate) fn held_bytes_of(ledger: &Ledger, index: usize, number: usize) -> u64 {
    ledger.slots.get(index).and_then(|slot| slot.memory(number)).map_or(0, ledger::held_bytes)
}

/// Sums over the slots `indices` on device number `device`. The sums saturate, so that a forged counter cannot make
/// them wrap.
#[must_use]
pub(crate) fn sum(ledger: &Ledger, indices: impl Iterator<Item = usize>, device: usize) -> SlotSum {
    let parts = parts(ledger, indices, device);
    let plus = |sum: u64, counter: &AtomicU64| sum.saturating_add(counter.load(Ordering::Relaxed));
    parts.fold(SlotSum::default(), |sum, part| SlotSum {
        waiting: sum.waiting + u64::from(part.waiting.load(Ordering::Relaxed)),
        throttled_ns: plus(sum.throttled_ns, &part.throttled_ns),
        launches: plus(sum.launches, &part.launches),
        copies: plus(sum.copies, &part.copies),
        copied_bytes: plus(sum.copied_bytes, &part.copied_bytes),
        copy_ns: plus(sum.copy_ns, &part.copy_ns),
    })
}

/// The work of slot `index` on device number `device`.
#[must_use]
pub(crate) fn work(ledger: &Ledger, index: usize, device: usize) -> Option<WorkView> {
    let slot = ledger.slots.get(index)?;
    let (part, row) = (slot.devices.get(device)?, slot.row(device)?);
    let marker_submitted = part.marker_submitted.load(Ordering::Acquire);
    // At most as many markers are in flight as the row has cells. A higher number does not come from the protocol, and
    // no marker with that number will ever be written.
    let is_counted = || {
        let written = row.iter().map(|cell| cell.load(Ordering::Acquire)).max().unwrap_or(0);
        marker_submitted <= written.saturating_add(row.len() as u64)
    };
    Some(WorkView {
        waiting: part.waiting.load(Ordering::Relaxed) != 0,
        drained: ledger::oldest_in_flight(0, marker_submitted, row).is_none() || !is_counted(),
        marker_submitted,
        busy_since_ns: part.busy_since_ns.load(Ordering::Relaxed),
    })
}

/// The work counters of slot `index` on device number `device`.
#[must_use]
pub(crate) fn progress(ledger: &Ledger, index: usize, device: usize) -> Option<Progress> {
    let (work, part) = (work(ledger, index, device)?, ledger.slots.get(index)?.devices.get(device)?);
    Some(Progress {
        is_drained: work.drained && !work.waiting,
        marker_submitted: work.marker_submitted,
        launches: part.launches.load(Ordering::Relaxed),
        copies: part.copies.load(Ordering::Relaxed),
    })
}

/// The part of slot `index` in which the manager shows the slot's owner its figures for device number `device`, if the
/// owner is still `owner`.
#[must_use]
pub(crate) fn shown(ledger: &Ledger, index: usize, owner: Identity, device: usize) -> Option<&SlotDevice> {
    if ledger::identity(ledger, index) != Some(owner) {
        return None;
    }
    ledger.slots.get(index)?.devices.get(device)
}

/// Describes the first value in the ledger that the protocol cannot have produced.
#[must_use]
pub(crate) fn implausible(ledger: &Ledger, device_count: usize) -> Option<String> {
    let accounts = || (0..ACCOUNTS).filter(|&number| number == HOST_ACCOUNT || number < device_count.min(DEVICES_MAX));
    for used in accounts().filter_map(|number| Some(ledger::used_bytes(ledger.account(number)?))) {
        if used > USED_BYTES_MAX {
            return Some(format!("{used} bytes in use"));
        }
    }
    for (index, word) in ledger.owners.iter().enumerate() {
        let word = word.load(Ordering::Relaxed);
        if owner::state(word) > owner::RECLAIMING {
            return Some(format!("owner {word:#x} of slot {index}"));
        }
        // The page of a slot that is being taken may not be allocated yet.
        if !matches!(owner::state(word), owner::ATTACHED | owner::RECLAIMING) {
            continue;
        }
        let operations = accounts()
            .filter_map(|number| Some(ledger.slots[index].memory(number)?.load(Ordering::Relaxed) / OPERATION))
            .max();
        if operations.is_some_and(|count| count > OPERATIONS_MAX) {
            return Some(format!("operations of slot {index}"));
        }
    }
    None
}

/// Upper bound of the bytes that a container can use; no machine has more.
pub(super) const USED_BYTES_MAX: u64 = 1 << 46;
/// Upper bound of the operations that one slot can have under way; more would need more threads than a process can
/// have.
const OPERATIONS_MAX: u64 = 1 << 15;
