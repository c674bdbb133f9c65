//! What is used, as the nodes' managers measure it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, is_forbidden};
use crate::port::{Port, Unreached};

/// The managers' pods.
const MANAGERS: &str = "app.kubernetes.io/name=aliquot-manager";
/// The name of their port for metrics.
const METRICS: &str = "metrics";
/// Device time is counted so long.
const SPAN: Duration = Duration::from_secs(1);
/// Managers that are asked at the same time, at most.
const AT_ONCE: usize = 16;

const CORE_USED: &str = "aliquot_slice_core_used_seconds_total";
const MEMORY_USED: &str = "aliquot_slice_memory_used_bytes";

/// A container's part of a device: its namespace, pod and container, and the device's UUID.
type Key = (String, String, String, String);

/// What is used of parts.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    used: BTreeMap<Key, Used>,
    /// Which managers could not be asked, and why.
    pub(crate) notes: Vec<String>,
}

/// What is used of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    /// Thousandths of the device's time.
    pub(crate) core_thousandths: Option<u32>,
    pub(crate) memory_bytes: Option<u64>,
}

impl Usage {
    /// What is used of a part. `container` is empty for a claim: then all containers of the pod count.
    pub(crate) fn of(&self, namespace: &str, pod: &str, container: &str, device: &str) -> Option<Used> {
        let is_it = |(of_namespace, of_pod, of_container, of_device): &Key| {
            let is_container = container.is_empty() || of_container == container;
            of_namespace == namespace && of_pod == pod && is_container && of_device == device
        };
        let found = self.used.iter().filter(|(key, _)| is_it(key)).map(|(_, used)| *used);
        let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b).or(a).or(b);
        found.reduce(|a, b| Used {
            core_thousandths: sum(a.core_thousandths.map(u64::from), b.core_thousandths.map(u64::from))
                .and_then(|sum| u32::try_from(sum).ok()),
            memory_bytes: sum(a.memory_bytes, b.memory_bytes),
        })
    }
}

/// Asks the managers of these nodes.
pub(crate) async fn usage(cluster: &Cluster, is_asked: impl Fn(&str) -> bool) -> Usage {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.system_namespace);
    let mut usage = Usage::default();
    let managers = match pods.list(&ListParams::default().labels(MANAGERS)).await {
        Ok(managers) => managers.items,
        Err(error) => {
            let why = aliquot_api_server::message(&error);
            usage.notes.push(format!("what is used is not known: the managers cannot be found: {why}"));
            return usage;
        }
    };
    let managers: Vec<Manager> = managers.iter().filter_map(Manager::of).filter(|of| is_asked(&of.node)).collect();
    let asked = stream::iter(&managers).map(async |of| (of, of.used(&pods).await));
    let answers: Vec<_> = asked.buffer_unordered(AT_ONCE).collect().await;
    for (manager, answer) in answers {
        match answer {
            Ok(used) => usage.used.extend(used),
            // It is so for all of them.
            Err(Unreached::NotForwarded(error)) if is_forbidden(&error) => {
                let why = aliquot_api_server::message(&error);
                usage.notes = vec![format!("what is used is not known: you have no right to ask the managers ({why})")];
                return usage;
            }
            Err(why) => {
                usage.notes.push(format!("the manager on node {} cannot be asked: {}", manager.node, why.why()))
            }
        }
    }
    usage.notes.sort();
    usage
}

/// A manager that can be asked.
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

    async fn used(&self, pods: &Api<Pod>) -> Result<BTreeMap<Key, Used>, Unreached> {
        let port = Port { pods, pod: &self.pod, port: self.port };
        let (first, before) = (Instant::now(), port.ask("/metrics", None).await?.1);
        sleep(SPAN).await;
        let (second, after) = (Instant::now(), port.ask("/metrics", None).await?.1);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(between(&text(&before), &text(&after), second.duration_since(first)))
    }
}

/// What was used between two pages of metrics.
fn between(before: &str, after: &str, span: Duration) -> BTreeMap<Key, Used> {
    let mut used: BTreeMap<Key, Used> = BTreeMap::new();
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

/// The samples of a metric that are of one container.
fn samples(page: &str, metric: &str) -> BTreeMap<Key, f64> {
    let lines = page.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{'));
    lines
        .filter_map(|line| {
            let (labels, value) = labels(line)?;
            let label = |name: &str| labels.get(name).cloned();
            let key = (label("namespace")?, label("pod")?, label("container")?, label("device")?);
            Some((key, value.trim().parse().ok()?))
        })
        .collect()
}

/// Labels up to the closing brace, and what is behind it.
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
        let usage = Usage { used, notes: Vec::new() };
        let expected = Used { core_thousandths: Some(300), memory_bytes: Some(1 << 30) };
        assert_eq!(usage.of("team", "a", "main", "GPU-1"), Some(expected));
        assert_eq!(usage.of("team", "a", "", "GPU-1"), Some(expected));
        assert_eq!(usage.of("team", "a", "other", "GPU-1"), None);
        assert_eq!(usage.used.len(), 1);
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
