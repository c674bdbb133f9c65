//! Snapshots that follow from a seed.

use aliquot_scheduler::snapshot::File;
use aliquot_scheduler_core::{ClaimId, Cluster, Event, Scheduler};
use serde_json::{Value, json};

/// A sequence of pseudo-random numbers that follows from a seed.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // Knuth's linear congruential generator, of which the upper bits are good enough.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn one_of(&mut self, values: &[Value]) -> Value {
        values[usize::try_from(self.below(values.len() as u64)).expect("a small number")].clone()
    }
}

/// A snapshot with claims in many states.
pub(crate) fn snapshot(numbers: &mut Numbers) -> Value {
    let models = ["A100", "", "H100", "T4"];
    let node = |number: u64, numbers: &mut Numbers| {
        json!({
            "name": format!("n{number}"),
            "cpu_milli": 4000 + numbers.below(60_000),
            "memory_bytes": numbers.below(1 << 38),
            "labels": {"rack": format!("r{}", number % 2), "zone": "z", "empty": ""},
            "gpus": [
                {"model": models[(number % 4) as usize], "count": 1 + numbers.below(3), "memory_gib": 16},
                {"count": numbers.below(2), "attributes": {"architecture": ""}},
                {"model": "L4", "uuid": format!("GPU-{number}"), "memory_bytes": 24_000_000_007_u64,
                 "memory_outside_bytes": 1_000_000 * (number % 2), "nvlink_group": 1, "switch": 2, "numa": 0, "unhealthy": number == 1,
                 "attributes": {"architecture": "ada"}},
            ],
            "taints": match number {
                2 => json!([{"key": "reserved"}]),
                3 => json!([{"key": "reserved", "value": "x", "effect": "NoExecute"}]),
                _ => json!([]),
            },
            "foreign": if number == 1 {
                json!([{"member_of": ["g"]}, {"anti_affinity": [{"group": "h", "topology_key": "rack"}]}])
            } else {
                json!([])
            },
            "counted": if number == 1 { json!({}) } else { json!({"pods": 1 + numbers.below(20)}) },
        })
    };
    let request = |numbers: &mut Numbers| {
        numbers.one_of(&[
            json!({"cpu_milli": 500}),
            json!({"gpu_core_percent": 60, "further": {
                "first": "main",
                "requests": [
                    {"name": "side", "request": {"gpu_core_percent": 20, "gpu_attributes": {"architecture": "ada"}}},
                    {"name": "both", "request": {"gpus": 2, "gpu_core_milli": 105, "models": ["A100"]}},
                ],
                "links": [
                    {"requests": [0, 1], "property": "identity", "comparison": "distinct"},
                    {"requests": [0, 2], "property": {"attribute": "architecture"}, "comparison": "same"},
                ],
            }}),
            json!({"gpus": 2, "alternatives": {"first": "large", "others": [
                {"name": "small", "request": {"gpu_core_percent": 30, "models": ["A100"]}},
                {"rank": 1, "request": {"gpu_core_percent": 20, "further": {
                    "first": "main", "requests": [{"name": "side", "request": {"gpu_core_percent": 10}}],
                }}},
            ]}}),
            json!({"gpu_core_percent": 70, "further": {
                "first": "main", "requests": [{"name": "side", "request": {"gpu_core_percent": 20}}],
            }}),
            json!({"cpu_milli": 500, "gpu_core_percent": 50}),
            json!({"gpus": 1, "gpu_core_milli": 333, "gpu_memory_bytes": 1_000_000_007}),
            json!({"gpus": 2, "nvlink": "preferred", "memory_gib": 2}),
            json!({"gpu_memory_percent": 25, "models": ["A100", "L4"], "gpu_memory_threshold_percent": 90}),
            json!({"gpu_core_percent": 20, "gpu_attributes": {"architecture": "ada"}}),
            json!({"gpu_core_percent": 100, "tolerations": [{"key": "reserved"}], "node_labels": {"zone": "z"}}),
            json!({"counted": {"pods": 1}, "tolerations": [
                {"key": "reserved", "any_value": true, "effect": "NoExecute"}, {"any_key": true, "value": "x"},
            ]}),
            json!({"counted": {"pods": 2, "rdma/hca": 0}, "node_terms": [
                [{"key": "rack", "operator": {"in": ["r0", "r9"]}}, {"key": "spot", "operator": "does-not-exist"}],
                [{"key": "zone", "operator": "exists"}, {"key": "rack", "operator": {"not-in": ["r0"]}}],
                [{"key": "cores", "operator": {"greater-than": -4}}, {"key": "cores", "operator": {"less-than": 9}}],
                [],
            ]}),
            json!({"cpu_milli": 100, "peers": {
                "member_of": ["g", "h"],
                "affinity": {"group": "g", "topology_keys": ["rack", "zone"]},
                "anti_affinity": [{"group": "x", "topology_key": "rack"}],
            }}),
            json!({"cpu_milli": 100, "peers": {"member_of": ["g"], "topology_spread": [
                {"group": "g", "topology_key": "rack", "max_skew": 1},
                {"group": "h", "topology_key": "zone", "max_skew": 2, "min_domains": 3, "node_labels": {"zone": "z"},
                 "node_terms": [[{"key": "rack", "operator": "exists"}]], "tolerations": [{"any_key": true}]},
            ]}}),
            json!({"cpu_milli": 100, "peers": {
                "member_of": ["h"],
                "preferences": [{"group": "g", "topology_key": "rack", "weight": 20},
                                {"group": "h", "topology_key": "zone", "weight": -3}],
                "preferred_spread": [{"group": "g", "topology_key": "zone", "max_skew": 2}],
            }}),
        ])
    };
    let claim = |number: u64, numbers: &mut Numbers| {
        let member = number >= 3 && numbers.below(4) == 0;
        json!({
            "name": format!("c{number}"),
            "namespace": "team",
            "queue": if member { json!("") } else { numbers.one_of(&[json!("a"), json!("b/c"), json!("")]) },
            "priority": numbers.one_of(&[json!(50), json!(75), json!(125)]),
            "preemptible": numbers.one_of(&[json!(true), json!(false), Value::Null]),
            "immovable": numbers.below(4) == 0,
            "min_runtime_ms": numbers.below(2) * 1000,
            "pod_group": if member { json!("gang") } else { Value::Null },
            "disruption_budget": numbers.one_of(&[json!("budget"), Value::Null]),
            "request": request(numbers),
            "added_ms": numbers.below(1000),
        })
    };
    let nodes: Vec<Value> = (0..2 + numbers.below(4)).map(|number| node(number, numbers)).collect();
    let claims: Vec<Value> = (0..5 + numbers.below(40)).map(|number| claim(number, numbers)).collect();
    json!({
        "version": 1,
        "now_ms": 1000,
        "scheduler": {"policy": "binpack", "hold_after_ms": 2000, "held_nodes_per_mille": 400,
                      "usage_weight_per_mille": 500},
        "topology": ["zone", "rack"],
        "nodes": nodes,
        "queues": [
            {"name": "a", "resources": {"gpu_core_milli": {"quota": 1234}, "cpu_milli": {"limit": 20_000}}},
            {"name": "b", "priority": 3, "preempt_min_runtime_ms": 5},
            {"name": "b/c", "parent": "b", "resources": {"gpus:A100": {"quota": 1, "weight": 2, "priority": -1},
                                                           "gpus:": {"quota": null}}},
        ],
        "namespaces": [{"name": "team", "guaranteed": {"gpus": 2}, "per_claim": {"cpu_milli": {"default": 100}}}],
        "disruption_budgets": [{"name": "budget", "namespace": "team", "min_available": 1}],
        "pod_groups": [{"name": "gang", "namespace": "team", "min_members": numbers.below(3), "after_claims": 3,
                        "staleness_grace_ms": null, "preferred_level": "rack", "strategy": "spread-evenly",
                        "sub_groups": [{"name": "near", "required_level": "zone", "preferred_level": "rack"}]}],
        "claims": claims,
    })
}

