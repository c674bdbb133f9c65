//! What is kept of queues' limits and quotas for groups that have waited long for them.

use aliquot_scheduler_core::explain::{Reason, Tier};
use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{Allowance, Claim, ClaimId, Event, MilliCpu, QueueSpec, Resource, Scheduler, Settings};
use aliquot_scheduler_kit::queue;

use crate::setting::{INFERENCE, TRAIN, World, build, group, wants};

const MINUTE_MS: u64 = 60_000;

fn limited(devices: u64) -> Allowance {
    Allowance { limit: Some(devices * 1000), ..Allowance::UNNAMED }
}

/// A queue "q" with a limit of four devices on a larger node, full with claims of one device. A unit waits five minutes
/// before anything is kept for it.
fn full_queue() -> (World, Vec<ClaimId>) {
    let mut world = World::new(&[16]);
    world.queue_with("q", None, limited(4));
    let small = (0..4).map(|_| world.add("q", TRAIN, 1)).collect();
    world.cycle();
    (world, small)
}

impl World {
    /// Lets the pending claims wait until what they need is kept for them.
    fn wait_for_long(&mut self) {
        self.cycle();
        self.wait(6 * MINUTE_MS);
        self.cycle();
    }

    fn end(&mut self, claim: ClaimId) {
        self.apply(Event::ClaimRemoved(claim));
    }

    /// For this many minutes, one cycle each minute, the oldest running small claim ends in each minute, and another one
    /// comes. Returns after how many minutes the large claims run.
    fn minutes_until(&mut self, large: &[ClaimId], small: &mut Vec<ClaimId>, most: u64, next: &Claim) -> Option<u64> {
        (0..most).find(|_| {
            self.wait(MINUTE_MS);
            if let Some(oldest) = small.iter().position(|claim| self.runs(*claim)) {
                let ended = small.remove(oldest);
                self.end(ended);
            }
            small.push(self.claim(next.clone()));
            self.cycle();
            self.running(large) == large.len()
        })
    }

    /// The reason that a claim waits, by the last cycle's plan and by an explanation, which must agree.
    fn reason(&mut self, claim: ClaimId) -> Reason {
        let plan = self.cycle();
        let group = self.cluster.group_of(claim).expect("it waits");
        let pending = plan.pending.iter().find(|pending| pending.group == group).expect("it waits");
        let explained = self.scheduler.explain(&self.cluster, claim).expect("it is known").reasons;
        let reason = pending.reason(&self.cluster);
        assert_eq!(explained.first(), Some(&reason));
        reason
    }
}

#[test]
fn a_large_claim_does_not_starve_at_its_queues_limit() {
    let (mut world, mut small) = full_queue();
    let large = world.add("q", TRAIN, 4);
    let minutes = world.minutes_until(&[large], &mut small, 60, &wants("q", TRAIN, 1));
    // Five minutes from the first cycle that sees it, then the four running ones end.
    assert_eq!(minutes, Some(9));
}

#[test]
fn a_gang_does_not_starve_at_the_limit_of_a_queue_above_its_own() {
    let mut world = World::new(&[16]);
    world.queue_with("team", None, limited(4));
    world.queue_with("one", Some("team"), Allowance::UNNAMED);
    world.queue_with("two", Some("team"), Allowance::UNNAMED);
    // Not preemptible: otherwise they would be reclaimed for the gang.
    let fixed = Claim { preemptible: false, ..wants("two", TRAIN, 1) };
    let mut small = (0..4).map(|_| world.claim(fixed.clone())).collect();
    world.cycle();
    let gang = world.gang(group("gang", "one", TRAIN, 4), 4, 1);
    let minutes = world.minutes_until(&gang, &mut small, 60, &fixed);
    assert!(minutes.is_some_and(|minutes| minutes < 20), "{minutes:?}");
}

