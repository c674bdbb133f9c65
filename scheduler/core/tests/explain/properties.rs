//! Every suggested change helps, and explaining changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::explain::Change;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimId, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event, MilliCpu,
    NodeOperator, NodeRequirement, NodeSpec, NodeTerm, PodGroup, QueueSpec, Request, Resource, Taint, TaintEffect,
    Texts, Toleration,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::setting::{GIB, Setting};

const MODELS: [&str; 2] = ["A", "B"];
const QUEUES: [&str; 3] = ["default", "left", "right"];

#[derive(Clone, Debug)]
struct Asked {
    request: Request,
    queue: usize,
    members: u32,
    preemptible: bool,
}

fn node() -> impl Strategy<Value = NodeSpec> {
    let taint = prop_oneof![
        4 => Just(vec![]),
        3 => Just(vec![TaintEffect::NoSchedule]),
        1 => Just(vec![TaintEffect::NoSchedule, TaintEffect::NoExecute]),
    ];
    let (cordoned, pods) = (proptest::bool::weighted(0.2), 1u64..5);
    (1u64..9, 1u64..33, vec((0usize..2, 1u64..5), 0..4), taint, cordoned, 0usize..2, pods).prop_map(
        |(cores, gib, devices, tainted, cordoned, zone, pods)| {
            let device = |(model, tens): (usize, u64)| DeviceSpec {
                model: MODELS[model].into(),
                memory: Bytes::new(tens * 10 * GIB),
                ..DeviceSpec::default()
            };
            let taint = |effect| Taint { key: "team".into(), effect, ..Taint::default() };
            NodeSpec {
                cpu: MilliCpu::new(cores * 1000),
                memory: Bytes::new(gib * GIB),
                devices: devices.into_iter().map(device).collect(),
                labels: Texts::from([("zone".into(), ["x", "y"][zone].into())]),
                taints: tainted.into_iter().map(taint).collect(),
                cordoned,
                counted: BTreeMap::from([("pods".into(), pods)]),
                ..NodeSpec::default()
            }
        },
    )
}

fn asked() -> impl Strategy<Value = Asked> {
    let memory = prop_oneof![
        (1u64..30).prop_map(|gib| DeviceMemory::Bytes(Bytes::new(gib * GIB + 7))),
        (1u32..1001).prop_map(DeviceMemory::Thousandths),
    ];
    let amounts = (0u64..9000, 0u64..33_000, 0u16..4, 1u32..1001, memory);
    let constraints =
        (proptest::option::weighted(0.3, 0usize..2), proptest::option::weighted(0.3, 0usize..2), any::<bool>());
    let constraints = (constraints, proptest::option::weighted(0.2, 0usize..2), 0u64..4);
    (amounts, constraints, 0usize..3, prop_oneof![3 => Just(1u32), 1 => 2u32..4], any::<bool>()).prop_map(
        |((cpu, mib, count, core, memory), ((model, zone, tolerates), term, pods), queue, members, preemptible)| {
            let mut request = Request {
                cpu: MilliCpu::new(cpu),
                memory: Bytes::from_mib(mib),
                devices: DeviceRequest { count, core: DeviceCore::new(core), memory },
                ..Request::default()
            };
            request.constraints.models.extend(model.map(|model| MODELS[model].to_owned()));
            request.constraints.labels.extend(zone.map(|zone| ("zone".to_owned(), ["x", "y"][zone].to_owned())));
            request.constraints.node_terms.extend(term.map(|zone| NodeTerm {
                requirements: BTreeSet::from([NodeRequirement {
                    key: "zone".into(),
                    operator: NodeOperator::NotIn([["x", "y"][zone].to_owned()].into()),
                }]),
            }));
            request.counted.insert("pods".into(), pods);
            if tolerates {
                request
                    .constraints
                    .tolerations
                    .insert(Toleration { key: Some("team".into()), ..Toleration::default() });
            }
            Asked { request, queue, members, preemptible }
        },
    )
}

fn allowance() -> impl Strategy<Value = Allowance> {
    (proptest::option::weighted(0.7, 0u64..3000), proptest::option::weighted(0.5, 0u64..4000))
        .prop_map(|(quota, limit)| Allowance { quota, limit, weight: 1, priority: None })
}

