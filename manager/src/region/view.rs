//! What the manager reads from a ledger. All of it was written by processes of the container, and every value is bounded
//! here before anybody acts on it.

use std::sync::atomic::Ordering;

use aliquot_abi::ledger::{self, BYTES_MASK, Identity, OPERATION, SHARED_SLOT};
use aliquot_abi::region::{ACCOUNTS, DEVICES_MAX, HOST_ACCOUNT, Ledger, SLOTS_MAX, owner};

/// What a container uses of one memory, by its ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountView {
    /// Bytes in use.
    pub used_bytes: u64,
    /// The most there have been.
    pub peak_bytes: u64,
    /// Requests that were refused because of the limit.
    pub refused: u64,
}

/// What a container's processes together have done on one device, and what they do there now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotSum {
    /// Threads that wait at the gate.
    pub waiting: u64,
    /// Time that launches of the processes that are there now have waited.
    pub throttled_ns: u64,
    /// Their launches.
    pub launches: u64,
}

/// A slot's work on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkView {
    /// Somebody waits at the gate.
    pub waiting: bool,
    /// All marked work is done.
    pub drained: bool,
    /// Number of the newest marker.
    pub marker_submitted: u64,
    /// When work began that has not been drained since.
    pub busy_since_ns: u64,
}

/// Whether the slot that `index` names is in use, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Free.
    Free,
    /// In use by this process, with this generation.
    Attached(Identity, u32),
    /// In the middle of being taken or given back, by the process of this pid in its own namespace.
    Between {
        /// The word, to see whether it changes.
        word: u64,
        /// The pid.
        pid: u32,
    },
}

/// The slot's state.
#[must_use]
pub(crate) fn slot(ledger: &Ledger, index: usize) -> SlotState {
    let Some(word) = ledger.owners.get(index) else { return SlotState::Free };
    let word = word.load(Ordering::Acquire);
    match owner::state(word) {
        owner::ATTACHED => match ledger::identity(ledger, index) {
            Some(identity) => SlotState::Attached(identity, owner::generation(word)),
            None => SlotState::Free,
        },
        owner::CLAIMED | owner::RECLAIMING => SlotState::Between { word, pid: owner::pid(word) },
        _ => SlotState::Free,
    }
}

/// The slots that are in use.
pub(crate) fn slots(ledger: &Ledger) -> impl Iterator<Item = (usize, SlotState)> + '_ {
    (1..SLOTS_MAX).map(|index| (index, slot(ledger, index))).filter(|(_, state)| *state != SlotState::Free)
}

/// The books of account number `number`.
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

/// Bytes that the owner of slot `index` holds of each of the first `device_count` devices.
#[must_use]
pub(crate) fn held_bytes(ledger: &Ledger, index: usize, device_count: usize) -> Vec<u64> {
    let Some(slot) = ledger.slots.get(index) else { return vec![0; device_count] };
    slot.devices.iter().take(device_count).map(|part| ledger::held_bytes(&part.memory)).collect()
}

/// Sums over the slots `indices` on device number `device`. The counters saturate: a forged one must not wrap the sum.
#[must_use]
pub(crate) fn sum(ledger: &Ledger, indices: impl Iterator<Item = usize>, device: usize) -> SlotSum {
    let parts = indices.filter_map(|index| ledger.slots.get(index)?.devices.get(device));
    parts.fold(SlotSum::default(), |sum, part| SlotSum {
        waiting: sum.waiting + u64::from(part.waiting.load(Ordering::Relaxed)),
        throttled_ns: sum.throttled_ns.saturating_add(part.throttled_ns.load(Ordering::Relaxed)),
        launches: sum.launches.saturating_add(part.launches.load(Ordering::Relaxed)),
    })
}

/// The work of slot `index` on device number `device`.
#[must_use]
pub(crate) fn work(ledger: &Ledger, index: usize, device: usize) -> Option<WorkView> {
    let slot = ledger.slots.get(index)?;
    let (part, markers) = (slot.devices.get(device)?, slot.markers.get(device)?);
    Some(WorkView {
        waiting: part.waiting.load(Ordering::Relaxed) != 0,
        drained: ledger::drained(part, markers),
        marker_submitted: part.marker_submitted.load(Ordering::Relaxed),
        busy_since_ns: part.busy_since_ns.load(Ordering::Relaxed),
    })
}

/// Says what in the ledger cannot have come about by the protocol.
#[must_use]
pub(crate) fn implausible(ledger: &Ledger, device_count: usize) -> Option<String> {
    let accounts = || (0..ACCOUNTS).filter(|&number| number == HOST_ACCOUNT || number < device_count.min(DEVICES_MAX));
    for used in accounts().filter_map(|number| Some(ledger::used_bytes(ledger.account(number)?))) {
        if used > USED_BYTES_MAX {
            return Some(format!("the ledger was overwritten by a process of the slice: {used} bytes in use"));
        }
    }
    for (index, word) in ledger.owners.iter().enumerate() {
        let word = word.load(Ordering::Relaxed);
        if owner::state(word) > owner::RECLAIMING {
            return Some(format!(
                "the ledger was overwritten by a process of the slice: owner {word:#x} of slot {index}"
            ));
        }
        if owner::state(word) == owner::FREE && index != SHARED_SLOT {
            continue;
        }
        let operations = accounts()
            .filter_map(|number| Some(ledger.slots[index].memory(number)?.load(Ordering::Relaxed) / OPERATION))
            .max();
        if operations.is_some_and(|count| count > OPERATIONS_MAX) {
            return Some(format!("the ledger was overwritten by a process of the slice: operations of slot {index}"));
        }
    }
    None
}

/// Bytes that a container can use at most: more than any machine has.
const USED_BYTES_MAX: u64 = 1 << 46;
/// Operations that one slot can have under way at most: more threads than a process can have would be needed for more.
const OPERATIONS_MAX: u64 = 1 << 15;
