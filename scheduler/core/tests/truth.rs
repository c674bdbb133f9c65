//! Observations count, whatever was decided: claims that run where they were not placed, nodes that run more than they
//! have, steps without an answer, and nodes that change.

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Action, Allocation, Bytes, Claim, ClaimId, Cluster, DeviceAllocation, DeviceCore, DeviceMemory, DeviceRequest,
    DeviceSpec, Event, EventError, Health, NodeId, NodeSpec, Outcome, PodGroup, Request, Resource, Scheduler, Settings,
    Step,
};
use aliquot_scheduler_kit::{self as kit, Build};

const GIB: u64 = 1 << 30;

struct Kit {
    cluster: Cluster,
    scheduler: Scheduler,
}

impl Kit {
    fn new(devices: usize) -> (Self, NodeId) {
        let mut kit =
            Self { cluster: Cluster::new(), scheduler: Scheduler::new(Box::new(BestFit), Settings::default()) };
        let node = kit.add_node(node("first", devices));
        (kit, node)
    }

    fn steps(&mut self) -> Vec<(Action, Step)> {
        let plan = self.scheduler.cycle(&mut self.cluster);
        plan.steps.into_iter().map(|planned| (planned.action, planned.step)).collect()
    }

    /// Checks the node's books: free + held = capacity; or, if more is held than the capacity, free = 0.
    fn check(&self, node: NodeId) {
        let of = self.cluster.node(node).expect("the node is there");
        let mut held = vec![(0, 0); of.devices().len()];
        for claim in of.claims() {
            for part in &self.cluster.allocation(claim).expect("a claim on the node is placed").devices {
                let held = &mut held[usize::from(part.device)];
                *held = (held.0 + part.core.get(), held.1 + part.memory.get());
            }
        }
        let mut over = false;
        for (device, (core, memory)) in of.devices().iter().zip(held) {
            assert_eq!(device.core_free().get(), 1000_u32.saturating_sub(core));
            assert_eq!(device.memory_free().get(), device.memory().get().saturating_sub(memory));
            over |= core > 1000 || memory > device.memory().get();
        }
        assert_eq!(of.is_over_committed(), over);
        assert_eq!(self.cluster.over_committed().any(|id| id == node), over);
    }
}

impl Build for Kit {
    fn event(&mut self, event: Event) -> Outcome {
        self.cluster.event(event)
    }
}

fn node(name: &str, devices: usize) -> NodeSpec {
    let device = |index| DeviceSpec { uuid: format!("{name}-{index}"), ..kit::device("A") };
    NodeSpec { memory: Bytes::new(512 * GIB), devices: (0..devices).map(device).collect(), ..kit::node(name, 64, 0) }
}

fn half(priority: i32) -> Claim {
    let devices = DeviceRequest {
        count: 1,
        core: DeviceCore::from_percent(50),
        memory: DeviceMemory::Bytes(Bytes::new(40 * GIB)),
    };
    Claim { request: Request { devices, ..Request::default() }, priority, preemptible: true, ..Claim::default() }
}

fn at(node: NodeId, device: u16) -> Allocation {
    let part = DeviceAllocation { device, core: DeviceCore::from_percent(50), memory: Bytes::new(40 * GIB) };
    Allocation { node, devices: vec![part], alternative: 0 }
}

#[test]
fn what_is_seen_running_is_in_the_books_even_beyond_what_there_is_and_the_cycle_evicts_who_matters_least() {
    let (mut kit, node) = Kit::new(1);
    let claims: Vec<ClaimId> = [50, 10, 30].map(|priority| kit.add_claim(half(priority))).into();
    for claim in &claims {
        kit.event(Event::ClaimSeen(*claim, at(node, 0)));
        kit.check(node);
    }
    let steps = kit.steps();
    assert!(
        matches!(&steps[..], [(Action::Relieve, Step::Evict { claim, .. })] if *claim == claims[1]),
        "the lowest priority goes: {steps:?}"
    );
    kit.check(node);
    kit.event(Event::ClaimGone(claims[1]));
    assert_eq!(kit.steps(), [], "the node has room for the other two");
}

#[test]
fn who_may_not_be_evicted_stays_on_a_node_that_runs_too_much() {
    let (mut kit, node) = Kit::new(1);
    for _ in 0..3 {
        let claim = kit.add_claim(Claim { preemptible: false, ..half(100) });
        kit.event(Event::ClaimSeen(claim, at(node, 0)));
    }
    assert_eq!(kit.steps(), []);
    kit.check(node);
}

