//! The alerts for Prometheus, evaluated by Prometheus' own tool on series as the manager and the scheduler show them.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use aliquot_deployment::objects;
use aliquot_deployment::prometheus_rule::{KIND, PrometheusRule};
use aliquot_harness::debian::{self, Packages};
use serde_json::{Value, json};

fn alerts() -> PrometheusRule {
    let objects = objects("components/monitoring");
    objects.iter().find(|object| object.kind() == KIND).expect("the component has alerts").read()
}

/// For each alert: series, values of each of them that cause it, and values that do not. A value for each minute, in
/// Prometheus' notation: `0+5x60` is 0, 5, 10 and so on.
const CASES: &[(&str, &[&str], &str, &str)] = &[
    ("AliquotManagerDown", &[r#"up{job="aliquot-system/aliquot-manager",node="n",manager_pod="m"}"#], "0x600", "1x600"),
    ("AliquotDeviceUnhealthy", &[r#"aliquot_device_healthy{device="GPU-1",index="0",node="n"}"#], "0x600", "1x600"),
    (
        "AliquotSliceDamaged",
        &[r#"aliquot_slice_damaged{slice="s",node="n",namespace="team",pod="p"}"#],
        "1x600",
        "0x600",
    ),
    (
        "AliquotSlicePassedBy",
        &[r#"aliquot_audit_findings{slice="",device="GPU-1",kind="outside_slices",node="n"}"#],
        "1x600",
        "0x600",
    ),
    (
        "AliquotMemoryRefused",
        &[r#"aliquot_slice_memory_refused_total{slice="s",device="GPU-1",node="n",namespace="team",pod="p"}"#],
        "0+1x600",
        "7x600",
    ),
    ("AliquotSchedulerWithoutLeader", &[r#"aliquot_scheduler_leader{pod="s"}"#], "0x600", "1x600"),
    ("AliquotNodesSilent", &[r#"aliquot_scheduler_nodes{state="silent",pod="s"}"#], "2x600", "0x600"),
    ("AliquotPodsFitNowhere", &[r#"aliquot_scheduler_waiting{reason="too-large",pod="s"}"#], "3x600", "0x600"),
    ("AliquotPodsWaitForRoom", &[r#"aliquot_scheduler_waiting{reason="no-room",pod="s"}"#], "3x600", "0x600"),
    ("AliquotWritesFail", &[r#"aliquot_scheduler_failed_writes_total{pod="s"}"#], "0+60x600", "0+1x600"),
    (
        "AliquotDecisionsSlow",
        &[
            r#"aliquot_scheduler_decision_seconds_bucket{le="10",pod="s"}"#,
            r#"aliquot_scheduler_decision_seconds_bucket{le="+Inf",pod="s"}"#,
        ],
        "0+9x600",
        "0x600",
    ),
    // Time begins at 0 in the test.
    (
        "AliquotWebhookCertificateEnds",
        &["aliquot_scheduler_webhook_certificate_end_seconds"],
        "600000x600",
        "9000000x600",
    ),
];

/// The test file for Prometheus' tool, with one test for each series.
fn tests(alerts: &PrometheusRule) -> Value {
    let named: BTreeMap<&str, &_> =
        alerts.spec.groups.iter().flat_map(|group| &group.rules).map(|rule| (rule.alert.as_str(), rule)).collect();
    let of_case = |&(alert, series, causes, does_not): &(&str, &[&str], &str, &str)| {
        assert!(named.contains_key(alert), "there is no alert {alert}");
        [(causes, 1), (does_not, 0)].map(|(values, firing)| {
            let count = format!("count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}) or vector(0)");
            let series: Vec<Value> = series.iter().map(|series| json!({"series": series, "values": values})).collect();
            json!({
                "name": format!("{alert}, {values}"),
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [{
                    "expr": count, "eval_time": "9h", "exp_samples": [{"labels": "{}", "value": firing}],
                }],
            })
        })
    };
    let tests: Vec<Value> = CASES.iter().flat_map(of_case).collect();
    json!({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
}

#[test]
fn each_alert_is_caused_by_its_series_and_by_no_other_value() {
    let alerts = alerts();
    let mut untested: Vec<&str> =
        alerts.spec.groups.iter().flat_map(|group| &group.rules).map(|rule| rule.alert.as_str()).collect();
    untested.retain(|alert| !CASES.iter().any(|(tested, ..)| tested == alert));
    assert!(untested.is_empty(), "without a test: {untested:?}");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), serde_json::to_string(&alerts.spec).unwrap()).unwrap();
    fs::write(dir.path().join("tests.yaml"), serde_json::to_string(&tests(&alerts)).unwrap()).unwrap();
    let unpacked =
        debian::unpacked(&Packages { suite: &debian::own_suite(), components: "main", names: &["prometheus"] });
    let promtool = |arguments: &[&str]| {
        let output = Command::new(unpacked.join("usr/bin/promtool")).args(arguments).current_dir(dir.path()).output();
        let output = output.expect("Prometheus' tool starts");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    promtool(&["check", "rules", "rules.yaml"]);
    promtool(&["test", "rules", "tests.yaml"]);
}

#[test]
fn each_alert_says_how_bad_it_is_and_what_is_wrong() {
    for alert in alerts().spec.groups.into_iter().flat_map(|group| group.rules) {
        let severity = alert.labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("critical" | "warning" | "info")), "{}: {severity:?}", alert.alert);
        assert!(alert.annotations.contains_key("summary"), "{}", alert.alert);
    }
}
