//! Regions with arbitrary contents: a manager that starts on one repairs it.

use std::fs::OpenOptions;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use aliquot_abi::ledger::used_bytes;
use aliquot_abi::region::{
    HOST_ACCOUNT, LEDGER_FILE, LIMITS_FILE, Ledger, Limits, SLOTS_BACKED, SLOTS_MAX, Slot, gate, owner,
};

use crate::node::{GIB, Node, eventually, part};
use crate::tenant::{Tenant, ledger, limits};

const MIB: u64 = 1 << 20;

/// Pseudo-random numbers that are the same in each run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A word as damage may leave it: any number, a small one, a single bit, or all bits.
    fn word(&mut self) -> u64 {
        match self.next() % 4 {
            0 => self.next() % 4,
            1 => 1 << (self.next() % 64),
            2 => u64::MAX,
            _ => self.next(),
        }
    }
}

/// Overwrites on average one in `one_in` of the words from `start` to `end` of a file.
fn overwrite(file: &Path, (start, end): (usize, usize), one_in: u64, random: &mut Random) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    for offset in (start..end).step_by(8) {
        if random.next().is_multiple_of(one_in) {
            file.write_all_at(&random.word().to_ne_bytes(), offset as u64).unwrap();
        }
    }
}

/// Lets the processes wait at the gate, as the shim does, until the manager knows all of them and has opened it.
fn all_come_through(node: &Node, region: &Path, tenants: &mut [Tenant]) {
    let gate = &limits(region).devices[0].gate;
    eventually("the manager knows all processes, and lets them in", || {
        for tenant in tenants.iter_mut() {
            tenant.tell("wait");
            tenant.tell("ring");
        }
        let known: Vec<u32> = node.usage("a").processes.iter().map(|process| process.pid).collect();
        let all_known = tenants.iter().all(|tenant| known.contains(&tenant.pid()));
        (all_known && gate.load(Ordering::Relaxed) & gate::OPEN != 0).then_some(())
    });
}

/// Asserts that a slice without processes ends with free slots and nothing charged.
fn comes_to_rest(node: &Node, ledger: &Ledger) {
    eventually("no slot has an owner", || {
        let is_free = |word: &std::sync::atomic::AtomicU64| owner::state(word.load(Ordering::Relaxed)) == owner::FREE;
        ledger.owners.iter().skip(1).all(is_free).then_some(())
    });
    eventually("nothing is charged", || {
        let accounts = [0, HOST_ACCOUNT].map(|number| used_bytes(ledger.account(number).unwrap()));
        (accounts == [0, 0] && node.usage("a").parts[0].memory_used_bytes == 0).then_some(())
    });
}

#[test]
fn a_start_repairs_a_ledger_with_any_contents() {
    let slots = |first: usize, count: usize| {
        let start = offset_of!(Ledger, slots) + first * size_of::<Slot>();
        (start, start + count * size_of::<Slot>())
    };
    let accounts = (offset_of!(Ledger, devices), offset_of!(Ledger, reserved_page));
    let owners = (offset_of!(Ledger, owners), offset_of!(Ledger, slots));
    for (seed, one_in) in [(1, 1), (2, 2), (3, 20), (4, 200), (5, 2000), (6, 7)] {
        let mut random = Random(seed);
        let mut node = Node::start();
        let slice = node.create("a", vec![part(100, GIB)]).unwrap();
        let region = Path::new(&slice.region_path);
        let mut tenants: Vec<Tenant> = (0..3).map(|_| Tenant::start(&slice.region_path)).collect();
        for tenant in &mut tenants {
            assert_eq!(tenant.tell("reserve 1000"), "Ok(())");
        }
        node.stop();
        for range in [accounts, owners, slots(1, SLOTS_BACKED - 1), slots(SLOTS_MAX - 2, 2)] {
            overwrite(&region.join(LEDGER_FILE), range, one_in, &mut random);
        }
        node.restart().unwrap();
        all_come_through(&node, region, &mut tenants);
        drop(tenants);
        comes_to_rest(&node, ledger(region));
        // All of its memory can be allocated again.
        let mut last = Tenant::start(&slice.region_path);
        assert_eq!(last.tell(&format!("reserve {GIB}")), "Ok(())", "seed {seed}");
    }
}