#[test]
fn all_that_a_gang_needs_goes_together_from_a_node_that_runs_too_much() {
    let (mut kit, node) = Kit::new(2);
    kit.event(Event::PodGroupAdded(PodGroup {
        name: "gang".into(),
        min_members: 2,
        priority: 10,
        preemptible: true,
        ..PodGroup::default()
    }));
    let member = Claim { pod_group: Some("gang".into()), ..half(0) };
    let gang: Vec<ClaimId> = (0..2).map(|_| kit.add_claim(member.clone())).collect();
    let others: Vec<ClaimId> = (0..3).map(|_| kit.add_claim(half(50))).collect();
    for (claim, device) in gang.iter().zip([0, 1]).chain(others.iter().zip([0, 0, 1])) {
        kit.event(Event::ClaimSeen(*claim, at(node, device)));
    }
    let evicted: Vec<ClaimId> = kit.steps().iter().map(|(_, step)| step.claim()).collect();
    assert_eq!(evicted, gang);
}

#[test]
fn a_state_with_too_much_on_a_node_is_restored_from_its_dump() {
    let (mut kit, node) = Kit::new(1);
    for priority in [50, 10, 30] {
        let claim = kit.add_claim(half(priority));
        kit.event(Event::ClaimSeen(claim, at(node, 0)));
    }
    let dump = kit.scheduler.dump(&kit.cluster);
    let restored = Scheduler::restore(Box::new(BestFit), Settings::default(), dump.clone());
    let (mut scheduler, mut cluster) = restored.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(scheduler.dump(&cluster), dump);
    assert_eq!(scheduler.cycle(&mut cluster), kit.scheduler.cycle(&mut kit.cluster));
}

#[test]
fn a_claim_that_was_to_start_elsewhere_is_where_it_was_seen() {
    let (mut kit, first) = Kit::new(1);
    let second = kit.add_node(node("second", 1));
    let runs = kit.add_claim(half(50));
    kit.event(Event::ClaimSeen(runs, at(first, 0)));
    let refused = kit.cluster.apply(Event::ClaimSeen(runs, at(second, 0)));
    assert_eq!(refused, Err(EventError::Placed(runs)), "it runs already");
    kit.event(Event::ClaimFailed(runs));
    kit.event(Event::ClaimSeen(runs, at(second, 0)));
    assert_eq!(kit.cluster.allocation(runs).map(|at| at.node), Some(second));
    kit.check(first);
    kit.check(second);
    let wrong = Allocation { node: second, devices: Vec::new(), alternative: 0 };
    let other = kit.add_claim(half(50));
    assert!(kit.cluster.apply(Event::ClaimSeen(other, wrong)).is_err(), "it is not what the claim asks for");
}

#[test]
fn a_silent_claim_holds_its_room_until_it_is_gone() {
    let (mut kit, _) = Kit::new(1);
    let whole = |name: &str| Claim {
        name: name.into(),
        request: Request { devices: DeviceRequest::whole(1), ..Request::default() },
        ..Claim::default()
    };
    let silent = kit.add_claim(whole("silent"));
    assert_eq!(kit.steps().len(), 1);
    assert_eq!(kit.event(Event::ClaimSilent(silent)), Outcome::Claims { displaced: vec![silent], ready: vec![] });
    assert_eq!(kit.cluster.failures(silent).0, 1);
    let other = kit.add_claim(whole("other"));
    let steps = kit.steps();
    assert!(
        matches!(&steps[..], [(_, Step::Place { claim, starts_after, .. })]
            if *claim == other && *starts_after == [silent]),
        "the other one waits until it is gone: {steps:?}"
    );
    assert_eq!(kit.cluster.apply(Event::ClaimSilent(silent)), Err(EventError::NotRunning(silent)));
    let gone = kit.event(Event::ClaimGone(silent));
    assert_eq!(gone, Outcome::Claims { displaced: vec![], ready: vec![other] });
}

#[test]
fn a_silent_claim_goes_back_to_its_own_place_only_once_it_has_left_it() {
    let (mut kit, _) = Kit::new(1);
    let silent = kit.add_claim(half(50));
    kit.steps();
    kit.event(Event::ClaimSilent(silent));
    kit.event(Event::TimeAdvanced(10_000));
    let steps = kit.steps();
    assert!(
        matches!(&steps[..], [(_, Step::Place { starts_after, .. })] if *starts_after == [silent]),
        "it waits for itself: {steps:?}"
    );
}

