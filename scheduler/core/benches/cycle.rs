//! How long a whole cycle takes in a large cluster: fairness among many queues, gangs that do not fit, reclaim,
//! filling.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use aliquot_scheduler_core::placement::{ExpectedWaste, Mix, Weights};
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimId, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event, MilliCpu,
    NodeSpec, Outcome, Plan, PodGroup, QueueSpec, Request, Resource, Scheduler, Settings, Step,
};
use criterion::{Criterion, criterion_group, criterion_main};

const NODES: usize = 500;
const DEVICES: usize = 8;

/// 500 nodes with eight devices each.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..NODES {
        let device = DeviceSpec { model: "A".into(), memory: Bytes::from_mib(80 << 10), ..DeviceSpec::default() };
        let spec = NodeSpec {
            name: format!("node-{number}"),
            cpu: MilliCpu::new(128_000),
            memory: Bytes::from_mib(1 << 20),
            devices: vec![device; DEVICES],
            ..NodeSpec::default()
        };
        event(&mut cluster, Event::NodeAdded(spec));
    }
    cluster
}

fn event(cluster: &mut Cluster, event: Event) -> Outcome {
    cluster.apply(event).unwrap_or_else(|error| panic!("{error}"))
}

fn scheduler() -> Scheduler {
    let policy = ExpectedWaste::new(&Mix::of(&[whole(1), whole(8), part(50)]), Weights::default());
    Scheduler::new(Box::new(policy), Settings::default())
}

fn whole(count: u16) -> Request {
    Request { cpu: MilliCpu::new(1000), devices: DeviceRequest::whole(count), ..Request::default() }
}

fn part(percent: u32) -> Request {
    let memory = DeviceMemory::Thousandths(percent * 10);
    let devices = DeviceRequest { count: 1, core: DeviceCore::from_percent(percent), memory };
    Request { cpu: MilliCpu::new(1000), devices, ..Request::default() }
}

fn queue(cluster: &mut Cluster, name: &str, parent: Option<&str>, quota: u64) {
    let allowance = Allowance { quota: Some(quota), weight: 1, ..Allowance::default() };
    let allowances = BTreeMap::from([(Resource::DeviceCore, allowance)]);
    let parent = parent.map(str::to_owned);
    event(cluster, Event::QueueAdded(QueueSpec { name: name.into(), parent, allowances, ..QueueSpec::default() }));
}

fn claim(cluster: &mut Cluster, queue: &str, request: Request) -> ClaimId {
    add(cluster, Claim { request, queue: queue.into(), priority: 50, preemptible: true, ..Claim::default() })
}

fn add(cluster: &mut Cluster, claim: Claim) -> ClaimId {
    match event(cluster, Event::ClaimAdded(claim)) {
        Outcome::Claim(id) => id,
        other => panic!("not a claim's id: {other:?}"),
    }
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
    event(cluster, Event::PodGroupAdded(group));
    for _ in 0..members {
        add(cluster, Claim { request: request.clone(), pod_group: Some(name.into()), ..Claim::default() });
    }
}

/// One cycle, after which whoever was evicted is gone; only the cycle is timed.
fn cycle(scheduler: &mut Scheduler, cluster: &mut Cluster) -> (Plan, Duration) {
    let begin = Instant::now();
    let plan = black_box(scheduler.cycle(cluster));
    let took = begin.elapsed();
    for planned in &plan.steps {
        let claim = planned.step.claim();
        if !matches!(planned.step, Step::Place { .. }) && cluster.leaving(claim).is_some() {
            event(cluster, Event::ClaimGone(claim));
        }
    }
    (plan, took)
}

/// Cycles until nothing changes.
fn settle(scheduler: &mut Scheduler, cluster: &mut Cluster) {
    while !cycle(scheduler, cluster).0.steps.is_empty() {}
}

