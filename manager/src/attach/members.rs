//! The processes of one slice: taking them in, giving back what they held, and finding those that were not heard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use aliquot_abi::ledger::{self, Reclaimed, SHARED_SLOT};
use aliquot_abi::region::{ACCOUNTS, AttachMessage, owner};
use rustix::fd::OwnedFd;

use crate::attach::socket::{self, Peer};
use crate::descriptors::Descriptors;
use crate::live::{Attached, AttachedSlot, LiveSlice};
use crate::procfs::{self, ProcessView};
use crate::region::view::{self, SlotState};

/// Processes of one slice that are held at a time. Those beyond the ledger's slots share one, and cost a descriptor
/// each.
const MEMBERS_MAX: usize = 4096;

/// [`Members::in_doubt`] for all accounts.
const ALL_ACCOUNTS: u32 = (1 << ACCOUNTS) - 1;

/// A process that is held.
pub(super) struct Member {
    attached: Attached,
    /// Readable when the process has ended.
    pub(super) pidfd: OwnedFd,
}

/// The processes of one slice.
pub(super) struct Members {
    live: Arc<LiveSlice>,
    by_pid: BTreeMap<u32, Member>,
    /// Bit `n`: what is used by account number `n` is not certain until it is settled.
    in_doubt: u32,
    /// Slots that were between two states at the last sweep, with their words.
    between: BTreeMap<usize, u64>,
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A process was taken in.
    Attached(u32),
    /// The process is in already.
    Known,
    /// It did not agree with what the kernel and the ledger say.
    Refused,
    /// The sender has ended.
    Gone,
}

impl Members {
    pub(super) fn new(live: Arc<LiveSlice>) -> Members {
        Members { live, by_pid: BTreeMap::new(), in_doubt: 0, between: BTreeMap::new() }
    }

    pub(super) fn live(&self) -> &Arc<LiveSlice> {
        &self.live
    }

    pub(super) fn get(&self, pid: u32) -> Option<&Member> {
        self.by_pid.get(&pid)
    }

