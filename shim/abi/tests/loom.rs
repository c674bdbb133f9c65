//! Models of the protocols on a region's shared memory, explored by loom. Each test runs once for every order in which
//! the accesses of its processes can take place, and for every value that the memory model lets an access see.
//!
//! Processes are threads here. A killed process ends just before one of its accesses, and a test with kills repeats the
//! model for each of these accesses in turn. models.rs runs these tests together with all others; alone they run by:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p aliquot-abi --test loom --release
//! ```

#![cfg(loom)]

use std::array::from_fn;

use aliquot_abi::atomic::mortal::{End, killed_after};
use aliquot_abi::atomic::{AtomicU32, AtomicU64, Ordering};
use aliquot_abi::handshake;
use aliquot_abi::ledger::{
    BYTES_MASK, Identity, MANAGER_PID, OPERATION, Reclaimed, bound, claim, held_bytes, identity, reclaim, release,
    repair, reserve, settle, used_bytes,
};
use aliquot_abi::pacing::charge;
use aliquot_abi::region::{Account, Header, Ledger, SLOTS_MAX, Slot, SlotDevice, gate, owner};
use aliquot_abi::rounding::{Look, Unseen, note_given, note_taken_back, rounding_bytes};
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

/// The most switches between threads in one run that are not forced. Nearly all errors need no more than two, and each
/// further one multiplies the number of runs.
const PREEMPTIONS_MAX: usize = 3;

const DEVICE: usize = 0;
const LIMIT_BYTES: u64 = 10;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_with(PREEMPTIONS_MAX, model);
}

fn explore_with(preemptions_max: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions_max);
    builder.check(model);
}

/// Explores `model` with a process that is killed before its first access, then before its second one, and so on until
/// it reaches its end.
fn explore_kills(model: impl Fn(usize) -> End + Sync + Send + Copy + 'static) {
    for accesses in 0.. {
        let natural = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        let ends = std::sync::Arc::clone(&natural);
        explore(move || {
            if model(accesses) == End::Killed {
                ends.store(false, std::sync::atomic::Ordering::Relaxed);
            }
        });
        if natural.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
    }
}

fn word() -> AtomicU64 {
    AtomicU64::new(0)
}

fn account() -> Account {
    Account {
        used: word(),
        peak_bytes: word(),
        refused: word(),
        charged_until_ns: word(),
        paced_until_ns: word(),
        rounding_bytes: word(),
        reserved: [0; _],
    }
}

fn slot_device() -> SlotDevice {
    SlotDevice {
        memory: word(),
        waiting: AtomicU32::new(0),
        markers_by_device: AtomicU32::new(0),
        marker_submitted: word(),
        marker_submitted_ns: word(),
        busy_since_ns: word(),
        launches: word(),
        throttled_ns: word(),
        copies: word(),
        copied_bytes: word(),
        copy_ns: word(),
        overhead_bytes: word(),
        used_permille: word(),
        contexts: word(),
        context_bytes: word(),
        moving_bytes: word(),
        reserved: 0,
    }
}

/// A ledger as the manager makes it.
fn ledger() -> Arc<Ledger> {
    Arc::new(Ledger {
        header: Header {
            magic: word(),
            major: AtomicU32::new(0),
            minor: AtomicU32::new(0),
            file_bytes: word(),
            region_id: word(),
        },
        reserved: [0; _],
        devices: from_fn(|_| account()),
        host: account(),
        reserved_page: [0; _],
        owners: from_fn(|_| word()),
        start_times: from_fn(|_| word()),
        slots: from_fn(|_| Slot {
            devices: from_fn(|_| slot_device()),
            pid_namespace: word(),
            host_memory: word(),
            markers_per_device: word(),
            reserved: [0; _],
            markers: from_fn(|_| word()),
        }),
    })
}

fn process(pid: u32) -> Identity {
    Identity { pid, start_time: 1000 + u64::from(pid), pid_namespace: 1 }
}

