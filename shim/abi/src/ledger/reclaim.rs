//! Gives back the memory of dead processes, and corrects accounts to the sum of the slots.

use super::{BYTES_MASK, BYTES_MAX, CHANGE, Identity, OPERATION, give_back, identity};
use crate::atomic::Ordering;
use crate::region::{ACCOUNTS, Ledger, NO_SLOT, Slot, SlotDevice, owner};

/// The result of [`reclaim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaimed {
    /// The slot does not belong to `dead`, or no longer does: nothing was done.
    NotTheirs,
    /// All bytes of the process have been subtracted from the accounts.
    Exactly,
    /// The process was killed within an operation: the caller must [`settle`] the accounts whose bits are set.
    InDoubt {
        /// Bit `n` stands for account number `n`.
        accounts: u32,
    },
}

/// Gives back all memory of the dead process `dead`, and frees its slot. `reclaimer_pid` is the caller's pid in the
/// dead process's namespace, or [`MANAGER_PID`].
///
/// If several callers try at once, exactly one of them does it.
pub fn reclaim(ledger: &Ledger, index: usize, dead: Identity, reclaimer_pid: u32) -> Reclaimed {
    let (Some(word), Some(slot)) = (ledger.owners.get(index), ledger.slots.get(index)) else {
        return Reclaimed::NotTheirs;
    };
    let found = word.load(Ordering::Acquire);
    if owner::state(found) != owner::ATTACHED || identity(ledger, index) != Some(dead) {
        return Reclaimed::NotTheirs;
    }
    let generation = owner::generation(found);
    let reclaiming = owner::word(owner::RECLAIMING, generation, reclaimer_pid);
    if word.compare_exchange(found, reclaiming, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return Reclaimed::NotTheirs;
    }
    let in_doubt = give_back_all(ledger, slot);
    // Pairs with the acquiring exchange in `claim_free`: the next owner finds the slot empty. The exchange fails only
    // if the manager repaired the slot meanwhile.
    let free = owner::word(owner::FREE, generation, 0);
    let _ = word.compare_exchange(reclaiming, free, Ordering::Release, Ordering::Relaxed);
    if in_doubt == 0 { Reclaimed::Exactly } else { Reclaimed::InDoubt { accounts: in_doubt } }
}

/// Gives back the bytes of a slot that no process uses any more. Returns the accounts in doubt, as bits.
fn give_back_all(ledger: &Ledger, slot: &Slot) -> u32 {
    let mut in_doubt = 0;
    for number in 0..ACCOUNTS {
        let (Some(account), Some(part)) = (ledger.account(number), slot.memory(number)) else { continue };
        // The slot shows an operation under way until its bytes are given back: a concurrent `settle` must not assume
        // that they are gone already.
        let word = part.fetch_or(OPERATION, Ordering::AcqRel);
        if word & !BYTES_MASK == 0 {
            give_back(account, word);
        } else {
            in_doubt |= 1 << number;
        }
        part.store(0, Ordering::Release);
    }
    in_doubt
}

/// Empties a slot that was just taken.
pub(super) fn clear(slot: &Slot) {
    slot.host_memory.store(0, Ordering::Relaxed);
    slot.markers_per_device.store(0, Ordering::Relaxed);
    slot.markers.iter().for_each(|marker| marker.store(0, Ordering::Relaxed));
    slot.devices.iter().for_each(clear_counters);
}

// Not inlined: sixteen unrolled copies would take two pages of the shim.
#[inline(never)]
fn clear_counters(part: &SlotDevice) {
    part.waiting.store(0, Ordering::Relaxed);
    part.markers_by_device.store(0, Ordering::Relaxed);
    for counter in [
        &part.memory,
        &part.marker_submitted,
        &part.marker_submitted_ns,
        &part.busy_since_ns,
        &part.launches,
        &part.throttled_ns,
        &part.copies,
        &part.copied_bytes,
        &part.copy_ns,
        &part.overhead_bytes,
        &part.used_permille,
        &part.contexts,
        &part.context_bytes,
        &part.moving_bytes,
    ] {
        counter.store(0, Ordering::Relaxed);
    }
}