/// 1,000 queues in three levels, in whose 900 leaves 50,000 claims of five sorts wait while the cluster is full.
fn thousand_queues() -> (Cluster, Scheduler) {
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
    let sorts = [whole(1), part(50), whole(2), part(30), whole(4)];
    let running = NODES * DEVICES;
    for number in 0..running + 50_000 {
        let leaf = format!("q{}", 100 + number * 7919 % 900);
        claim(&mut cluster, &leaf, sorts[number % sorts.len()].clone());
    }
    let mut scheduler = scheduler();
    settle(&mut scheduler, &mut cluster);
    (cluster, scheduler)
}

fn fairness(criterion: &mut Criterion) {
    let (mut cluster, mut scheduler) = thousand_queues();
    let pending = cluster.claims().filter(|(_, _, at)| at.is_none()).count();
    let name = format!("a cycle with 1000 queues and {pending} claims that wait, full");
    criterion.bench_function(&name, |bencher| {
        bencher.iter_custom(|times| (0..times).map(|_| cycle(&mut scheduler, &mut cluster).1).sum());
    });
    let mut next = 0_usize;
    criterion.bench_function("the same when 20 claims have ended", |bencher| {
        bencher.iter_custom(|times| {
            let mut took = Duration::ZERO;
            for _ in 0..times {
                let placed: Vec<ClaimId> =
                    cluster.claims().filter(|(_, _, at)| at.is_some()).map(|(id, ..)| id).collect();
                for number in 0..20 {
                    next += 1;
                    event(&mut cluster, Event::ClaimRemoved(placed[(next * 7919 + number * 131) % placed.len()]));
                    claim(&mut cluster, &format!("q{}", 100 + next % 900), part(50));
                }
                took += cycle(&mut scheduler, &mut cluster).1;
                settle(&mut scheduler, &mut cluster);
            }
            took
        });
    });
    criterion.bench_function("the state as a value: 500 nodes, 50000 claims", |bencher| {
        bencher.iter(|| black_box(cluster.dump()));
    });
}

fn large_cluster(criterion: &mut Criterion) {
    criterion.bench_function("an 80-device gang for which there is no room on 500 nodes", |bencher| {
        let mut cluster = cluster();
        queue(&mut cluster, "team", None, 4_000_000);
        queue(&mut cluster, "other", None, 0);
        for _ in 0..NODES {
            // One on each node may not be evicted, so no node can be emptied.
            add(&mut cluster, Claim { request: whole(4), queue: "team".into(), ..Claim::default() });
            add(
                &mut cluster,
                Claim { request: whole(1), queue: "other".into(), preemptible: true, ..Claim::default() },
            );
        }
        let mut scheduler = scheduler();
        settle(&mut scheduler, &mut cluster);
        gang(&mut cluster, "gang", "team", 10, &whole(8));
        bencher.iter_custom(|times| (0..times).map(|_| cycle(&mut scheduler, &mut cluster).1).sum());
    });
    criterion.bench_function("one device is taken back from 4000 running claims", |bencher| {
        let mut cluster = cluster();
        queue(&mut cluster, "owner", None, 100_000);
        queue(&mut cluster, "guest", None, 0);
        (0..NODES * DEVICES).for_each(|_| _ = claim(&mut cluster, "guest", whole(1)));
        let mut scheduler = scheduler();
        settle(&mut scheduler, &mut cluster);
        bencher.iter_custom(|times| {
            let mut took = Duration::ZERO;
            for _ in 0..times {
                let back = claim(&mut cluster, "owner", whole(1));
                let (plan, once) = cycle(&mut scheduler, &mut cluster);
                assert_eq!(plan.steps.len(), 2, "one is evicted, one is placed");
                took += once;
                event(&mut cluster, Event::ClaimRemoved(back));
                settle(&mut scheduler, &mut cluster);
            }
            took
        });
    });
    // From an empty cluster each time.
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
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = large_cluster, fairness
}
criterion_main!(benches);
