//! Processes that attach, end, are killed, or send false messages.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use aliquot_abi::ledger::{self, SlotId};
use aliquot_abi::region::{AttachMessage, SLOTS_MAX, gate, owner};
use aliquot_manager::inventory::DeviceProcess;
use aliquot_proto::node::v1 as proto;

use crate::node::{GIB, Node, eventually, part, uuid};
use crate::tenant::{Tenant, attach_message, ledger, limits, myself, say};

fn attached(node: &Node, name: &str, count: u32) {
    eventually(&format!("{count} processes are attached"), || {
        (node.get(name).unwrap().processes == count).then_some(())
    });
}

#[test]
fn a_process_is_listed_with_its_memory() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    assert_eq!(tenant.tell("reserve 1000"), "Ok(())");
    assert!(tenant.tell(&format!("reserve {GIB}")).starts_with("Err"));
    attached(&node, "a", 1);
    let usage = node.usage("a");
    assert_eq!(usage.processes[0].pid, tenant.pid());
    assert_eq!(usage.processes[0].memory_used_bytes, [1000]);
    assert_eq!((usage.parts[0].memory_used_bytes, usage.parts[0].memory_refused), (1000, 1));
    // Another thread reads the command line, perhaps later.
    eventually("its command line is told", || {
        node.usage("a").processes[0].command.contains("tenant_process").then_some(())
    });
}

#[test]
fn the_memory_of_a_killed_process_is_free_again() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenants = [Tenant::start(&slice.region_path), Tenant::start(&slice.region_path)];
    tenants[0].tell("reserve 1000");
    tenants[0].tell("throttled 77");
    tenants[1].tell("reserve 10");
    attached(&node, "a", 2);
    tenants[0].kill();
    attached(&node, "a", 1);
    // This happens at the next query of the driver, which does not list the process.
    eventually("its memory is free", || (node.usage("a").parts[0].memory_used_bytes == 10).then_some(()));
    // The time that it was throttled stays counted.
    assert_eq!(node.usage("a").parts[0].throttled_ns, 77);
    let ledger = ledger(Path::new(&slice.region_path));
    assert_eq!(owner::state(ledger.owners[tenants[0].slot.index].load(Ordering::Relaxed)), owner::FREE);
}

#[test]
fn the_memory_of_a_killed_process_counts_until_the_driver_has_freed_it() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenants = [Tenant::start(&slice.region_path), Tenant::start(&slice.region_path)];
    assert_eq!(tenants[0].tell("reserve 1000"), "Ok(())");
    attached(&node, "a", 2);
    let overhead = || limits(Path::new(&slice.region_path)).devices[0].memory_overhead_bytes.load(Ordering::Relaxed);
    let list = |processes| *node.driver.processes.lock().unwrap() = processes;
    let process = |pid, bytes| DeviceProcess { pid, memory_bytes: Some(bytes), computes: true };
    let both = vec![process(tenants[0].pid(), 1500), process(tenants[1].pid(), 500)];
    list(both);
    tenants[0].tell("look");
    eventually("contexts are seen", || (overhead() == 1000).then_some(()));
    tenants[0].kill();
    attached(&node, "a", 1);
    // The ledger is empty, so all memory that the driver lists counts as overhead.
    eventually("the dead one's memory is not given out", || (overhead() == 2000).then_some(()));
    assert_eq!(node.usage("a").parts[0].memory_used_bytes, 2000);
    let looks = || node.driver.asked.lock().unwrap().len();
    let before = looks();
    eventually("it is looked at again and again", || (looks() > before + 3).then_some(()));
    assert_eq!(overhead(), 2000);
    list(vec![process(tenants[1].pid(), 500)]);
    eventually("the driver has it back", || (overhead() == 500).then_some(()));
    // The last process's memory is kept as well, although the slice has no processes any more.
    tenants[1].kill();
    attached(&node, "a", 0);
    let before = looks();
    eventually("it is looked at", || (looks() > before + 3).then_some(()));
    assert_eq!(overhead(), 500);
    list(Vec::new());
    eventually("all is free", || (overhead() == 0).then_some(()));
}

