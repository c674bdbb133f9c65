//! The processes of one slice: takes them in, gives back what they held, and finds those whose message was lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use aliquot_abi::ledger::{self, Identity, Reclaimed};
use aliquot_abi::region::{ACCOUNTS, AttachMessage, HOST_ACCOUNT, SLOTS_MAX, owner};
use rustix::fd::OwnedFd;

use crate::attach::socket::{self, Peer};
use crate::descriptors::Descriptors;
use crate::live::{Attached, AttachedSlot, LiveSlice};
use crate::procfs::{self, CommandLine, ProcessView};
use crate::region::view::{self, SlotState};

/// Attempts, one after the other, to settle accounts in doubt; then they are bounded instead. An operation takes
/// nanoseconds, unless its process was stopped in the middle of it or the ledger was damaged.
const SETTLE_ATTEMPTS: u32 = 100;
/// Minimum attempts left whenever an account newly comes into doubt.
const SETTLE_ATTEMPTS_ANEW: u32 = 10;

/// A process that is attached to the slice.
pub(super) struct Member {
    attached: Attached,
    /// Readable when the process has ended. `None`: no descriptor was left for it, and a sweep finds its end.
    pub(super) pidfd: Option<OwnedFd>,
}

/// The processes of one slice.
pub(super) struct Members {
    live: Arc<LiveSlice>,
    descriptors: Descriptors,
    by_pid: BTreeMap<u32, Member>,
    /// Bit `n`: the use of account `n` is uncertain until it is settled.
    in_doubt: u32,
    /// Failed attempts to settle so far.
    attempts: u32,
    /// Slots that were between two states at the last sweep, with their state words.
    between: BTreeMap<usize, u64>,
    /// The set of processes differs from the one published last.
    has_changed: bool,
}

/// Result of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The process was attached.
    Attached(u32),
    /// The process was attached already.
    Known,
    /// The message contradicts the kernel or the ledger.
    Refused,
    /// The sender has ended.
    Gone,
}

/// Result of a sweep.
#[derive(Default)]
pub(super) struct Swept {
    /// Processes that were attached.
    pub(super) found: Vec<u32>,
    /// Processes that have a pidfd again and can be watched.
    pub(super) watched: Vec<u32>,
    /// Slots that were given back.
    pub(super) given_back: u64,
}

impl Members {
    pub(super) fn new(live: Arc<LiveSlice>, descriptors: Descriptors) -> Members {
        let mut members = Members {
            live,
            descriptors,
            by_pid: BTreeMap::new(),
            in_doubt: 0,
            attempts: 0,
            between: BTreeMap::new(),
            has_changed: false,
        };
        // It is not known which accounts were in doubt under an earlier manager, so all are.
        members.doubt_all();
        members
    }

    pub(super) fn live(&self) -> &Arc<LiveSlice> {
        &self.live
    }

    pub(super) fn get(&self, pid: u32) -> Option<&Member> {
        self.by_pid.get(&pid)
    }

