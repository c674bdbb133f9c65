//! The metrics for Prometheus.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::node::{GIB, Node, part, uuid};

fn get(node: &Node, request: &str) -> String {
    let mut stream = TcpStream::connect(node.daemon().metrics_address().unwrap()).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value in the line that begins with `metric`, which includes the labels.
pub(crate) fn value(node: &Node, metric: &str) -> f64 {
    let text = get(node, "GET /metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {metric} in {text}")).parse().unwrap()
}

#[test]
fn slices_and_devices_have_metrics_with_units_in_their_names() {
    let node = Node::start();
    node.create("a", vec![part(30, 4 * GIB)]).unwrap();
    let of_part = format!("{{slice=\"a\",device=\"{}\"}}", uuid(0));
    let of_device = format!("{{device=\"{}\",index=\"0\",model=\"Test GPU\"}}", uuid(0));
    assert_eq!(value(&node, &format!("aliquot_slice_memory_limit_bytes{of_part}")), (4 * GIB) as f64);
    assert_eq!(value(&node, &format!("aliquot_slice_core_request_ratio{of_part}")), 0.3);
    assert_eq!(value(&node, &format!("aliquot_slice_core_used_seconds_total{of_part}")), 0.0);
    assert_eq!(value(&node, "aliquot_slice_processes{slice=\"a\"}"), 0.0);
    assert_eq!(value(&node, "aliquot_slice_healthy{slice=\"a\"}"), 1.0);
    assert_eq!(value(&node, &format!("aliquot_device_memory_given_bytes{of_device}")), (4 * GIB) as f64);
    let bucket = |bound: &str| {
        format!("aliquot_slice_lease_wait_seconds_bucket{{le=\"{bound}\",slice=\"a\",device=\"{}\"}}", uuid(0))
    };
    assert_eq!((value(&node, &bucket("0.0001")), value(&node, &bucket("+Inf"))), (0.0, 0.0));
    assert_eq!(value(&node, &format!("aliquot_slice_lease_wait_seconds_count{of_part}")), 0.0);
    assert_eq!(value(&node, "aliquot_audit_processes_stopped_total"), 0.0);
    assert!(get(&node, "GET /metrics").contains("# EOF"));
}

#[test]
fn alerts_are_about_metrics_that_there_are() {
    let node = Node::start();
    node.create("a", vec![part(30, 4 * GIB)]).unwrap();
    let text = get(&node, "GET /metrics");
    let alerts = include_str!("../../../deploy/kubernetes/components/monitoring/alerts.yaml");
    let names = alerts.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    let names: BTreeSet<&str> =
        names.filter(|name| name.starts_with("aliquot_") && !name.starts_with("aliquot_scheduler_")).collect();
    assert!(names.len() > 3, "{names:?}");
    // This one is there while the audit has a finding; a test of damaged regions has one.
    for name in names.iter().filter(|name| **name != "aliquot_audit_findings") {
        assert!(text.lines().any(|line| line.starts_with(&format!("{name}{{"))), "no {name} in {text}");
    }
}

#[test]
fn nothing_else_is_served() {
    let node = Node::start();
    assert!(get(&node, "GET /").starts_with("HTTP/1.1 404"));
    assert!(get(&node, "POST /metrics").starts_with("HTTP/1.1 405"));
}

#[test]
fn a_client_that_stays_connected_takes_nobodys_place() {
    let node = Node::start();
    let mut client = TcpStream::connect(node.daemon().metrics_address().unwrap()).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    // The manager ends the connection.
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\r\nconnection: close\r\n"), "{}", answer.lines().next().unwrap());
}
