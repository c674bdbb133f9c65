//! Complaints of users about how other schedulers divide shares and count quotas. Each test is named after the symptom,
//! and shows that it does not occur here.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::explain::Reason;
use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimId, Cluster, Constraints, Demand, DeviceCore, DeviceMemory, DeviceRequest,
    DeviceSpec, NodeSpec, Plan, QueueSpec, Request, Resource, Scheduler, Settings, divide,
};
use aliquot_scheduler_kit::{self as kit, Build, placed};
use proptest::collection::vec;
use proptest::prelude::*;

/// A node with this many devices of a model.
fn node(model: &str, memory: Bytes, devices: usize) -> NodeSpec {
    let device = DeviceSpec { memory, ..kit::device(model) };
    NodeSpec { devices: vec![device; devices], ..kit::node(&format!("node-of-{model}"), 64, 0) }
}

fn cluster(nodes: impl IntoIterator<Item = NodeSpec>, queues: &[(&str, &[(Resource, Allowance)])]) -> Cluster {
    let mut cluster = Cluster::new();
    for node in nodes {
        cluster.add_node(node);
    }
    for (name, allowances) in queues {
        let allowances: BTreeMap<Resource, Allowance> = allowances.iter().cloned().collect();
        cluster.add_queue(QueueSpec { name: (*name).into(), allowances, ..QueueSpec::default() });
    }
    cluster
}

fn add(cluster: &mut Cluster, queue: &str, devices: DeviceRequest, model: Option<&str>) -> ClaimId {
    let models: BTreeSet<String> = model.map(str::to_owned).into_iter().collect();
    let request =
        Request { devices, constraints: Constraints { models, ..Constraints::default() }, ..Request::default() };
    cluster.add_claim(Claim { request, queue: queue.into(), preemptible: true, ..Claim::default() })
}

fn part(core: u32, memory: DeviceMemory) -> DeviceRequest {
    DeviceRequest { count: 1, core: DeviceCore::new(core), memory }
}

fn cycle(cluster: &mut Cluster) -> Plan {
    Scheduler::new(Box::new(BestFit), Settings::default()).cycle(cluster)
}

fn limited_to(limit: u64) -> Allowance {
    Allowance { limit: Some(limit), ..Allowance::UNNAMED }
}

/// The bound that the first pending group would exceed: the resource, the held amount, the requested amount, and the
/// bound.
fn passed_limit(plan: &Plan, cluster: &Cluster) -> Option<(Resource, u64, u64, u64)> {
    match plan.pending.first()?.reason(cluster) {
        Reason::QueueLimit(bound) => Some((bound.resource, bound.held, bound.asked, bound.bound)),
        _ => None,
    }
}

#[test]
fn reclaim_that_stops_at_the_quota_instead_of_the_fair_share() {
    let even = [(Resource::DeviceCore, Allowance { quota: Some(2000), ..Allowance::UNNAMED })];
    let mut cluster = cluster([node("A100", Bytes::from_mib(40_960), 10)], &[("first", &even), ("second", &even)]);
    let mut scheduler = Scheduler::new(Box::new(BestFit), Settings::default());
    let claims = |cluster: &mut Cluster, queue| [(); 10].map(|()| add(cluster, queue, DeviceRequest::whole(1), None));
    let first = claims(&mut cluster, "first");
    scheduler.cycle(&mut cluster);
    assert_eq!(placed(&cluster, &first), 10);
    let second = claims(&mut cluster, "second");
    scheduler.cycle(&mut cluster);
    scheduler.cycle(&mut cluster);
    assert_eq!((placed(&cluster, &first), placed(&cluster, &second)), (5, 5), "fair shares are 5, quotas are 2");
    assert!(scheduler.cycle(&mut cluster).steps.is_empty(), "and there it ends");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// If nothing is free, the amounts that queues lack to their fair shares are held by other queues above theirs, to
    /// the last unit. So an entitled queue always finds a queue to take from.
    #[test]
    fn reclaim_that_is_abandoned_although_somebody_holds_more_than_his_share(
        total in 1u64..5000,
        queues in vec((0u64..2000, 1u64..5, 0u64..3000, 1u64..100), 2..10),
    ) {
        let demand = |(quota, weight, requested, _): &(u64, u64, u64, u64)| Demand {
            quota: Some(*quota), weight: *weight, requested: *requested, ..Demand::default()
        };
        let fair = divide(total, &queues.iter().map(demand).collect::<Vec<Demand>>(), 0);
        // How all units came to be held does not matter. Here they are divided as if by other weights.
        let came_first = |(_, _, requested, weight): &(u64, u64, u64, u64)| Demand {
            quota: Some(0), weight: *weight, requested: *requested, ..Demand::default()
        };
        let held = divide(total, &queues.iter().map(came_first).collect::<Vec<Demand>>(), 0);
        prop_assume!(held.iter().sum::<u64>() == total);
        let mut below: u64 = held.iter().zip(&fair).map(|(held, fair)| fair.saturating_sub(*held)).sum();
        for (held, fair) in held.iter().zip(&fair) {
            below -= below.min(held.saturating_sub(*fair));
        }
        prop_assert_eq!(below, 0, "held: {:?}, fair: {:?}", held, fair);
    }
}