#[test]
fn changed_contexts_trigger_looks_at_a_bounded_rate() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    attached(&node, "a", 1);
    let asked = || node.driver.asked.lock().unwrap().clone();
    // A full look queries both; a look at memory alone only queries processes.
    let of_memory = |asked: &[&str]| asked.windows(2).filter(|pair| pair == &["processes"; 2]).count();
    assert_eq!(of_memory(&asked()), 0);
    tenant.tell("look");
    eventually("memory is looked at", || (of_memory(&asked()) > 0).then_some(()));
    let (begun, before) = (Instant::now(), asked().len());
    for _ in 0..1000 {
        tenant.tell("look");
    }
    let looks = asked().len() - before;
    // Allowed: one look that was under way, and one for each pause; a full look counts as two queries.
    assert!(looks as u128 <= 4 + begun.elapsed().as_millis() / 10, "{looks} looks in {:?}", begun.elapsed());
}

#[test]
fn copies_of_ended_processes_stay_counted() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenants = [Tenant::start(&slice.region_path), Tenant::start(&slice.region_path)];
    tenants[0].tell("copies 3 4096 700");
    tenants[1].tell("copies 1 100 50");
    attached(&node, "a", 2);
    let copies = || {
        let part = &node.usage("a").parts[0];
        (part.copies, part.copied_bytes, part.copy_ns)
    };
    assert_eq!(copies(), (4, 4196, 750));
    tenants[0].kill();
    attached(&node, "a", 1);
    assert_eq!(copies(), (4, 4196, 750));
    let labels = format!("{{slice=\"a\",device=\"{}\"}}", uuid(0));
    let value = |name: &str| crate::metrics::value(&node, &format!("aliquot_slice_{name}_total{labels}"));
    assert_eq!((value("copies"), value("copied_bytes"), value("copy_seconds")), (4.0, 4196.0, 7.5e-7));
}

#[test]
fn a_process_killed_within_a_reservation_is_settled() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    tenant.tell("reserve 1000");
    tenant.tell("doubt 500");
    attached(&node, "a", 1);
    tenant.kill();
    eventually("nothing is in use", || (node.usage("a").parts[0].memory_used_bytes == 0).then_some(()));
}

#[test]
fn unannounced_processes_and_their_ends_are_found() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenants = [Tenant::silent(&slice.region_path), Tenant::silent(&slice.region_path)];
    tenants.iter_mut().for_each(|tenant| assert_eq!(tenant.tell("reserve 1000"), "Ok(())"));
    // The second process ends and is reaped before the manager has heard of it.
    let [first, second] = tenants;
    drop(second);
    // A sweep that found both alive may have attached the second one first.
    eventually("only the living one is attached", || {
        let pids: Vec<_> = node.usage("a").processes.iter().map(|process| process.pid).collect();
        (pids == [first.pid()]).then_some(())
    });
    eventually("what the dead one held is free", || (node.usage("a").parts[0].memory_used_bytes == 1000).then_some(()));
}

#[test]
fn a_process_that_execs_has_one_slot_and_no_old_charges() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    tenant.tell("reserve 1000");
    attached(&node, "a", 1);
    tenant.exec();
    tenant.tell("attach");
    tenant.tell("reserve 10");
    eventually("only the new program's memory counts", || {
        let usage = node.usage("a");
        (usage.processes.len() == 1 && usage.processes[0].memory_used_bytes == [10]).then_some(())
    });
    tenant.kill();
    attached(&node, "a", 0);
    eventually("its memory is free", || (node.usage("a").parts[0].memory_used_bytes == 0).then_some(()));
}

