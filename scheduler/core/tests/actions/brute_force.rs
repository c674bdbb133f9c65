//! Compares the victims that make way with the best of all sets of victims, on small clusters.
//!
//! All sets are tried one by one, on books of the test's own: the free percents of each device.

use aliquot_scheduler_core::{
    Allocation, Allowance, Claim, ClaimId, DeviceAllocation, DeviceCore, DeviceRequest, DisruptionBudget, Event,
    PodGroup, Settings,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::setting::{World, group, wants};

/// What a claim asks for: a number of devices, and a percentage of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wish {
    devices: u16,
    percent: u32,
}

impl Wish {
    fn request(self) -> DeviceRequest {
        match self.percent {
            100 => DeviceRequest::whole(self.devices),
            percent => DeviceRequest::share(DeviceCore::from_percent(percent)),
        }
    }

    fn total(self) -> u32 {
        u32::from(self.devices) * self.percent
    }
}

#[derive(Clone, Copy, Debug)]
struct Runner {
    wish: Wish,
    priority: i32,
    preemptible: bool,
    budget: Option<usize>,
}

#[derive(Clone, Debug)]
struct Situation {
    /// The number of devices of each node.
    nodes: Vec<usize>,
    runners: Vec<Runner>,
    /// The number of members of each budget that must stay.
    budgets: Vec<u32>,
    wishes: Vec<Wish>,
}

const BUDGETS: [&str; 2] = ["first", "second"];

fn wish() -> impl Strategy<Value = Wish> {
    prop_oneof![
        (1..=3_u16).prop_map(|devices| Wish { devices, percent: 100 }),
        prop::sample::select(vec![20, 30, 50, 60, 70]).prop_map(|percent| Wish { devices: 1, percent }),
    ]
}

