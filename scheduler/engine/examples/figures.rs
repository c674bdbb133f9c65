//! Measures what the engine adds to a decision, how soon readers see a change, how long a start takes, and memory. The
//! times of decisions and of a start are also given as multiples of what the core alone takes in the same run.
//!
//! ```text
//! cargo run --release -p aliquot-scheduler-engine --example figures
//! ```

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark takes the time")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use aliquot_scheduler_core::placement::{Engine as Placement, ExpectedWaste, Mix, Policy, Weights};
use aliquot_scheduler_core::{
    Bytes, Claim, ClaimId, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event, MilliCpu, NodeSpec,
    Request, Scheduler,
};
use aliquot_scheduler_engine::{
    AtOnce, Backend, Batch, Command, Decisions, Engine, MemoryStore, NodeReport, Observation, Order, Ready, Running,
    Saved, Settings, Store,
};
use aliquot_scheduler_kit::{self as kit, Build};

#[path = "../../core/examples/counting/mod.rs"]
mod counting;

use counting::live_bytes;

const DEVICES: usize = 8;

fn node(number: usize) -> NodeSpec {
    let uuid = |index| format!("GPU-{number:08x}-{index:04x}-0000-0000-000000000000");
    NodeSpec {
        labels: [("zone".to_owned(), format!("zone-{}", number % 8))].into(),
        memory: Bytes::from_mib(1 << 24),
        devices: (0..DEVICES).map(|index| DeviceSpec { uuid: uuid(index), ..kit::device("H100") }).collect(),
        ..kit::node(&format!("node-{number}"), 1000, 0)
    }
}

fn claim(number: usize, parts_per_device: u32) -> Claim {
    let core = DeviceCore::new(1000 / parts_per_device);
    let devices = DeviceRequest { count: 1, core, memory: DeviceMemory::Thousandths(core.get()) };
    Claim {
        name: format!("team-{}/train-{number}", number % 40),
        namespace: format!("team-{}", number % 40),
        request: Request { cpu: MilliCpu::new(1000), memory: Bytes::from_mib(1024), devices, ..Request::default() },
        priority: 50,
        preemptible: true,
        ..Claim::default()
    }
}

fn policy(parts_per_device: u32) -> Box<dyn Policy> {
    Box::new(ExpectedWaste::new(&Mix::of([&claim(0, parts_per_device).request]), Weights::default()))
}

fn engine(parts_per_device: u32, saved: Saved) -> Engine {
    let decisions = Decisions {
        policy: policy(parts_per_device),
        settings: aliquot_scheduler_core::Settings::default(),
        usage_half_life_ms: 604_800_000,
    };
    // No waiting: the benchmark measures work.
    let settings = Settings {
        cycle_delay_ms: 0,
        cycle_gap_ms: 0,
        publish_gap_ms: 0,
        memory_every_ms: 1 << 40,
        lease: None,
        ..Settings::default()
    };
    Engine::new(decisions, settings, saved)
}

fn report(number: usize, sequence: u64, running: Vec<Running>) -> Observation {
    let handled = running.iter().map(|running| running.instance).max().unwrap_or_default();
    Observation::Node(Box::new(NodeReport { spec: node(number), session: 1, sequence, handled, running }))
}

/// An engine, the store that it writes to, and nodes that carry out each command at once.
struct Live {
    engine: Engine,
    store: MemoryStore,
    nodes: AtOnce,
    now_ms: u64,
    /// Time spent in the engine, without the store and the nodes.
    spent: Duration,
    records: usize,
    batches: usize,
    turns: usize,
}

impl Live {
    fn new(nodes: usize, parts_per_device: u32) -> Self {
        let mut live = Self {
            engine: engine(parts_per_device, Saved::default()),
            store: MemoryStore::default(),
            nodes: AtOnce::default(),
            now_ms: 1,
            spent: Duration::ZERO,
            records: 0,
            batches: 0,
            turns: 0,
        };
        live.tell(Observation::Synced);
        for number in 0..nodes {
            live.tell(report(number, 1, Vec::new()));
        }
        live.converge();
        live
    }

    fn tell(&mut self, observation: Observation) {
        let began = Instant::now();
        let told = self.engine.handle(self.now_ms, observation);
        self.spent += began.elapsed();
        assert!(told.is_ok(), "{told:?}");
    }

    fn poll(&mut self) -> Vec<Command> {
        let began = Instant::now();
        let Ready { save, commands, view } = self.engine.poll(self.now_ms);
        drop(view);
        self.spent += began.elapsed();
        self.turns += 1;
        if let Some(batch) = save {
            self.save(&batch);
        }
        commands
    }

    fn save(&mut self, batch: &Batch) {
        self.records += batch.claims.len();
        self.batches += 1;
        self.store.save(batch).expect("a store in memory takes all");
    }