    /// Whether an account must be settled soon.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt != 0 && self.attempts < SETTLE_ATTEMPTS
    }

    fn doubt(&mut self, accounts: u32) {
        self.in_doubt |= accounts & self.accounts();
        self.attempts = self.attempts.min(SETTLE_ATTEMPTS - SETTLE_ATTEMPTS_ANEW);
    }

    fn doubt_all(&mut self) {
        self.doubt(u32::MAX);
    }

    /// The accounts that the slice has.
    fn accounts(&self) -> u32 {
        (1 << HOST_ACCOUNT) | ((1 << self.live.region.device_count()) - 1)
    }

    /// Takes in the sender of `message`, if the ledger agrees that the slot belongs to it.
    pub(super) fn attach(&mut self, peer: Peer, message: &AttachMessage) -> Outcome {
        let (index, generation) = (message.slot as usize, message.generation);
        let is_waiting = message.kind == AttachMessage::RING;
        if let Some(known) = self.by_pid.get(&peer.pid) {
            let slot = known.attached.slot;
            if (slot.index, slot.generation) == (index, generation) {
                if is_waiting {
                    self.restore(slot);
                }
                return Outcome::Known;
            }
            // After exec the same process takes a new slot and no longer owns the old one. A process cannot hold two
            // slots.
            if self.holds(slot) {
                return Outcome::Refused;
            }
            // Its other threads may have been within an operation when it called exec.
            self.doubt_all();
        }
        let Some(process) = ProcessView::of(peer.pid) else { return Outcome::Gone };
        let slot = match view::slot(self.live.region.ledger(), index) {
            SlotState::Attached(identity, found) if found == generation && process.is(identity) => {
                AttachedSlot { index, generation, identity }
            }
            // A process that waits at a gate is using its slot, even if the slot's state word was overwritten.
            SlotState::Free if is_waiting => {
                let slot = AttachedSlot { index, generation, identity: process.identity() };
                if !self.restore(slot) {
                    return Outcome::Refused;
                }
                slot
            }
            _ => return Outcome::Refused,
        };
        self.take_in(process, slot, peer.pidfd);
        Outcome::Attached(process.pid)
    }

    fn take_in(&mut self, process: ProcessView, slot: AttachedSlot, pidfd: Option<OwnedFd>) {
        let ProcessView { pid, own_pid, .. } = process;
        let attached = Attached { pid, own_pid, slot, command: procfs::command_later(pid), since: SystemTime::now() };
        // The pidfd is not kept if only the reserve of descriptors is left.
        let pidfd = pidfd.filter(|pidfd| self.descriptors.can_keep(pidfd));
        self.by_pid.insert(pid, Member { attached, pidfd });
        self.has_changed = true;
    }

    /// Restores the owner of a slot in the ledger if it was overwritten. Returns whether it did.
    fn restore(&mut self, AttachedSlot { index, generation, identity }: AttachedSlot) -> bool {
        let restored = ledger::restore(self.live.region.ledger(), index, generation, identity);
        if restored {
            // The slot's bytes were not counted while its state word was wrong.
            self.doubt_all();
        }
        restored
    }

    /// Notes that the process `pid` cannot be watched: a sweep finds its end.
    pub(super) fn unwatch(&mut self, pid: u32) {
        if let Some(member) = self.by_pid.get_mut(&pid) {
            member.pidfd = None;
        }
    }

    /// Whether some processes are unwatched, so that only sweeps find their end.
    pub(super) fn has_unwatched(&self) -> bool {
        self.by_pid.values().any(|member| member.pidfd.is_none())
    }

    fn holds(&self, slot: AttachedSlot) -> bool {
        view::slot(self.live.region.ledger(), slot.index) == SlotState::Attached(slot.identity, slot.generation)
    }

    /// Gives back what the ended process `pid` held. Returns whether it was attached.
    pub(super) fn ended(&mut self, pid: u32) -> bool {
        let Some(member) = self.by_pid.remove(&pid) else { return false };
        self.has_changed = true;
        self.give_back(member.attached.slot);
        self.settle();
        true
    }

    /// Counts what an ended process held as overhead until the driver has freed it.
    fn keep_what_the_driver_has(&self, slot: AttachedSlot) {
        let (live, ledger) = (&self.live, self.live.region.ledger());
        let held_bytes = if self.holds(slot) {
            let held_bytes = view::held_bytes(ledger, slot.index, live.region.device_count());
            // One process cannot hold more than all processes together.
            let bound = |(part, bytes): (usize, u64)| bytes.min(view::account(ledger, part).used_bytes);
            held_bytes.into_iter().enumerate().map(bound).collect()
        } else {
            Vec::new()
        };
        live.keep_as_overhead(&held_bytes);
    }

    fn give_back(&mut self, slot: AttachedSlot) {
        self.keep_what_the_driver_has(slot);
        let live = Arc::clone(&self.live);
        let ledger = live.region.ledger();
        // Another process can have given the slot back already, and a third one can own it by now.
        if self.holds(slot) {
            self.keep_counters(slot.index);
        }
        match ledger::reclaim(ledger, slot.index, slot.identity, ledger::MANAGER_PID) {
            Reclaimed::InDoubt { accounts } => self.doubt(accounts),
            Reclaimed::Exactly => {}
            Reclaimed::NotTheirs => {
                // The process that gave the slot back may not have been able to settle the accounts in doubt.
                self.doubt_all();
                // The process was killed while it gave back its own slot before an exec.
                let by_itself = owner::word(owner::RECLAIMING, slot.generation, slot.identity.pid);
                if matches!(view::slot(ledger, slot.index), SlotState::Between { word, .. } if word == by_itself) {
                    ledger::repair(ledger, slot.index);
                }
            }
        }
    }

    /// A slot's counters end with it; the slice keeps their sum.
    fn keep_counters(&self, index: usize) {
        for device in 0..self.live.region.device_count() {
            let sum = view::sum(self.live.region.ledger(), std::iter::once(index), device);
            let counters = self.live.counters(device);
            for (counter, ended) in [
                (&counters.ended_throttled_ns, sum.throttled_ns),
                (&counters.ended_launches, sum.launches),
                (&counters.ended_copies, sum.copies),
                (&counters.ended_copied_bytes, sum.copied_bytes),
                (&counters.ended_copy_ns, sum.copy_ns),
            ] {
                counter.fetch_add(ended, Ordering::Relaxed);
            }
        }
    }

    /// Tries to settle the accounts in doubt. An account that cannot be settled for long is bounded by what the live
    /// processes can hold, so that dead ones hold nothing. The next sweep tries again.
    pub(super) fn settle(&mut self) {
        if !self.is_in_doubt() {
            return;
        }
        let ledger = self.live.region.ledger();
        let (in_doubt, is_last) = (self.in_doubt, self.attempts + 1 == SETTLE_ATTEMPTS);
        for account in (0..ACCOUNTS).filter(|account| in_doubt & 1 << account != 0) {
            if ledger::settle(ledger, account) {
                self.in_doubt &= !(1 << account);
            } else if is_last {
                // Bounding fails only beside a running operation; the next sweep tries again.
                ledger::bound(ledger, account);
            }
        }
        self.attempts = if self.in_doubt == 0 { 0 } else { self.attempts + 1 };
    }

    /// Doubts and settles all accounts: whatever damaged the ledger, its accounts are right again after the next sweep.
    pub(super) fn settle_anew(&mut self) {
        self.doubt_all();
        self.settle();
    }

    /// The slot owners in the ledger that are not attached, with their slots.
    pub(super) fn strangers(&self) -> Vec<(usize, SlotState)> {
        let mut is_held = [false; SLOTS_MAX];
        for slot in self.by_pid.values().map(|member| member.attached.slot.index) {
            is_held[slot] = true;
        }
        view::slots(self.live.region.ledger()).filter(|&(index, _)| !is_held[index]).collect()
    }

    /// Looks for `strangers` among `processes`: takes in those found, and gives back what the others held. The
    /// processes must have been listed after the strangers; otherwise a process that took its slot later would be
    /// missing from the list though it is alive.
    pub(super) fn sweep(&mut self, strangers: Vec<(usize, SlotState)>, processes: &[ProcessView]) -> Swept {
        let mut swept = self.sweep_unwatched(processes);
        let between_before = std::mem::take(&mut self.between);
        for (index, state) in strangers {
            match state {
                SlotState::Attached(identity, generation) => {
                    let slot = AttachedSlot { index, generation, identity };
                    let mut alive = processes.iter().filter(|process| process.is(identity));
                    let Some(process) = alive.next() else {
                        self.give_back(slot);
                        swept.given_back += 1;
                        continue;
                    };
                    // A process without /proc does not know its whole identity, so several processes can match. Its
                    // next ring shows which one it is.
                    if alive.next().is_some() {
                        continue;
                    }
                    // If the process has ended meanwhile, the next sweep finds that out, with a descriptor or without.
                    if !self.by_pid.contains_key(&process.pid) {
                        self.take_in(*process, slot, open(process.pid, identity));
                        swept.found.push(process.pid);
                    }
                }
                SlotState::Between { word, by } => {
                    // A process stays between two states only briefly, but a stopped process may go on later. The
                    // manager gives slots back only from this thread, so its mark is from an earlier manager, which is
                    // gone.
                    let is_abandoned = by.pid == ledger::MANAGER_PID
                        || (between_before.get(&index) == Some(&word)
                            && !processes.iter().any(|process| process.is(by)));
                    if is_abandoned {
                        let accounts = ledger::repair(self.live.region.ledger(), index);
                        self.doubt(accounts);
                        swept.given_back += 1;
                    } else {
                        self.between.insert(index, word);
                    }
                }
                SlotState::Free => {}
            }
        }
        self.settle();
        swept
    }

    /// Handles the processes without a pidfd: gives back what the ended ones held, and tries again to watch the others.
    fn sweep_unwatched(&mut self, processes: &[ProcessView]) -> Swept {
        let unwatched = self.by_pid.iter().filter(|(_, member)| member.pidfd.is_none());
        let unwatched: Vec<(u32, Identity)> =
            unwatched.map(|(&pid, member)| (pid, member.attached.slot.identity)).collect();
        let mut swept = Swept::default();
        for (pid, identity) in unwatched {
            if !processes.iter().any(|process| process.pid == pid && process.is(identity)) {
                swept.given_back += u64::from(self.ended(pid));
            } else if let (Some(member), Some(pidfd)) = (self.by_pid.get_mut(&pid), open(pid, identity))
                && self.descriptors.can_keep(&pidfd)
            {
                member.pidfd = Some(pidfd);
                swept.watched.push(pid);
            }
        }
        swept
    }

    /// Publishes the processes if they have changed. Returns whether they had.
    pub(super) fn publish(&mut self) -> bool {
        if self.has_changed {
            self.live.set_processes(self.by_pid.values().map(|member| member.attached.clone()).collect());
        }
        std::mem::take(&mut self.has_changed)
    }
}

impl Member {
    /// The command line that it was started with.
    pub(super) fn command(&self) -> &CommandLine {
        &self.attached.command
    }
}

/// A pidfd of the process `pid`, if it is still the process `identity` and a descriptor is left.
fn open(pid: u32, identity: Identity) -> Option<OwnedFd> {
    socket::open_process(pid, || ProcessView::of(pid).is_some_and(|process| process.is(identity)))
}