fn situation(wishes: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Situation> {
    let priority = prop::sample::select(vec![10, 20, 30]);
    let budget = prop_oneof![2 => Just(None), 1 => (0..BUDGETS.len()).prop_map(Some)];
    let runner = (wish(), priority, prop::bool::weighted(0.9), budget)
        .prop_map(|(wish, priority, preemptible, budget)| Runner { wish, priority, preemptible, budget });
    let (nodes, budgets) = (vec(1..=3_usize, 1..=3), vec(0..=2_u32, BUDGETS.len()));
    (nodes, vec(runner, 1..=10), budgets, vec(wish(), wishes)).prop_map(|(nodes, runners, budgets, wishes)| Situation {
        nodes,
        runners,
        budgets,
        wishes,
    })
}

/// A running claim that could be evicted.
#[derive(Clone, Debug)]
struct Victim {
    claim: ClaimId,
    node: usize,
    devices: Vec<u16>,
    runner: Runner,
}

/// The harm of evicting a set: the number of victims, their highest priority, and the sum of what they hold.
type Harm = (usize, i32, u32);

struct Played {
    world: World,
    /// The free percents, by node and device.
    free: Vec<Vec<u32>>,
    victims: Vec<Victim>,
    /// The number of members of each budget that may go.
    spare: Vec<u32>,
    /// The claims that want a place.
    wanting: Vec<ClaimId>,
}

impl Situation {
    /// Lets each runner run that finds a place, node by node, and adds the claims that want a place.
    fn play(&self, queue_of_runners: &str, queue: &str) -> Played {
        let settings = Settings { moves_per_cycle: 0, hold_after_ms: None, ..Settings::default() };
        let mut world = World::with(&self.nodes, settings);
        world.queue_with("red", None, Allowance::default());
        world.queue_with("blue", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
        for (name, min_available) in BUDGETS.iter().zip(&self.budgets) {
            let (name, min_available) = ((*name).to_owned(), *min_available);
            world.apply(Event::BudgetChanged(DisruptionBudget { name, min_available, ..DisruptionBudget::default() }));
        }
        let mut free: Vec<Vec<u32>> = self.nodes.iter().map(|devices| vec![100; *devices]).collect();
        let (mut victims, mut running) = (Vec::new(), vec![0_u32; BUDGETS.len()]);
        for (number, runner) in self.runners.iter().enumerate() {
            let nodes = (0..free.len()).map(|step| (number + step) % free.len());
            let places = nodes.filter_map(|node| Some((node, fitting(&free[node], runner.wish)?)));
            let Some((node, devices)) = places.into_iter().next() else { continue };
            let budget = runner.budget.and_then(|budget| BUDGETS.get(budget)).map(|name| (*name).to_owned());
            let mut claim = wants(queue_of_runners, runner.priority, 0);
            claim.request.devices = runner.wish.request();
            let preemptible = runner.preemptible;
            let claim = world.claim(Claim { preemptible, disruption_budget: budget, ..claim });
            let at = world.id(node);
            let part = |device: &u16| {
                let memory =
                    world.cluster.node(at).expect("a node of the world").devices()[usize::from(*device)].memory();
                let wanted = runner.wish.request();
                DeviceAllocation { device: *device, core: wanted.core, memory: wanted.memory.on(memory) }
            };
            let allocation = Allocation { node: at, devices: devices.iter().map(part).collect(), alternative: 0 };
            world.apply(Event::ClaimPlaced(claim, allocation));
            devices.iter().for_each(|device| free[node][usize::from(*device)] -= runner.wish.percent);
            runner.budget.into_iter().for_each(|budget| running[budget] += 1);
            if preemptible {
                victims.push(Victim { claim, node, devices, runner: *runner });
            }
        }
        let spare = running.iter().zip(&self.budgets).map(|(running, min)| running.saturating_sub(*min)).collect();
        let members = u32::try_from(self.wishes.len()).expect("few members");
        let group: PodGroup = group("gang", queue, 100, members);
        world.apply(Event::PodGroupAdded(group));
        let wanting = self.wishes.iter().map(|wish| {
            let mut claim = Claim { pod_group: Some("gang".into()), ..wants("", 0, 0) };
            claim.request.devices = wish.request();
            world.claim(claim)
        });
        let wanting = wanting.collect();
        Played { world, free, victims, spare, wanting }
    }

    fn asked(&self) -> u32 {
        self.wishes.iter().map(|wish| wish.total()).sum()
    }
}

/// The first devices of a node that have enough free.
fn fitting(free: &[u32], wish: Wish) -> Option<Vec<u16>> {
    let fitting = (0..).zip(free).filter(|(_, free)| **free >= wish.percent).map(|(device, _)| device);
    let devices: Vec<u16> = fitting.take(usize::from(wish.devices)).collect();
    (devices.len() == usize::from(wish.devices)).then_some(devices)
}

/// A node, and devices of it.
type Place = (usize, Vec<usize>);

/// The places that have room for a wish.
fn places(free: &[Vec<u32>], wish: Wish) -> Vec<Place> {
    let of_set =
        |node: usize, set: u32| (node, (0..free[node].len()).filter(|device| set & (1 << device) != 0).collect());
    let of_node = |node: usize| (0..1_u32 << free[node].len()).map(move |set| of_set(node, set));
    let has_room = |(node, devices): &Place| {
        devices.len() == usize::from(wish.devices) && devices.iter().all(|device| free[*node][*device] >= wish.percent)
    };
    (0..free.len()).flat_map(of_node).filter(has_room).collect()
}

/// What is still free when a wish has its place.
fn less(free: &[Vec<u32>], wish: Wish, (node, devices): &Place) -> Vec<Vec<u32>> {
    let mut free = free.to_vec();
    devices.iter().for_each(|device| free[*node][*device] -= wish.percent);
    free
}

/// Whether all these wishes can be placed, on any nodes.
fn all_fit(free: &[Vec<u32>], wishes: &[Wish]) -> bool {
    let Some((wish, others)) = wishes.split_first() else { return true };
    places(free, *wish).iter().any(|place| all_fit(&less(free, *wish, place), others))
}

/// Whether all these wishes find room one after another, in whatever order they come and on whatever devices each is
/// placed.
fn surely_fit(free: &[Vec<u32>], wishes: &[Wish]) -> bool {
    (0..wishes.len()).all(|next| {
        let wish = wishes[next];
        let others = [&wishes[..next], &wishes[next + 1..]].concat();
        let places = places(free, wish);
        !places.is_empty() && places.iter().all(|place| surely_fit(&less(free, wish, place), &others))
    })
}

impl Played {
    /// The harm of evicting these victims; `None` if the budgets or the bound on evictions forbid it.
    fn harm(&self, set: &[&Victim], asked: u32) -> Option<Harm> {
        let of = |budget: usize| set.iter().filter(|victim| victim.runner.budget == Some(budget)).count();
        let kept = self.spare.iter().enumerate().all(|(budget, spare)| of(budget) <= *spare as usize);
        let amount: u32 = set.iter().map(|victim| victim.runner.wish.total()).sum();
        let priority = set.iter().map(|victim| victim.runner.priority).max()?;
        (kept && (set.len() <= 1 || amount <= 2 * asked)).then_some((set.len(), priority, amount))
    }

    /// The least harm by which room can be made so that `fit` says that the wishes fit, over all victims that may be
    /// taken. `on_one_node`: only victims on one node.
    fn least_harm(
        &self,
        wishes: &[Wish],
        on_one_node: bool,
        fit: impl Fn(&[Vec<u32>], &[Wish]) -> bool,
    ) -> Option<Harm> {
        let asked = wishes.iter().map(|wish| wish.total()).sum();
        let mut least: Option<Harm> = None;
        for set in 1..1_u32 << self.victims.len() {
            let set = self.victims.iter().enumerate().filter(|(number, _)| set & (1 << number) != 0);
            let set: Vec<&Victim> = set.map(|(_, victim)| victim).collect();
            if on_one_node && set.windows(2).any(|pair| pair[0].node != pair[1].node) {
                continue;
            }
            let Some(harm) = self.harm(&set, asked).filter(|harm| least.is_none_or(|least| *harm < least)) else {
                continue;
            };
            let mut free = self.free.clone();
            for victim in &set {
                let wish = victim.runner.wish;
                victim.devices.iter().for_each(|device| free[victim.node][usize::from(*device)] += wish.percent);
            }
            if fit(&free, wishes) {
                least = Some(harm);
            }
        }
        least
    }

    /// Runs a cycle. Returns the harm that it does, if any.
    fn done(&mut self, asked: u32) -> Option<Harm> {
        let plan = self.world.cycle();
        let disturbed = |victim: &&Victim| plan.steps.iter().any(|step| step.step.claim() == victim.claim);
        let set: Vec<&Victim> = self.victims.iter().filter(disturbed).collect();
        let all = set.len() == plan.steps.len() - self.wanting.iter().filter(|claim| self.world.runs(**claim)).count();
        assert!(all, "only claims that may be taken are taken: {plan:#?}");
        if set.is_empty() {
            return None;
        }
        Some(self.harm(&set, asked).expect("the budgets and the bound on what is evicted are kept"))
    }

    fn placed(&self) -> usize {
        self.world.running(&self.wanting)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn for_a_single_task_nobody_could_choose_better_whom_to_preempt(situation in situation(1..=1)) {
        let mut played = situation.play("red", "red");
        prop_assume!(!all_fit(&played.free, &situation.wishes));
        let least = played.least_harm(&situation.wishes, true, all_fit);
        prop_assert_eq!(played.done(situation.asked()), least);
        prop_assert_eq!(played.placed(), usize::from(least.is_some()));
    }

    #[test]
    fn for_a_single_task_nobody_could_choose_better_from_whom_to_reclaim(situation in situation(1..=1)) {
        let mut played = situation.play("blue", "red");
        prop_assume!(!all_fit(&played.free, &situation.wishes));
        let least = played.least_harm(&situation.wishes, true, all_fit);
        prop_assert_eq!(played.done(situation.asked()), least);
        prop_assert_eq!(played.placed(), usize::from(least.is_some()));
    }

    /// Members are placed one after another, so a cycle may miss room that a better packing has. It must not miss
    /// victims of less harm with whom the gang fits however its members are placed.
    #[test]
    fn for_a_small_gang_nobody_could_choose_better_among_few(situation in situation(2..=3)) {
        let mut played = situation.play("red", "red");
        prop_assume!(!all_fit(&played.free, &situation.wishes));
        let least = played.least_harm(&situation.wishes, false, all_fit);
        let surely = played.least_harm(&situation.wishes, false, surely_fit);
        let done = played.done(situation.asked());
        match done {
            Some(done) => {
                prop_assert!(least.is_some_and(|least| least <= done), "{:?} of {:?}", done, least);
                prop_assert!(surely.is_none_or(|surely| done <= surely), "{:?} of {:?}", done, surely);
            }
            None => prop_assert_eq!(surely, None),
        }
        prop_assert_eq!(played.placed(), if done.is_some() { situation.wishes.len() } else { 0 });
    }
}
