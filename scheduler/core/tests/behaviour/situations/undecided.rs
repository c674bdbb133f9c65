//! Claims for one of several models, in queues that have a quota of each model.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Allowance, ClaimId, Constraints, NodeSpec, PodGroup, Request, Resource};
use aliquot_scheduler_kit::{device, first_of};

use crate::kit::{Kit, build, evicted, gang, node, quota, train, whole};

fn of_models(models: &[&str]) -> Request {
    let constraints =
        Constraints { models: models.iter().map(|model| (*model).to_owned()).collect(), ..Constraints::default() };
    Request { constraints, ..whole(1) }
}

/// A device of either model, said in each way in which a claim can say it.
fn either() -> [Request; 3] {
    let (a, b) = (of_models(&["A"]), of_models(&["B"]));
    [of_models(&["A", "B"]), first_of(&[a.clone(), b.clone()]), first_of(&[b, a])]
}

fn quotas(of_a: u64, of_b: u64) -> BTreeMap<Resource, Allowance> {
    [("A", of_a), ("B", of_b)].map(|(model, devices)| (Resource::ModelCore(model.into()), quota(devices))).into()
}

/// A node with devices of each model.
fn kit(of_a: usize, of_b: usize) -> Kit {
    let mut kit = Kit::new();
    for (model, devices) in [("A", of_a), ("B", of_b)] {
        kit.node(NodeSpec { devices: vec![device(model); devices], ..node(model, 0) });
    }
    kit
}

/// How many of these claims have a device of each model.
fn models(kit: &Kit, claims: &[ClaimId]) -> [usize; 2] {
    ["A", "B"].map(|model| claims.iter().filter(|claim| kit.node_of(**claim) == Some(model)).count())
}

#[test]
fn claims_that_may_not_be_evicted_have_the_quota_of_each_model() {
    for wanted in either() {
        let mut kit = kit(4, 4);
        kit.queue_of("team", quotas(1, 2), |_| {});
        let claims = kit.claims(5, &build("team", wanted));
        kit.converge();
        assert_eq!(models(&kit, &claims), [1, 2]);
    }
}

#[test]
fn a_gang_has_the_quotas_of_both_models_together() {
    for wanted in either() {
        let mut kit = kit(4, 4);
        kit.queue_of("team", quotas(1, 2), |_| {});
        let members = kit.gang(PodGroup { preemptible: false, ..gang("gang", "team", 3) }, 3, &wanted);
        kit.converge();
        assert_eq!(models(&kit, &members), [1, 2]);
    }
}

#[test]
fn the_model_that_is_owed_is_taken_back_and_not_the_other() {
    for wanted in either() {
        let mut kit = kit(2, 2);
        kit.queue_of("other", quotas(2, 0), |_| {});
        kit.queue_of("team", quotas(0, 2), |_| {});
        let own = kit.claims(2, &train("other", of_models(&["A"])));
        let borrowed = kit.claims(2, &train("other", of_models(&["B"])));
        kit.converge();
        let claims = kit.claims(4, &train("team", wanted));
        let steps = kit.converge();
        assert_eq!(evicted(&steps).len(), 2);
        assert_eq!([models(&kit, &claims), models(&kit, &own), models(&kit, &borrowed)], [[0, 2], [2, 0], [0, 0]]);
    }
}

#[test]
fn who_may_take_either_model_has_a_share_of_each() {
    let mut kit = kit(4, 4);
    ["either", "first", "second"].iter().for_each(|queue| kit.queue_of(queue, quotas(0, 0), |_| {}));
    let [_, prefers_a, prefers_b] = either();
    let claims = kit.claims(4, &train("either", prefers_a));
    let first = kit.claims(4, &train("first", of_models(&["B"])));
    kit.converge();
    assert_eq!((models(&kit, &claims), models(&kit, &first)), ([4, 0], [0, 4]), "what is not used is lent");
    // No other queue may have more of B than if those of A could get nothing but B.
    let second = kit.claims(4, &train("second", of_models(&["B"])));
    kit.converge();
    assert_eq!((kit.running(&first), kit.running(&second)), (3, 1));
    claims.iter().for_each(|claim| kit.remove(*claim));
    let a = kit.cluster.node_named("A").expect("it was added");
    kit.event(aliquot_scheduler_core::Event::NodeRemoved(a));
    let claims = kit.claims(4, &train("either", prefers_b));
    kit.converge();
    assert!(kit.running(&claims) >= 1, "and taken back when A is gone");
}