fn nth_claim(cluster: &Cluster, number: u64) -> Option<ClaimId> {
    cluster.claims().map(|(id, ..)| id).nth(usize::try_from(number).ok()?)
}

/// Applies random events to a cluster, with a scheduling cycle after each.
pub(crate) fn disturb(scheduler: &mut Scheduler, cluster: &mut Cluster, numbers: &mut Numbers) {
    for _ in 0..numbers.below(12) {
        let claim = nth_claim(cluster, numbers.below(40));
        let event = match (numbers.below(7), claim) {
            (0, Some(claim)) => Event::ClaimGone(claim),
            (1, Some(claim)) => Event::ClaimFailed(claim),
            (2, Some(claim)) => Event::ClaimRemoved(claim),
            (4, Some(claim)) => Event::EvictionRefused(claim),
            (3, Some(claim)) => Event::ClaimWithdrawn(claim),
            _ => Event::TimeAdvanced(cluster.now_ms() + numbers.below(3000)),
        };
        // Events that contradict the state change nothing.
        let _ = cluster.apply(event);
        let _ = scheduler.cycle(cluster);
    }
}

/// A snapshot's file.
pub(crate) fn file(numbers: &mut Numbers) -> File {
    File::parse(&snapshot(numbers).to_string()).expect("a snapshot")
}