/// Frees a slot whose owner's word is not valid, or whose claimer or reclaimer died before it was done. Only the
/// manager calls this: the caller knows that the process named in the word is gone, and that nothing else repairs the
/// ledger. Returns the accounts to [`settle`], as bits.
pub fn repair(ledger: &Ledger, index: usize) -> u32 {
    let Some(word) = ledger.owners.get(index) else { return 0 };
    let found = word.load(Ordering::Acquire);
    if matches!(owner::state(found), owner::FREE | owner::ATTACHED) {
        return 0;
    }
    // The slot itself is left as it is: it may have no memory, and the next owner empties it.
    let free = owner::word(owner::FREE, owner::generation(found), 0);
    let _ = word.compare_exchange(found, free, Ordering::Release, Ordering::Relaxed);
    // It is unknown whether the reclaimer had already subtracted the bytes, so all accounts must be settled.
    (1 << ACCOUNTS) - 1
}

/// [`settle`]s the accounts whose bits are set, as far as that is possible now. An account that could not be settled
/// stays too high until the manager settles it.
pub(super) fn settle_soon(ledger: &Ledger, accounts: u32) {
    // The model checker already explores every order of accesses for one attempt: more would add nothing.
    const ATTEMPTS: u32 = if cfg!(loom) { 1 } else { 64 };
    for number in (0..ACCOUNTS).filter(|number| accounts & 1 << number != 0) {
        for _ in 0..ATTEMPTS {
            if settle(ledger, number) {
                break;
            }
        }
    }
}

/// Sets account number `number` to the sum of the slots again. Returns whether it could: it cannot while an operation
/// is under way anywhere in the container. The caller tries again later, and calls [`bound`] if it fails for long.
pub fn settle(ledger: &Ledger, number: usize) -> bool {
    make_sum(ledger, number, &|word| (word & !BYTES_MASK == 0).then_some(word))
}

/// Sets account number `number` to the most that the slots can hold: bytes of an operation under way count, whether it
/// reserves or releases them. Returns whether it could. The account may be too high until it is [settled](settle), and
/// is never too low.
pub fn bound(ledger: &Ledger, number: usize) -> bool {
    make_sum(ledger, number, &|word| Some(word & BYTES_MASK))
}

/// Sets account number `number` to the sum of `bytes_of` over the slots' words, if `bytes_of` returns a value for each.
fn make_sum(ledger: &Ledger, number: usize, bytes_of: &dyn Fn(u64) -> Option<u64>) -> bool {
    let Some(account) = ledger.account(number) else { return true };
    let used = account.used.load(Ordering::Acquire);
    // If an operation's middle step comes before the load above, the operation is seen under way, or as complete in
    // both words. If it comes after the load, the exchange below fails, because the count of changes differs.
    let Some(sum) = sum_of_slots(ledger, number, bytes_of) else { return false };
    if used & BYTES_MASK == sum {
        return account.used.load(Ordering::Acquire) == used;
    }
    let settled = (used & !BYTES_MASK).wrapping_add(CHANGE) | sum.min(BYTES_MAX);
    account.used.compare_exchange(used, settled, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// The sum over the slots that have an owner or are being reclaimed. The others hold nothing, and are not touched.
fn sum_of_slots(ledger: &Ledger, number: usize, bytes_of: &dyn Fn(u64) -> Option<u64>) -> Option<u64> {
    let mut sum: u64 = 0;
    for (word, slot) in ledger.owners.iter().zip(&ledger.slots).skip(NO_SLOT + 1) {
        // A process that has taken a slot and is not attached yet has reserved nothing; the slot's contents are from
        // earlier owners.
        if matches!(owner::state(word.load(Ordering::Acquire)), owner::ATTACHED | owner::RECLAIMING) {
            sum = sum.saturating_add(bytes_of(slot.memory(number)?.load(Ordering::Acquire))?);
        }
    }
    Some(sum)
}
