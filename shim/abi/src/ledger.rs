//! The accounting protocol on a region's ledger: reserve, release, claim a slot, reclaim the dead.
//!
//! # Memory
//!
//! A container's use of a memory (a device's, or the host's) stands in one word, [`Account::used`]; each process's part
//! of it in its slot, in the word that [`Slot::memory`](crate::region::Slot::memory) names. An operation changes both,
//! and a process can be killed between the two. So that the books can still be put right, the upper sixteen bits of the
//! slot's word count the operations that are under way, and those of the account's word count its changes:
//!
//! ```text
//! reserve n:  slot += 1 op + n      used += 1 change + n (only if the limit allows)      slot -= 1 op
//! release n:  slot += 1 op          used += 1 change - n                                 slot -= 1 op + n
//! reclaim:    n = slot, slot = 1 op used += 1 change - n                                 slot = 0
//! ```
//!
//! A dead process's slot with no operation under way holds exactly what it contributed to the account; [`reclaim`]
//! subtracts that. With an operation under way it is not known whether the middle step took place; [`reclaim`] then
//! leaves the account too high, never too low, and [`settle`] corrects it from the slots at the next moment in which no
//! operation is under way. There is no lock, and nobody ever waits for anybody.
//!
//! Invariant: an account is never less than what the container's live processes hold, and never, by way of [`reserve`],
//! more than the limit.

use crate::atomic::{AtomicU64, Ordering};
use crate::region::{ACCOUNTS, Account, Ledger, SLOTS_MAX, SlotDevice, owner};

/// The part of an account's and of a slot's word that counts bytes.
pub const BYTES_MASK: u64 = (1 << 48) - 1;
/// The most bytes that an account can hold: more stand in one only when more was given back than it held, and it has
/// wrapped.
pub const BYTES_MAX: u64 = BYTES_MASK >> 1;
/// One operation under way in a slot's word.
pub const OPERATION: u64 = 1 << 48;
/// One change of an account's word. The count wraps at the word's end.
const CHANGE: u64 = 1 << 48;

/// The slot that processes without a slot of their own share.
pub const SHARED_SLOT: usize = 0;

/// Who [`reclaim`]s when the manager does: no process of a container has this pid.
pub const MANAGER_PID: u32 = 0;

/// A reservation would exceed the container's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverLimit;

/// Bytes that the container uses of an account's memory.
#[inline]
#[must_use]
pub fn used_bytes(account: &Account) -> u64 {
    account.used.load(Ordering::Relaxed) & BYTES_MASK
}

