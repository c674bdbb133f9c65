//! Real processes work on one ledger and are killed at random moments; no byte is lost and none is left over.
//!
//! The parent plays the manager: it kills, reclaims and settles while the children go on. The children reserve and
//! release as fast as they can. Now and then one claims a slot again, as a process does after `exec`. Each child
//! records beside the ledger how much it holds. When all children pause, the ledger must show the same.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aliquot_abi::ledger::{self, Identity, MANAGER_PID, Reclaimed, SlotId};
use aliquot_abi::region::{ACCOUNTS, HOST_ACCOUNT, Ledger, SLOTS_MAX, owner};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

const CHILDREN: usize = 4;
const KILLS: usize = 400;
/// How many processes must have been killed in the middle of an operation, so that the test has shown something.
const TORN_MIN: usize = 5;
/// Where few processors are free, most victims are killed while they wait for one. So the test goes on after `KILLS`
/// until `TORN_MIN` is reached, but not for ever.
const KILLS_MAX: usize = 100 * KILLS;
/// Kills between two pauses in which the books are compared.
const KILLS_PER_PAUSE: usize = 10;
/// The limit of each account, for which the children compete.
const LIMIT_BYTES: u64 = 4000;
const RESERVATION_BYTES_MAX: u64 = 700;
/// The accounts that are used: those of two devices, and the host's.
const USED_ACCOUNTS: [usize; 3] = [0, 1, HOST_ACCOUNT];
/// The most reservations that a child holds at a time.
const HELD_MAX: usize = 16;

/// The memory that parent and children share.
#[repr(C)]
struct Shared {
    ledger: Ledger,
    /// Not zero: the children must pause.
    pause: AtomicU32,
    /// The bytes that each child has recorded for itself; exact while the child pauses.
    children: [Child; CHILDREN],
}

#[repr(C)]
struct Child {
    paused: AtomicU32,
    held_bytes: [AtomicU64; ACCOUNTS],
}

/// Pseudo-random numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn map() -> &'static Shared {
    let bytes = size_of::<Shared>().try_into().unwrap();
    // SAFETY: a new mapping touches no memory that is in use.
    let mapping =
        unsafe { mmap_anonymous(None, bytes, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED) };
    // SAFETY: as long as the type, page-aligned, never unmapped; all of it is integers and atomics, for which zero is a
    // value.
    unsafe { mapping.unwrap().cast::<Shared>().as_ref() }
}

/// The identity of the child with the number `birth`: unique, even if the kernel uses a pid again.
fn identity(pid: u32, birth: u64) -> Identity {
    Identity { pid, start_time: birth, pid_namespace: 1 }
}

/// The program of a child. It never returns. As a child of a process with threads it must use no heap and no lock.
fn live(shared: &Shared, number: usize, birth: u64, parent: Pid) -> ! {
    // If the test fails and its thread ends, the children end with it.
    if set_pdeathsig(Signal::SIGKILL).is_err() || getppid() != parent {
        exit();
    }
    let Some(child) = shared.children.get(number) else { exit() };
    let me = identity(std::process::id(), birth);
    let mut random = Random(birth);
    // A child takes all other processes to be alive.
    let claim = || ledger::claim(&shared.ledger, me, |_| true, |_| true);
    let Some(mut slot) = claim() else { exit() };
    let mut held = [(0_usize, 0_u64); HELD_MAX];
    let mut count = 0;
    loop {
        if shared.pause.load(Ordering::Acquire) != 0 {
            child.paused.store(1, Ordering::Release);
            while shared.pause.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
            child.paused.store(0, Ordering::Release);
        }
        match random.below(64) {
            0 => {
                count = 0;
                child.held_bytes.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
                match claim() {
                    Some(anew) => slot = anew,
                    None => exit(),
                }
            }
            1..32 if count < HELD_MAX => {
                let account = USED_ACCOUNTS[random.below(3) as usize];
                let bytes = 1 + random.below(RESERVATION_BYTES_MAX);
                let (of_all, part) = books(shared, slot, account);
                if ledger::reserve(of_all, part, bytes, LIMIT_BYTES).is_ok() {
                    held[count] = (account, bytes);
                    count += 1;
                    child.held_bytes[account].fetch_add(bytes, Ordering::Relaxed);
                }
            }
            32..62 if count > 0 => {
                count -= 1;
                let (account, bytes) = held[count];
                child.held_bytes[account].fetch_sub(bytes, Ordering::Relaxed);
                let (of_all, part) = books(shared, slot, account);
                ledger::release(of_all, part, bytes);
            }
            // A program also does other work.
            _ => (0..random.below(20)).for_each(|_| std::hint::spin_loop()),
        }
    }
}

fn books(shared: &Shared, slot: SlotId, account: usize) -> (&aliquot_abi::region::Account, &AtomicU64) {
    match (shared.ledger.account(account), shared.ledger.slots[slot.index].memory(account)) {
        (Some(of_all), Some(part)) => (of_all, part),
        _ => exit(),
    }
}

fn exit() -> ! {
    // SAFETY: ends the process at once, and runs nothing at its exit.
    unsafe { nix::libc::_exit(1) }
}

