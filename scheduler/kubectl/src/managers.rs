//! Asks the nodes' managers one by one how much of each part is used.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_api_server::is_forbidden;
use aliquot_api_server::questions::ContainerName;
use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::port::{Port, Unreached};
use crate::usage::{PartKey, Used};

/// The label that selects the managers' pods.
const MANAGERS: &str = "app.kubernetes.io/name=aliquot-manager";
/// The name of the managers' port for metrics.
const METRICS: &str = "metrics";
/// The time over which the use of device time is measured.
const SPAN: Duration = Duration::from_secs(1);
/// The most managers that are asked at the same time.
const AT_ONCE: usize = 16;

const CORE_USED: &str = "aliquot_slice_core_used_seconds_total";
const MEMORY_USED: &str = "aliquot_slice_memory_used_bytes";

/// Asks the managers of these nodes. Returns the use, and the managers that could not be asked, with the reasons.
pub(crate) async fn ask(cluster: &Cluster, is_asked: impl Fn(&str) -> bool) -> (BTreeMap<PartKey, Used>, Vec<String>) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.system_namespace);
    let (mut used, mut notes) = (BTreeMap::new(), Vec::new());
    let managers = match pods.list(&ListParams::default().labels(MANAGERS)).await {
        Ok(managers) => managers.items,
        Err(error) => {
            let why = aliquot_api_server::message(&error);
            return (used, vec![format!("the use is not known: the managers cannot be found: {why}")]);
        }
    };
    let managers: Vec<Manager> = managers.iter().filter_map(Manager::of).filter(|of| is_asked(&of.node)).collect();
    let asked = stream::iter(&managers).map(async |of| (of, of.used(&pods).await));
    let answers: Vec<_> = asked.buffer_unordered(AT_ONCE).collect().await;
    for (manager, answer) in answers {
        match answer {
            Ok(of_manager) => used.extend(of_manager),
            // The right is missing for all managers alike.
            Err(Unreached::NotForwarded(error)) if is_forbidden(&error) => {
                let why = aliquot_api_server::message(&error);
                return (used, vec![format!("the use is not known: you have no right to ask the managers ({why})")]);
            }
            Err(why) => notes.push(format!("the manager on node {} cannot be asked: {}", manager.node, why.why())),
        }
    }
    notes.sort();
    (used, notes)
}

/// A manager with an open port for metrics.
struct Manager {
    node: String,
    pod: String,
    port: u16,
}

impl Manager {
    fn of(pod: &Pod) -> Option<Manager> {
        let spec = pod.spec.as_ref()?;
        let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
        let port = ports.into_iter().find(|port| port.name.as_deref() == Some(METRICS))?;
        Some(Manager {
            node: spec.node_name.clone()?,
            pod: pod.metadata.name.clone()?,
            port: u16::try_from(port.container_port).ok()?,
        })
    }

    async fn used(&self, pods: &Api<Pod>) -> Result<BTreeMap<PartKey, Used>, Unreached> {
        let port = Port { pods, pod: &self.pod, port: self.port };
        let (first, before) = (Instant::now(), port.ask("/metrics", None).await?.1);
        sleep(SPAN).await;
        let (second, after) = (Instant::now(), port.ask("/metrics", None).await?.1);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(between(&text(&before), &text(&after), second.duration_since(first)))
    }
}

/// The use between two pages of metrics.
fn between(before: &str, after: &str, span: Duration) -> BTreeMap<PartKey, Used> {
    let mut used: BTreeMap<PartKey, Used> = BTreeMap::new();
    let seconds_before = samples(before, CORE_USED);
    for (key, seconds) in samples(after, CORE_USED) {
        let since = seconds_before.get(&key).map(|before| (seconds - before).max(0.0));
        let thousandths = since.map(|since| (since / span.as_secs_f64() * 1000.0).round() as u32);
        used.entry(key).or_default().core_thousandths = thousandths;
    }
    for (key, bytes) in samples(after, MEMORY_USED) {
        used.entry(key).or_default().memory_bytes = Some(bytes as u64);
    }
    used
}

/// The samples of a metric, by container.
fn samples(page: &str, metric: &str) -> BTreeMap<PartKey, f64> {
    let lines = page.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{'));
    lines
        .filter_map(|line| {
            let (labels, value) = labels(line)?;
            let label = |name: &str| labels.get(name).cloned();
            let container =
                ContainerName { namespace: label("namespace")?, pod: label("pod")?, container: label("container")? };
            let key = PartKey { slice: label("slice")?, device: label("device")?, container };
            Some((key, value.trim().parse().ok()?))
        })
        .collect()
}

/// Reads labels up to the closing brace, and answers them with the rest of the line.
fn labels(line: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    let mut rest = line;
    loop {
        if let Some(value) = rest.strip_prefix('}') {
            return Some((labels, value));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut text = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => text.push(match characters.next()? {
                    (_, 'n') => '\n',
                    (_, other) => other,
                }),
                (_, other) => text.push(other),
            }
        };
        labels.insert(name.to_owned(), text);
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_what_was_used_between_two_pages() {
        let page = |seconds: f64, bytes: u64| {
            let labels = r#"slice="s",device="GPU-1",namespace="team",pod="a",container="main""#;
            format!(
                "# TYPE aliquot_slice_core_used_seconds counter\n\
                 aliquot_slice_core_used_seconds_total{{{labels}}} {seconds}\n\
                 aliquot_slice_core_used_seconds_total{{slice=\"by hand\",device=\"GPU-1\"}} 7\n\
                 aliquot_slice_memory_used_bytes{{{labels}}} {bytes}\n"
            )
        };
        let used = between(&page(10.0, 1), &page(10.6, 1 << 30), Duration::from_secs(2));
        let container = ContainerName { namespace: "team".into(), pod: "a".into(), container: "main".into() };
        let key = PartKey { slice: "s".into(), device: "GPU-1".into(), container };
        let expected = Used { core_thousandths: Some(300), memory_bytes: Some(1 << 30) };
        assert_eq!(used, BTreeMap::from([(key, expected)]));
    }

    #[test]
    fn labels_may_have_any_text() {
        let (found, value) = labels(r#"a="x\"y\\z\n,}",b=""} 3"#).unwrap();
        assert_eq!((found["a"].as_str(), found["b"].as_str(), value), ("x\"y\\z\n,}", "", " 3"));
        for broken in ["", "a", "a=\"x", "a=\"x\\"] {
            assert!(labels(broken).is_none(), "{broken}");
        }
    }
}
