//! Slots: claims, reclaims, and kills in the middle of them.

use super::*;

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
fn a_slot_has_one_owner_at_a_time_with_its_own_generation() {
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
fn a_search_for_the_dead_never_reclaims_a_new_owners_slot() {
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
fn a_kill_while_a_slot_is_taken_leaves_one_to_be_repaired() {
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
fn a_kill_while_a_slot_is_given_back_leaves_it_to_the_manager() {
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
