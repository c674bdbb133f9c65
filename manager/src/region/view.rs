//! What the manager reads from a ledger. All of it was written by processes of the container, and every value is
//! bounded here before anybody acts on it.

use std::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::ledger::{self, BYTES_MASK, Identity, MANAGER_PID, OPERATION};
use aliquot_abi::region::{ACCOUNTS, DEVICES_MAX, HOST_ACCOUNT, Ledger, NO_SLOT, SLOTS_MAX, SlotDevice, owner};

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
    /// Their copies and memsets.
    pub copies: u64,
    /// Bytes that those moved.
    pub copied_bytes: u64,
    /// Time that their threads waited for those to be done.
    pub copy_ns: u64,
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

/// What a slot shows of its owner's work on one device, to see whether there was any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// All marked work is done, and nobody waits.
    pub is_drained: bool,
    marker_submitted: u64,
    launches: u64,
    copies: u64,
}

/// Whether the slot that `index` names is in use, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Free.
    Free,
    /// In use by this process, with this generation.
    Attached(Identity, u32),
    /// In the middle of being taken or given back.
    Between {
        /// The word, to see whether it changes.
        word: u64,
        /// By whom. What the ledger does not say is 0.
        by: Identity,
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
        // Who takes a slot has not written all of its identity yet.
        owner::CLAIMED => SlotState::Between { word, by: someone(owner::pid(word), 0) },
        // Only processes of the dead one's namespace can tell that it is dead.
        owner::RECLAIMING => {
            let namespace = ledger.slots.get(index).map_or(0, |slot| slot.pid_namespace.load(Ordering::Relaxed));
            SlotState::Between { word, by: someone(owner::pid(word), namespace) }
        }
        owner::FREE => SlotState::Free,
        // No state of the protocol: whatever has written it, nobody will end it.
        _ => SlotState::Between { word, by: someone(MANAGER_PID, 0) },
    }
}

fn someone(pid: u32, pid_namespace: u64) -> Identity {
    Identity { pid, start_time: 0, pid_namespace }
}

/// The slots that are in use. The others are not touched: they may have no memory.
pub(crate) fn slots(ledger: &Ledger) -> impl Iterator<Item = (usize, SlotState)> + '_ {
    (NO_SLOT + 1..SLOTS_MAX).map(|index| (index, slot(ledger, index))).filter(|(_, state)| *state != SlotState::Free)
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

/// What a slot says of its owner's contexts on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextView {
    /// How many there are.
    pub count: u64,
    /// What its owner holds, less what was reserved for them.
    pub other_bytes: u64,
}

/// The contexts of the owner of slot `index` on device number `device`.
#[must_use]
pub(crate) fn contexts(ledger: &Ledger, index: usize, device: usize) -> Option<ContextView> {
    let part = ledger.slots.get(index)?.devices.get(device)?;
    // In this order: a context that is counted has been made.
    let count = part.contexts.load(Ordering::Acquire);
    let other_bytes = ledger::held_bytes(&part.memory).saturating_sub(part.context_bytes.load(Ordering::Relaxed));
    Some(ContextView { count, other_bytes })
}

/// Bytes that the owner of slot `index` holds in account number `number`.
#[must_use]
pub(crate) fn held_bytes_of(ledger: &Ledger, index: usize, number: usize) -> u64 {
    ledger.slots.get(index).and_then(|slot| slot.memory(number)).map_or(0, ledger::held_bytes)
}

/// Sums over the slots `indices` on device number `device`. The counters saturate: a forged one must not wrap the sum.
#[must_use]
pub(crate) fn sum(ledger: &Ledger, indices: impl Iterator<Item = usize>, device: usize) -> SlotSum {
    let parts = indices.filter_map(|index| ledger.slots.get(index)?.devices.get(device));
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
    // No more markers are in flight than the row has cells: a number beyond that was not counted by the protocol, and no
    // marker of that number will ever be written.
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

/// What slot `index` shows of its owner's work on device number `device`.
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

/// Where the owner of slot `index` is shown what the manager knows of it on device number `device`, if that is `owner`
/// still.
#[must_use]
pub(crate) fn shown(ledger: &Ledger, index: usize, owner: Identity, device: usize) -> Option<&SlotDevice> {
    if ledger::identity(ledger, index) != Some(owner) {
        return None;
    }
    ledger.slots.get(index)?.devices.get(device)
}

/// Says what in the ledger cannot have come about by the protocol.
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
        // The page of one that is being taken may not be backed yet.
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

/// Bytes that a container can use at most: more than any machine has.
pub(super) const USED_BYTES_MAX: u64 = 1 << 46;
/// Operations that one slot can have under way at most: more threads than a process can have would be needed for more.
const OPERATIONS_MAX: u64 = 1 << 15;