#[test]
fn a_running_manager_repairs_a_ledger_with_any_contents() {
    let mut random = Random(7);
    let node = Node::start();
    let slice = node.create("a", vec![part(100, GIB)]).unwrap();
    let region = Path::new(&slice.region_path);
    let mut tenants: Vec<Tenant> = (0..3).map(|_| Tenant::start(&slice.region_path)).collect();
    let slots = (offset_of!(Ledger, owners), offset_of!(Ledger, slots) + SLOTS_BACKED * size_of::<Slot>());
    for range in [(offset_of!(Ledger, devices), offset_of!(Ledger, reserved_page)), slots] {
        overwrite(&region.join(LEDGER_FILE), range, 3, &mut random);
    }
    all_come_through(&node, region, &mut tenants);
    drop(tenants);
    comes_to_rest(&node, ledger(region));
}

#[test]
fn a_start_removes_charges_without_a_slot() {
    let mut node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    tenant.tell("reserve 1000");
    node.stop();
    let ledger = ledger(Path::new(&slice.region_path));
    ledger.devices[0].used.fetch_add(98 * MIB, Ordering::Relaxed);
    node.restart().unwrap();
    // The correction comes before the manager serves.
    assert_eq!(used_bytes(&ledger.devices[0]), 1000);
}

#[test]
fn an_unfinished_operation_does_not_keep_others_charged() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let ledger = ledger(Path::new(&slice.region_path));
    // One process is stopped in the middle of a reservation, another one is killed in the middle of its own.
    let (mut stopped, mut killed) = (Tenant::start(&slice.region_path), Tenant::start(&slice.region_path));
    stopped.tell("doubt 10");
    killed.tell("doubt 1000");
    eventually("both are attached", || (node.get("a").unwrap().processes == 2).then_some(()));
    killed.kill();
    eventually("what the dead held is given back", || (used_bytes(&ledger.devices[0]) == 10).then_some(()));
    assert_eq!(node.get("a").unwrap().processes, 1);
}

#[test]
fn a_start_repairs_limits_with_any_contents_or_says_why_not() {
    let whole = (0, size_of::<Limits>());
    let of_device = (offset_of!(Limits, devices), offset_of!(Limits, devices) + 40);
    let before = (offset_of!(Limits, heartbeat_ns), offset_of!(Limits, device_count));
    for (seed, range, one_in) in
        [(1, of_device, 1), (2, of_device, 2), (3, before, 1), (4, whole, 300), (5, whole, 100), (6, whole, 1)]
    {
        let mut random = Random(seed);
        let mut node = Node::start();
        let slice = node.create("a", vec![part(100, GIB)]).unwrap();
        let region = Path::new(&slice.region_path);
        let mut tenants = [Tenant::start(&slice.region_path)];
        node.stop();
        overwrite(&region.join(LIMITS_FILE), range, one_in, &mut random);
        node.restart().unwrap();
        let found = node.get("a").unwrap();
        if !found.problem.is_empty() {
            // A limit of 0 looks as if everything had been taken away from the slice.
            let says = [slice.region_path.as_str(), "it was so before this manager was started"];
            assert!(says.iter().any(|text| found.problem.contains(text)), "seed {seed}: {}", found.problem);
            continue;
        }
        let limits = limits(region);
        let device = &limits.devices[0];
        let written =
            [&device.core_limit_percent, &device.core_request_percent].map(|word| word.load(Ordering::Relaxed));
        assert_eq!((written, device.memory_limit_bytes.load(Ordering::Relaxed)), ([100, 100], GIB), "seed {seed}");
        let (launches, in_flight_ns) = (&device.marker_launches_max, &device.inflight_ns_max);
        assert_eq!((launches.load(Ordering::Relaxed), in_flight_ns.load(Ordering::Relaxed)), (256, 4_000_000));
        assert_eq!(limits.flags.load(Ordering::Relaxed), 0);
        all_come_through(&node, region, &mut tenants);
    }
}
