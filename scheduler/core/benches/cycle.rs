//! How long a whole cycle takes in a large cluster: fairness among many queues, gangs that do not fit, reclaim, and
//! filling.

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark takes the time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use aliquot_scheduler_core::placement::{ExpectedWaste, Mix, Weights};
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimId, Cluster, Event, MilliCpu, NodeSpec, Plan, PodGroup, QueueSpec, Request,
    Scheduler, Settings, Step,
};
use aliquot_scheduler_kit::{self as kit, Build};
use criterion::{Criterion, criterion_group, criterion_main};

const NODES: usize = 500;
const DEVICES: usize = 8;

/// 500 nodes with eight devices each.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..NODES {
        let spec = kit::node(&format!("node-{number}"), 128, DEVICES);
        cluster.add_node(NodeSpec { memory: Bytes::from_mib(1 << 20), ..spec });
    }
    cluster
}

fn scheduler() -> Scheduler {
    let policy = ExpectedWaste::new(&Mix::of(&[whole(1), whole(8), part(50)]), Weights::default());
    Scheduler::new(Box::new(policy), Settings::default())
}

fn whole(count: u16) -> Request {
    Request { cpu: MilliCpu::new(1000), ..kit::whole(count) }
}

fn part(percent: u32) -> Request {
    Request { cpu: MilliCpu::new(1000), ..kit::part(percent) }
}

fn queue(cluster: &mut Cluster, name: &str, parent: Option<&str>, quota: u64) {
    let allowance = Allowance { quota: Some(quota), weight: 1, ..Allowance::default() };
    let parent = parent.map(str::to_owned);
    cluster.add_queue(QueueSpec { parent, ..kit::queue(name, allowance) });
}

fn claim(cluster: &mut Cluster, queue: &str, request: Request) -> ClaimId {
    cluster.add_claim(Claim { request, queue: queue.into(), priority: 50, preemptible: true, ..Claim::default() })
}

fn gang(cluster: &mut Cluster, name: &str, queue: &str, members: u32, request: &Request) {
    let group = PodGroup {
        name: name.into(),
        queue: queue.into(),
        priority: 50,
        preemptible: true,
        min_members: members,
        ..PodGroup::default()
    };
    cluster.add_group(group);
    for _ in 0..members {
        cluster.add_claim(Claim { request: request.clone(), pod_group: Some(name.into()), ..Claim::default() });
    }
}

/// One cycle, after which the evicted claims are gone. Only the cycle is timed.
fn cycle(scheduler: &mut Scheduler, cluster: &mut Cluster) -> (Plan, Duration) {
    let begin = Instant::now();
    let plan = black_box(scheduler.cycle(cluster));
    let took = begin.elapsed();
    for planned in &plan.steps {
        let claim = planned.step.claim();
        if !matches!(planned.step, Step::Place { .. }) && cluster.leaving(claim).is_some() {
            cluster.event(Event::ClaimGone(claim));
        }
    }
    (plan, took)
}

/// Runs cycles until nothing changes.
fn converge(scheduler: &mut Scheduler, cluster: &mut Cluster) {
    while !cycle(scheduler, cluster).0.steps.is_empty() {}
}

/// 1,000 queues in three levels; claims of five sorts can wait in the 900 leaves.
fn thousand_queues() -> Cluster {
    let mut cluster = cluster();
    for number in 0..10 {
        queue(&mut cluster, &format!("q{number}"), None, 350_000);
    }
    for number in 10..100 {
        queue(&mut cluster, &format!("q{number}"), Some(&format!("q{}", number % 10)), 35_000);
    }
    for number in 100..1000 {
        queue(&mut cluster, &format!("q{number}"), Some(&format!("q{}", 10 + number % 90)), 3_500);
    }
    cluster
}

/// Adds claims of five sorts. Each leaf has one sort, or all of them.
fn arrive(cluster: &mut Cluster, claims: usize, is_mixed: bool) {
    let sorts = [whole(1), part(50), whole(2), part(30), whole(4)];
    for number in 0..claims {
        let leaf = format!("q{}", 100 + number * 7919 % 900);
        let sort = if is_mixed { number / 900 + number } else { number };
        claim(cluster, &leaf, sorts[sort % sorts.len()].clone());
    }
}

/// More claims than fit, so that the cluster is full.
const CLAIMS: usize = NODES * DEVICES + 50_000;

