//! The accounting protocol on a region's ledger: reserve and release memory, claim a slot, reclaim the slots of dead
//! processes.
//!
//! # Memory
//!
//! [`Account::used`] holds, in one word, how much the container uses of one memory (a device's, or the host's). Each
//! process's part of it is in its slot, in the word that [`Slot::memory`](crate::region::Slot::memory) returns. An
//! operation changes both words, and a process can be killed between the two changes. To allow a repair, the upper 16
//! bits of the slot's word count the operations under way, and those of the account's word count its changes:
//!
//! ```text
//! reserve n:  slot += 1 op + n      used += 1 change + n (only if the limit allows)      slot -= 1 op
//! release n:  slot += 1 op          used += 1 change - n                                 slot -= 1 op + n
//! reclaim n:  slot += 1 op          used += 1 change - n                                 slot = 0
//! ```
//!
//! If a dead process's slot has no operation under way, its bytes are exactly what the process contributed to the
//! account, and [`reclaim`] subtracts them. If an operation is under way, it is unknown whether its middle step took
//! place. Then [`reclaim`] leaves the account too high, never too low, and [`settle`] corrects it from the slots at the
//! next moment in which no operation is under way. Such a moment may not come, because a process was stopped within an
//! operation or the ledger was damaged; then [`bound`] sets the account to the most that the slots can hold. There is
//! no lock, and no process waits for another.
//!
//! # Slots
//!
//! No two processes share a slot: in a shared one, the bytes of the living could not be told from those of the dead. A
//! process that finds no free slot has none. A process that takes a slot empties it first, so that its earlier contents
//! do no harm.
//!
//! Invariant: an account is never less than what the container's live processes hold, and never, by way of [`reserve`],
//! more than the limit.

mod progress;
mod reclaim;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::atomic::{AtomicU64, Ordering};
use crate::region::{Account, Ledger, NO_SLOT, SLOTS_BACKED, SLOTS_MAX, Slot, owner};
pub use progress::{cell, drained, oldest_in_flight};
pub use reclaim::{Reclaimed, bound, reclaim, repair, settle};
use reclaim::{clear, settle_soon};

/// The bits of an account's and of a slot's word that count bytes.
pub const BYTES_MASK: u64 = (1 << 48) - 1;
/// The most bytes that an account can hold. A greater number means that more was given back than the account held, so
/// that the number wrapped.
pub const BYTES_MAX: u64 = BYTES_MASK >> 1;
/// One operation under way, in a slot's word.
pub const OPERATION: u64 = 1 << 48;
/// One change, in an account's word. The count wraps at the end of the word.
const CHANGE: u64 = 1 << 48;

/// The reclaimer's pid in [`reclaim`] when the manager calls it: no process of a container has this pid.
pub const MANAGER_PID: u32 = 0;

/// A reservation would exceed the container's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverLimit;

/// The bytes that the container uses of the account's memory.
#[inline]
#[must_use]
pub fn used_bytes(account: &Account) -> u64 {
    account.used.load(Ordering::Relaxed) & BYTES_MASK
}

/// Reserves `bytes` for the process whose slot's word is `part`, if the container's use stays within `limit_bytes`.
///
/// # Errors
/// [`OverLimit`]: the bytes in the books are unchanged. The caller counts the request in [`Account::refused`] once it
/// is refused for good: there may be room after a second attempt.
#[inline]
pub fn reserve(account: &Account, part: &AtomicU64, bytes: u64, limit_bytes: u64) -> Result<(), OverLimit> {
    let after = |used: u64| {
        let after_bytes = (used & BYTES_MASK).checked_add(bytes)?;
        (after_bytes <= limit_bytes && after_bytes <= BYTES_MAX).then(|| used.wrapping_add(CHANGE + bytes))
    };
    let mut used = account.used.load(Ordering::Relaxed);
    if after(used).is_none() {
        return Err(OverLimit);
    }
    // Acquire and release keep the three steps in order for a reader of the slot after this process was killed.
    part.fetch_add(OPERATION | bytes, Ordering::Acquire);
    loop {
        let Some(after) = after(used) else {
            part.fetch_sub(OPERATION | bytes, Ordering::Release);
            return Err(OverLimit);
        };
        match account.used.compare_exchange_weak(used, after, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                part.fetch_sub(OPERATION, Ordering::Release);
                let after_bytes = after & BYTES_MASK;
                if after_bytes > account.peak_bytes.load(Ordering::Relaxed) {
                    account.peak_bytes.fetch_max(after_bytes, Ordering::Relaxed);
                }
                return Ok(());
            }
            Err(now) => used = now,
        }
    }
}

