//! The suggested change is the nearest one that helps. It is compared with all changes, tried one by one.

use std::collections::BTreeMap;

use aliquot_scheduler_core::explain::{Change, Explanation, Reason};
use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Alignment, Bytes, Claim, ClaimBounds, ClaimId, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event,
    LimitRange, MilliCpu, NamespaceSpec, NodeSpec, PodGroup, Request, Scheduler, Settings,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::setting::{Setting, node, whole};

fn small_node() -> impl Strategy<Value = NodeSpec> {
    let device = (1u64..100, 0u16..3);
    (1u64..200, 1u64..100, vec(device, 0..6), 0u64..200).prop_map(|(cpu, mib, devices, pods)| {
        let device = |(mib, group): (u64, u16)| DeviceSpec {
            model: "A".into(),
            memory: Bytes::from_mib(mib),
            nvlink_group: (group > 0).then_some(group),
            ..DeviceSpec::default()
        };
        NodeSpec {
            cpu: MilliCpu::new(cpu),
            memory: Bytes::from_mib(mib),
            devices: devices.into_iter().map(device).collect(),
            counted: BTreeMap::from([("pods".into(), pods)]),
            ..NodeSpec::default()
        }
    })
}

fn small_request() -> impl Strategy<Value = Request> {
    let memory = prop_oneof![
        (1u64..100).prop_map(|mib| DeviceMemory::Bytes(Bytes::from_mib(mib))),
        (1u32..100).prop_map(DeviceMemory::Thousandths),
    ];
    let amounts = (0u64..200, 0u64..100, 0u16..6, 1u32..200, memory);
    (amounts, 0u8..3, 0u64..200).prop_map(|((cpu, mib, count, core, memory), linked, pods)| {
        let devices = match linked {
            0 => DeviceRequest::whole(count),
            _ => DeviceRequest { count, core: DeviceCore::new(core), memory },
        };
        let mut request =
            Request { cpu: MilliCpu::new(cpu), memory: Bytes::from_mib(mib), devices, ..Request::default() };
        request.counted.insert("pods".into(), pods);
        if linked == 2 {
            request.rules.nvlink = Alignment::Required;
        }
        request
    })
}

const TEAM: &str = "team";

fn add_namespace(setting: &mut Setting, limit_range: LimitRange) {
    let spec = NamespaceSpec { name: TEAM.into(), limit_range, ..NamespaceSpec::default() };
    setting.cluster.apply(Event::NamespaceChanged(spec)).expect("a new namespace");
}

fn of_team() -> Claim {
    Claim { namespace: TEAM.into(), preemptible: true, ..Claim::default() }
}

/// Whether a group's next members can be placed in free room after these events, if no other group is pending.
fn admits(cluster: &Cluster, explanation: &Explanation, events: Vec<Event>) -> bool {
    let mut cluster = cluster.clone();
    let group = |cluster: &Cluster| cluster.group(explanation.group).expect("it waits").placed_members();
    if events.is_empty() || events.into_iter().any(|event| cluster.apply(event).is_err()) {
        return false;
    }
    let others: Vec<ClaimId> = cluster.claims().filter(|(_, _, at)| at.is_none()).map(|(id, ..)| id).collect();
    for other in others {
        if cluster.group_of(other) == Some(explanation.group) {
            continue;
        }
        cluster.apply(Event::ClaimRemoved(other)).expect("a claim that waits");
    }
    let settings = Settings { moves_per_cycle: 0, hold_after_ms: None, ..Settings::default() };
    let before = group(&cluster);
    Scheduler::new(Box::new(BestFit), settings).cycle(&mut cluster);
    group(&cluster) > before
}

/// The present value, and the change to another value.
type Way = (u64, Box<dyn Fn(u64) -> Change>);