/// Reserves `bytes` for the process whose slot's word is `part`, if the container then uses no more than `limit_bytes`.
///
/// # Errors
/// [`OverLimit`], and the refusal is counted; the books are unchanged.
#[inline]
pub fn reserve(account: &Account, part: &AtomicU64, bytes: u64, limit_bytes: u64) -> Result<(), OverLimit> {
    let after = |used: u64| {
        let after_bytes = (used & BYTES_MASK).checked_add(bytes)?;
        (after_bytes <= limit_bytes && after_bytes <= BYTES_MAX).then(|| used.wrapping_add(CHANGE + bytes))
    };
    let mut used = account.used.load(Ordering::Relaxed);
    if after(used).is_none() {
        account.refused.fetch_add(1, Ordering::Relaxed);
        return Err(OverLimit);
    }
    // Acquire and release keep the three steps in order for whoever reads the slot after this process was killed.
    part.fetch_add(OPERATION | bytes, Ordering::Acquire);
    loop {
        let Some(after) = after(used) else {
            part.fetch_sub(OPERATION | bytes, Ordering::Release);
            account.refused.fetch_add(1, Ordering::Relaxed);
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
    // One addition, which nobody can make fail: the count goes up by one, the bytes go down.
    let change = CHANGE.wrapping_sub(bytes);
    let after = account.used.fetch_add(change, Ordering::AcqRel).wrapping_add(change);
    if after & BYTES_MASK > BYTES_MAX {
        empty_overdrawn(account);
    }
}

/// Empties an account from which more was given back than it held. Only a forged ledger gets here: it is writable by
/// the container. Until then the account shows more than the limit of any slice, so that nothing is reserved meanwhile.
#[cold]
fn empty_overdrawn(account: &Account) {
    let mut used = account.used.load(Ordering::Relaxed);
    // Once another thread has emptied it, it may hold something again.
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

/// A process as the ledger names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Pid in the process's own pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks since boot; 0: not known.
    pub start_time: u64,
    /// Inode number of the pid namespace; 0: not known.
    pub pid_namespace: u64,
}

/// A slot and the generation with which it was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotId {
    /// Index in [`Ledger::slots`].
    pub index: usize,
    /// Generation in [`Ledger::owners`].
    pub generation: u32,
}

/// Takes a slot for the process `me`.
///
/// A slot that the same process took before it called `exec` is reclaimed on the way: nothing of that program is left.
/// If no slot is free, those whose owners are dead by `is_alive` are reclaimed. `None` if there is still none: the
/// process uses [`SHARED_SLOT`].
pub fn claim(ledger: &Ledger, me: Identity, is_alive: impl Fn(Identity) -> bool) -> Option<SlotId> {
    // Without /proc a process knows neither its start time nor its namespace, and another one with the same pid looks
    // the same.
    let is_certain = me.start_time != 0 && me.pid_namespace != 0;
    for index in 1..SLOTS_MAX {
        if is_certain
            && identity(ledger, index) == Some(me)
            && let Reclaimed::InDoubt { accounts } = reclaim(ledger, index, me, me.pid)
        {
            settle_soon(ledger, accounts);
        }
    }
    if let Some(slot) = claim_free(ledger, me) {
        return Some(slot);
    }
    for index in 1..SLOTS_MAX {
        // Only a pid of one's own namespace can be looked up.
        match identity(ledger, index) {
            Some(other) if is_certain && other.pid_namespace == me.pid_namespace && !is_alive(other) => {
                if let Reclaimed::InDoubt { accounts } = reclaim(ledger, index, other, me.pid) {
                    settle_soon(ledger, accounts);
                }
            }
            _ => {}
        }
    }
    claim_free(ledger, me)
}

fn claim_free(ledger: &Ledger, me: Identity) -> Option<SlotId> {
    // Processes that start together have neighbouring pids: each begins its search at a place of its own.
    let first = me.pid as usize % (SLOTS_MAX - 1);
    for step in 0..SLOTS_MAX - 1 {
        let index = 1 + (first + step) % (SLOTS_MAX - 1);
        let Some(word) = ledger.owners.get(index) else { continue };
        let found = word.load(Ordering::Relaxed);
        if owner::state(found) != owner::FREE {
            continue;
        }
        let generation = owner::generation(found).wrapping_add(1) & 0xFF_FFFF;
        let claimed = owner::word(owner::CLAIMED, generation, me.pid);
        if word.compare_exchange(found, claimed, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        let (Some(slot), Some(start_time)) = (ledger.slots.get(index), ledger.start_times.get(index)) else { continue };
        start_time.store(me.start_time, Ordering::Relaxed);
        slot.pid_namespace.store(me.pid_namespace, Ordering::Relaxed);
        // Pairs with the load in `identity`: an attached owner's start time and namespace are complete. It fails only
        // if the slot was repaired meanwhile, as of a process that is gone.
        let attached = owner::word(owner::ATTACHED, generation, me.pid);
        if word.compare_exchange(claimed, attached, Ordering::Release, Ordering::Relaxed).is_ok() {
            return Some(SlotId { index, generation });
        }
    }
    None
}

/// The process that owns slot `index`, if one does.
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

/// What [`reclaim`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaimed {
    /// The slot was not `dead`'s (any more): nothing was done.
    NotTheirs,
    /// All that the process held is in the container's budget again.
    Exactly,
    /// The process was killed within an operation: the caller must [`settle`] the accounts of the bits that are set.
    InDoubt {
        /// Bit `n` stands for account number `n`.
        accounts: u32,
    },
}

/// Gives back all that the dead process `dead` held, and frees its slot. `reclaimer_pid` is who does it: a pid of the
/// dead process's namespace, or [`MANAGER_PID`].
///
/// Any number of callers may try at once: one of them does it.
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
    let in_doubt = empty_slot(ledger, index);
    for marker in &slot.markers {
        marker.store(0, Ordering::Relaxed);
    }
    slot.markers_per_device.store(0, Ordering::Relaxed);
    // Pairs with the acquiring exchange in `claim_free`: the next owner finds the slot empty. It fails only if the slot
    // was repaired meanwhile.
    let free = owner::word(owner::FREE, generation, 0);
    let _ = word.compare_exchange(reclaiming, free, Ordering::Release, Ordering::Relaxed);
    if in_doubt == 0 { Reclaimed::Exactly } else { Reclaimed::InDoubt { accounts: in_doubt } }
}

