//! A quota is a guarantee: for one model of device, if more is promised than there is, and if the free room is in
//! pieces.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Allowance, Bytes, Claim, ClaimId, Constraints, MilliCpu, NodeSpec, Request, Resource};
use aliquot_scheduler_kit::device;

use crate::kit::{Kit, build, evicted, node, quota, train, whole};

fn of_model(model: &str) -> Resource {
    Resource::ModelCore(model.into())
}

fn wants_model(queue: &str, model: &str) -> Claim {
    let constraints = Constraints { models: [model.to_owned()].into(), ..Constraints::default() };
    train(queue, Request { constraints, ..whole(1) })
}

fn node_of(model: &str, devices: usize) -> NodeSpec {
    NodeSpec { devices: vec![device(model); devices], ..node(&format!("node-of-{model}"), 0) }
}

#[test]
fn a_quota_of_a_model_is_not_cut_down_by_a_total_that_nobody_named() {
    let mut kit = Kit::new();
    kit.node(node_of("A100", 8));
    for (name, devices) in [("large", 6), ("small", 2)] {
        kit.queue_of(name, BTreeMap::from([(of_model("A100"), quota(devices))]), |_| {});
    }
    let small = kit.claims(8, &wants_model("small", "A100"));
    kit.converge();
    let large = kit.claims(8, &wants_model("large", "A100"));
    kit.converge();
    assert_eq!((kit.running(&large), kit.running(&small)), (6, 2));
}

#[test]
fn weights_of_a_model_are_not_evened_out_by_a_total_that_nobody_named() {
    let mut kit = Kit::new();
    kit.node(node_of("A100", 8));
    for (name, weight) in [("large", 3), ("small", 1)] {
        let allowance = Allowance { weight, ..quota(0) };
        kit.queue_of(name, BTreeMap::from([(of_model("A100"), allowance)]), |_| {});
    }
    let small = kit.claims(8, &wants_model("small", "A100"));
    kit.converge();
    let large = kit.claims(8, &wants_model("large", "A100"));
    kit.converge();
    assert_eq!((kit.running(&large), kit.running(&small)), (6, 2));
}

#[test]
fn where_one_queue_names_the_total_another_keeps_its_quota_of_a_model() {
    let mut kit = Kit::new();
    kit.node(node_of("A100", 8));
    kit.queue_of("by-model", BTreeMap::from([(of_model("A100"), quota(6))]), |_| {});
    kit.queue("in-total", quota(2));
    let borrowed = kit.claims(8, &train("in-total", whole(1)));
    kit.converge();
    let back = kit.claims(8, &wants_model("by-model", "A100"));
    kit.converge();
    assert_eq!((kit.running(&back), kit.running(&borrowed)), (6, 2));
}

#[test]
fn devices_of_a_model_that_nobody_named_are_still_shared_equally() {
    let mut kit = Kit::new();
    kit.node(node_of("A100", 2));
    kit.node(node_of("T4", 4));
    kit.queue_of("first", BTreeMap::from([(of_model("A100"), quota(2))]), |_| {});
    ["second", "third"].iter().for_each(|name| kit.queue_of(name, BTreeMap::new(), |_| {}));
    let second = kit.claims(4, &wants_model("second", "T4"));
    kit.converge();
    let third = kit.claims(4, &wants_model("third", "T4"));
    kit.converge();
    assert_eq!((kit.running(&second), kit.running(&third)), (2, 2));
}

#[test]
fn a_claim_that_may_be_on_any_model_takes_back_what_is_above_the_share_of_one() {
    let mut kit = Kit::new();
    kit.node(node_of("A100", 4));
    kit.node(node_of("T4", 4));
    for name in ["first", "second"] {
        kit.queue_of(name, BTreeMap::from([(of_model("A100"), quota(2)), (of_model("T4"), quota(2))]), |_| {});
    }
    let first = kit.claims(8, &train("first", whole(1)));
    kit.converge();
    let second = kit.claims(4, &train("second", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&first), kit.running(&second)), (4, 4));
}