#[test]
fn a_fixed_claim_does_not_starve_at_its_queues_quota() {
    let mut world = World::new(&[16]);
    world.queue("q", 4);
    let mut small: Vec<ClaimId> = (0..4).map(|_| world.claim(build("q", 1))).collect();
    world.cycle();
    let large = world.claim(build("q", 4));
    assert_eq!(world.minutes_until(&[large], &mut small, 60, &build("q", 1)), Some(9));
}

#[test]
fn a_large_claim_waits_as_before_if_nothing_is_ever_kept() {
    let mut world = World::with(&[16], Settings { hold_after_ms: None, ..Settings::default() });
    world.queue_with("q", None, limited(4));
    let mut small: Vec<ClaimId> = (0..4).map(|_| world.add("q", TRAIN, 1)).collect();
    world.cycle();
    let large = world.add("q", TRAIN, 4);
    assert_eq!(world.minutes_until(&[large], &mut small, 60, &wants("q", TRAIN, 1)), None);
}

/// A world in which four devices are kept for the first of these claims, and the second would have room in what is
/// free.
fn keeping() -> (World, ClaimId, ClaimId, Vec<ClaimId>) {
    let (mut world, mut small) = full_queue();
    let large = world.add("q", TRAIN, 4);
    world.wait_for_long();
    world.end(small.remove(0));
    let other = world.add("q", TRAIN, 1);
    world.cycle();
    assert!(!world.runs(large) && !world.runs(other));
    (world, large, other, small)
}

#[test]
fn a_claim_that_waits_for_what_is_kept_is_told_so() {
    let (mut world, _, other, _) = keeping();
    let reason = world.reason(other);
    assert_eq!(reason.tier(), Tier::Quota);
    assert!(!reason.calls_for_nodes());
    let Reason::QueueLimit(bound) = &reason else { panic!("{reason:?}") };
    assert_eq!((bound.held, bound.asked, bound.kept, bound.bound), (3000, 1000, 4000, 4000));
    let text = reason.to_string();
    assert!(text.contains("and 400 % gpu-core are kept for claims that have waited longer"), "{text}");
}

#[test]
fn what_is_kept_is_not_for_pods_of_other_schedulers() {
    let (mut world, _, other, _) = keeping();
    assert!(!world.scheduler.place_now(&mut world.cluster, other));
    let passed = world.scheduler.bounds_passed(&world.cluster, other);
    assert!(matches!(passed.as_slice(), [Reason::QueueLimit(bound)] if bound.kept == 4000), "{passed:?}");
}

#[test]
fn what_is_kept_is_free_again_when_the_claim_is_withdrawn() {
    let (mut world, large, other, _) = keeping();
    world.end(large);
    world.cycle();
    assert!(world.runs(other));
}

#[test]
fn a_more_important_claim_takes_what_is_kept() {
    let (mut world, large, other, _) = keeping();
    let important = world.add("q", INFERENCE, 1);
    world.cycle();
    world.cycle();
    assert!(world.runs(important) && !world.runs(other) && !world.runs(large));
    world.cycle();
    assert!(!world.runs(other), "the rest is kept on");
}

#[test]
fn what_is_kept_stays_when_a_more_important_claim_waits_too() {
    let mut world = World::new(&[16]);
    world.queue_with("q", None, Allowance { quota: Some(4000), ..limited(4) });
    // Not preemptible: otherwise the more important claim would have their room at once.
    let fixed = Claim { preemptible: false, ..wants("q", TRAIN, 1) };
    let mut small: Vec<ClaimId> = (0..4).map(|_| world.claim(fixed.clone())).collect();
    world.cycle();
    assert_eq!(world.running(&small), 4);
    let large = world.add("q", TRAIN, 4);
    world.wait_for_long();
    let urgent = world.add("q", INFERENCE, 4);
    world.cycle();
    world.end(small.remove(0));
    let other = world.claim(fixed);
    world.cycle();
    world.cycle();
    assert!(!world.runs(other), "the device is kept for the large claim");
    small.into_iter().for_each(|claim| world.end(claim));
    world.cycle();
    assert!(world.runs(urgent) && !world.runs(large), "the more important claim goes first");
    world.end(urgent);
    world.cycle();
    assert!(world.runs(large) && !world.runs(other));
}

