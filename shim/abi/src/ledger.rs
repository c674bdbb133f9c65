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

use crate::atomic::{AtomicU64, Ordering};
use crate::region::{ACCOUNTS, Account, Ledger, NO_SLOT, SLOTS_BACKED, SLOTS_MAX, Slot, SlotDevice, owner};

/// The bits of an account's and of a slot's word that count bytes.
pub const BYTES_MASK: u64 = (1 << 48) - 1;
/// The most bytes that an account can hold. A greater number means that more was given back than the account held, so
/// that it wrapped.
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

/// Sets an account to zero from which more was given back than it held. Only a forged ledger, which the container can
/// write, leads here. Until then the account shows more than the limit of any slice, so that nothing can be reserved.
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
    /// Index in [`Ledger::slots`].
    pub index: usize,
    /// Generation in [`Ledger::owners`].
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

/// Gives back all that the dead process `dead` held, and frees its slot. `reclaimer_pid` is the caller's pid in the
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
        // The slot shows an operation under way until its bytes are given back: a concurrent `settle` must not take
        // them for gone already.
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
fn clear(slot: &Slot) {
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
fn settle_soon(ledger: &Ledger, accounts: u32) {
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
/// is under way anywhere in the container. The caller tries again later, and calls [`bound`] if that goes on for long.
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
        // A process that has taken a slot and is not attached yet has reserved nothing; what its slot holds is from
        // earlier owners.
        if matches!(owner::state(word.load(Ordering::Acquire)), owner::ATTACHED | owner::RECLAIMING) {
            sum = sum.saturating_add(bytes_of(slot.memory(number)?.load(Ordering::Acquire))?);
        }
    }
    Some(sum)
}

/// Whether the device has done all work of the slot's owner that a marker follows.
///
/// `row` is the device's row in the slot: see [`Slot::row`](crate::region::Slot::row).
#[must_use]
pub fn drained(part: &SlotDevice, row: &[AtomicU64]) -> bool {
    let newest = part.marker_submitted.load(Ordering::Acquire);
    oldest_in_flight(0, newest, row).is_none()
}

/// Number of the oldest marker up to `newest` that the device has not written yet, if there is one. The markers up to
/// `done` are known to be written.
#[must_use]
pub fn oldest_in_flight(done: u64, newest: u64, row: &[AtomicU64]) -> Option<u64> {
    let first = newest.saturating_sub(row.len() as u64).max(done).saturating_add(1);
    (first..=newest).find(|&number| cell(row, number).is_some_and(|cell| cell.load(Ordering::Acquire) < number))
}

