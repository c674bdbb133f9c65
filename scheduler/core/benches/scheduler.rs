//! How long the scheduler's parts take.

use aliquot_scheduler_core::placement::{Engine, ExpectedWaste, Mix, Weights};
use aliquot_scheduler_core::{
    Allowance, Claim, ClaimId, Cluster, DeviceCore, DeviceRequest, DeviceSpec, Event, MilliCpu, NodeSpec, QueueDemand,
    Request, Statement, entitlements,
};
use aliquot_scheduler_kit::{self as kit, Build};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

/// 1,000 queues in three levels, all of which ask for more than the cluster has.
fn queues() -> Vec<QueueDemand> {
    let queue = |index: usize| QueueDemand {
        parent: match index {
            0..10 => None,
            10..100 => Some(index % 10),
            _ => Some(10 + index % 90),
        },
        priority: i32::try_from(index % 3).unwrap_or(0),
        allowances: (0..5)
            .map(|_| Allowance {
                quota: Some(50 + index as u64 % 700),
                weight: 1 + index as u64 % 7,
                ..Allowance::default()
            })
            .collect(),
        requested: vec![if index < 100 { 0 } else { 1 + (index as u64 * 7919) % 40_000 }; 5],
        usage_ppm: vec![(index as u64 * 104_729) % 2000; 5],
    };
    (0..1000).map(queue).collect()
}

fn fair_shares(criterion: &mut Criterion) {
    let queues = queues();
    let totals = [4_000_000, 8_000_000, 2_000_000, 6_000_000, 5_000_000];
    criterion.bench_function("entitlements of 1000 queues, 5 resources", |bencher| {
        bencher.iter(|| entitlements(&totals, &queues, 1000));
    });
}

fn share(core: u32, cpu: u64) -> Request {
    let devices = DeviceRequest::share(DeviceCore::new(core));
    Request { cpu: MilliCpu::new(cpu), devices, ..Request::default() }
}

fn whole(count: u16, cpu: u64) -> Request {
    Request { cpu: MilliCpu::new(cpu), ..kit::whole(count) }
}

fn wants(request: &Request) -> Claim {
    Claim { request: request.clone(), ..Claim::default() }
}

/// Nodes with eight devices, filled to four fifths.
fn cluster(nodes: usize, requests: &[Request]) -> (Cluster, Engine<ExpectedWaste>, Vec<ClaimId>) {
    let mut cluster = Cluster::new();
    for number in 0..nodes {
        let spec = NodeSpec {
            name: format!("node-{number}"),
            cpu: MilliCpu::new(96_000),
            devices: vec![DeviceSpec::default(); 8],
            ..NodeSpec::default()
        };
        cluster.add_node(spec);
    }
    let mut engine = Engine::new(ExpectedWaste::new(&Mix::of(requests), Weights::default()));
    let (mut placed, mut used) = (Vec::new(), 0);
    for request in requests.iter().cycle() {
        if used >= nodes as u64 * 6400 {
            break;
        }
        let claim = cluster.add_claim(wants(request));
        if cycle(&mut cluster, &mut engine, claim) {
            used += request.devices.total_core();
            placed.push(claim);
        }
    }
    (cluster, engine, placed)
}

fn cycle(cluster: &mut Cluster, engine: &mut Engine<ExpectedWaste>, claim: ClaimId) -> bool {
    let allocation = cluster.class_of(claim).and_then(|class| engine.place(cluster, class));
    allocation.is_some_and(|allocation| cluster.apply(Event::ClaimPlaced(claim, allocation)).is_ok())
}

