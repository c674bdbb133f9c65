//! Device time: the gate, and self-pacing.

use super::*;

#[test]
fn a_waiting_thread_rings_or_is_seen_before_the_manager_sleeps() {
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
