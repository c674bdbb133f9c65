//! Checks the dependencies of each crate of the workspace against a rule for that crate.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The allowed dependencies of a crate.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The crate.
    pub name: &'static str,
    /// The crates of this workspace that it may depend on.
    pub ours: &'static [&'static str],
    /// The crates from elsewhere that it may depend on; `None`: any. Dependencies of its tests are not checked.
    pub others: Option<&'static [&'static str]>,
}

/// The workspace as `cargo metadata` describes it.
///
/// # Panics
/// If it cannot be had.
#[must_use]
pub fn metadata(root: &Path) -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

/// Dependencies that the rules forbid, and crates without a rule, one sentence each. The tests of any crate may depend
/// on the crates in the folder `tests`.
#[must_use]
pub fn violations(rules: &[Rule], metadata: &Value) -> Vec<String> {
    let root = text(&metadata["workspace_root"]);
    let is_test = |folder: &str| folder.strip_prefix(root).is_some_and(|below| below.starts_with("/tests/"));
    let mut wrong = Vec::new();
    for package in list(&metadata["packages"]) {
        let (name, manifest) = (text(&package["name"]), text(&package["manifest_path"]));
        let Some(rule) = rules.iter().find(|rule| rule.name == name) else {
            wrong.push(format!("{name} has no rule about its dependencies; add one"));
            continue;
        };
        for dependency in list(&package["dependencies"]) {
            let on = text(&dependency["name"]);
            let is_dev = dependency["kind"] == "dev";
            let is_allowed = match dependency["path"].as_str() {
                Some(folder) => rule.ours.contains(&on) || (is_dev && is_test(&format!("{folder}/"))),
                None => is_dev || rule.others.is_none_or(|others| others.contains(&on)),
            };
            if !is_allowed {
                let kind = dependency["kind"].as_str().map(|kind| format!(" ({kind})")).unwrap_or_default();
                wrong.push(format!("{name} depends on {on}{kind}, which it may not: {manifest}"));
            }
        }
    }
    wrong
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: [Rule; 2] = [
        Rule { name: "pure", ours: &[], others: Some(&["thiserror"]) },
        Rule { name: "daemon", ours: &["pure"], others: None },
    ];

    /// A workspace in which the crate `name` in `folder` depends on `on`.
    fn workspace(name: &str, folder: &str, on: Value) -> Value {
        json!({
            "workspace_root": "/house",
            "packages": [{
                "name": name, "manifest_path": format!("/house/{folder}/Cargo.toml"), "dependencies": [on],
            }],
        })
    }

    #[test]
    fn dependencies_that_a_rule_allows_are_not_reported() {
        let harness = json!({"name": "harness", "kind": "dev", "path": "/house/tests/harness"});
        for (name, on) in [
            ("pure", json!({"name": "thiserror", "kind": null})),
            ("pure", json!({"name": "proptest", "kind": "dev"})),
            ("pure", harness),
            ("daemon", json!({"name": "pure", "kind": null, "path": "/house/pure"})),
            ("daemon", json!({"name": "tokio", "kind": null})),
        ] {
            assert_eq!(violations(&RULES, &workspace(name, name, on)), [""; 0]);
        }
    }

    #[test]
    fn a_runtime_a_transport_or_a_clock_in_a_pure_crate_is_reported() {
        for on in ["tokio", "tonic", "chrono"] {
            let wrong = violations(&RULES, &workspace("pure", "pure", json!({"name": on, "kind": null})));
            assert_eq!(wrong, [format!("pure depends on {on}, which it may not: /house/pure/Cargo.toml")]);
        }
    }

    #[test]
    fn a_forbidden_crate_of_the_workspace_is_reported_even_if_only_tests_use_it() {
        let daemon = |kind: Value| json!({"name": "daemon", "kind": kind, "path": "/house/daemon"});
        for (kind, told) in [(Value::Null, ""), (json!("dev"), " (dev)"), (json!("build"), " (build)")] {
            let wrong = violations(&RULES, &workspace("pure", "pure", daemon(kind)));
            assert_eq!(wrong, [format!("pure depends on daemon{told}, which it may not: /house/pure/Cargo.toml")]);
        }
    }

    #[test]
    fn a_test_crate_as_a_normal_dependency_is_reported() {
        let harness = json!({"name": "harness", "kind": null, "path": "/house/tests/harness"});
        assert_eq!(violations(&RULES, &workspace("daemon", "daemon", harness)).len(), 1);
    }

    #[test]
    fn a_crate_without_a_rule_is_reported() {
        let wrong = violations(&RULES, &workspace("new", "new", json!({"name": "thiserror", "kind": null})));
        assert_eq!(wrong, ["new has no rule about its dependencies; add one"]);
    }
}
