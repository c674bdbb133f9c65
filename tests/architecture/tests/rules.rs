//! Checks the workspace against the import rules of ARCHITECTURE.md.

use std::path::Path;

use aliquot_architecture::crates::{self, Rule};
use aliquot_architecture::{layers, names};

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The column *May import* of ARCHITECTURE.md.
const RULES: &[Rule] = &[
    // The crate uses loom only when it is built for the model checker.
    Rule { name: "aliquot-abi", ours: &[], others: Some(&["loom"]) },
    // The shim runs in processes of users. It uses no crate of the manager and none from elsewhere.
    Rule { name: "aliquot-shim", ours: &["aliquot-abi"], others: Some(&[]) },
    // The contracts need the crates that compile them.
    Rule {
        name: "aliquot-proto",
        ours: &[],
        others: Some(&["prost", "prost-types", "protox", "tonic", "tonic-prost", "tonic-prost-build"]),
    },
    // Files alone.
    Rule { name: "aliquot-durable", ours: &[], others: Some(&[]) },
    Rule { name: "aliquot-terminal", ours: &[], others: None },
    // Pure crates use no clock, no transport and no runtime.
    Rule { name: "aliquot-arbiter", ours: &[], others: Some(&[]) },
    Rule { name: "aliquot-dialects", ours: &[], others: Some(&["thiserror"]) },
    Rule { name: "aliquot-scheduler-core", ours: &[], others: Some(&["thiserror"]) },
    // The engine uses no transport and no runtime, and saves durable state through a trait.
    Rule { name: "aliquot-scheduler-engine", ours: &["aliquot-scheduler-core"], others: Some(&["thiserror"]) },
    // The crate that adapters share. Of tokio it uses a channel and the call for blocking work.
    Rule { name: "aliquot-node", ours: &[], others: Some(&["serde", "thiserror", "tokio"]) },
    Rule {
        name: "aliquot-scheduler-records",
        ours: &["aliquot-scheduler-core", "aliquot-scheduler-engine"],
        others: Some(&["serde", "serde_json"]),
    },
    // The store knows the engine's records, and none of its own users.
    Rule {
        name: "aliquot-scheduler-store",
        ours: &["aliquot-scheduler-core", "aliquot-scheduler-engine", "aliquot-scheduler-records"],
        others: None,
    },
    Rule { name: "aliquot-telemetry", ours: &["aliquot-scheduler-core", "aliquot-scheduler-engine"], others: None },
    Rule {
        name: "aliquot-kubectl",
        ours: &["aliquot-api-server", "aliquot-dialects", "aliquot-terminal"],
        others: None,
    },
    Rule { name: "aliquot-api-server", ours: &["aliquot-dialects"], others: None },
    // The Kubernetes adapters do not know the manager.
    Rule {
        name: "aliquot-kubernetes",
        ours: &["aliquot-api-server", "aliquot-node", "aliquot-proto", "aliquot-dialects", "aliquot-durable"],
        others: None,
    },
    // Nor does the agent: it speaks to it over its socket.
    Rule { name: "aliquot-agent", ours: &["aliquot-node", "aliquot-proto", "aliquot-durable"], others: None },
    Rule {
        name: "aliquot-manager",
        ours: &[
            "aliquot-abi",
            "aliquot-agent",
            "aliquot-proto",
            "aliquot-arbiter",
            "aliquot-durable",
            "aliquot-node",
            "aliquot-kubernetes",
        ],
        others: None,
    },
    Rule {
        name: "aliquot-cli",
        ours: &["aliquot-manager", "aliquot-agent", "aliquot-proto", "aliquot-terminal", "aliquot-abi"],
        others: None,
    },
    // The scheduler does not know the manager: they meet in the contracts.
    Rule {
        name: "aliquot-standalone",
        ours: &[
            "aliquot-proto",
            "aliquot-durable",
            "aliquot-scheduler-core",
            "aliquot-scheduler-engine",
            "aliquot-scheduler-store",
            "aliquot-telemetry",
        ],
        others: None,
    },
    Rule {
        name: "aliquot-kubernetes-scheduler",
        ours: &[
            "aliquot-api-server",
            "aliquot-dialects",
            "aliquot-proto",
            "aliquot-scheduler-core",
            "aliquot-scheduler-engine",
            "aliquot-scheduler-records",
            "aliquot-telemetry",
            // For its tests: they ask it as operators do.
            "aliquot-kubectl",
            "aliquot-terminal",
        ],
        others: None,
    },
    Rule {
        name: "aliquot-scheduler",
        ours: &[
            "aliquot-kubernetes-scheduler",
            "aliquot-proto",
            "aliquot-scheduler-core",
            "aliquot-scheduler-engine",
            "aliquot-scheduler-store",
            "aliquot-standalone",
        ],
        others: None,
    },
    // Test crates.
    Rule { name: "aliquot-architecture", ours: &[], others: Some(&["serde_json"]) },
    Rule { name: "aliquot-scheduler-kit", ours: &["aliquot-scheduler-core"], others: Some(&[]) },
    Rule { name: "aliquot-fake-machine", ours: &[], others: None },
    Rule { name: "aliquot-fake-cuda", ours: &["aliquot-abi", "aliquot-fake-machine"], others: None },
    Rule { name: "aliquot-fake-nvml", ours: &["aliquot-abi", "aliquot-fake-machine"], others: None },
    Rule { name: "aliquot-harness", ours: &["aliquot-abi", "aliquot-proto", "aliquot-fake-machine"], others: None },
    // The API server of the test cluster knows no kubelet.
    Rule { name: "aliquot-test-api-server", ours: &["aliquot-dialects"], others: None },
    Rule {
        name: "aliquot-test-cluster",
        ours: &["aliquot-proto", "aliquot-harness", "aliquot-test-api-server"],
        others: None,
    },
    Rule { name: "aliquot-e2e", ours: &["aliquot-abi", "aliquot-api-server", "aliquot-proto"], others: None },
    Rule {
        name: "aliquot-deployment",
        ours: &["aliquot-dialects", "aliquot-manager", "aliquot-kubernetes", "aliquot-kubernetes-scheduler"],
        others: None,
    },
    Rule { name: "aliquot-fuzz", ours: &["aliquot-abi", "aliquot-manager"], others: None },
    Rule { name: "aliquot-gpu-check", ours: &["aliquot-abi"], others: None },
    Rule {
        name: "aliquot-chaos",
        ours: &["aliquot-abi", "aliquot-proto", "aliquot-fake-machine", "aliquot-harness"],
        others: None,
    },
    Rule {
        name: "aliquot-bench",
        ours: &["aliquot-proto", "aliquot-arbiter", "aliquot-fake-machine", "aliquot-harness", "aliquot-test-cluster"],
        others: None,
    },
];