#[test]
fn claims_that_ask_for_nothing_kept_go_on() {
    let (mut world, ..) = keeping();
    world.queue("others", 1);
    let elsewhere = world.add("others", TRAIN, 1);
    let without_devices = world.add("q", TRAIN, 0);
    world.cycle();
    assert!(world.runs(elsewhere) && world.runs(without_devices));
}

/// The queue has no device left, and three of eight CPUs.
#[test]
fn of_other_resources_only_as_much_is_kept_as_is_asked_for() {
    let (mut world, _) = full_queue();
    let cpus = Allowance { limit: Some(8000), ..Allowance::UNNAMED };
    let allowances = [(Resource::DeviceCore, limited(4)), (Resource::Cpu, cpus)].into();
    world.apply(Event::QueueChanged(QueueSpec { allowances, ..queue("q", limited(4)) }));
    let asks = |devices: u16, cpus: u64| {
        let mut claim = wants("q", TRAIN, devices);
        claim.request.cpu = MilliCpu::new(cpus * 1000);
        claim
    };
    let runs = world.claim(asks(0, 5));
    let large = world.claim(asks(4, 2));
    world.wait_for_long();
    let (fits, too_much) = (world.claim(asks(0, 1)), world.claim(asks(0, 1)));
    world.cycle();
    assert!(world.runs(runs) && world.runs(fits) && !world.runs(too_much) && !world.runs(large));
}

#[test]
fn nothing_is_kept_for_a_claim_that_can_never_be_placed() {
    // More than the limit; more than any node has.
    for (devices, limit) in [(5, 4), (17, 20)] {
        let (mut world, mut small) = full_queue();
        world.apply(Event::QueueChanged(queue("q", limited(limit))));
        small.extend((4..limit.min(16)).map(|_| world.add("q", TRAIN, 1)));
        world.add("q", TRAIN, devices);
        world.wait_for_long();
        world.end(small.remove(0));
        let other = world.add("q", TRAIN, 1);
        world.cycle();
        assert!(world.runs(other), "{devices} devices");
    }
}

#[test]
fn what_is_kept_in_vain_is_given_up_and_kept_for_longer_the_next_time() {
    let (mut world, large, other, mut small) = keeping();
    // Nothing ends any more. What has ended is for others after a while.
    let minutes = (0..60).find(|_| {
        world.wait(MINUTE_MS);
        world.cycle();
        world.runs(other)
    });
    assert_eq!(minutes, Some(5));
    // In the end it is kept for longer than what takes twelve minutes each.
    small.push(other);
    let next = wants("q", TRAIN, 1);
    let minutes = (0..600).find(|minute| {
        world.wait(MINUTE_MS);
        if minute % 12 == 11
            && let Some(oldest) = small.iter().position(|claim| world.runs(*claim))
        {
            let ended = small.remove(oldest);
            world.end(ended);
            small.push(world.claim(next.clone()));
        }
        world.cycle();
        world.runs(large)
    });
    assert!(minutes.is_some(), "it starves");
}

#[test]
fn what_is_kept_outlives_a_restart() {
    let (world, _, other, _) = keeping();
    let dump = world.scheduler.dump(&world.cluster);
    assert!(dump.bounded.iter().any(|bounded| bounded.keeping.is_some()));
    let (scheduler, cluster) = Scheduler::restore(Box::new(BestFit), Settings::default(), dump.clone()).expect("one");
    assert_eq!(scheduler.dump(&cluster), dump);
    let mut restored = World { cluster, scheduler };
    let waits = |world: &World| world.cluster.claims().filter(|(.., at)| at.is_none()).count();
    assert_eq!(waits(&restored), waits(&world));
    restored.cycle();
    assert_eq!(waits(&restored), 2);
    assert!(!world.runs(other));
}