/// Empties a slot that nobody uses any more: gives back its bytes and clears its counters. Returns the accounts in
/// doubt.
fn empty_slot(ledger: &Ledger, index: usize) -> u32 {
    let Some(slot) = ledger.slots.get(index) else { return 0 };
    let mut in_doubt = 0;
    for number in 0..ACCOUNTS {
        let (Some(account), Some(part)) = (ledger.account(number), slot.memory(number)) else { continue };
        // Under way until the bytes are given back: whoever settles meanwhile must not count them as gone already.
        let word = part.swap(OPERATION, Ordering::AcqRel);
        if word & !BYTES_MASK == 0 {
            give_back(account, word);
        } else {
            in_doubt |= 1 << number;
        }
        part.store(0, Ordering::Release);
    }
    for part in &slot.devices {
        clear_counters(part);
    }
    in_doubt
}

fn clear_counters(part: &SlotDevice) {
    part.waiting.store(0, Ordering::Relaxed);
    part.markers_by_device.store(0, Ordering::Relaxed);
    for counter in [
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
    ] {
        counter.store(0, Ordering::Relaxed);
    }
}

/// Frees a slot that was left in the middle of being taken or reclaimed, by a process that is gone. The caller knows
/// that the process which the owner's word names is gone, and that nobody else repairs the ledger: only the manager
/// calls this. Returns the accounts to [`settle`].
pub fn repair(ledger: &Ledger, index: usize) -> u32 {
    let Some(word) = ledger.owners.get(index) else { return 0 };
    let found = word.load(Ordering::Acquire);
    if !matches!(owner::state(found), owner::CLAIMED | owner::RECLAIMING) {
        return 0;
    }
    empty_slot(ledger, index);
    let free = owner::word(owner::FREE, owner::generation(found), 0);
    let _ = word.compare_exchange(found, free, Ordering::Release, Ordering::Relaxed);
    // Whether the one who was reclaiming had subtracted the bytes is not known: settle them all.
    (1 << ACCOUNTS) - 1
}

/// Gives back all that stands in [`SHARED_SLOT`]: right only when the container has no process left.
pub fn empty_shared_slot(ledger: &Ledger) -> u32 {
    empty_slot(ledger, SHARED_SLOT)
}

/// [`settle`]s the accounts of the bits that are set, as far as that is possible now. What is not settled here stays
/// too high until the manager settles it.
fn settle_soon(ledger: &Ledger, accounts: u32) {
    // The model checker explores what each attempt can find: more than one adds nothing.
    const ATTEMPTS: u32 = if cfg!(loom) { 1 } else { 64 };
    for number in (0..ACCOUNTS).filter(|number| accounts & 1 << number != 0) {
        for _ in 0..ATTEMPTS {
            if settle(ledger, number) {
                break;
            }
        }
    }
}