#[test]
fn a_node_that_becomes_smaller_keeps_what_runs_there_and_is_relieved() {
    let (mut kit, id) = Kit::new(2);
    let claims: Vec<ClaimId> = [50, 10].map(|priority| kit.add_claim(half(priority))).into();
    for claim in &claims {
        kit.event(Event::ClaimSeen(*claim, at(id, 0)));
    }
    let mut smaller = node("first", 3);
    smaller.devices[0].memory = Bytes::new(60 * GIB);
    kit.event(Event::NodeChanged(id, smaller));
    kit.check(id);
    assert_eq!(kit.cluster.node(id).map(|node| node.devices().len()), Some(3));
    let steps = kit.steps();
    assert!(
        matches!(&steps[..], [(Action::Relieve, Step::Move { claim, to, .. })]
            if *claim == claims[1] && to.devices[0].device != 0),
        "the lower priority finds room on another device: {steps:?}"
    );
}

#[test]
fn a_changed_node_keeps_its_devices_and_their_places() {
    let (mut kit, id) = Kit::new(2);
    let refused = kit.cluster.apply(Event::NodeChanged(id, node("first", 1)));
    assert_eq!(refused, Err(EventError::DevicesDiffer { node: id, device: 1 }));
    let refused = kit.cluster.apply(Event::NodeChanged(id, node("other", 2)));
    assert_eq!(refused, Err(EventError::DevicesDiffer { node: id, device: 0 }));
    let mut broken = node("first", 2);
    broken.devices[0].health = Health::Unhealthy;
    kit.event(Event::NodeChanged(id, broken));
    let claim = kit.add_claim(half(50));
    kit.steps();
    assert_eq!(kit.cluster.allocation(claim).map(|at| at.devices[0].device), Some(1));
}

#[test]
fn a_copy_of_a_cluster_stays_as_it_was() {
    let (mut kit, _) = Kit::new(2);
    let claims: Vec<ClaimId> = (0..3).map(|_| kit.add_claim(half(50))).collect();
    let (before, copy) = (kit.cluster.dump(), kit.cluster.clone());
    kit.steps();
    kit.event(Event::ClaimRemoved(claims[0]));
    kit.event(Event::NodeAdded(node("second", 1)));
    assert_eq!(copy.dump(), before);
    assert_ne!(kit.cluster.dump(), before);
}

#[test]
fn a_device_that_is_of_another_model_now_keeps_its_place_and_who_is_on_it() {
    let (mut kit, id) = Kit::new(1);
    let claim = kit.add_claim(half(50));
    kit.event(Event::ClaimSeen(claim, at(id, 0)));
    let mut renamed = node("first", 1);
    renamed.devices[0].model = "B".into();
    kit.event(Event::NodeChanged(id, renamed));
    kit.check(id);
    let queue = kit.cluster.queue_named("default").expect("it is always there");
    let held = |model: &str| kit.cluster.allocated(queue, &Resource::ModelCore(model.into()));
    assert_eq!((held("A"), held("B")), (0, 500));
}

#[test]
fn who_may_not_be_evicted_and_has_not_started_gives_up_a_place_that_is_not_free() {
    let (mut kit, node) = Kit::new(1);
    let whole = || Request { devices: DeviceRequest::whole(1), ..Request::default() };
    let silent = kit.add_claim(Claim { request: whole(), ..Claim::default() });
    kit.steps();
    kit.event(Event::ClaimSilent(silent));
    let waiting = kit.add_claim(Claim { request: whole(), priority: 90, ..Claim::default() });
    kit.steps();
    assert_eq!((kit.cluster.allocation(waiting).is_some(), kit.cluster.started_ms(waiting)), (true, None));
    let seen = kit.add_claim(Claim { preemptible: false, ..half(50) });
    kit.event(Event::ClaimSeen(seen, at(node, 0)));
    kit.steps();
    assert_eq!(kit.cluster.allocation(waiting), None, "the device is not free for it");
    kit.check(node);
}

#[test]
fn a_claim_may_ask_for_less_on_a_node_that_runs_too_much() {
    let (mut kit, node) = Kit::new(1);
    let claims: Vec<ClaimId> = (0..4).map(|_| kit.add_claim(Claim { preemptible: false, ..half(50) })).collect();
    claims.iter().for_each(|claim| _ = kit.event(Event::ClaimSeen(*claim, at(node, 0))));
    let asks = |percent: u32, gib: u64| {
        let memory = DeviceMemory::Bytes(Bytes::new(gib * GIB));
        let devices = DeviceRequest { count: 1, core: DeviceCore::from_percent(percent), memory };
        Request { devices, ..Request::default() }
    };
    kit.event(Event::ClaimResized(claims[0], asks(20, 10)));
    kit.check(node);
    assert_eq!(kit.cluster.allocation(claims[0]).map(|at| at.devices[0].core), Some(DeviceCore::from_percent(20)));
    for more in [asks(30, 10), asks(10, 20)] {
        assert!(kit.cluster.apply(Event::ClaimResized(claims[0], more)).is_err(), "but not for more of anything");
        kit.check(node);
    }
}