/// Gives slot `index` to the process `pid`. `word` holds its bytes and its operations under way; `accounted_bytes` are
/// those that the account contains for it.
fn settle_down(ledger: &Ledger, index: usize, pid: u32, word: u64, accounted_bytes: u64) {
    ledger.start_times[index].store(process(pid).start_time, Ordering::Relaxed);
    ledger.slots[index].pid_namespace.store(process(pid).pid_namespace, Ordering::Relaxed);
    ledger.owners[index].store(owner::word(owner::ATTACHED, 1, pid), Ordering::Relaxed);
    ledger.slots[index].devices[DEVICE].memory.store(word, Ordering::Relaxed);
    ledger.devices[DEVICE].used.fetch_add(accounted_bytes, Ordering::Relaxed);
}

/// A process at work, and the index of its slot.
struct Worker<'a> {
    ledger: &'a Ledger,
    index: usize,
}

impl Worker<'_> {
    fn part(&self) -> &AtomicU64 {
        &self.ledger.slots[self.index].devices[DEVICE].memory
    }

    fn reserve(&self, bytes: u64) -> bool {
        reserve(&self.ledger.devices[DEVICE], self.part(), bytes, LIMIT_BYTES).is_ok()
    }

    fn release(&self, bytes: u64) {
        release(&self.ledger.devices[DEVICE], self.part(), bytes);
    }

    /// The main invariant, as a live process sees it.
    fn sees_itself_accounted(&self, held_bytes: u64) {
        assert!(used_bytes(&self.ledger.devices[DEVICE]) >= held_bytes, "less is accounted than this process holds");
    }
}

fn used(ledger: &Ledger) -> u64 {
    used_bytes(&ledger.devices[DEVICE])
}

fn held(ledger: &Ledger, index: usize) -> u64 {
    held_bytes(&ledger.slots[index].devices[DEVICE].memory)
}

/// What must hold when no process does anything: each account is the sum of the slots, and settling leaves it so.
fn is_in_order_at_rest(ledger: &Ledger) {
    let sum: u64 = (0..SLOTS_MAX).map(|index| held(ledger, index)).sum();
    assert_eq!(used(ledger), sum, "the account is not the sum of the slots");
    assert!(settle(ledger, DEVICE));
    assert_eq!(used(ledger), sum, "settling changed an account that was right");
}

fn run<T: 'static>(ledger: &Arc<Ledger>, life: impl FnOnce(&Ledger) -> T + 'static) -> JoinHandle<T> {
    let ledger = Arc::clone(ledger);
    thread::spawn(move || life(&ledger))
}

#[test]
fn racing_reservations_never_pass_the_limit() {
    explore(|| {
        let ledger = ledger();
        [1, 2].into_iter().for_each(|index| settle_down(&ledger, index, 10 + index as u32, 0, 0));
        let workers: Vec<_> = [1, 2]
            .map(|index| {
                run(&ledger, move |ledger| {
                    let worker = Worker { ledger, index };
                    let reserved = worker.reserve(6);
                    if reserved {
                        worker.sees_itself_accounted(6);
                        assert!(used(ledger) <= LIMIT_BYTES);
                        worker.release(2);
                        worker.sees_itself_accounted(4);
                    }
                    reserved
                })
            })
            .into();
        let reserved = workers.into_iter().map(|worker| worker.join().unwrap()).filter(|&reserved| reserved).count();
        assert!(reserved >= 1, "one of the two must have had room");
        assert_eq!(used(&ledger), 4 * reserved as u64);
        assert!(ledger.devices[DEVICE].peak_bytes.load(Ordering::Relaxed) <= LIMIT_BYTES);
        is_in_order_at_rest(&ledger);
    });
}

#[test]
fn threads_of_one_process_share_its_part() {
    explore(|| {
        let ledger = ledger();
        settle_down(&ledger, 1, 11, 0, 0);
        let threads: Vec<_> = [2, 3]
            .map(|bytes| {
                run(&ledger, move |ledger| {
                    let worker = Worker { ledger, index: 1 };
                    assert!(worker.reserve(bytes));
                    worker.release(1);
                })
            })
            .into();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((used(&ledger), held(&ledger, 1)), (3, 3));
        is_in_order_at_rest(&ledger);
    });
}