#[test]
fn of_quotas_that_are_more_than_there_is_who_is_under_its_own_goes_before_who_is_over() {
    let mut kit = Kit::of_nodes(1, 8);
    kit.queue("over", Allowance { weight: 6, ..quota(6) });
    kit.queue("under", Allowance { weight: 5, ..quota(5) });
    let running = kit.claim(train("over", whole(8)));
    kit.converge();
    let waits = kit.claim(train("under", whole(5)));
    assert_eq!(evicted(&kit.converge()), [running]);
    assert_eq!(kit.running(&[waits]), 1);
    assert!(kit.cycle().steps.is_empty(), "and nothing is taken back again");
}

/// How queues stand to each other.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Tree {
    /// They are at the top.
    Flat,
    /// Each is below a division of its own with the same quota.
    Divided,
    /// Both are below one division that may have all there is.
    BelowAll,
    /// Both are below one division with a quota of this many devices.
    Below(u64),
}

/// Two nodes of three devices. A queue with a quota of two runs two claims for two devices each, so each node has one
/// device free. Another queue wants to use its quota of two.
fn quota_in_pieces(tree: Tree) -> (Kit, Vec<ClaimId>) {
    let mut kit = Kit::of_nodes(2, 3);
    match tree {
        Tree::BelowAll => kit.queue("all", unlimited()),
        Tree::Below(devices) => kit.queue("all", quota(devices)),
        Tree::Flat | Tree::Divided => {}
    }
    for (division, team, weight) in [("left", "borrower", 3), ("right", "owner", 0)] {
        if tree == Tree::Divided {
            kit.queue(division, quota(2));
        }
        let path = match tree {
            Tree::Flat => team.to_owned(),
            Tree::Divided => format!("{division}/{team}"),
            Tree::BelowAll | Tree::Below(_) => format!("all/{team}"),
        };
        kit.queue(&path, Allowance { weight, ..quota(2) });
    }
    let low = kit.claim(train("borrower", whole(2)));
    let high = kit.claim(Claim { priority: 100, ..train("borrower", whole(2)) });
    kit.converge();
    assert_eq!(kit.running(&[low, high]), 2);
    (kit, vec![low, high])
}

#[test]
fn a_quota_whose_free_devices_are_in_pieces_is_made_whole_by_who_is_beyond_its_own() {
    for tree in [Tree::Flat, Tree::Divided, Tree::BelowAll, Tree::Below(6), Tree::Below(4), Tree::Below(3)] {
        let (mut kit, running) = quota_in_pieces(tree);
        let waits = kit.claim(train("owner", whole(2)));
        assert_eq!(
            evicted(&kit.converge()),
            running[..1],
            "{tree:?}: the one of lower priority, though it is within the fair share"
        );
        assert_eq!(kit.running(&[waits]), 1);
        assert!(kit.cycle().steps.is_empty(), "and nothing is taken back again");
    }
}

#[test]
fn what_a_division_lends_goes_back_to_its_own_teams() {
    let mut kit = Kit::of_nodes(2, 3);
    kit.queue("division", quota(4));
    kit.queue("division/borrower", Allowance { weight: 3, ..quota(0) });
    kit.queue("division/owner", Allowance { weight: 0, ..quota(2) });
    kit.queue("other", quota(2));
    let running = kit.claims(2, &train("borrower", whole(2)));
    kit.converge();
    assert_eq!(kit.running(&running), 2);
    let other = kit.claim(train("other", whole(2)));
    assert!(kit.converge().is_empty(), "the division is within its quota");
    kit.remove(other);
    let owner = kit.claim(train("owner", whole(2)));
    assert_eq!(evicted(&kit.converge()), running[1..], "and its other team has nothing yet");
    assert_eq!(kit.running(&[owner]), 1);
}

#[test]
fn a_quota_beyond_the_division_s_takes_nothing_from_others() {
    let mut kit = Kit::of_nodes(2, 3);
    kit.queue("borrower", Allowance { weight: 3, ..quota(2) });
    kit.queue("division", quota(1));
    kit.queue("division/owner", quota(2));
    let running = kit.claims(2, &train("borrower", whole(2)));
    kit.converge();
    let waits = kit.claim(train("owner", whole(2)));
    assert!(kit.converge().is_empty(), "the division may have two, but is certain only of one");
    assert_eq!((kit.running(&running), kit.running(&[waits])), (2, 0));
}

