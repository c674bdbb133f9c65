//! Many pods that start at once.

use std::collections::BTreeMap;
use std::time::Instant;

use aliquot_harness::{MIB, wait};
use serde_json::{Value, json};

use super::Tests;
use super::objects::{holds, label};

/// The label of all these pods.
const LABEL: &str = "aliquot-test-many";

/// The facts about a slice. Its limits identify its request, the memory of its processes identifies the pod to which
/// they belong, and kubelet names the pod of the slice.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    consumers: Value,
    core_percent: u64,
    limit_bytes: u64,
    used_bytes: u64,
}

impl Tests<'_> {
    /// Each pod takes another amount, so that an exchange of any two slices is found.
    pub(crate) fn pods_that_start_at_once_have_each_its_own(&self, default_count: u64) {
        let count = std::env::var("ALIQUOT_TEST_PODS").map_or(default_count, |count| count.parse().expect("a number"));
        let started = Instant::now();
        let name = |number: u64| format!("many-{number}");
        let core = |number: u64| 1 + number % 3;
        let asked_mib = |number: u64| if count > 60 { 64 + number } else { 128 + 4 * number };
        let mut objects: Vec<Value> = (0..count)
            .flat_map(|number| self.asks(&name(number), &holds((number + 1) * MIB), core(number), asked_mib(number)))
            .collect();
        label(&mut objects, LABEL);
        self.namespace.apply(&objects);
        self.namespace.wait_until_all_run();
        wait::until_true("all pods hold their memory", || {
            let said = self.namespace.logs_of(LABEL, objects.len());
            said.lines().filter(|line| line.ends_with("held")).count() as u64 == count
        });
        let running = started.elapsed();

        let mut slices = Vec::new();
        wait::until_true("kubelet has told who has each slice", || {
            slices = self.manager.slices();
            slices.iter().all(|slice| slice["consumers"] != json!([]))
        });
        let mut found: BTreeMap<u64, Identity> = BTreeMap::new();
        for identity in slices.iter().map(identity) {
            let number = identity.used_bytes / MIB - 1;
            assert!(found.insert(number, identity).is_none(), "two slices hold what pod {number} should");
        }
        let expected = (0..count).map(|number| {
            let consumer = json!({"namespace": self.namespace.name(), "pod": name(number), "container": "main"});
            let identity = Identity {
                consumers: json!([consumer]),
                core_percent: core(number),
                limit_bytes: self.limit_mib(asked_mib(number)) * MIB,
                used_bytes: (number + 1) * MIB,
            };
            (number, identity)
        });
        assert_eq!(found, expected.collect());

        let ending = Instant::now();
        for kind in ["pod", "resourceclaim"] {
            self.namespace.begin_to_delete_all(kind);
        }
        self.manager.have_no_slices("all slices are gone");
        let gone = ending.elapsed();
        println!(
            "ok: {count} pods started at once, ran after {running:?}, wrong identity 0, and were gone after {gone:?}"
        );
    }
}

fn identity(slice: &Value) -> Identity {
    let part = |field: &str| slice["parts"][0][field].as_u64().unwrap_or_default();
    Identity {
        consumers: slice["consumers"].clone(),
        core_percent: part("core_request_percent"),
        limit_bytes: part("memory_limit_bytes"),
        used_bytes: part("memory_used_bytes"),
    }
}