fn decisions(criterion: &mut Criterion) {
    let requests =
        [share(470, 8000), share(810, 3000), whole(1, 11_000), share(230, 4000), whole(2, 16_000), whole(8, 64_000)];
    let (mut cluster, mut engine, mut placed) = cluster(10_000, &requests);
    let mut next = 0;
    criterion.bench_function("one claim leaves, one is placed; 10000 nodes", |bencher| {
        bencher.iter(|| {
            let gone = placed.swap_remove(next * 7919 % placed.len());
            let request = requests[next % requests.len()].clone();
            next += 1;
            assert!(cluster.apply(Event::ClaimRemoved(gone)).is_ok());
            let claim = cluster.add_claim(wants(&request));
            if cycle(&mut cluster, &mut engine, claim) {
                placed.push(claim);
            }
        });
    });
    let gang: Vec<ClaimId> = (0..10).map(|_| cluster.add_claim(wants(&whole(8, 90_000)))).collect();
    criterion.bench_function("a gang of 80 devices is tried and rolled back; 10000 nodes", |bencher| {
        bencher.iter(|| {
            let mut statement = Statement::new(&mut cluster);
            for claim in &gang {
                let class = statement.cluster().class_of(*claim);
                let allocation = class.and_then(|class| engine.place(statement.cluster(), class));
                if allocation.is_none_or(|allocation| statement.place(*claim, allocation).is_err()) {
                    break;
                }
            }
        });
    });
}

/// Claims that all have different templates, as gangs' members have. What a copy of the cluster shares is copied when
/// it changes; with a view for readers, that happens after every pass.
fn copies(criterion: &mut Criterion) {
    let claim = |number: u64| Claim { min_runtime_ms: number, ..wants(&whole(1, 1000)) };
    let mut cluster = Cluster::new();
    let mut claims: Vec<ClaimId> = (0..30_000).map(|number| cluster.add_claim(claim(number))).collect();
    let mut next = 0;
    criterion.bench_function("a claim leaves and one comes after a copy; 30000 templates", |bencher| {
        bencher.iter(|| {
            let view = cluster.clone();
            next += 1;
            let place = next * 7919 % claims.len();
            assert!(cluster.apply(Event::ClaimRemoved(claims[place])).is_ok());
            claims[place] = cluster.add_claim(claim(30_000 + next as u64));
            view
        });
    });
}

/// A node of number `number` with eight devices of twenty attributes each, and `more` further ones.
fn described(number: usize, more: usize) -> NodeSpec {
    let device = |index: u16| {
        let uuid = format!("GPU-{number:08x}-{index}");
        let of_make = (1..20).map(|key| (format!("gpu.example.com/attribute-{key}"), format!("value-{}", number % 4)));
        let of_selections = (0..more).map(|key| (format!("selection-{key}"), "true".to_owned()));
        let attributes = of_make.chain(of_selections).chain([("uuid".to_owned(), uuid.clone())]).collect();
        let (switch, numa) = (Some(index / 2), Some(index / 4));
        DeviceSpec { uuid, nvlink_group: Some(0), switch, numa, attributes, ..kit::device("H100") }
    };
    NodeSpec { devices: (0..8).map(device).collect(), ..kit::node(&format!("node-{number}"), 96, 0) }
}

/// A new selection of devices becomes an attribute of all of them.
fn relabels(criterion: &mut Criterion) {
    const NODES: usize = 10_000;
    let mut cluster = Cluster::new();
    let nodes: Vec<_> = (0..NODES).map(|number| cluster.add_node(described(number, 0))).collect();
    let mut more = 0;
    let mut group = criterion.benchmark_group("relabels");
    group.sample_size(10);
    group.bench_function("all 80000 devices get one more attribute beside 20; 10000 nodes", |bencher| {
        let specs = || {
            // Not without end: each is a further attribute.
            more = more % 4 + 1;
            (0..NODES).map(|number| described(number, more)).collect::<Vec<_>>()
        };
        let relabel = |specs: Vec<NodeSpec>| {
            for (node, spec) in nodes.iter().zip(specs) {
                assert!(cluster.apply(Event::NodeRelabelled(*node, spec)).is_ok());
            }
        };
        bencher.iter_batched(specs, relabel, BatchSize::PerIteration);
    });
}

criterion_group!(benches, fair_shares, decisions, copies, relabels);
criterion_main!(benches);