#[test]
fn a_process_waiting_at_the_gate_is_let_in() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let gate = &limits(Path::new(&slice.region_path)).devices[0].gate;
    assert_eq!(gate.load(Ordering::Relaxed) & gate::OPEN, 0);
    let mut tenant = Tenant::start(&slice.region_path);
    attached(&node, "a", 1);
    tenant.tell("wait");
    tenant.tell("ring");
    eventually("the gate opens", || (gate.load(Ordering::Relaxed) & gate::OPEN != 0).then_some(()));
}

#[test]
fn an_unannounced_process_that_rings_is_attached() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::silent(&slice.region_path);
    tenant.tell("ring");
    attached(&node, "a", 1);
}

/// A node with a slice and an honest process, after its manager has dropped all false and malformed messages of this
/// process; and the slot of this process.
///
/// `None` if the manager attached this process although it sent no true message: because it believed a false one, or
/// because the sweep of the ledgers, every few seconds, came just then.
fn told_lies_and_garbage() -> Option<(Node, proto::Slice, Tenant, SlotId)> {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let region = Path::new(&slice.region_path);
    let honest = Tenant::start(&slice.region_path);
    attached(&node, "a", 1);
    // This process claims slots of another process, of no process, and of another generation.
    let mine = ledger::claim(ledger(region), myself(), |_| true, |_| true).unwrap();
    let slots = [
        honest.slot,
        SlotId { index: (honest.slot.index + 1) % SLOTS_MAX, generation: 1 },
        SlotId { generation: mine.generation + 1, ..mine },
    ];
    slots.into_iter().for_each(|slot| say(region, &attach_message(slot).to_bytes()));
    let message = attach_message(mine);
    say(region, &AttachMessage { slot: u32::MAX, ..message }.to_bytes());
    say(region, &AttachMessage { kind: 9, ..message }.to_bytes());
    say(region, b"");
    say(region, b"hello");
    say(region, &[0xFF; 4096]);
    let are_dropped = eventually("all of them are dropped", || {
        let is_taken_in = node.get("a").unwrap().processes == 2;
        if is_taken_in { Some(false) } else { (dropped(&node) == 8.0).then_some(true) }
    });
    are_dropped.then_some((node, slice, honest, mine))
}

fn dropped(node: &Node) -> f64 {
    crate::metrics::value(node, "aliquot_manager_messages_dropped_total")
}

#[test]
fn false_and_malformed_messages_are_dropped() {
    let (node, slice, _honest, mine) = (0..10).find_map(|_| told_lies_and_garbage()).expect("not taken in");
    let region = Path::new(&slice.region_path);
    // A true message is accepted after all of these.
    say(region, &attach_message(mine).to_bytes());
    attached(&node, "a", 2);
    // A process cannot have a second slot.
    let ledger = ledger(region);
    let index = (1..SLOTS_MAX)
        .find(|&index| owner::state(ledger.owners[index].load(Ordering::Relaxed)) == owner::FREE)
        .unwrap();
    let me = myself();
    ledger.start_times[index].store(me.start_time, Ordering::Relaxed);
    ledger.slots[index].pid_namespace.store(me.pid_namespace, Ordering::Relaxed);
    ledger.owners[index].store(owner::word(owner::ATTACHED, 1, me.pid), Ordering::Release);
    say(region, &attach_message(SlotId { index, generation: 1 }).to_bytes());
    eventually("the second slot is refused", || (dropped(&node) == 9.0).then_some(()));
}

#[test]
fn a_flood_of_connections_does_not_keep_others_out() {
    let node = Node::start();
    let noisy = node.create("noisy", vec![part(30, GIB)]).unwrap();
    let quiet = node.create("quiet", vec![part(30, GIB)]).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                say(Path::new(&noisy.region_path), b"noise");
            }
        });
        let mut tenant = Tenant::start(&quiet.region_path);
        tenant.tell("reserve 1000");
        attached(&node, "quiet", 1);
        tenant.kill();
        attached(&node, "quiet", 0);
        stop.store(true, Ordering::Relaxed);
    });
}