/// The manager and its children.
struct Family {
    shared: &'static Shared,
    children: [(Pid, u64); CHILDREN],
    births: u64,
    in_doubt: u32,
    /// Children that were killed in the middle of an operation.
    torn: usize,
    /// Slots that were left in the middle of being taken or given back.
    repaired: usize,
}

impl Family {
    fn bear(&mut self, number: usize) {
        self.births += 1;
        for bytes in &self.shared.children[number].held_bytes {
            bytes.store(0, Ordering::Relaxed);
        }
        self.shared.children[number].paused.store(0, Ordering::Relaxed);
        let parent = getpid();
        // SAFETY: the child calls only what is allowed there: see `live`.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => live(self.shared, number, self.births, parent),
            ForkResult::Parent { child } => self.children[number] = (child, self.births),
        }
    }

    fn kill(&mut self, number: usize) {
        let (pid, birth) = self.children[number];
        kill(pid, Signal::SIGKILL).unwrap();
        assert_eq!(
            waitpid(pid, None).unwrap(),
            WaitStatus::Signaled(pid, Signal::SIGKILL, false),
            "it ended by itself"
        );
        let dead = identity(pid.as_raw().unsigned_abs(), birth);
        let ledger = &self.shared.ledger;
        for index in 1..SLOTS_MAX {
            let word = ledger.owners[index].load(Ordering::Acquire);
            match owner::state(word) {
                owner::ATTACHED if ledger::identity(ledger, index) == Some(dead) => {
                    match ledger::reclaim(ledger, index, dead, MANAGER_PID) {
                        Reclaimed::Exactly => {}
                        Reclaimed::InDoubt { accounts } => {
                            self.torn += 1;
                            self.in_doubt |= accounts;
                        }
                        Reclaimed::NotTheirs => panic!("slot {index} went to somebody else"),
                    }
                }
                owner::CLAIMED | owner::RECLAIMING if owner::pid(word) == dead.pid => {
                    self.repaired += 1;
                    self.in_doubt |= ledger::repair(ledger, index);
                }
                _ => {}
            }
        }
    }

    /// Settles the accounts that can be settled while the children go on.
    fn settle(&mut self) {
        for account in 0..ACCOUNTS {
            if self.in_doubt & 1 << account != 0 && ledger::settle(&self.shared.ledger, account) {
                self.in_doubt &= !(1 << account);
            }
        }
    }

    /// Lets all children pause, and compares the ledger with what they recorded.
    fn compare(&mut self) {
        self.shared.pause.store(1, Ordering::Release);
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.shared.children.iter().any(|child| child.paused.load(Ordering::Acquire) == 0) {
            assert!(Instant::now() < deadline, "a child does not pause");
            std::thread::yield_now();
        }
        // All children are at rest, so everything can be settled.
        self.settle();
        assert_eq!(self.in_doubt, 0, "an operation is under way though nobody does anything");
        for account in USED_ACCOUNTS {
            let of_all = self.shared.ledger.account(account).unwrap();
            let known: u64 =
                self.shared.children.iter().map(|child| child.held_bytes[account].load(Ordering::Relaxed)).sum();
            assert_eq!(ledger::used_bytes(of_all), known, "account {account} is not what the processes hold");
            assert!(known <= LIMIT_BYTES && of_all.peak_bytes.load(Ordering::Relaxed) <= LIMIT_BYTES);
        }
        self.shared.pause.store(0, Ordering::Release);
        while self.shared.children.iter().any(|child| child.paused.load(Ordering::Acquire) != 0) {
            assert!(Instant::now() < deadline, "a child does not go on");
            std::thread::yield_now();
        }
    }
}

#[test]
fn processes_killed_at_random_moments_leave_exact_books() {
    let shared = map();
    let mut family =
        Family { shared, children: [(Pid::from_raw(0), 0); CHILDREN], births: 0, in_doubt: 0, torn: 0, repaired: 0 };
    let mut random = Random(1);
    (0..CHILDREN).for_each(|number| family.bear(number));
    let mut kills = 0;
    while kills < KILLS || family.torn < TORN_MIN && kills < KILLS_MAX {
        kills += 1;
        std::thread::sleep(Duration::from_micros(random.below(300)));
        let victim = random.below(CHILDREN as u64) as usize;
        family.kill(victim);
        family.bear(victim);
        family.settle();
        if kills % KILLS_PER_PAUSE == 0 {
            family.compare();
        }
    }
    (0..CHILDREN).for_each(|number| family.kill(number));
    family.settle();
    assert_eq!(family.in_doubt, 0);
    for account in USED_ACCOUNTS {
        assert_eq!(ledger::used_bytes(shared.ledger.account(account).unwrap()), 0);
    }
    assert!(shared.ledger.owners.iter().all(|word| owner::state(word.load(Ordering::Relaxed)) == owner::FREE));
    assert!(
        family.torn >= TORN_MIN,
        "only {} of {kills} processes were killed in the middle of an operation",
        family.torn
    );
    println!("{kills} kills: {} within an operation, {} slots repaired", family.torn, family.repaired);
}