fn fairness(criterion: &mut Criterion) {
    criterion.bench_function("the first cycle after 50000 claims have come to a full cluster", |bencher| {
        bencher.iter_custom(|times| {
            let once = |_| {
                let (mut cluster, mut scheduler) = (thousand_queues(), scheduler());
                arrive(&mut cluster, 2 * NODES * DEVICES, false);
                converge(&mut scheduler, &mut cluster);
                arrive(&mut cluster, 50_000, false);
                cycle(&mut scheduler, &mut cluster).1
            };
            (0..times).map(once).sum()
        });
    });
    for (is_mixed, sorts) in [(false, "one sort in each leaf"), (true, "five sorts in each leaf")] {
        let (mut cluster, mut scheduler) = (thousand_queues(), scheduler());
        arrive(&mut cluster, CLAIMS, is_mixed);
        converge(&mut scheduler, &mut cluster);
        let pending = cluster.claims().filter(|(_, _, at)| at.is_none()).count();
        let name = format!("a cycle with 1000 queues and {pending} claims that wait, full, {sorts}");
        criterion.bench_function(&name, |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| cycle(&mut scheduler, &mut cluster).1).sum());
        });
        let (plan, _) = cycle(&mut scheduler, &mut cluster);
        criterion.bench_function(&format!("why they wait, as text, {sorts}"), |bencher| {
            bencher.iter(|| {
                let reasons = plan.reasons(&cluster);
                let texts: Vec<String> = reasons.distinct().iter().map(ToString::to_string).collect();
                (reasons, texts)
            });
        });
        let mut next = 0_usize;
        criterion.bench_function(&format!("the same when 1 % has changed, {sorts}"), |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| changed(&mut scheduler, &mut cluster, &mut next)).sum());
        });
    }
    let mut cluster = thousand_queues();
    arrive(&mut cluster, CLAIMS, false);
    criterion.bench_function("the state as a value: 500 nodes, 50000 claims", |bencher| {
        bencher.iter(|| black_box(cluster.dump()));
    });
}

/// The time of a cycle after 20 running claims and 480 pending ones have ended, and 500 have come.
fn changed(scheduler: &mut Scheduler, cluster: &mut Cluster, next: &mut usize) -> Duration {
    let (placed, waiting): (Vec<_>, Vec<_>) = cluster.claims().partition(|(_, _, at)| at.is_some());
    let running = placed.iter().step_by(placed.len() / 20).take(20);
    let ended: Vec<ClaimId> =
        running.chain(waiting.iter().step_by(waiting.len() / 480).take(480)).map(|(id, ..)| *id).collect();
    for id in ended {
        cluster.event(Event::ClaimRemoved(id));
        *next += 1;
        claim(cluster, &format!("q{}", 100 + *next % 900), part(50));
    }
    let (_, took) = cycle(scheduler, cluster);
    converge(scheduler, cluster);
    took
}

fn large_cluster(criterion: &mut Criterion) {
    criterion.bench_function("an 80-device gang for which there is no room on 500 nodes", |bencher| {
        let mut cluster = cluster();
        queue(&mut cluster, "team", None, 4_000_000);
        queue(&mut cluster, "other", None, 0);
        for _ in 0..NODES {
            // One claim on each node may not be evicted, so no node can be emptied.
            cluster.add_claim(Claim { request: whole(4), queue: "team".into(), ..Claim::default() });
            let other = Claim { request: whole(1), queue: "other".into(), preemptible: true, ..Claim::default() };
            cluster.add_claim(other);
        }
        let mut scheduler = scheduler();
        converge(&mut scheduler, &mut cluster);
        gang(&mut cluster, "gang", "team", 10, &whole(8));
        bencher.iter_custom(|times| (0..times).map(|_| cycle(&mut scheduler, &mut cluster).1).sum());
    });
    criterion.bench_function("one device is taken back from 4000 running claims", |bencher| {
        let mut cluster = cluster();
        queue(&mut cluster, "owner", None, 100_000);
        queue(&mut cluster, "guest", None, 0);
        (0..NODES * DEVICES).for_each(|_| _ = claim(&mut cluster, "guest", whole(1)));
        let mut scheduler = scheduler();
        converge(&mut scheduler, &mut cluster);
        bencher.iter_custom(|times| {
            let mut took = Duration::ZERO;
            for _ in 0..times {
                let back = claim(&mut cluster, "owner", whole(1));
                let (plan, once) = cycle(&mut scheduler, &mut cluster);
                assert_eq!(plan.steps.len(), 2, "one is evicted, one is placed");
                took += once;
                cluster.event(Event::ClaimRemoved(back));
                converge(&mut scheduler, &mut cluster);
            }
            took
        });
    });
    // Each measurement begins with an empty cluster.
    let mut fill = |name: &str, make: &dyn Fn(&mut Cluster), placed: usize| {
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                let once = |_| {
                    let (mut cluster, mut scheduler) = (cluster(), scheduler());
                    make(&mut cluster);
                    let (plan, took) = cycle(&mut scheduler, &mut cluster);
                    assert_eq!(plan.steps.len(), placed);
                    took
                };
                (0..times).map(once).sum()
            });
        });
    };
    fill(
        "500 nodes are filled with 4000 claims of one device",
        &|cluster| (0..NODES * DEVICES).for_each(|_| _ = claim(cluster, "", whole(1))),
        NODES * DEVICES,
    );
    fill("a gang of 512 members is placed", &|cluster| gang(cluster, "gang", "", 512, &whole(1)), 512);
    fill(
        "a group of 5000 members that fit nowhere and 5000 behind them fills 500 nodes",
        &|cluster| {
            cluster.event(Event::PodGroupAdded(PodGroup { name: "group".into(), ..PodGroup::default() }));
            for number in 0..10_000 {
                let request = if number < 5000 { whole(16) } else { whole(1) };
                cluster.add_claim(Claim { request, pod_group: Some("group".into()), ..Claim::default() });
            }
        },
        NODES * DEVICES,
    );
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = large_cluster, fairness
}
criterion_main!(benches);