#[test]
fn no_quota_by_type_of_device() {
    let h100 = || Resource::ModelCore("H100".into());
    let nodes = || [node("H100", Bytes::from_mib(81_559), 2), node("T4", Bytes::from_mib(15_360), 2)];
    let mut cluster = cluster(nodes(), &[("team", &[(h100(), limited_to(1000))])]);
    let mut claims = |model| [0, 1].map(|_| add(&mut cluster, "team", DeviceRequest::whole(1), Some(model)));
    let (large, small) = (claims("H100"), claims("T4"));
    let plan = cycle(&mut cluster);
    assert_eq!((placed(&cluster, &large), placed(&cluster, &small)), (1, 2));
    assert_eq!(passed_limit(&plan, &cluster), Some((h100(), 1000, 1000, 1000)));
}

#[test]
fn a_quota_of_one_type_that_is_used_up_by_those_who_asked_earlier() {
    let h100 = || Resource::ModelCore("H100".into());
    let owns = Allowance { quota: Some(2000), ..Allowance::UNNAMED };
    let queues: [(&str, &[(Resource, Allowance)]); 2] = [("guest", &[]), ("owner", &[(h100(), owns)])];
    let mut cluster = cluster([node("H100", Bytes::from_mib(81_559), 2)], &queues);
    let mut claims = |queue| [0, 1].map(|_| add(&mut cluster, queue, DeviceRequest::whole(1), Some("H100")));
    let (earlier, owners) = (claims("guest"), claims("owner"));
    cycle(&mut cluster);
    assert_eq!((placed(&cluster, &earlier), placed(&cluster, &owners)), (0, 2));
}

#[test]
fn more_memory_given_out_than_a_device_has() {
    let mut cluster = cluster([node("A40", Bytes::from_mib(46_068), 1)], &[]);
    let request = part(10, DeviceMemory::Bytes(Bytes::from_mib(2000)));
    let claims: Vec<ClaimId> = (0..24).map(|_| add(&mut cluster, "", request, None)).collect();
    cycle(&mut cluster);
    assert_eq!(placed(&cluster, &claims), 23, "23 times 2000 MiB are 46000 MiB");
}

#[test]
fn memory_of_several_devices_that_passes_the_quota() {
    const GIB: u64 = 1 << 30;
    let nodes = [node("A100", Bytes::new(40 * GIB), 4)];
    let mut cluster = cluster(nodes, &[("team", &[(Resource::DeviceMemory, limited_to(10 * GIB))])]);
    let of_each = |count, gib| DeviceRequest {
        count,
        core: DeviceCore::new(100),
        memory: DeviceMemory::Bytes(Bytes::new(gib * GIB)),
    };
    let too_much = add(&mut cluster, "team", of_each(2, 6), None);
    let plan = cycle(&mut cluster);
    assert_eq!(placed(&cluster, &[too_much]), 0, "6 GiB of each of two devices are 12 GiB");
    assert_eq!(passed_limit(&plan, &cluster), Some((Resource::DeviceMemory, 0, 12 * GIB, 10 * GIB)));
    let enough = add(&mut cluster, "team", of_each(2, 5), None);
    cycle(&mut cluster);
    assert_eq!(placed(&cluster, &[enough]), 1);
}

#[test]
fn parts_of_devices_that_count_as_whole_devices_or_not_at_all() {
    let nodes = [node("A100", Bytes::from_mib(40_960), 4)];
    let mut cluster = cluster(nodes, &[("team", &[(Resource::DeviceCore, limited_to(1000))])]);
    let mut add_part = |core| add(&mut cluster, "team", part(core, DeviceMemory::default()), None);
    let parts = [333, 333, 333, 1].map(&mut add_part);
    let one_more = add_part(1);
    let plan = cycle(&mut cluster);
    assert_eq!((placed(&cluster, &parts), placed(&cluster, &[one_more])), (4, 0));
    assert_eq!(passed_limit(&plan, &cluster), Some((Resource::DeviceCore, 1000, 1, 1000)));
}

#[test]
fn parts_of_memory_that_count_alike_on_devices_of_different_size() {
    // A quarter of each device: 10 GiB of one and 4 GiB of the other. Both count against the quota in bytes.
    const GIB: u64 = 1 << 30;
    let nodes = [node("A100", Bytes::new(40 * GIB), 1), node("T4", Bytes::new(16 * GIB), 1)];
    let quarter = part(100, DeviceMemory::Thousandths(250));
    let held_by = |limit_gib: u64| {
        let queues: [(&str, &[(Resource, Allowance)]); 1] =
            [("team", &[(Resource::DeviceMemory, limited_to(limit_gib * GIB))])];
        let mut cluster = cluster(nodes.clone(), &queues);
        let claims = ["A100", "T4"].map(|model| add(&mut cluster, "team", quarter, Some(model)));
        cycle(&mut cluster);
        placed(&cluster, &claims)
    };
    assert_eq!((held_by(14), held_by(13)), (2, 1));
}