    /// Runs until no command is sent any more; each command succeeds.
    fn converge(&mut self) {
        loop {
            let commands = self.poll();
            if commands.is_empty() {
                return;
            }
            commands.into_iter().for_each(|command| self.nodes.carry_out(command));
            for answer in self.nodes.take_answers() {
                self.tell(answer);
            }
        }
    }

    fn want(&mut self, number: usize, parts_per_device: u32) {
        let claim = claim(number, parts_per_device);
        self.tell(Observation::Claim(claim.name.as_str().into(), Box::new(claim)));
    }

    fn end(&mut self, number: usize) {
        let name = claim(number, 1).name;
        self.tell(Observation::ClaimEnded(name.as_str().into()));
    }
}

/// In which way the core alone decides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Core {
    /// Like the engine, which runs a second cycle to see whether the first was all.
    TwoCycles,
    /// One cycle, which suffices for the decision.
    OneCycle,
    /// The policy is asked for each claim, without a cycle.
    Policy,
}

/// The same arrivals and ends in the core alone, without nodes and readers.
fn core_alone(core: Core, nodes: usize, claims: usize, batch: usize, rounds: usize) -> Duration {
    let mut cluster = Cluster::new();
    let mut scheduler = Scheduler::new(policy(1), aliquot_scheduler_core::Settings::default());
    for number in 0..nodes {
        cluster.apply(Event::NodeAdded(node(number))).expect("a new node");
    }
    let claims_at_first = (0..claims).map(|number| cluster.add_claim(claim(number, 1)));
    let mut placed: VecDeque<ClaimId> = claims_at_first.collect();
    scheduler.cycle(&mut cluster);
    let mut placement = Placement::new(policy(1));
    let mut spent = Duration::ZERO;
    for round in 0..rounds {
        let began = Instant::now();
        for number in 0..batch {
            placed.push_back(cluster.add_claim(claim(claims + round * batch + number, 1)));
            let ended = placed.pop_front().expect("as many came");
            cluster.apply(Event::ClaimRemoved(ended)).expect("it was there");
        }
        match core {
            Core::TwoCycles => (0..2).for_each(|_| _ = scheduler.cycle(&mut cluster)),
            Core::OneCycle => _ = scheduler.cycle(&mut cluster),
            Core::Policy => {
                for claim in placed.iter().rev().take(batch) {
                    let class = cluster.class_of(*claim).expect("the claim is there");
                    let at = placement.place(&cluster, class).expect("there is room");
                    cluster.apply(Event::ClaimPlaced(*claim, at)).expect("there is room");
                }
            }
        }
        spent += began.elapsed();
    }
    spent
}

fn per_decision() {
    for (nodes, batch, rounds) in [(10, 1, 20_000), (1000, 1, 2000), (1000, 100, 40)] {
        let claims = nodes * 6;
        let [alone, one_cycle, asked] = [Core::TwoCycles, Core::OneCycle, Core::Policy]
            .map(|core| core_alone(core, nodes, claims, batch, rounds).as_secs_f64());
        let mut live = Live::new(nodes, 1);
        (0..claims).for_each(|number| live.want(number, 1));
        live.converge();
        (live.spent, live.records, live.batches, live.turns) = (Duration::ZERO, 0, 0, 0);
        for round in 0..rounds {
            live.now_ms += 1;
            // Each new claim finds room: fewer claims run than there are devices.
            for number in 0..batch {
                live.want(claims + round * batch + number, 1);
                live.end(round * batch + number);
            }
            live.converge();
        }
        let decisions = u32::try_from(batch * rounds).unwrap_or(u32::MAX);
        let spent = live.spent.as_secs_f64();
        println!(
            "a claim ends and another starts, {batch} at a time, {nodes} nodes: {:.1?} each with the engine, {:.2} x the \
             core alone with two cycles, {:.2} x with one, {:.1} x the policy alone; {:.1} records in {:.2} batches each",
            live.spent / decisions,
            spent / alone,
            spent / one_cycle,
            spent / asked,
            live.records as f64 / f64::from(decisions),
            live.batches as f64 / f64::from(decisions),
        );
    }
}