/// A process is killed in the middle of `operation` while another one works, and the manager puts the books right.
fn explore_a_kill_in(operation: fn(&Worker<'_>)) {
    explore_kills(move |accesses| {
        let ledger = ledger();
        settle_down(&ledger, 1, 11, 2, 2);
        settle_down(&ledger, 2, 12, 0, 0);
        let victim = run(&ledger, move |ledger| killed_after(accesses, || operation(&Worker { ledger, index: 1 })));
        let bystander = run(&ledger, |ledger| {
            let worker = Worker { ledger, index: 2 };
            // Refused only if the victim's own reservation came first.
            if worker.reserve(3) {
                worker.sees_itself_accounted(3);
                worker.release(1);
                worker.sees_itself_accounted(2);
            }
        });
        // The manager reclaims after the kernel has reported the end of the process.
        let end = victim.join().unwrap();
        let in_doubt = match reclaim(&ledger, 1, process(11), MANAGER_PID) {
            Reclaimed::NotTheirs => panic!("nobody else gives this slot back"),
            Reclaimed::Exactly => false,
            Reclaimed::InDoubt { accounts } => {
                assert_eq!(accounts, 1 << DEVICE);
                assert_eq!(end, End::Killed, "a process that came to its end was in the middle of something");
                true
            }
        };
        let settled = in_doubt && settle(&ledger, DEVICE);
        bystander.join().unwrap();
        if in_doubt && !settled {
            assert!(used(&ledger) >= held(&ledger, 2), "less is accounted than the bystander holds");
            assert!(settle(&ledger, DEVICE), "nothing is under way");
        }
        assert_eq!(held(&ledger, 1), 0);
        is_in_order_at_rest(&ledger);
        end
    });
}

#[test]
fn a_process_killed_at_any_moment_of_a_reservation_leaves_nothing_behind() {
    explore_a_kill_in(|worker| {
        worker.reserve(4);
    });
}

#[test]
fn a_process_killed_at_any_moment_of_a_release_leaves_nothing_behind() {
    explore_a_kill_in(|worker| worker.release(1));
}

#[test]
fn a_process_killed_at_any_moment_of_a_refused_reservation_leaves_nothing_behind() {
    // The victim holds two bytes, so seven more fit only while the bystander holds none.
    explore_a_kill_in(|worker| {
        worker.reserve(7);
    });
}

#[test]
fn settling_is_exact_while_processes_go_on() {
    explore(|| {
        let ledger = ledger();
        // A process that is gone has left four bytes too many.
        settle_down(&ledger, 1, 11, 0, 4);
        let worker = run(&ledger, |ledger| {
            let worker = Worker { ledger, index: 1 };
            if worker.reserve(3) {
                worker.sees_itself_accounted(3);
                worker.release(2);
                worker.sees_itself_accounted(1);
            }
        });
        let settled = settle(&ledger, DEVICE);
        worker.join().unwrap();
        if settled {
            // Once the account is right, every operation keeps it right.
            assert_eq!(used(&ledger), held(&ledger, 1));
        }
        assert!(settle(&ledger, DEVICE));
        is_in_order_at_rest(&ledger);
    });
}

#[test]
fn settling_notices_that_bytes_moved_between_processes() {
    explore(|| {
        let ledger = ledger();
        // One process frees as much as the other reserves. So the account's bytes are unchanged between two readings of
        // the slots.
        settle_down(&ledger, 1, 11, 0, 4);
        settle_down(&ledger, 2, 12, 2, 2);
        let taker = run(&ledger, |ledger| assert!(Worker { ledger, index: 1 }.reserve(2)));
        let giver = run(&ledger, |ledger| Worker { ledger, index: 2 }.release(2));
        let settled = settle(&ledger, DEVICE);
        taker.join().unwrap();
        giver.join().unwrap();
        assert_eq!(used(&ledger), if settled { 2 } else { 6 });
    });
}

#[test]
fn settling_is_exact_while_a_dead_process_s_bytes_are_given_back() {
    explore(|| {
        let ledger = ledger();
        settle_down(&ledger, 1, 11, 3, 3 + 4);
        settle_down(&ledger, 2, 12, 2, 2);
        let manager =
            run(&ledger, |ledger| assert_eq!(reclaim(ledger, 1, process(11), MANAGER_PID), Reclaimed::Exactly));
        let settled = settle(&ledger, DEVICE);
        assert!(used(&ledger) >= 2, "less is accounted than the other process holds");
        manager.join().unwrap();
        if settled {
            assert_eq!(used(&ledger), 2);
        }
        assert!(settle(&ledger, DEVICE));
        assert_eq!(used(&ledger), 2);
    });
}

#[test]
fn an_account_that_is_bounded_is_never_too_low() {
    explore(|| {
        let ledger = ledger();
        // A process that was stopped within a reservation of one byte, and one that is dead.
        settle_down(&ledger, 1, 11, OPERATION | 1, 0);
        settle_down(&ledger, 2, 12, 2, 2 + 4);
        let worker = run(&ledger, |ledger| {
            // The stopped process goes on.
            ledger.devices[DEVICE].used.fetch_add((1 << 48) + 1, Ordering::AcqRel);
            ledger.slots[1].devices[DEVICE].memory.fetch_sub(OPERATION, Ordering::Release);
            let worker = Worker { ledger, index: 1 };
            worker.sees_itself_accounted(1);
            worker.release(1);
        });
        let reclaimer = run(&ledger, |ledger| reclaim(ledger, 2, process(12), 13));
        bound(&ledger, DEVICE);
        worker.join().unwrap();
        assert_eq!(reclaimer.join().unwrap(), Reclaimed::Exactly);
        assert!(settle(&ledger, DEVICE));
        is_in_order_at_rest(&ledger);
        assert_eq!(used(&ledger), 0);
    });
}

#[test]
fn two_concurrent_settlements_do_not_undo_each_other() {
    explore(|| {
        let ledger = ledger();
        settle_down(&ledger, 1, 11, 1, 1 + 4);
        let other = run(&ledger, |ledger| settle(ledger, DEVICE));
        let worker = run(&ledger, |ledger| {
            Worker { ledger, index: 1 }.release(1);
        });
        let settled = settle(&ledger, DEVICE);
        let settled = other.join().unwrap() | settled;
        worker.join().unwrap();
        if settled {
            assert_eq!(used(&ledger), 0);
        }
    });
}

#[test]
fn exactly_one_of_two_reclaimers_frees_a_slot() {
    for (word, accounted_bytes) in [(3, 3), (OPERATION | 3, 3), (OPERATION | 3, 0)] {
        explore(move || {
            let ledger = ledger();
            settle_down(&ledger, 1, 11, word, accounted_bytes);
            settle_down(&ledger, 2, 12, 2, 2);
            let claimer = run(&ledger, |ledger| reclaim(ledger, 1, process(11), 12));
            let by_manager = reclaim(&ledger, 1, process(11), MANAGER_PID);
            let by_claimer = claimer.join().unwrap();
            assert!((by_manager == Reclaimed::NotTheirs) != (by_claimer == Reclaimed::NotTheirs));
            assert!(used(&ledger) >= 2);
            assert!(settle(&ledger, DEVICE));
            assert_eq!((used(&ledger), owner::state(ledger.owners[1].load(Ordering::Relaxed))), (2, owner::FREE));
        });
    }
}

#[test]
fn a_slot_has_one_owner_at_a_time_and_each_owner_has_its_own_generation() {
    explore(|| {
        let ledger = ledger();
        // The other slot is taken, so that all compete for the same one.
        settle_down(&ledger, 2, 12, 0, 0);
        let claims: Vec<_> = [21, 22]
            .map(|pid| {
                run(&ledger, move |ledger| {
                    let slot = claim(ledger, process(pid), |_| true, |_| true)?;
                    assert_eq!(identity(ledger, slot.index), Some(process(pid)), "the slot is not its owner's");
                    // The process ends, and its slot is free for the next one.
                    assert!(
                        reserve(&ledger.devices[DEVICE], &ledger.slots[slot.index].devices[DEVICE].memory, 1, 1)
                            .is_ok()
                    );
                    assert_eq!(reclaim(ledger, slot.index, process(pid), MANAGER_PID), Reclaimed::Exactly);
                    Some(slot.generation)
                })
            })
            .into();
        let mut generations: Vec<u32> = claims.into_iter().filter_map(|claim| claim.join().unwrap()).collect();
        generations.sort_unstable();
        assert!(generations == [1] || generations == [1, 2], "{generations:?}");
        assert_eq!(used(&ledger), 0);
    });
}

#[test]
fn two_claimers_that_reclaim_dead_processes_get_different_slots() {
    // Two complete claims are long: with one more preemption this test would take minutes.
    explore_with(1, || {
        let ledger = ledger();
        settle_down(&ledger, 1, 11, 3, 3);
        settle_down(&ledger, 2, 12, OPERATION | 4, 4);
        let claims: Vec<_> = [21, 22]
            .map(|pid| {
                run(&ledger, move |ledger| {
                    let slot = claim(ledger, process(pid), |other| other.pid > 20, |_| true)?;
                    assert!(
                        reserve(
                            &ledger.devices[DEVICE],
                            &ledger.slots[slot.index].devices[DEVICE].memory,
                            1,
                            LIMIT_BYTES
                        )
                        .is_ok()
                    );
                    Some((pid, slot))
                })
            })
            .into();
        let slots: Vec<_> = claims.into_iter().filter_map(|claim| claim.join().unwrap()).collect();
        assert!(!slots.is_empty());
        for (pid, slot) in &slots {
            assert_eq!(identity(&ledger, slot.index), Some(process(*pid)));
            assert_eq!(held(&ledger, slot.index), 1);
        }
        assert!(settle(&ledger, DEVICE));
        assert_eq!(used(&ledger), slots.len() as u64);
    });
}

#[test]
fn a_search_for_dead_processes_never_reclaims_a_new_owner_s_slot() {
    explore(|| {
        let ledger = ledger();
        settle_down(&ledger, 1, 11, 3, 3);
        settle_down(&ledger, 2, 12, 0, 0);
        let newcomer = run(&ledger, |ledger| {
            let slot = claim(ledger, process(21), |other| other.pid != 11, |_| true)?;
            let worker = Worker { ledger, index: slot.index };
            assert!(worker.reserve(2));
            worker.sees_itself_accounted(2);
            Some(slot)
        });
        // The search for dead processes: the slot may change owners while it reads, so it may read parts of two
        // identities.
        for index in 1..SLOTS_MAX {
            if let Some(found) = identity(&ledger, index)
                && found != process(12)
                && found != process(21)
            {
                let reclaimed = reclaim(&ledger, index, found, MANAGER_PID);
                assert!(found == process(11) || reclaimed == Reclaimed::NotTheirs, "{found:?}");
            }
        }
        let slot = newcomer.join().unwrap();
        if let Some(slot) = slot {
            assert_eq!((slot.index, identity(&ledger, 1)), (1, Some(process(21))));
        }
        assert_eq!(used(&ledger), if slot.is_some() { 2 } else { 0 });
    });
}

#[test]
fn a_process_killed_while_it_takes_a_slot_leaves_a_slot_that_can_be_repaired() {
    explore_kills(|accesses| {
        let ledger = ledger();
        settle_down(&ledger, 2, 12, 0, 0);
        let victim =
            run(&ledger, move |ledger| killed_after(accesses, || _ = claim(ledger, process(21), |_| true, |_| true)));
        let other = run(&ledger, |ledger| claim(ledger, process(22), |_| true, |_| true));
        let end = victim.join().unwrap();
        let found = ledger.owners[1].load(Ordering::Relaxed);
        if owner::state(found) == owner::CLAIMED && owner::pid(found) == 21 {
            repair(&ledger, 1);
        }
        let other = other.join().unwrap();
        assert!(other.is_none_or(|slot| identity(&ledger, slot.index) == Some(process(22))));
        let state = owner::state(ledger.owners[1].load(Ordering::Relaxed));
        assert!(matches!(state, owner::FREE | owner::ATTACHED), "the slot is lost");
        end
    });
}

#[test]
fn a_process_killed_while_it_gives_a_slot_back_leaves_it_to_the_manager() {
    for (word, accounted_bytes) in [(3, 3), (OPERATION | 3, 3), (OPERATION | 3, 0)] {
        explore_kills(move |accesses| {
            let ledger = ledger();
            settle_down(&ledger, 1, 11, word, accounted_bytes);
            settle_down(&ledger, 2, 12, 0, 0);
            let victim = run(&ledger, move |ledger| killed_after(accesses, || _ = reclaim(ledger, 1, process(11), 21)));
            let bystander = run(&ledger, |ledger| {
                let worker = Worker { ledger, index: 2 };
                assert!(worker.reserve(2));
                worker.sees_itself_accounted(2);
            });
            let end = victim.join().unwrap();
            let found = ledger.owners[1].load(Ordering::Relaxed);
            match owner::state(found) {
                owner::ATTACHED => _ = reclaim(&ledger, 1, process(11), MANAGER_PID),
                owner::RECLAIMING => {
                    assert_eq!(owner::pid(found), 21, "the manager must find out that this one is gone");
                    let in_doubt = repair(&ledger, 1);
                    assert_ne!(in_doubt & 1 << DEVICE, 0);
                }
                _ => {}
            }
            bystander.join().unwrap();
            assert!(used(&ledger) >= 2);
            assert!(settle(&ledger, DEVICE), "the dead must not keep an operation under way");
            assert_eq!(used(&ledger), 2);
            assert_eq!(owner::state(ledger.owners[1].load(Ordering::Relaxed)), owner::FREE);
            end
        });
    }
}

#[test]
fn the_count_of_changes_wraps_without_touching_the_bytes() {
    explore(|| {
        let ledger = ledger();
        [1, 2].into_iter().for_each(|index| settle_down(&ledger, index, 10 + index as u32, 0, 0));
        ledger.devices[DEVICE].used.store(!BYTES_MASK, Ordering::Relaxed);
        let other = run(&ledger, |ledger| assert!(Worker { ledger, index: 1 }.reserve(4)));
        assert!(Worker { ledger: &ledger, index: 2 }.reserve(5));
        other.join().unwrap();
        assert_eq!(used(&ledger), 9);
        is_in_order_at_rest(&ledger);
    });
}

#[test]
fn an_overdrawn_account_ends_empty() {
    explore(|| {
        let ledger = ledger();
        // Forged: the two processes hold three bytes, but the account says one.
        settle_down(&ledger, 1, 11, 2, 1);
        settle_down(&ledger, 2, 12, 1, 0);
        let other = run(&ledger, |ledger| Worker { ledger, index: 1 }.release(2));
        Worker { ledger: &ledger, index: 2 }.release(1);
        other.join().unwrap();
        assert_eq!(used(&ledger), 0);
        is_in_order_at_rest(&ledger);
        assert!(Worker { ledger: &ledger, index: 2 }.reserve(LIMIT_BYTES));
    });
}

/// A driver that gives whole blocks, a manager that looks, and two threads that both allocate or both free.
#[test]
fn all_rounding_is_overhead_or_unseen_after_a_look() {
    const BYTES: u64 = (2 << 20) + 1;
    let taken_bytes = BYTES + rounding_bytes(BYTES);
    for allocate in [true, false] {
        explore_with(2, move || {
            let ledger = ledger();
            settle_down(&ledger, 1, 11, 2 * BYTES, 2 * BYTES);
            (0..2).for_each(|_| note_given(&ledger.devices[DEVICE], BYTES));
            let driver = Arc::new(AtomicU64::new(2 * taken_bytes));
            let change = move |driver: &AtomicU64, ledger: &Ledger| {
                let (account, part) = (&ledger.devices[DEVICE], &ledger.slots[1].devices[DEVICE]);
                part.moving_bytes.fetch_add(BYTES, Ordering::Relaxed);
                if allocate {
                    reserve(account, &part.memory, BYTES, u64::MAX).unwrap();
                    driver.fetch_add(taken_bytes, Ordering::AcqRel);
                    note_given(account, BYTES);
                } else {
                    driver.fetch_sub(taken_bytes, Ordering::AcqRel);
                    release(account, &part.memory, BYTES);
                    note_taken_back(account, BYTES);
                }
                part.moving_bytes.fetch_sub(BYTES, Ordering::Release);
            };
            let threads = [(); 2].map(|()| {
                let driver = Arc::clone(&driver);
                run(&ledger, move |ledger| change(&driver, ledger))
            });
            let account = &ledger.devices[DEVICE];
            let parts = || std::iter::once(&ledger.slots[1].devices[DEVICE]);
            let look = Look::begin(account, parts());
            let driver_bytes = driver.load(Ordering::Acquire);
            let looked = look.end(account, parts());
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let overhead_bytes = driver_bytes.saturating_sub(looked.used_bytes);
            let unseen_bytes = Unseen::of(account, looked.seen).bytes();
            let known_bytes = used(&ledger) + overhead_bytes + unseen_bytes;
            let taken_bytes = driver.load(Ordering::Acquire);
            assert!(known_bytes >= taken_bytes, "{known_bytes} bytes are known, and {taken_bytes} are taken");
        });
    }
}

#[test]
fn a_waiting_thread_rings_or_is_seen_by_a_manager_that_goes_to_sleep() {
    explore(|| {
        let gate = Arc::new((AtomicU32::new(gate::WATCHED), AtomicU32::new(0)));
        let waiter = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                let (word, waiting) = &*gate;
                handshake::must_ring(handshake::count_in(waiting, word))
            })
        };
        let (word, waiting) = &*gate;
        handshake::set(word, 0);
        let is_seen = waiting.load(Ordering::Relaxed) != 0;
        let rings = waiter.join().unwrap();
        assert!(rings || is_seen, "it would wait until something else wakes the manager");
    });
}