/// Gives back `bytes` that were reserved by the process whose slot's word is `part`.
#[inline]
pub fn release(account: &Account, part: &AtomicU64, bytes: u64) {
    part.fetch_add(OPERATION, Ordering::Acquire);
    give_back(account, bytes);
    part.fetch_sub(OPERATION | bytes, Ordering::Release);
}

#[inline]
fn give_back(account: &Account, bytes: u64) {
    // A single addition, which cannot fail: the count of changes goes up by one, the bytes go down.
    let change = CHANGE.wrapping_sub(bytes);
    let after = account.used.fetch_add(change, Ordering::AcqRel).wrapping_add(change);
    if after & BYTES_MASK > BYTES_MAX {
        empty_overdrawn(account);
    }
}

/// Sets an account to zero if more was given back than it held. Only a forged ledger leads here, because the container
/// can write it. Until then the account shows more than the limit of any slice, so that nothing can be reserved.
#[cold]
fn empty_overdrawn(account: &Account) {
    let mut used = account.used.load(Ordering::Relaxed);
    // Another thread may have emptied the account meanwhile, and it may hold something again.
    while used & BYTES_MASK > BYTES_MAX {
        let emptied = (used & !BYTES_MASK).wrapping_add(CHANGE);
        match account.used.compare_exchange_weak(used, emptied, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => used = now,
        }
    }
}

/// Bytes that the process whose slot's word is `part` holds.
#[inline]
#[must_use]
pub fn held_bytes(part: &AtomicU64) -> u64 {
    part.load(Ordering::Relaxed) & BYTES_MASK
}

/// A process, as the ledger identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Pid in the process's own pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks since boot; 0: unknown.
    pub start_time: u64,
    /// Inode number of the pid namespace; 0: unknown.
    pub pid_namespace: u64,
}

/// A slot, and the generation with which it was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotId {
    /// The slot's index in [`Ledger::slots`].
    pub index: usize,
    /// The slot's generation in [`Ledger::owners`].
    pub generation: u32,
}

/// Takes a slot for the process `me`.
///
/// A slot that the same process took before it called `exec` is reclaimed first: nothing of the former program is left.
/// If no slot is free, the slots whose owners are dead according to `is_alive` are reclaimed. Returns `None` if there
/// is still no free slot.
///
/// `back` makes sure that a slot can be written. The file may have no memory there yet, and a slot that cannot get
/// memory must not be touched: then `back` returns `false`, and another slot is sought.
pub fn claim(
    ledger: &Ledger,
    me: Identity,
    is_alive: impl Fn(Identity) -> bool,
    back: impl Fn(&Slot) -> bool,
) -> Option<SlotId> {
    // Without /proc a process knows neither its start time nor its namespace, and cannot tell itself from another
    // process with the same pid. Such a process reclaims nothing: an account that is too high is better than one that
    // is too low.
    let is_certain = me.start_time != 0 && me.pid_namespace != 0;
    let reclaim_all = |is_gone: &dyn Fn(Identity) -> bool| {
        for index in NO_SLOT + 1..SLOTS_MAX {
            if is_certain
                && let Some(other) = identity(ledger, index)
                && is_gone(other)
                && let Reclaimed::InDoubt { accounts } = reclaim(ledger, index, other, me.pid)
            {
                settle_soon(ledger, accounts);
            }
        }
    };
    reclaim_all(&|other| other == me);
    claim_free(ledger, me, &back).or_else(|| {
        // Only a pid of the process's own namespace can be looked up.
        reclaim_all(&|other| other.pid_namespace == me.pid_namespace && !is_alive(other));
        claim_free(ledger, me, &back)
    })
}