fn visible() {
    let (nodes, claims) = (10_000, 50_000);
    let before = live_bytes();
    let mut live = Live::new(nodes, 1);
    live.store = MemoryStore::default();
    let with_nodes = live_bytes();
    (0..claims).for_each(|number| live.want(number, 1));
    live.converge();
    (live.store, live.nodes) = (MemoryStore::default(), AtOnce::default());
    let with_claims = live_bytes();
    let mut seen = Vec::new();
    for number in 0..200 {
        live.now_ms += 1;
        live.want(claims + number, 1);
        let began = Instant::now();
        let turn = live.engine.poll(live.now_ms);
        seen.push(began.elapsed());
        assert!(turn.view.is_some());
        live.converge();
    }
    seen.sort_unstable();
    // One percent of the claims end and as many others arrive, all at once.
    let (mut rounds, mut held) = (Vec::new(), None);
    let (changed, mut next) = (claims / 100, claims + 200);
    for _ in 0..10 {
        live.now_ms += 1;
        (next..next + changed).for_each(|number| live.want(number, 1));
        (next - claims..next - claims + changed).for_each(|number| live.end(number));
        next += changed;
        let began = Instant::now();
        held = live.engine.poll(live.now_ms).view.or(held);
        rounds.push(began.elapsed());
        live.converge();
    }
    rounds.sort_unstable();
    println!(
        "{nodes} nodes, {claims} claims: a claim that comes is decided and shown after {:.2?} (median), {:.2?} (p99)",
        seen[seen.len() / 2],
        seen[seen.len() * 99 / 100]
    );
    println!("... and {changed} that end while as many others come after {:.1?} (median)", rounds[rounds.len() / 2]);
    let view = held.expect("views were made");
    let copies: Vec<Duration> = (0..100)
        .map(|_| {
            let began = Instant::now();
            let copy = view.cluster().clone();
            let taken = began.elapsed();
            drop(copy);
            taken
        })
        .collect();
    println!("a copy of the books: {:.1?}", copies.iter().min().expect("some were made"));
    let began = Instant::now();
    let fork = view.scheduler().fork();
    println!("a copy of what decides: {:.1?}", began.elapsed());
    drop(fork);
    println!(
        "memory: {} B for a node with {DEVICES} devices, {} B for a claim that runs",
        (with_nodes - before) / nodes,
        (with_claims - with_nodes) / claims
    );
}

fn restart() {
    let (nodes, claims, parts) = (1000, 100_000, 10);
    let mut live = Live::new(nodes, parts);
    (0..claims).for_each(|number| live.want(number, parts));
    live.converge();
    let mut store = live.store.clone();
    let running: Vec<Vec<Running>> = {
        let turn = live.engine.poll(live.now_ms);
        drop(turn);
        let saved = store.load().expect("it is in memory");
        let mut by_node = vec![Vec::new(); nodes];
        for (key, record) in &saved.claims {
            let Some(instance) = &record.instance else { continue };
            let number: usize = instance.node.as_str().trim_start_matches("node-").parse().expect("named by number");
            by_node[number].push(Running {
                claim: key.uid.clone(),
                instance: instance.generation,
                amounts: instance.amounts.clone(),
                since_ms: None,
            });
        }
        by_node
    };
    let count: usize = running.iter().map(Vec::len).sum();
    let wanted: Vec<Claim> = (0..claims).map(|number| claim(number, parts)).collect();
    let view = live.engine.view();
    let dump = view.scheduler().dump(view.cluster());
    drop((live, view));
    let began = Instant::now();
    let (mut scheduler, mut cluster) =
        Scheduler::restore(policy(parts), aliquot_scheduler_core::Settings::default(), dump).expect("the same state");
    scheduler.cycle(&mut cluster);
    let alone = began.elapsed();
    drop((scheduler, cluster));
    let before = live_bytes();
    let began = Instant::now();
    let saved = store.load().expect("it is in memory");
    let loaded = began.elapsed();
    let mut engine = engine(parts, saved);
    for claim in wanted {
        let told = engine.handle(2, Observation::Claim(claim.name.as_str().into(), Box::new(claim)));
        assert!(told.is_ok(), "{told:?}");
    }
    let told = began.elapsed();
    engine.handle(2, Observation::Synced).expect("nothing contradicts");
    let began_anew = began.elapsed();
    for (number, running) in running.into_iter().enumerate() {
        engine.handle(2, report(number, 2, running)).expect("a known node");
    }
    let reported = began.elapsed();
    let turn = engine.poll(2);
    let decided = began.elapsed();
    let steps =
        turn.commands.iter().filter(|command| matches!(command.order, Order::Start { .. } | Order::Stop { .. }));
    assert_eq!(steps.count(), 0, "all that runs goes on");
    println!(
        "restart with {nodes} nodes and {claims} claims, {count} of them running: {loaded:.2?} load, {told:.2?} all was \
         told, {began_anew:.2?} the books are there, {reported:.2?} all nodes were heard, {decided:.2?} decided and \
         shown, {:.2} x the core alone from a dump; {} MiB",
        decided.as_secs_f64() / alone.as_secs_f64(),
        (live_bytes() - before) >> 20
    );
}

fn main() {
    per_decision();
    visible();
    restart();
}