/// A setting after a cycle, and its claims.
fn setting(nodes: &[NodeSpec], allowances: &[Allowance], asked: &[Asked]) -> (Setting, Vec<ClaimId>) {
    let mut setting = Setting::new();
    for (number, spec) in nodes.iter().enumerate() {
        setting.add_node(NodeSpec { name: format!("node-{number}"), ..spec.clone() });
    }
    for (name, allowance) in QUEUES.iter().skip(1).zip(allowances) {
        let resources = [Resource::DeviceCore, Resource::ModelCore("A".into())];
        let allowances = resources.into_iter().map(|resource| (resource, *allowance)).collect();
        let spec = QueueSpec { name: (*name).into(), allowances, ..QueueSpec::default() };
        setting.cluster.apply(Event::QueueAdded(spec)).expect("a new queue");
    }
    let mut claims = Vec::new();
    for (number, asked) in asked.iter().enumerate() {
        let (name, queue) = (format!("claim-{number}"), QUEUES[asked.queue].to_owned());
        let (request, preemptible) = (asked.request.clone(), asked.preemptible);
        match asked.members {
            1 => claims.push(setting.add_claim(Claim { name, queue, request, preemptible, ..Claim::default() })),
            members => {
                let group = PodGroup { name, queue, preemptible, min_members: members, ..PodGroup::default() };
                claims.extend(setting.add_group(group, members as usize, &request).1);
            }
        }
    }
    setting.cycle();
    (setting, claims)
}

fn placed(setting: &Setting, claims: &[ClaimId]) -> usize {
    claims.iter().filter(|claim| setting.cluster.allocation(**claim).is_some()).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn each_change_that_is_suggested_lets_more_be_placed_by_the_next_cycle(
        nodes in vec(node(), 1..5),
        allowances in vec(allowance(), 2),
        asked in vec(asked(), 1..8),
    ) {
        let (first, claims) = setting(&nodes, &allowances, &asked);
        for (index, claim) in claims.iter().enumerate() {
            if first.cluster.allocation(*claim).is_some() {
                continue;
            }
            let explanation = first.explain(*claim);
            prop_assert!(!explanation.reasons.is_empty() , "{explanation}");
            for change in &explanation.changes {
                let (mut again, claims) = setting(&nodes, &allowances, &asked);
                let before = placed(&again, &claims);
                let events = change.events(&again.cluster, explanation.group, &explanation.members);
                prop_assert!(!events.is_empty());
                for event in events {
                    prop_assert!(again.cluster.apply(event).is_ok());
                }
                let ended = usize::from(matches!(change, Change::WaitFor { .. }));
                again.cycle();
                // If all claims can use the freed room, a claim with an earlier turn may take it.
                let group = again.cluster.group(explanation.group).expect("it waits");
                prop_assert!(
                    group.placed_members() > 0 || placed(&again, &claims) > before - ended,
                    "claim {index}: {change}\n{explanation}"
                );
                let own = matches!(
                    change,
                    Change::LessCpu { .. } | Change::LessMemory { .. } | Change::LessDeviceCore { .. }
                        | Change::LessCounted { .. } | Change::LessDeviceMemory { .. } | Change::FewerDevices { .. }
                        | Change::LowerMinimum { .. }
                );
                prop_assert!(!own || group.placed_members() > 0, "claim {index}: {change}\n{explanation}");
            }
        }
    }

    #[test]
    fn reasons_that_are_found_once_for_all_that_is_alike_are_those_of_each(
        nodes in vec(node(), 1..5),
        allowances in vec(allowance(), 2),
        asked in vec(asked(), 1..8),
    ) {
        let asked: Vec<Asked> = asked.iter().cloned().cycle().take(3 * asked.len()).collect();
        let (mut setting, _) = setting(&nodes, &allowances, &asked);
        for _ in 0..2 {
            let plan = setting.cycle();
            let reasons = plan.reasons(&setting.cluster);
            prop_assert_eq!(reasons.numbers().len(), plan.pending.len());
            for (turn, pending) in plan.pending.iter().enumerate() {
                prop_assert_eq!(reasons.of(turn), Some(&pending.reason(&setting.cluster)));
            }
        }
    }

    #[test]
    fn explaining_is_pure(
        nodes in vec(node(), 1..5),
        allowances in vec(allowance(), 2),
        asked in vec(asked(), 1..8),
    ) {
        let (mut explained, claims) = setting(&nodes, &allowances, &asked);
        let (mut other, _) = setting(&nodes, &allowances, &asked);
        for claim in &claims {
            prop_assert_eq!(explained.explain(*claim), explained.explain(*claim));
        }
        // Both go on as if no explanation had been asked for.
        let more = Claim { name: "more".into(), ..Claim::default() };
        let _ = (explained.add_claim(more.clone()), other.add_claim(more));
        prop_assert_eq!(explained.cycle(), other.cycle());
    }
}