#[test]
fn among_teams_of_a_small_division_each_has_its_own_quota() {
    let mut kit = Kit::of_nodes(2, 3);
    kit.queue("division", quota(3));
    for team in ["one", "two"] {
        kit.queue(&format!("division/{team}"), quota(2));
    }
    let one = kit.claims(2, &train("one", whole(2)));
    kit.converge();
    assert_eq!(kit.running(&one), 2);
    let two = kit.claims(2, &train("two", whole(2)));
    kit.converge();
    assert_eq!((kit.running(&one), kit.running(&two)), (1, 1));
    assert!(kit.cycle().steps.is_empty(), "and nothing is taken back again");
}

#[test]
fn nothing_is_taken_for_a_quota_from_who_is_within_its_own() {
    let mut kit = Kit::of_nodes(2, 3);
    kit.queue("neighbour", quota(4));
    kit.queue("owner", quota(2));
    let running = kit.claims(2, &train("neighbour", whole(2)));
    kit.converge();
    let waits = kit.claim(Claim { priority: 100, ..train("owner", whole(2)) });
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&running), kit.running(&[waits])), (2, 0));
}

#[test]
fn a_claim_beyond_its_queue_s_quota_takes_nothing_that_is_within_a_fair_share() {
    let mut kit = Kit::of_nodes(2, 3);
    kit.queue("borrower", quota(2));
    kit.queue("other", quota(0));
    let running = [2, 2].map(|count| kit.claim(train("borrower", whole(count))));
    kit.converge();
    let waits = kit.claim(train("other", whole(2)));
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&running), kit.running(&[waits])), (2, 0));
}

fn unlimited() -> Allowance {
    Allowance { quota: None, limit: None, weight: 1, priority: None }
}

#[test]
fn who_has_all_there_is_for_a_quota_is_never_over_it() {
    let mut kit = Kit::of_nodes(1, 8);
    kit.queue("unlimited", unlimited());
    kit.queue("owner", quota(2));
    let running = kit.claims(8, &train("unlimited", whole(1)));
    kit.converge();
    let waits = kit.claims(2, &train("owner", whole(1)));
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&running), kit.running(&waits)), (8, 0));
}

#[test]
fn below_a_division_with_a_quota_a_team_s_quota_without_a_bound_is_bounded_by_that() {
    let mut kit = Kit::of_nodes(1, 8);
    kit.queue("division", quota(6));
    kit.queue("division/team", unlimited());
    kit.queue("owner", quota(2));
    let running = kit.claims(8, &train("team", whole(1)));
    kit.converge();
    let waits = kit.claims(2, &train("owner", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&running), kit.running(&waits)), (6, 2));
}

#[test]
fn what_holds_memory_without_a_quota_of_it_makes_way_for_queues_that_are_never_over_theirs() {
    let memory = |units: u64| Bytes::from_mib(units * 1024);
    let mut kit = Kit::new();
    kit.node(NodeSpec { memory: memory(200), ..node("node", 10) });
    let of = |devices: u64, rest: Allowance| {
        let all = [(Resource::DeviceCore, quota(devices)), (Resource::Cpu, rest), (Resource::Memory, rest)];
        BTreeMap::from(all)
    };
    kit.queue_of("first", of(5, unlimited()), |_| {});
    kit.queue_of("guest", of(1, quota(0)), |_| {});
    kit.queue_of("second", of(5, unlimited()), |_| {});
    let request = |devices: u16, cpu_cores: u64| Request {
        cpu: MilliCpu::new(cpu_cores * 1000),
        memory: memory(40),
        ..whole(devices)
    };
    let first = [(2, 2), (3, 3)].map(|(devices, cpu)| kit.claim(build("first", request(devices, cpu))));
    let guest = [(1, 1), (0, 4)].map(|(devices, cpu)| kit.claim(train("guest", request(devices, cpu))));
    kit.converge();
    assert_eq!((kit.running(&first), kit.running(&guest)), (2, 2));
    let second = [(3, 1), (0, 3), (2, 1)].map(|(devices, cpu)| kit.claim(build("second", request(devices, cpu))));
    kit.converge();
    assert_eq!((kit.running(&first), kit.running(&guest), kit.running(&second)), (2, 0, 3));
}
