//! How long it takes to find the claims that make way, when many claims wait for room.

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark takes the time")]

use std::time::{Duration, Instant};

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allocation, Allowance, Claim, Cluster, DeviceAllocation, DeviceCore, Event, MilliCpu, PodGroup, Request, Scheduler,
    Settings,
};
use aliquot_scheduler_kit::{self as kit, Build, DEVICE_MEMORY, node, whole};
use criterion::{Criterion, criterion_group, criterion_main};

const DEVICES: u16 = 8;

/// Nodes with eight devices each.
fn cluster(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..nodes {
        cluster.add_node(node(&format!("node-{number}"), 96, usize::from(DEVICES)));
    }
    cluster
}

/// A queue with a quota of this many devices. With a quota of 0, it gets nothing beyond that, either.
fn queue(cluster: &mut Cluster, name: &str, devices: u64) {
    let weight = u64::from(devices > 0);
    let allowance = Allowance { quota: Some(devices * 1000), weight, ..Allowance::default() };
    cluster.add_queue(kit::queue(name, allowance));
}

fn wants(queue: &str, devices: u16) -> Claim {
    let request = Request { cpu: MilliCpu::new(1000), ..whole(devices) };
    Claim { request, queue: queue.into(), preemptible: true, ..Claim::default() }
}

/// Lets claims run on the first `devices` devices of each node. `claim` gives the claim of each number.
fn fill(cluster: &mut Cluster, devices: u16, mut claim: impl FnMut(usize) -> Claim) {
    let nodes: Vec<_> = cluster.nodes().map(|(id, _)| id).collect();
    let places = nodes.into_iter().flat_map(|node| (0..devices).map(move |device| (node, device)));
    for (number, (node, device)) in places.enumerate() {
        let claim = cluster.add_claim(claim(number));
        let part = DeviceAllocation { device, core: DeviceCore::WHOLE, memory: DEVICE_MEMORY };
        cluster.event(Event::ClaimPlaced(claim, Allocation { node, devices: vec![part], alternative: 0 }));
    }
}

/// The time that a first cycle takes, and the number of steps in its plan.
fn cycle(cluster: &Cluster) -> (Duration, usize) {
    let (mut cluster, mut scheduler) = (cluster.clone(), Scheduler::new(Box::new(BestFit), Settings::default()));
    let start = Instant::now();
    let plan = scheduler.cycle(&mut cluster);
    (start.elapsed(), plan.steps.len())
}

fn measure(criterion: &mut Criterion, name: &str, cluster: &Cluster, steps: usize) {
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            let cycles = (0..times).map(|_| {
                let (took, planned) = cycle(cluster);
                assert_eq!(planned, steps);
                took
            });
            cycles.sum()
        });
    });
}

fn reclaims(criterion: &mut Criterion) {
    let mut many = cluster(1000);
    for number in 0..100 {
        queue(&mut many, &format!("queue-{number}"), if number % 2 == 0 { 64 } else { 0 });
    }
    fill(&mut many, 7, |number| wants(&format!("queue-{}", number % 50 * 2 + 1), 1));
    for number in (0..100).step_by(2) {
        for _ in 0..50 {
            many.add_claim(wants(&format!("queue-{number}"), 1));
        }
    }
    // 1000 devices are free; 1500 are reclaimed.
    measure(criterion, "50 queues take 1500 devices back from 50 others; 1000 nodes", &many, 2500 + 1500);
    let mut two = cluster(500);
    ["red", "blue"].iter().for_each(|name| queue(&mut two, name, 2000));
    fill(&mut two, DEVICES, |_| wants("red", 1));
    for _ in 0..2000 {
        two.add_claim(wants("blue", 1));
    }
    measure(criterion, "a queue of 2000 claims takes its half of 4000 devices back from one other", &two, 4000);
}

fn preemptions(criterion: &mut Criterion) {
    let mut one = cluster(500);
    queue(&mut one, "red", 4000);
    fill(&mut one, DEVICES, |_| wants("red", 1));
    for _ in 0..2000 {
        one.add_claim(Claim { priority: 100, ..wants("red", 1) });
    }
    measure(criterion, "2000 claims preempt 2000 of 4000 claims of their queue", &one, 4000);
}

fn budgets(criterion: &mut Criterion) {
    let mut guarded = cluster(1500);
    queue(&mut guarded, "red", 8);
    queue(&mut guarded, "blue", 0);
    let budget = |number: usize| Some(format!("budget-{number}"));
    fill(&mut guarded, DEVICES, |number| Claim { disruption_budget: budget(number), ..wants("blue", 1) });
    guarded.add_claim(wants("red", 1));
    measure(criterion, "one device is taken back from 12000 claims with a disruption budget each", &guarded, 2);
}

fn nothing_helps(criterion: &mut Criterion) {
    let mut protected = cluster(1000);
    for number in 0..200 {
        queue(&mut protected, &format!("queue-{number}"), if number % 2 == 0 { 64 } else { 0 });
    }
    // On each node one claim stays, so that no node can be made free. Each queue asks for something else.
    fill(&mut protected, 7, |number| Claim {
        preemptible: number % 7 != 0,
        queue: if number % 7 == 0 { String::new() } else { format!("queue-{}", number % 100 * 2 + 1) },
        ..wants("", 1)
    });
    for number in (0..200).step_by(2) {
        let mut claim = wants(&format!("queue-{number}"), DEVICES);
        claim.request.cpu = MilliCpu::new(1000 + number);
        protected.add_claim(claim);
    }
    measure(criterion, "100 queues look for eight devices on 1000 nodes that cannot be made free", &protected, 0);
}

/// Units that have waited long, each for something else. No node is kept for them, as they fit nowhere, or would need
/// more nodes than may be kept.
fn holds(criterion: &mut Criterion) {
    let mut large = cluster(4000);
    let mut gangs = cluster(4000);
    fill(&mut gangs, 1, |_| Claim { preemptible: false, ..wants("", 1) });
    for number in 0..1000 {
        let name = format!("queue-{number}");
        let sort = |devices: u16| {
            let mut claim = wants(&name, devices);
            claim.request.cpu = MilliCpu::new(1000 + number);
            claim
        };
        queue(&mut large, &name, 32);
        large.add_claim(sort(2 * DEVICES));
        queue(&mut gangs, &name, 16);
        let group = PodGroup { name: name.clone(), queue: name.clone(), min_members: 2, ..PodGroup::default() };
        gangs.event(Event::PodGroupAdded(group));
        for _ in 0..2 {
            gangs.add_claim(Claim { pod_group: Some(name.clone()), ..sort(DEVICES) });
        }
    }
    hold(criterion, "1000 different claims that fit nowhere may have nodes kept; 4000 nodes", large);
    hold(criterion, "1000 different gangs need more nodes than may be kept; 4000 nodes", gangs);
}

fn hold(criterion: &mut Criterion, name: &str, mut waiting: Cluster) {
    let settings = Settings { held_nodes_per_mille: 0, ..Settings::default() };
    let mut scheduler = Scheduler::new(Box::new(BestFit), settings);
    scheduler.cycle(&mut waiting);
    waiting.event(Event::TimeAdvanced(400_000));
    let start = Instant::now();
    scheduler.cycle(&mut waiting);
    println!("the first cycle in which {name}: {:?}", start.elapsed());
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| assert!(scheduler.cycle(&mut waiting).steps.is_empty()));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(2));
    targets = reclaims, preemptions, budgets, nothing_helps, holds
}
criterion_main!(benches);