/// All ways to ask for less: the present value of each number, and the change to another value.
fn ways(request: &Request) -> Vec<Way> {
    let Request { cpu, memory, devices, .. } = request.clone();
    let to_u32 = |to: u64| u32::try_from(to).expect("a small number");
    let to_u16 = |to: u64| u16::try_from(to).expect("a small number");
    let mib = |memory: Bytes| memory.get() >> 20;
    let mut ways: Vec<Way> = vec![
        (cpu.get(), Box::new(move |to| Change::LessCpu { from: cpu, to: MilliCpu::new(to) })),
        (mib(memory), Box::new(move |to| Change::LessMemory { from: memory, to: Bytes::from_mib(to) })),
    ];
    let pods = request.counted.get("pods").copied().unwrap_or(0);
    ways.push((pods, Box::new(move |to| Change::LessCounted { name: "pods".into(), from: pods, to })));
    if devices.count > 0 {
        let DeviceRequest { count, core, memory } = devices;
        ways.push((
            u64::from(core.get()),
            Box::new(move |to| Change::LessDeviceCore { request: None, from: core, to: DeviceCore::new(to_u32(to)) }),
        ));
        ways.push((
            count.into(),
            Box::new(move |to| Change::FewerDevices { request: None, from: count, to: to_u16(to) }),
        ));
        let of = |to: u64, memory: DeviceMemory| match memory {
            DeviceMemory::Bytes(_) => DeviceMemory::Bytes(Bytes::from_mib(to)),
            DeviceMemory::Thousandths(_) => DeviceMemory::Thousandths(u32::try_from(to).expect("a small number")),
        };
        let now = match memory {
            DeviceMemory::Bytes(bytes) => mib(bytes),
            DeviceMemory::Thousandths(part) => part.into(),
        };
        ways.push((
            now,
            Box::new(move |to| Change::LessDeviceMemory { request: None, from: memory, to: of(to, memory) }),
        ));
    }
    ways
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_smaller_change_of_a_kind_that_is_suggested_or_not_would_help(
        nodes in vec(small_node(), 1..4),
        asked in vec((small_request(), 1u32..4), 1..6),
        minimum in proptest::option::weighted(0.5, (1u64..60, 1u64..300)),
    ) {
        let mut setting = Setting::new();
        for (number, spec) in nodes.into_iter().enumerate() {
            setting.add_node(NodeSpec { name: format!("node-{number}"), ..spec });
        }
        if let Some((cpu, core)) = minimum {
            let at_least = |minimum| ClaimBounds { minimum: Some(minimum), ..ClaimBounds::default() };
            let limit_range =
                LimitRange { cpu: at_least(cpu), device_core: at_least(core), ..LimitRange::default() };
            add_namespace(&mut setting, limit_range);
        }
        let mut claims = Vec::new();
        for (number, (mut request, members)) in asked.into_iter().enumerate() {
            if let Some((cpu, core)) = minimum {
                request.cpu = request.cpu.max(MilliCpu::new(cpu));
                let each = u32::try_from(core).unwrap_or(0).div_ceil(u32::from(request.devices.count.max(1)));
                request.devices.core = request.devices.core.max(DeviceCore::new(each));
            }
            let group = PodGroup {
                name: format!("group-{number}"),
                namespace: TEAM.into(),
                min_members: members,
                preemptible: true,
                ..PodGroup::default()
            };
            let pod_group = Some(group.name.clone());
            setting.cluster.apply(Event::PodGroupAdded(group)).expect("a new group");
            for member in 0..members {
                let name = format!("claim-{number}-{member}");
                let (request, pod_group) = (request.clone(), pod_group.clone());
                claims.push(setting.add_claim(Claim { name, request, pod_group, ..of_team() }));
            }
        }
        setting.cycle();
        for claim in claims.into_iter().filter(|claim| setting.cluster.allocation(*claim).is_none()) {
            let explanation = setting.explain(claim);
            if matches!(explanation.reasons[..], [] | [Reason::RoomIsMade { .. }]) {
                continue;
            }
            let request = setting.cluster.claim(claim).expect("a claim").request.clone();
            for (from, change) in ways(&request) {
                let helps = |to: &u64| {
                    let events = change(*to).events(&setting.cluster, explanation.group, &explanation.members);
                    admits(&setting.cluster, &explanation, events)
                };
                let nearest = (1..from).rev().find(helps).map(&change);
                let kind = std::mem::discriminant(&change(1));
                let suggested = explanation.changes.iter().find(|change| std::mem::discriminant(*change) == kind);
                prop_assert_eq!(suggested, nearest.as_ref(), "{}", explanation);
            }
        }
    }
}

#[test]
fn fewer_devices_are_suggested_where_even_fewer_would_not_do() {
    // The namespace's minimum is the time of two devices, so to ask for one device is no way out.
    let mut setting = Setting::with_nodes(1, 2);
    let device_core = ClaimBounds { minimum: Some(2000), ..ClaimBounds::default() };
    let limit_range = LimitRange { device_core, ..LimitRange::default() };
    add_namespace(&mut setting, limit_range);
    let claim = setting.add_claim(Claim { name: "large".into(), request: whole(4), ..of_team() });
    setting.cycle();
    assert!(setting.suggestions(claim).contains(&"ask for 2 devices instead of 4".to_owned()));
}

#[test]
fn as_much_memory_is_suggested_as_is_free_where_the_namespace_has_a_minimum() {
    let mut setting = Setting::new();
    setting.add_node(node("node-0", "A", 1));
    let memory = ClaimBounds { minimum: Some(32 << 30), ..ClaimBounds::default() };
    let limit_range = LimitRange { memory, ..LimitRange::default() };
    add_namespace(&mut setting, limit_range);
    let request = Request { memory: Bytes::from_mib(100 << 10), ..Request::default() };
    let claim = setting.add_claim(Claim { name: "large".into(), request, ..of_team() });
    setting.cycle();
    assert!(setting.suggestions(claim).contains(&"ask for 64 GiB of memory instead of 100 GiB".to_owned()));
}
