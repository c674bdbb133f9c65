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
fn a_too_large_reservation_keeps_the_count_of_operations() {
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
fn an_endless_operation_keeps_no_bytes_of_the_dead_charged() {
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