#[test]
fn a_thread_at_an_open_gate_sees_what_was_written_before() {
    explore(|| {
        let region = Arc::new((AtomicU32::new(0), AtomicU32::new(0), word()));
        let waiter = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                let (word, waiting, limit) = &*region;
                let found = handshake::count_in(waiting, word);
                if found & gate::OPEN != 0 {
                    assert_eq!(limit.load(Ordering::Relaxed), LIMIT_BYTES);
                }
            })
        };
        let (word, _, limit) = &*region;
        limit.store(LIMIT_BYTES, Ordering::Relaxed);
        assert_eq!(handshake::set(word, gate::OPEN), 0);
        waiter.join().unwrap();
    });
}

/// One process pays for the first half of a stretch of time and another for all of it, in any order.
#[test]
fn self_pacing_processes_pay_for_time_once() {
    explore(|| {
        let account = Arc::new(account());
        let payers = [50, 100].map(|until_ns| {
            let account = Arc::clone(&account);
            thread::spawn(move || charge(&account, 0, until_ns, 100, 50))
        });
        let paid_ns: u64 = payers.map(|payer| payer.join().unwrap()).iter().sum();
        assert_eq!(paid_ns, 100);
        assert_eq!(account.paced_until_ns.load(Ordering::Relaxed), 200);
    });
}