fn claim_free(ledger: &Ledger, me: Identity, back: &impl Fn(&Slot) -> bool) -> Option<SlotId> {
    // Processes that start together have neighbouring pids: each begins its search at a different place among the slots
    // that have memory already. The slots without memory are tried in order, so that few of them need any.
    let first = 1 + me.pid as usize % (SLOTS_BACKED - 1);
    for index in (first..SLOTS_BACKED).chain(NO_SLOT + 1..first).chain(SLOTS_BACKED..SLOTS_MAX) {
        let (Some(word), Some(slot), Some(start_time)) =
            (ledger.owners.get(index), ledger.slots.get(index), ledger.start_times.get(index))
        else {
            continue;
        };
        let found = word.load(Ordering::Relaxed);
        if owner::state(found) != owner::FREE {
            continue;
        }
        let generation = owner::generation(found).wrapping_add(1) & 0xFF_FFFF;
        let claimed = owner::word(owner::CLAIMED, generation, me.pid);
        if word.compare_exchange(found, claimed, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        let next = if back(slot) {
            clear(slot);
            start_time.store(me.start_time, Ordering::Relaxed);
            slot.pid_namespace.store(me.pid_namespace, Ordering::Relaxed);
            owner::ATTACHED
        } else {
            owner::FREE
        };
        // Pairs with the load in `identity`: the start time and namespace of an attached owner are complete. The
        // exchange fails only if the manager repaired the slot meanwhile, as that of a process that is gone.
        let word_after = owner::word(next, generation, me.pid);
        if word.compare_exchange(claimed, word_after, Ordering::Release, Ordering::Relaxed).is_ok()
            && next == owner::ATTACHED
        {
            return Some(SlotId { index, generation });
        }
    }
    None
}

/// Gives slot `index` back to the process `owner`, which took it with `generation`, lives, and still uses it, but whose
/// owner's word was overwritten. Only the manager calls this. Returns whether the process owns the slot now; the slot's
/// contents stay as they are.
pub fn restore(ledger: &Ledger, index: usize, generation: u32, owner: Identity) -> bool {
    let (Some(word), Some(slot), Some(start_time)) =
        (ledger.owners.get(index), ledger.slots.get(index), ledger.start_times.get(index))
    else {
        return false;
    };
    let found = word.load(Ordering::Relaxed);
    let [claimed, attached] = [owner::CLAIMED, owner::ATTACHED].map(|state| owner::word(state, generation, owner.pid));
    if owner::state(found) != owner::FREE
        || word.compare_exchange(found, claimed, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return false;
    }
    start_time.store(owner.start_time, Ordering::Relaxed);
    slot.pid_namespace.store(owner.pid_namespace, Ordering::Relaxed);
    word.compare_exchange(claimed, attached, Ordering::Release, Ordering::Relaxed).is_ok()
}

/// The process that owns slot `index`; `None` if no process is attached to it.
#[must_use]
pub fn identity(ledger: &Ledger, index: usize) -> Option<Identity> {
    let word = ledger.owners.get(index)?.load(Ordering::Acquire);
    if owner::state(word) != owner::ATTACHED {
        return None;
    }
    Some(Identity {
        pid: owner::pid(word),
        start_time: ledger.start_times.get(index)?.load(Ordering::Relaxed),
        pid_namespace: ledger.slots.get(index)?.pid_namespace.load(Ordering::Relaxed),
    })
}
