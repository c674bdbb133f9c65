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

mod accounts;
mod device_time;
mod slots;

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