/// Makes account `number` the sum of the slots again. Returns whether it could: not while an operation is under way
/// anywhere in the container. The caller tries again later.
pub fn settle(ledger: &Ledger, number: usize) -> bool {
    let Some(account) = ledger.account(number) else { return true };
    let used = account.used.load(Ordering::Acquire);
    // An operation whose middle step comes before the load above is seen under way, or in both; one whose middle step
    // comes after it makes the exchange below fail, by the count of changes.
    let Some(sum) = sum_at_rest(ledger, number) else { return false };
    if used & BYTES_MASK == sum {
        return account.used.load(Ordering::Acquire) == used;
    }
    let settled = (used & !BYTES_MASK).wrapping_add(CHANGE) | sum.min(BYTES_MAX);
    account.used.compare_exchange(used, settled, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// The sum of what the slots hold, if no operation is under way.
fn sum_at_rest(ledger: &Ledger, number: usize) -> Option<u64> {
    let mut sum: u64 = 0;
    for slot in &ledger.slots {
        let word = slot.memory(number)?.load(Ordering::Acquire);
        if word & !BYTES_MASK != 0 {
            return None;
        }
        sum = sum.saturating_add(word);
    }
    Some(sum)
}

/// Whether all work of the slot's owner on a device that a marker stands behind is done.
///
/// `row` is the device's in the slot: see [`Slot::row`](crate::region::Slot::row).
#[must_use]
pub fn drained(part: &SlotDevice, row: &[AtomicU64]) -> bool {
    let newest = part.marker_submitted.load(Ordering::Acquire);
    oldest_in_flight(0, newest, row).is_none()
}

/// Number of the oldest marker up to `newest` that the device has not written, or `None`. Those up to `done` are known to
/// be written.
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
        assert_eq!((used(&ledger), device.refused.load(Ordering::Relaxed)), (100, 2));
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
        let first = claim(&ledger, process(7), |_| true).unwrap();
        let second = claim(&ledger, process(8), |_| true).unwrap();
        assert_ne!(first.index, second.index);
        reserve(&ledger.devices[0], &ledger.slots[first.index].devices[0].memory, 10, 100).unwrap();
        reserve(&ledger.devices[0], &ledger.slots[second.index].devices[0].memory, 20, 100).unwrap();
        assert_eq!(reclaim(&ledger, first.index, process(8), MANAGER_PID), Reclaimed::NotTheirs);
        assert_eq!(reclaim(&ledger, first.index, process(7), MANAGER_PID), Reclaimed::Exactly);
        assert_eq!(used(&ledger), 20);
        assert_eq!(reclaim(&ledger, first.index, process(7), MANAGER_PID), Reclaimed::NotTheirs);
        let again = claim(&ledger, process(7), |_| true).unwrap();
        assert_eq!((again.index, again.generation), (first.index, first.generation + 1));
    }

    #[test]
    fn exec_leaves_nothing_behind() {
        let ledger = ledger();
        let before = claim(&ledger, process(7), |_| true).unwrap();
        reserve(&ledger.devices[0], &ledger.slots[before.index].devices[0].memory, 10, 100).unwrap();
        claim(&ledger, process(7), |_| true).unwrap();
        assert_eq!(used(&ledger), 0);
    }

    #[test]
    fn a_process_that_cannot_tell_who_it_is_never_takes_another_s_slot() {
        let ledger = ledger();
        // Two sandboxes without /proc: in each, the first process has the same pid.
        let nameless = Identity { pid: 2, start_time: 0, pid_namespace: 0 };
        let first = claim(&ledger, nameless, |_| true).unwrap();
        reserve(&ledger.devices[0], &ledger.slots[first.index].devices[0].memory, 10, 100).unwrap();
        let second = claim(&ledger, nameless, |_| true).unwrap();
        assert_ne!(first.index, second.index);
        for pid in 3..=SLOTS_MAX as u32 {
            let _ = claim(&ledger, Identity { pid, ..nameless }, |_| false);
        }
        assert_eq!((used(&ledger), identity(&ledger, first.index)), (10, Some(nameless)));
    }

    #[test]
    fn a_generation_wraps_within_its_bits() {
        let ledger = ledger();
        for word in &ledger.owners {
            word.store(owner::word(owner::FREE, 0xFF_FFFF, 0), Ordering::Relaxed);
        }
        let slot = claim(&ledger, process(7), |_| true).unwrap();
        assert_eq!((slot.generation, identity(&ledger, slot.index)), (0, Some(process(7))));
        assert_eq!(reclaim(&ledger, slot.index, process(7), MANAGER_PID), Reclaimed::Exactly);
    }

    #[test]
    fn a_reservation_greater_than_a_word_counts_never_spills_into_the_operations() {
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
    fn an_account_from_which_more_is_given_back_than_it_holds_is_empty() {
        for (held_bytes, forged_bytes) in [(0, 1), (5, 10), (BYTES_MAX, BYTES_MASK), (0, BYTES_MAX), (7, BYTES_MAX)] {
            let ledger = ledger();
            let device = &ledger.devices[0];
            device.used.store(held_bytes, Ordering::Relaxed);
            give_back(device, forged_bytes);
            assert_eq!(used(&ledger), 0, "{forged_bytes} of {held_bytes}");
            // And it works again.
            assert_eq!(reserve(device, &ledger.slots[1].devices[0].memory, 60, 100), Ok(()));
            release(device, &ledger.slots[1].devices[0].memory, 60);
            assert_eq!(used(&ledger), 0);
        }
    }

    #[test]
    fn an_overdrawn_account_grants_nothing_until_it_is_empty() {
        let ledger = ledger();
        let (device, slot) = (&ledger.devices[0], &ledger.slots[1].devices[0].memory);
        // As a process leaves it that is killed between the two steps.
        device.used.store(5_u64.wrapping_sub(10) & BYTES_MASK, Ordering::Relaxed);
        for bytes in [1, 5, 6, BYTES_MAX] {
            assert_eq!(reserve(device, slot, bytes, u64::MAX), Err(OverLimit));
        }
        give_back(device, 0);
        assert_eq!((used(&ledger), reserve(device, slot, 6, u64::MAX)), (0, Ok(())));
    }

    #[test]
    fn when_slots_run_out_the_dead_make_room_and_then_there_is_none() {
        let ledger = ledger();
        for pid in 1..SLOTS_MAX as u32 {
            claim(&ledger, process(pid), |_| true).unwrap();
        }
        assert_eq!(claim(&ledger, process(9999), |_| true), None);
        assert!(claim(&ledger, process(9999), |other| other.pid != 17).is_some());
    }

    #[test]
    fn a_kill_between_the_steps_is_settled() {
        // Each state that a kill can leave behind: (slot word, used) for reserve and release of 10 with 5 held before.
        for (word, total) in [(OPERATION | 15, 5), (OPERATION | 15, 15), (OPERATION | 15, 5)] {
            let ledger = ledger();
            let dead = claim(&ledger, process(7), |_| true).unwrap();
            let alive = claim(&ledger, process(8), |_| true).unwrap();
            reserve(&ledger.devices[0], &ledger.slots[alive.index].devices[0].memory, 3, 100).unwrap();
            ledger.slots[dead.index].devices[0].memory.store(word, Ordering::Relaxed);
            ledger.devices[0].used.fetch_add(total, Ordering::Relaxed);
            assert_eq!(reclaim(&ledger, dead.index, process(7), MANAGER_PID), Reclaimed::InDoubt { accounts: 1 });
            assert!(used(&ledger) >= 3);
            // Not while another process is within an operation.
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
        let row = ledger.slots[1].row(0).unwrap();
        assert_eq!(row.len(), 8, "a process that does not say how it divides the cells");
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
                    (me, claim(&ledger, me, |_| true).unwrap().index, Vec::new())
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