/// The cell of marker `number` in a device's row.
#[must_use]
pub fn cell(row: &[AtomicU64], number: u64) -> Option<&AtomicU64> {
    row.get(number.checked_rem(row.len() as u64)? as usize)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ledger() -> Box<Ledger> {
        // SAFETY: a ledger is integers and atomics of them: all bytes zero is a valid ledger.
        unsafe { Box::<Ledger>::new_zeroed().assume_init() }
    }

    fn process(pid: u32) -> Identity {
        Identity { pid, start_time: 1000 + u64::from(pid), pid_namespace: 1 }
    }

    fn used(ledger: &Ledger) -> u64 {
        used_bytes(&ledger.devices[0])
    }

    #[test]
    fn the_limit_is_exact() {
        let ledger = ledger();
        let (device, slot) = (&ledger.devices[0], &ledger.slots[1].devices[0].memory);
        assert_eq!(reserve(device, slot, 60, 100), Ok(()));
        assert_eq!(reserve(device, slot, 41, 100), Err(OverLimit));
        assert_eq!(reserve(device, slot, 40, 100), Ok(()));
        assert_eq!(reserve(device, slot, u64::MAX, 100), Err(OverLimit));
        assert_eq!(used(&ledger), 100);
        release(device, slot, 100);
        assert_eq!((used(&ledger), held_bytes(slot), device.peak_bytes.load(Ordering::Relaxed)), (0, 0, 100));
    }

    #[test]
    fn threads_racing_for_the_last_bytes_never_pass_the_limit() {
        let ledger = ledger();
        std::thread::scope(|scope| {
            for index in 1..=8 {
                let ledger = &ledger;
                scope.spawn(move || {
                    let (device, slot) = (&ledger.devices[0], &ledger.slots[index].devices[0].memory);
                    for _ in 0..20_000 {
                        if reserve(device, slot, 3, 16).is_ok() {
                            assert!(used_bytes(device) <= 16);
                            release(device, slot, 3);
                        }
                    }
                });
            }
        });
        assert_eq!(used(&ledger), 0);
        assert!(ledger.devices[0].peak_bytes.load(Ordering::Relaxed) <= 16);
    }

    #[test]
    fn a_dead_process_gives_back_exactly_what_it_held() {
        let ledger = ledger();
        let first = claim(&ledger, process(7), |_| true, |_| true).unwrap();
        let second = claim(&ledger, process(8), |_| true, |_| true).unwrap();
        assert_ne!(first.index, second.index);
        reserve(&ledger.devices[0], &ledger.slots[first.index].devices[0].memory, 10, 100).unwrap();
        reserve(&ledger.devices[0], &ledger.slots[second.index].devices[0].memory, 20, 100).unwrap();
        assert_eq!(reclaim(&ledger, first.index, process(8), MANAGER_PID), Reclaimed::NotTheirs);
        assert_eq!(reclaim(&ledger, first.index, process(7), MANAGER_PID), Reclaimed::Exactly);
        assert_eq!(used(&ledger), 20);
        assert_eq!(reclaim(&ledger, first.index, process(7), MANAGER_PID), Reclaimed::NotTheirs);
        let again = claim(&ledger, process(7), |_| true, |_| true).unwrap();
        assert_eq!((again.index, again.generation), (first.index, first.generation + 1));
    }

    #[test]
    fn exec_leaves_nothing_behind() {
        let ledger = ledger();
        let before = claim(&ledger, process(7), |_| true, |_| true).unwrap();
        reserve(&ledger.devices[0], &ledger.slots[before.index].devices[0].memory, 10, 100).unwrap();
        claim(&ledger, process(7), |_| true, |_| true).unwrap();
        assert_eq!(used(&ledger), 0);
    }

    #[test]
    fn a_process_without_proc_never_takes_the_slot_of_another() {
        let ledger = ledger();
        // Two sandboxes without /proc: in each, the first process has the same pid.
        let nameless = Identity { pid: 2, start_time: 0, pid_namespace: 0 };
        let first = claim(&ledger, nameless, |_| true, |_| true).unwrap();
        reserve(&ledger.devices[0], &ledger.slots[first.index].devices[0].memory, 10, 100).unwrap();
        let second = claim(&ledger, nameless, |_| true, |_| true).unwrap();
        assert_ne!(first.index, second.index);
        for pid in 3..=SLOTS_MAX as u32 {
            let _ = claim(&ledger, Identity { pid, ..nameless }, |_| false, |_| true);
        }
        assert_eq!((used(&ledger), identity(&ledger, first.index)), (10, Some(nameless)));
    }

    #[test]
    fn a_generation_wraps_within_its_bits() {
        let ledger = ledger();
        for word in &ledger.owners {
            word.store(owner::word(owner::FREE, 0xFF_FFFF, 0), Ordering::Relaxed);
        }
        let slot = claim(&ledger, process(7), |_| true, |_| true).unwrap();
        assert_eq!((slot.generation, identity(&ledger, slot.index)), (0, Some(process(7))));
        assert_eq!(reclaim(&ledger, slot.index, process(7), MANAGER_PID), Reclaimed::Exactly);
    }

    #[test]
    fn a_reservation_of_too_many_bytes_never_changes_the_count_of_operations() {
        let ledger = ledger();
        let (device, slot) = (&ledger.devices[0], &ledger.slots[1].devices[0].memory);
        assert_eq!(reserve(device, slot, BYTES_MAX, u64::MAX), Ok(()));
        for bytes in [1, BYTES_MAX, BYTES_MASK, BYTES_MASK + 1, u64::MAX] {
            assert_eq!(reserve(device, slot, bytes, u64::MAX), Err(OverLimit));
        }
        assert_eq!((used(&ledger), slot.load(Ordering::Relaxed)), (BYTES_MAX, BYTES_MAX));
        release(device, slot, BYTES_MAX);
        assert_eq!((used(&ledger), slot.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn an_overdrawn_account_becomes_empty() {
        for (held_bytes, forged_bytes) in [(0, 1), (5, 10), (BYTES_MAX, BYTES_MASK), (0, BYTES_MAX), (7, BYTES_MAX)] {
            let ledger = ledger();
            let device = &ledger.devices[0];
            device.used.store(held_bytes, Ordering::Relaxed);
            give_back(device, forged_bytes);
            assert_eq!(used(&ledger), 0, "{forged_bytes} of {held_bytes}");
            // Afterwards the account works as usual.
            assert_eq!(reserve(device, &ledger.slots[1].devices[0].memory, 60, 100), Ok(()));
            release(device, &ledger.slots[1].devices[0].memory, 60);
            assert_eq!(used(&ledger), 0);
        }
    }

    #[test]
    fn an_overdrawn_account_grants_nothing_until_it_is_empty() {
        let ledger = ledger();
        let (device, slot) = (&ledger.devices[0], &ledger.slots[1].devices[0].memory);
        // The state that a process leaves behind that is killed between the two steps of `give_back`.
        device.used.store(5_u64.wrapping_sub(10) & BYTES_MASK, Ordering::Relaxed);
        for bytes in [1, 5, 6, BYTES_MAX] {
            assert_eq!(reserve(device, slot, bytes, u64::MAX), Err(OverLimit));
        }
        give_back(device, 0);
        assert_eq!((used(&ledger), reserve(device, slot, 6, u64::MAX)), (0, Ok(())));
    }

    #[test]
    fn each_of_four_thousand_processes_gets_a_slot() {
        let ledger = ledger();
        let mut taken = std::collections::BTreeSet::new();
        for pid in 1..SLOTS_MAX as u32 {
            let slot = claim(&ledger, process(pid), |_| true, |_| true).unwrap();
            assert!(slot.index != NO_SLOT && taken.insert(slot.index), "{slot:?}");
            reserve(&ledger.devices[0], &ledger.slots[slot.index].devices[0].memory, 1, u64::MAX).unwrap();
        }
        assert!(taken.len() > 4000 && settle(&ledger, 0));
        assert_eq!(used(&ledger), taken.len() as u64);
        // No slot is left, until the slot of a dead process is reclaimed.
        assert_eq!(claim(&ledger, process(9999), |_| true, |_| true), None);
        assert!(claim(&ledger, process(9999), |other| other.pid != 17, |_| true).is_some());
        assert_eq!(used(&ledger), taken.len() as u64 - 1);
    }

    #[test]
    fn a_slot_without_memory_is_not_touched() {
        let ledger = ledger();
        let is_backed = |slot: &Slot| core::ptr::from_ref(slot).addr() <= (&raw const ledger.slots[2]).addr();
        for index in 3..SLOTS_MAX {
            ledger.slots[index].pid_namespace.store(77, Ordering::Relaxed);
        }
        let mut indices = [7, 8].map(|pid| claim(&ledger, process(pid), |_| true, is_backed).unwrap().index);
        indices.sort_unstable();
        assert_eq!(indices, [1, 2]);
        assert_eq!(claim(&ledger, process(9), |_| true, is_backed), None);
        assert!(settle(&ledger, 0));
        for index in 3..SLOTS_MAX {
            let word = ledger.owners[index].load(Ordering::Relaxed);
            let namespace = ledger.slots[index].pid_namespace.load(Ordering::Relaxed);
            assert_eq!((owner::state(word), namespace), (owner::FREE, 77), "slot {index}");
        }
    }

    #[test]
    fn a_claimed_slot_is_empty() {
        let ledger = ledger();
        for slot in &ledger.slots {
            for part in &slot.devices {
                part.memory.store(OPERATION | 5, Ordering::Relaxed);
                part.waiting.store(1, Ordering::Relaxed);
                part.marker_submitted.store(9, Ordering::Relaxed);
            }
            slot.host_memory.store(u64::MAX, Ordering::Relaxed);
            slot.markers.iter().for_each(|marker| marker.store(1 << 60, Ordering::Relaxed));
        }
        let slot = claim(&ledger, process(7), |_| true, |_| true).unwrap();
        let slot = &ledger.slots[slot.index];
        let part = &slot.devices[0];
        assert_eq!((held_bytes(&part.memory), part.waiting.load(Ordering::Relaxed)), (0, 0));
        slot.markers_per_device.store(64, Ordering::Relaxed);
        assert!(drained(part, slot.row(0).unwrap()) && settle(&ledger, 0));
        assert_eq!(slot.markers.iter().map(|marker| marker.load(Ordering::Relaxed)).sum::<u64>(), 0);
    }

    #[test]
    fn an_operation_that_never_ends_does_not_keep_bytes_of_dead_processes_charged() {
        // A reservation of three bytes by a process that was stopped before or after its middle step.
        for accounted_bytes in [0, 3] {
            let ledger = ledger();
            let (device, stopped) = (&ledger.devices[0], claim(&ledger, process(7), |_| true, |_| true).unwrap());
            let part = &ledger.slots[stopped.index].devices[0].memory;
            part.store(OPERATION | 3, Ordering::Relaxed);
            // A process that is gone has left 100 bytes too many.
            device.used.store(accounted_bytes + 100, Ordering::Relaxed);
            assert!(!settle(&ledger, 0));
            assert!(bound(&ledger, 0));
            assert_eq!(used(&ledger), 3);
            // The stopped process goes on.
            device.used.fetch_add(CHANGE + 3 - accounted_bytes, Ordering::Relaxed);
            part.fetch_sub(OPERATION, Ordering::Relaxed);
            assert!(used(&ledger) >= 3 && settle(&ledger, 0));
            assert_eq!(used(&ledger), 3);
        }
    }

    #[test]
    fn a_kill_between_the_steps_is_settled() {
        // (slot's word, account's bytes) as a kill can leave them: in a reservation of 10 bytes by a process that held
        // 5, or in a release of 10 bytes by one that held 15.
        for (word, total) in [(OPERATION | 15, 5), (OPERATION | 15, 15), (OPERATION | 15, 5)] {
            let ledger = ledger();
            let dead = claim(&ledger, process(7), |_| true, |_| true).unwrap();
            let alive = claim(&ledger, process(8), |_| true, |_| true).unwrap();
            reserve(&ledger.devices[0], &ledger.slots[alive.index].devices[0].memory, 3, 100).unwrap();
            ledger.slots[dead.index].devices[0].memory.store(word, Ordering::Relaxed);
            ledger.devices[0].used.fetch_add(total, Ordering::Relaxed);
            assert_eq!(reclaim(&ledger, dead.index, process(7), MANAGER_PID), Reclaimed::InDoubt { accounts: 1 });
            assert!(used(&ledger) >= 3);
            // Settling fails while another process is within an operation.
            ledger.slots[alive.index].devices[0].memory.fetch_add(OPERATION, Ordering::Relaxed);
            assert!(!settle(&ledger, 0));
            ledger.slots[alive.index].devices[0].memory.fetch_sub(OPERATION, Ordering::Relaxed);
            assert!(settle(&ledger, 0));
            assert_eq!(used(&ledger), 3);
        }
    }

    #[test]
    fn markers_drain_in_any_order() {
        let ledger = ledger();
        let part = &ledger.slots[1].devices[0];
        ledger.slots[1].markers_per_device.store(8, Ordering::Relaxed);
        let row = ledger.slots[1].row(0).unwrap();
        assert!(drained(part, row));
        part.marker_submitted.store(10, Ordering::Relaxed);
        for number in 3..=10_u64 {
            cell(row, number).unwrap().store(number, Ordering::Relaxed);
        }
        assert!(drained(part, row));
        part.marker_submitted.store(12, Ordering::Relaxed);
        cell(row, 12).unwrap().store(12, Ordering::Relaxed);
        assert_eq!(oldest_in_flight(0, 12, row), Some(11));
        assert_eq!(oldest_in_flight(11, 12, row), None);
        assert_eq!((oldest_in_flight(0, 12, &[]), drained(part, row)), (None, false));
    }

    proptest! {
        #[test]
        fn any_sequence_of_operations_and_deaths_conserves_the_books(
            steps in proptest::collection::vec((1_usize..6, 0_u8..4, 1_u64..50), 1..200),
        ) {
            let ledger = ledger();
            let limit = 200;
            let mut held = std::collections::HashMap::<usize, (Identity, usize, Vec<u64>)>::new();
            for (who, what, bytes) in steps {
                let entry = held.entry(who).or_insert_with(|| {
                    let me = process(who as u32);
                    (me, claim(&ledger, me, |_| true, |_| true).unwrap().index, Vec::new())
                });
                let part = &ledger.slots[entry.1].devices[0].memory;
                match what {
                    0 | 1 => if reserve(&ledger.devices[0], part, bytes, limit).is_ok() { entry.2.push(bytes) },
                    2 => if let Some(bytes) = entry.2.pop() { release(&ledger.devices[0], part, bytes) },
                    _ => {
                        prop_assert_eq!(reclaim(&ledger, entry.1, entry.0, MANAGER_PID), Reclaimed::Exactly);
                        held.remove(&who);
                    }
                }
                let total: u64 = held.values().flat_map(|(_, _, sizes)| sizes).sum();
                prop_assert_eq!(used(&ledger), total);
                prop_assert!(total <= limit);
                prop_assert!(settle(&ledger, 0));
                prop_assert_eq!(used(&ledger), total);
            }
        }
    }
}
