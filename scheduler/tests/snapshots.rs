//! The command line with snapshots: its reports about good ones, and its errors about bad ones.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// Two queues and three nodes: one claim takes back its queue's share, and a gang finds no room.
const SMALL: &str = include_str!("snapshots/small.json");

/// A folder of its own for each test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("aliquot-snapshots-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be written");
        Self(path)
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).expect("the temporary folder can be written");
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-scheduler"));
    command.args(args).stdin(Stdio::null()).output().expect("the program runs")
}

fn printed(args: &[&str]) -> String {
    let out = run(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("the output is text")
}

fn refused(args: &[&str]) -> String {
    let out = run(args);
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{args:?} succeeded");
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

/// A report without the sentences of the core about waiting claims and their remedies. These have tests of their own.
fn outline(text: &str) -> String {
    let mut lines = Vec::new();
    let mut waiting = false;
    for line in text.lines().filter(|line| !line.starts_with("    ")) {
        waiting = if line.starts_with("  ") { waiting } else { line.ends_with("wait:") || line == "waiting:" };
        let shown = if waiting { line.split_inclusive(':').next().unwrap_or(line) } else { line };
        lines.push(shown.to_owned() + "\n");
    }
    lines.concat()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("the output is JSON")
}

#[test]
fn a_plan_says_what_goes_where_and_what_waits_why() {
    let folder = Folder::new("plan");
    let text = printed(&["replay", &folder.file("small.json", SMALL)]);
    assert_eq!(outline(&text), include_str!("snapshots/small.plan"));
    assert!(text.contains("wait, or raise the queue's quota or weight"), "{text}");
}

#[test]
fn the_same_snapshot_always_gives_the_identical_plan() {
    let folder = Folder::new("identical");
    let snapshot = folder.file("small.json", SMALL);
    for args in [&["replay", &snapshot][..], &["replay", &snapshot, "--json"]] {
        let first = printed(args);
        (0..3).for_each(|_| assert_eq!(printed(args), first));
    }
}

#[test]
fn what_is_dumped_goes_on_as_if_nothing_had_happened() {
    let folder = Folder::new("dump");
    let snapshot = folder.file("small.json", SMALL);
    let (one, all, rest) = (folder.path("one.json"), folder.path("all.json"), folder.path("rest.json"));
    let whole = parsed(&printed(&["replay", &snapshot, "--json", "--dump", &all]));
    let first = parsed(&printed(&["replay", &snapshot, "--json", "--cycles", "1", "--dump", &one]));
    let later = parsed(&printed(&["replay", &one, "--json", "--dump", &rest]));
    assert_eq!(later["waiting"], whole["waiting"]);
    let cycles = |report: &Value| report["cycles"].as_array().cloned().unwrap_or_default();
    assert_eq!([cycles(&first), cycles(&later)].concat(), cycles(&whole));
    let read = |path: &str| fs::read_to_string(path).expect("a snapshot was written");
    assert_eq!(read(&rest), read(&all));
    let again = folder.path("again.json");
    assert_eq!(parsed(&printed(&["replay", &all, "--json", "--dump", &again]))["cycles"], json!([]));
    assert_eq!(read(&again), read(&all));
}

#[test]
fn what_more_nodes_would_change_is_told() {
    let folder = Folder::new("nodes");
    let snapshot = folder.file("small.json", SMALL);
    let text = printed(&["simulate", &snapshot, "--add-nodes", "a100-0=1"]);
    assert_eq!(outline(&text), include_str!("snapshots/small.more-nodes"));
}

#[test]
fn fair_shares_of_single_models_are_told() {
    let folder = Folder::new("models");
    let snapshot = folder.file("small.json", SMALL);
    let text = printed(&["simulate", &snapshot, "--add-nodes", "a100-0=1"]);
    let of_queue = text.lines().find(|line| line.starts_with("queue research:")).expect("its share changes");
    assert!(of_queue.contains("gpu-core of A100 of a fair share of"), "{of_queue}");
    assert!(!text.contains("fair share of 0.0 %"), "{text}");
}

#[test]
fn what_comes_in_addition_is_placed_too() {
    let folder = Folder::new("add");
    let snapshot = folder.file("small.json", SMALL);
    let gang = json!({
        "version": 1,
        "pod_groups": [{"name": "pair"}],
        "claims": [{"name": "half", "count": 2, "pod_group": "pair", "request": {"cpu_milli": 500}}],
    });
    let gang = folder.file("gang.json", &gang.to_string());
    let report = parsed(&printed(&["simulate", &snapshot, "--add", &gang, "--json"]));
    let placed = report["placed"].as_array().expect("a list");
    assert_eq!(placed.iter().map(|of| &of["claim"]).collect::<Vec<_>>(), ["half-0", "half-1"]);
    assert_eq!(report["after"]["placed"], json!(report["before"]["placed"].as_u64().map(|placed| placed + 2)));
}

#[test]
fn a_claim_takes_the_first_of_its_choices_that_can_be_had() {
    let folder = Folder::new("alternatives");
    let half = json!({"name": "half", "request": {"gpu_core_percent": 50}});
    let request = json!({"gpus": 2, "alternatives": {"first": "two", "others": [half]}});
    let claim = |name: &str| json!({"name": name, "request": request});
    let there = json!({"name": "there", "request": request, "placed": {"node": "n", "gpus": [0], "alternative": 1}});
    let claims = json!([there, claim("a"), claim("b"), claim("c")]);
    let snapshot =
        json!({"version": 1, "nodes": [{"name": "n", "gpus": [{"count": 3, "memory_gib": 80}]}], "claims": claims});
    let path = folder.file("snapshot.json", &snapshot.to_string());
    let plan = printed(&["replay", &path]);
    assert!(plan.contains("place a on n gpus 1,2 (allocate)"), "{plan}");
    assert!(plan.contains("place b on n gpu 0 as alternative 1 (allocate)"), "{plan}");
    let why = printed(&["explain", &path, "c"]);
    assert!(why.contains("request \"two\"") && why.contains("request \"half\""), "{why}");
}

#[test]
fn a_node_that_goes_away_displaces_what_is_on_it() {
    let folder = Folder::new("remove");
    let snapshot = folder.file("small.json", SMALL);
    let report = parsed(&printed(&["simulate", &snapshot, "--remove-node", "a100-1", "--json"]));
    let gpus = |when: &str| report[when]["gpus"]["core_milli"].as_u64();
    assert_eq!((gpus("before"), gpus("after")), (Some(5000), Some(3000)));
}

#[test]
fn another_limit_keeps_claims_of_a_queue_waiting() {
    let folder = Folder::new("set");
    let snapshot = folder.file("small.json", SMALL);
    let set = ["quota", "limit"].map(|field| format!("product.{field}.gpu_core_percent=60"));
    let report = printed(&["simulate", &snapshot, "--set", &set[0], "--set", &set[1], "--json"]);
    let report = parsed(&report);
    assert_eq!(report["queues"]["product"]["before"]["held_milli"], 1900);
    assert_eq!(report["queues"]["product"]["after"]["held_milli"], 600);
    let reason = report["waiting"].as_array().and_then(|list| list.iter().find(|of| of["queue"] == "product"));
    assert_eq!(reason.map(|of| &of["tier"]), Some(&json!("quota")));
}

#[test]
fn a_claim_that_waits_is_explained() {
    let folder = Folder::new("explain");
    let snapshot = folder.file("small.json", SMALL);
    let text = printed(&["explain", &snapshot, "notebook"]);
    assert!(text.contains("none of 3 nodes may take it") && text.contains("H100"), "{text}");
    assert!(printed(&["explain", &snapshot, "shell"]).contains("runs on node"), "it is placed first");
    let report = parsed(&printed(&["explain", &snapshot, "notebook", "--json"]));
    assert_eq!((&report["claim"], &report["node"]), (&"notebook".into(), &Value::Null));
    let first = report["reasons"][0].as_str().expect("it has a reason");
    assert!(text.contains(first), "{report}");
    assert!(refused(&["explain", &snapshot, "nobody"]).contains("there is no claim \"nobody\""));
}

#[test]
fn a_reclaimed_claim_knows_for_whom_it_went() {
    let folder = Folder::new("reclaim");
    let one = json!({"gpus": 1});
    let snapshot = json!({
        "version": 1,
        "nodes": [{"name": "n", "gpus": [{"model": "A", "count": 2}]}],
        "queues": [
            {"name": "lender", "resources": {"gpus": {"quota": 1}}},
            {"name": "borrower", "resources": {"gpus": {"quota": 1}}},
        ],
        "claims": [
            {"name": "first", "queue": "borrower", "request": one, "placed": {"node": "n", "gpus": [0]}},
            {"name": "second", "queue": "borrower", "request": one, "placed": {"node": "n", "gpus": [1]}},
            {"name": "owner", "queue": "lender", "request": one},
        ],
    });
    let snapshot = folder.file("reclaim.json", &snapshot.to_string());
    let report = parsed(&printed(&["replay", &snapshot, "--json"]));
    let steps = report["cycles"][0].as_array().expect("a cycle");
    assert_eq!(steps[0]["claim"], "second");
    assert_eq!((&steps[0]["action"], &steps[0]["for"]), (&json!("reclaim"), &json!("owner")));
    assert_eq!((&steps[1]["claim"], &steps[1]["starts_after"]), (&json!("owner"), &json!(["second"])));
    let text = printed(&["explain", &snapshot, "second"]);
    assert!(text.contains("for \"owner\""), "{text}");
}

#[test]
fn an_eviction_names_the_model_whose_quota_counts() {
    let folder = Folder::new("two-models");
    let node = |name: &str, model: &str| json!({"name": name, "gpus": [{"model": model, "count": 2, "memory_gib": 1}]});
    let queue = |name: &str| json!({"name": name, "resources": {"gpus:M": {"quota": 1}, "gpus:K": {"quota": 1}}});
    let placed = |name: &str, node: &str, gpu: u32| {
        let placed = json!({"node": node, "gpus": [gpu]});
        json!({"name": name, "queue": "b", "request": {"gpus": 1}, "placed": placed})
    };
    let claims = [
        placed("b0", "m", 0),
        placed("b1", "m", 1),
        placed("b2", "k", 0),
        placed("b3", "k", 1),
        json!({"name": "in", "queue": "a", "request": {"gpus": 1}}),
    ];
    let snapshot = json!({
        "version": 1, "nodes": [node("m", "M"), node("k", "K")], "queues": [queue("a"), queue("b")], "claims": claims,
    });
    let report = printed(&["replay", &folder.file("snapshot.json", &snapshot.to_string())]);
    assert!(
        report.contains("queue \"b\" held 200 % gpu-core of") && !report.contains("18446744073709551615"),
        "{report}"
    );
}

#[test]
fn bad_snapshots_are_refused_with_the_place_and_what_to_do() {
    let folder = Folder::new("bad");
    let claim = |claim: Value| json!({"version": 1, "claims": [claim]}).to_string();
    let node = json!([{"name": "n", "gpus": [{"model": "A", "count": 1}]}]);
    let on_node = |claims: Value| json!({"version": 1, "nodes": node, "claims": claims}).to_string();
    let whole = json!({"name": "c", "request": {"gpus": 1}, "placed": {"node": "n", "gpus": [0]}});
    let cases: Vec<(String, Vec<&str>)> = vec![
        (String::new(), vec!["empty", "{\"version\": 1}"]),
        ("nodes: 3".into(), vec!["expected", "line 1"]),
        ("{\"version\": 1} {}".into(), vec!["after the end of the snapshot"]),
        ("{}".into(), vec!["version", "write \"version\": 1"]),
        ("{\"version\": 2}".into(), vec!["version 2 is not understood"]),
        (claim(json!({"name": "c", "request": {"gpu_core_percnt": 50}})), vec!["claims[0].request", "gpu_core_percnt"]),
        (claim(json!({"name": "c", "request": {"cpu_milli": -4}})), vec!["claims[0].request.cpu_milli", "-4"]),
        (claim(json!({"name": "c", "request": {"cpu_milli": 1.5}})), vec!["claims[0].request.cpu_milli", "1.5"]),
        (
            claim(json!({"name": "c", "request": {"gpu_core_percent": 150}})),
            vec!["claims[0] \"c\"", "1500 thousandths"],
        ),
        (
            claim(json!({"name": "c", "request": {"memory_gib": u64::MAX}})),
            vec!["claims[0] \"c\"", "memory_gib", "more than can be counted"],
        ),
        (
            claim(json!({"name": "c", "request": {"gpu_memory_gib": 1, "gpu_memory_percent": 5}})),
            vec!["claims[0] \"c\"", "give one of them"],
        ),
        (
            claim(json!({"name": "c", "request": {"tolerations": [{"key": "k", "any_key": true}]}})),
            vec!["claims[0] \"c\"", "tolerations", "any key must not name a key", "\"k\""],
        ),
        (
            claim(json!({"name": "c", "request": {"node_terms": [[{"key": "zone", "operator": "is"}]]}})),
            vec!["claims[0].request.node_terms[0][0].operator", "does-not-exist"],
        ),
        (claim(json!({"request": {"gpus": 1}})), vec!["claims[0]", "no name"]),
        (claim(json!({"name": "a/b"})), vec!["claims[0]", "slash"]),
        (claim(json!({"name": "c", "count": 4_000_000_000_u32})), vec!["claims[0]", "count", "smaller count"]),
        (
            json!({"version": 1, "nodes": [{"name": "n", "count": 2_000_000}]}).to_string(),
            vec!["nodes[0]", "count", "100000", "smaller count"],
        ),
        (claim(json!({"name": "c", "queue": "nowhere"})), vec!["claims[0] \"c\"", "no queue \"nowhere\""]),
        (claim(json!({"name": "c", "pod_group": "gang"})), vec!["claims[0] \"c\"", "no pod group \"gang\""]),
        (claim(json!({"name": "c", "placed": {"node": "n"}})), vec!["claims[0] \"c\"", "no node \"n\""]),
        (claim(json!({"name": "c", "priority_class": "high"})), vec!["claims[0].priority_class", "high", "inference"]),
        (on_node(json!([{"name": "c"}, {"name": "c"}])), vec!["claims[1]", "claims[0]", "give each its own"]),
        (
            on_node(json!([whole, {"name": "d", "request": {"gpus": 1}, "placed": {"node": "n", "gpus": [0]}}])),
            vec!["claims[1] \"d\"", "node \"n\"", "0 are free"],
        ),
        (on_node(json!([{"name": "c", "request": {"gpus": 1}, "placed": {"node": "n"}}])), vec!["claims[0]", "1 were"]),
        (
            on_node(json!([{"name": "c", "request": {"gpus": 1}, "placed": {"node": "n", "gpus": [7]}}])),
            vec!["claims[0] \"c\"", "device 7"],
        ),
        (
            on_node(
                json!([{"name": "c", "request": {"gpus": 1}, "placed": {"node": "n", "gpus": [0], "alternative": 1}}]),
            ),
            vec!["claims[0]", "choice 1", "number of choices is 1"],
        ),
        (
            claim(
                json!({"name": "c", "request": {"gpus": 1, "alternatives": {"others": [{"request": {"cpu_milli": 1}}]}}}),
            ),
            vec!["claims[0] \"c\"", "alternatives", "has fields beside those of its GPUs"],
        ),
        (
            claim(json!({"name": "c", "request": {"gpus": 1, "alternatives": {"others": []}}})),
            vec!["claims[0] \"c\"", "1 choices", "2 to 64"],
        ),
        (
            json!({"version": 1, "nodes": [{"name": "n"}, {"name": "n"}]}).to_string(),
            vec!["nodes[1] \"n\"", "there is a node named \"n\""],
        ),
        (
            json!({"version": 1, "queues": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]}).to_string(),
            vec!["queues[0] \"a\"", "\"b\"", "parents before their children"],
        ),
        (
            json!({"version": 1, "queues": [{"name": "a", "resources": {"gpu": {"quota": 1}}}]}).to_string(),
            vec!["queues[0].resources", "\"gpu\" is not a resource", "gpu_core_percent"],
        ),
        (
            json!({"version": 1, "queues": [{"name": "a", "resources": {"gpus": {"quota": u64::MAX}}}]}).to_string(),
            vec!["queues[0]", "gpus", "more than can be counted"],
        ),
        (json!({"version": 1, "topology": ["rack", "rack"]}).to_string(), vec!["topology", "\"rack\"", "twice"]),
        (
            json!({"version": 1, "now_ms": 5, "claims": [{"name": "c", "added_ms": 6}]}).to_string(),
            vec!["claims[0] \"c\"", "6 ms", "later than now"],
        ),
    ];
    for (text, parts) in cases {
        let errors = refused(&["replay", &folder.file("bad.json", &text)]);
        for part in parts {
            assert!(errors.contains(part), "{part:?} is not in the errors of {text}:\n{errors}");
        }
    }
    assert!(refused(&["replay", &folder.path("missing.json")]).contains("cannot read"));
}

#[test]
fn amounts_as_great_as_can_be_written_upset_nothing() {
    let folder = Folder::new("great");
    let most = u64::MAX;
    let snapshot = json!({
        "version": 1,
        "now_ms": most,
        "nodes": [{"name": "n", "count": 2, "cpu_milli": most, "memory_bytes": most,
                   "gpus": [{"model": "A", "count": 2, "memory_bytes": most}]}],
        "queues": [{"name": "q", "resources": {"cpu_milli": {"quota": most, "limit": most, "weight": most}}}],
        "claims": [
            {"name": "c", "count": 3, "queue": "q", "min_runtime_ms": most,
             "request": {"cpu_milli": most, "memory_bytes": most, "gpus": 2, "gpu_memory_bytes": most}},
            {"name": "d", "request": {"gpus": 65535}},
        ],
    });
    let report = parsed(&printed(&["replay", &folder.file("great.json", &snapshot.to_string()), "--json"]));
    assert_eq!(report["placed"], 2);
}

#[test]
fn a_snapshot_and_a_trace_do_not_mix() {
    let folder = Folder::new("mix");
    let snapshot = folder.file("small.json", SMALL);
    assert!(refused(&["replay", &snapshot, "--nodes", "n.csv", "--arrivals", "a.csv"]).contains("cannot be used with"));
    assert!(refused(&["replay", &snapshot, "--policy", "fgd"]).contains("--policy"));
    assert!(refused(&["replay", "--nodes", "n.csv", "--arrivals", "a.csv", "--json"]).contains("--json"));
    assert!(refused(&["replay", "--nodes", "n.csv"]).contains("--arrivals"));
    assert!(refused(&["replay"]).contains("SNAPSHOT"));
    assert!(refused(&["simulate", &snapshot]).contains("no change is given"));
    assert!(refused(&["simulate", &snapshot, "--add-nodes", "x=1"]).contains("there is no node \"x\""));
    assert!(refused(&["simulate", &snapshot, "--add-nodes", "x"]).contains("write NODE=COUNT"));
    assert!(refused(&["simulate", &snapshot, "--remove-node", "x"]).contains("there is no node \"x\""));
    assert!(
        refused(&["simulate", &snapshot, "--set", "product.quota=3"]).contains("write QUEUE.quota.RESOURCE=AMOUNT")
    );
    assert!(refused(&["simulate", &snapshot, "--set", "x.quota.gpus=3"]).contains("there is no queue \"x\""));
}