    /// Whether some device's use is still to be settled.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt != 0
    }

    /// Takes in the sender of `message`, if the ledger agrees that the slot is its.
    pub(super) fn attach(&mut self, peer: Peer, message: &AttachMessage) -> Outcome {
        let index = message.slot as usize;
        let slot = if index == SHARED_SLOT { None } else { Some((index, message.generation)) };
        if let Some(known) = self.by_pid.get(&peer.pid) {
            let same = known.attached.slot.map(|slot| (slot.index, slot.generation)) == slot;
            if same {
                return Outcome::Known;
            }
            // After exec the same process takes a new slot, and the old one is not its any more. Two it cannot have.
            if known.attached.slot.is_some_and(|slot| self.holds(slot)) {
                return Outcome::Refused;
            }
            // Its other threads may have been within an operation when it called exec.
            self.in_doubt |= ALL_ACCOUNTS;
        }
        let Some(process) = ProcessView::of(peer.pid) else { return Outcome::Gone };
        let slot = match slot {
            None => None,
            Some((index, generation)) => match view::slot(self.live.region.ledger(), index) {
                SlotState::Attached(identity, found) if found == generation && process.is(identity) => {
                    Some(AttachedSlot { index, generation, identity })
                }
                _ => return Outcome::Refused,
            },
        };
        if self.by_pid.len() >= MEMBERS_MAX && !self.by_pid.contains_key(&peer.pid) {
            return Outcome::Refused;
        }
        self.take_in(process, slot, peer.pidfd);
        Outcome::Attached(process.pid)
    }

    fn take_in(&mut self, process: ProcessView, slot: Option<AttachedSlot>, pidfd: OwnedFd) {
        let ProcessView { pid, own_pid, .. } = process;
        let attached = Attached { pid, own_pid, slot, command: procfs::command(pid), since: SystemTime::now() };
        self.by_pid.insert(pid, Member { attached, pidfd });
        self.publish();
    }

    fn holds(&self, slot: AttachedSlot) -> bool {
        view::slot(self.live.region.ledger(), slot.index) == SlotState::Attached(slot.identity, slot.generation)
    }

    /// Gives back what the process `pid`, which has ended, held. Returns it, so that its pidfd can be let go.
    pub(super) fn ended(&mut self, pid: u32) -> Option<Member> {
        let member = self.by_pid.remove(&pid)?;
        if let Some(slot) = member.attached.slot {
            self.give_back(slot);
        }
        self.empty_shared_slot_if_last();
        self.settle();
        self.publish();
        Some(member)
    }

    /// What a process that has ended held is overhead until the driver has it back.
    fn keep_what_the_driver_has(&self, slot: AttachedSlot) {
        let (live, ledger) = (&self.live, self.live.region.ledger());
        let held_bytes = if self.holds(slot) {
            let held_bytes = view::held_bytes(ledger, slot.index, live.region.device_count());
            // No process holds more than all of them together.
            let bound = |(part, bytes): (usize, u64)| bytes.min(view::account(ledger, part).used_bytes);
            held_bytes.into_iter().enumerate().map(bound).collect()
        } else {
            Vec::new()
        };
        live.keep_as_overhead(&held_bytes);
    }

    fn give_back(&mut self, slot: AttachedSlot) {
        self.keep_what_the_driver_has(slot);
        let ledger = self.live.region.ledger();
        // Another process can have given the slot back, and somebody else can have it by now.
        if self.holds(slot) {
            self.keep_counters(slot.index);
        }
        match ledger::reclaim(ledger, slot.index, slot.identity, ledger::MANAGER_PID) {
            Reclaimed::InDoubt { accounts } => self.in_doubt |= accounts,
            Reclaimed::Exactly => {}
            Reclaimed::NotTheirs => {
                // Whoever gave it back may not have been able to settle what was in doubt.
                self.in_doubt |= ALL_ACCOUNTS;
                // Killed while it gave the slot back itself, to run another program.
                let by_itself = owner::word(owner::RECLAIMING, slot.generation, slot.identity.pid);
                if matches!(view::slot(ledger, slot.index), SlotState::Between { word, .. } if word == by_itself) {
                    self.in_doubt |= ledger::repair(ledger, slot.index);
                }
            }
        }
    }

    /// A slot's counters end with it; the slice's go on.
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

    fn empty_shared_slot_if_last(&mut self) {
        let ledger = self.live.region.ledger();
        if self.by_pid.is_empty() && view::slots(ledger).next().is_none() {
            self.keep_counters(SHARED_SLOT);
            self.in_doubt |= ledger::empty_shared_slot(ledger);
        }
    }

    /// Tries to make certain again what is used.
    pub(super) fn settle(&mut self) {
        let ledger = self.live.region.ledger();
        for account in 0..ACCOUNTS {
            let bit = 1 << account;
            if self.in_doubt & bit != 0 && ledger::settle(ledger, account) {
                self.in_doubt &= !bit;
            }
        }
    }

    /// The owners that the ledger names and that are not held, with their slots.
    pub(super) fn strangers(&self) -> Vec<(usize, SlotState)> {
        let slots = view::slots(self.live.region.ledger());
        slots.filter(|(index, _)| !self.by_pid.values().any(|member| member.is_at(*index))).collect()
    }

    /// Looks for `strangers` among `processes`: takes in whom it finds, gives back what the others held. The processes
    /// must have been listed after the strangers: one who took a slot later would be missing from the list, and is
    /// alive. Returns the pids of those taken in, and the number of slots given back.
    pub(super) fn sweep(
        &mut self,
        strangers: Vec<(usize, SlotState)>,
        processes: &[ProcessView],
        descriptors: Descriptors,
    ) -> (Vec<u32>, u64) {
        let (mut found, mut given_back) = (Vec::new(), 0);
        let between_before = std::mem::take(&mut self.between);
        for (index, state) in strangers {
            match state {
                SlotState::Attached(identity, generation) => {
                    let slot = AttachedSlot { index, generation, identity };
                    let mut alive = processes.iter().filter(|process| process.is(identity));
                    let Some(process) = alive.next() else {
                        self.give_back(slot);
                        given_back += 1;
                        continue;
                    };
                    // A process without /proc does not know all of its identity. Which of these it is shows when it
                    // rings.
                    if alive.next().is_some() {
                        continue;
                    }
                    let is_it = || ProcessView::of(process.pid).is_some_and(|process| process.is(identity));
                    let room = self.by_pid.len() < MEMBERS_MAX && !self.by_pid.contains_key(&process.pid);
                    let pidfd = socket::open_process(process.pid, is_it).filter(|pidfd| descriptors.can_keep(pidfd));
                    // One that has ended meanwhile, or cannot be watched, is looked at again at the next sweep.
                    if let (true, Some(pidfd)) = (room, pidfd) {
                        self.take_in(*process, Some(slot), pidfd);
                        found.push(process.pid);
                    }
                }
                SlotState::Between { word, by } => {
                    // Nobody stays between two states for long; but one who is stopped there may go on. A manager gives
                    // slots back from this thread alone: it was the one before, which is gone.
                    let is_abandoned = by.pid == ledger::MANAGER_PID
                        || (between_before.get(&index) == Some(&word)
                            && !processes.iter().any(|process| process.is(by)));
                    if is_abandoned {
                        self.in_doubt |= ledger::repair(self.live.region.ledger(), index);
                        given_back += 1;
                    } else {
                        self.between.insert(index, word);
                    }
                }
                SlotState::Free => {}
            }
        }
        if given_back > 0 {
            self.empty_shared_slot_if_last();
        }
        self.settle();
        (found, given_back)
    }

    fn publish(&self) {
        self.live.set_processes(self.by_pid.values().map(|member| member.attached.clone()).collect());
    }
}

impl Member {
    /// What it was started as.
    pub(super) fn command(&self) -> &str {
        self.attached.command.text()
    }

    fn is_at(&self, index: usize) -> bool {
        self.attached.slot.is_some_and(|slot| slot.index == index)
    }
}
