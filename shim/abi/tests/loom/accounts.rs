//! Accounts: reservations, releases, kills in the middle of them, settling, and rounding.

use super::*;

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
fn a_kill_during_a_reservation_leaves_nothing_behind() {
    explore_a_kill_in(|worker| {
        worker.reserve(4);
    });
}

#[test]
fn a_kill_during_a_release_leaves_nothing_behind() {
    explore_a_kill_in(|worker| worker.release(1));
}

#[test]
fn a_kill_during_a_refused_reservation_leaves_nothing_behind() {
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
fn settling_is_exact_while_bytes_of_the_dead_are_given_back() {
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