/// The layers of the scheduler's core, the lowest first.
const CORE: [&str; 4] = ["vocabulary", "state", "decisions", "explain"];

/// The folders of the crates that are pure.
const PURE: [&str; 4] = ["scheduler/core", "scheduler/engine", "manager/arbiter", "proto/dialects"];

#[test]
fn pure_crates_forbid_the_same_things() {
    let read = |file: String| std::fs::read_to_string(Path::new(ROOT).join(&file)).expect(&file);
    let lists = PURE.map(|folder| read(format!("{folder}/clippy.toml")));
    assert!(lists[0].contains("std::time::Instant::now"));
    assert!(lists.iter().all(|list| *list == lists[0]), "the files are copies of each other; change all of them");
    for folder in PURE {
        let head = read(format!("{folder}/src/lib.rs"));
        assert!(head.contains("#![deny(clippy::float_arithmetic"), "{folder} denies floating-point arithmetic");
    }
}

#[test]
fn crates_depend_only_on_what_their_rules_allow() {
    let wrong = crates::violations(RULES, &crates::metadata(Path::new(ROOT)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_names_an_existing_crate() {
    let metadata = crates::metadata(Path::new(ROOT));
    let is_there = |name: &str| {
        metadata["packages"].as_array().is_some_and(|packages| packages.iter().any(|package| package["name"] == name))
    };
    let gone: Vec<&str> = RULES.iter().map(|rule| rule.name).filter(|name| !is_there(name)).collect();
    assert_eq!(gone, [""; 0]);
}

#[test]
fn layers_of_the_scheduler_core_import_only_lower_layers() {
    let sources = layers::sources(&Path::new(ROOT).join("scheduler/core/src"));
    for layer in CORE {
        assert!(sources.iter().any(|(file, _)| file.starts_with(&format!("{layer}/"))), "{layer} has files");
    }
    let wrong = layers::violations(&CORE, &sources);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_managers_core_does_not_know_its_adapters() {
    let sources = layers::sources(&Path::new(ROOT).join("manager/src"));
    let kubernetes = ["kubernetes", "relay", "config/kubernetes"];
    let mut wrong = names::violations("aliquot_kubernetes", &kubernetes, &sources);
    // Events and the bounds of a request are the contract's own; everything else is translated in `grpc`.
    let contract = ["grpc", "daemon", "events", "slices"];
    wrong.extend(names::violations("aliquot_proto", &contract, &sources));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
