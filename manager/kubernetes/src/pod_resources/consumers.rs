//! Tells the node which containers run in which slice, for people and metrics to read.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_node::{self as node, Consumer, Node, Slice};
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use super::{Holder, Holders, PodResources};
use crate::device_plugin::{CdiName, RecordedNames};

/// Time between two questions to kubelet.
const INTERVAL: Duration = Duration::from_secs(5);

/// Knows which slices of its claims a container has. Kubelet says only that the container has the claim, and not which
/// requests of the claim it has.
#[tonic::async_trait]
pub trait Parts: Send + Sync {
    /// Finds out about containers that came since the last call. `listed` has the containers that may have each slice, as
    /// kubelet tells.
    ///
    /// # Errors
    /// Why that was not possible for all of them.
    async fn learn(&self, listed: &BTreeMap<String, BTreeSet<Consumer>>) -> Result<(), String>;

    /// Whether a container has the slice of this name, or may have it.
    fn has(&self, slice: &str, consumer: &Consumer) -> bool;
}

/// A fixed rule: there is nothing to find out for it.
#[tonic::async_trait]
impl<F: Fn(&str, &Consumer) -> bool + Send + Sync> Parts for F {
    async fn learn(&self, _: &BTreeMap<String, BTreeSet<Consumer>>) -> Result<(), String> {
        Ok(())
    }

    fn has(&self, slice: &str, consumer: &Consumer) -> bool {
        self(slice, consumer)
    }
}

/// Tells the node which containers run in its slices, until this is dropped. If kubelet or the API server does not answer,
/// that is logged once, and the last answer still counts.
pub async fn keep_consumers(node: Arc<dyn Node>, pod_resources: Arc<PodResources>, parts: Arc<dyn Parts>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut answered = true;
    loop {
        ticks.tick().await;
        let slices = node::blocking(&node, |node| node.list()).await;
        // Asked after the slices were read: so each container that has one of these is in the answer.
        let problem = match pod_resources.list().await {
            Ok(holders) => {
                let listed = listed(&slices, &holders);
                let learned = parts.learn(&listed).await;
                let parts = Arc::clone(&parts);
                node::blocking(&node, move |node| tell(node, &slices, &holders, listed, &*parts)).await;
                learned.err()
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = problem.as_ref().filter(|_| answered) {
            warn!("cannot tell all containers that run in slices: {problem}");
        }
        answered = problem.is_none();
    }
}

/// Tells the node the changes for these slices. A slice that was made anew meanwhile has another container, and is left
/// alone.
fn tell(
    node: &dyn Node,
    slices: &[Slice],
    holders: &Holders,
    listed: BTreeMap<String, BTreeSet<Consumer>>,
    parts: &dyn Parts,
) {
    let mut found = of_slices(slices, holders, listed, parts);
    for slice in slices {
        let name = &slice.content.name;
        let consumers = found.remove(name.as_str()).unwrap_or_default();
        if consumers != slice.consumers && node.get(name).is_some_and(|now| now.content == slice.content) {
            node.set_consumers(name, &consumers);
        }
    }
}

/// The containers that may have each slice, by any of its CDI names.
fn listed(slices: &[Slice], holders: &Holders) -> BTreeMap<String, BTreeSet<Consumer>> {
    let mut by_name: BTreeMap<CdiName, &str> = BTreeMap::new();
    for slice in slices {
        let content = &slice.content;
        let names = content.aliases.iter().chain([&content.name]);
        by_name.extend(names.map(|name| (CdiName::of_slice(name), content.name.as_str())));
    }
    let mut found: BTreeMap<String, BTreeSet<Consumer>> = BTreeMap::new();
    for holder in holders.iter() {
        for slice in names(holder).filter_map(|name| by_name.get(&name)) {
            found.entry((*slice).to_owned()).or_default().insert(holder.consumer.clone());
        }
    }
    found
}

/// The containers that have each slice.
fn of_slices(
    slices: &[Slice],
    holders: &Holders,
    mut listed: BTreeMap<String, BTreeSet<Consumer>>,
    parts: &dyn Parts,
) -> BTreeMap<String, BTreeSet<Consumer>> {
    for (slice, consumers) in &mut listed {
        consumers.retain(|consumer| parts.has(slice, consumer));
    }
    listed.retain(|_, consumers| !consumers.is_empty());
    // `PodResources` does not list an init container that ends before the others start.
    let recorded = RecordedNames::new(holders);
    for slice in slices {
        if let Entry::Vacant(entry) = listed.entry(slice.content.name.clone())
            && let Some(consumer) = recorded.consumer_of(slice)
        {
            entry.insert(BTreeSet::from([consumer]));
        }
    }
    listed
}

/// The CDI devices that a container got, by claims and by units of device plugins.
fn names(holder: &Holder) -> impl Iterator<Item = CdiName> {
    let claims = holder.cdi_devices.iter().map(|name| CdiName::qualified(name));
    let units = holder.devices.iter().map(|(resource, ids)| CdiName::of_units(resource, ids));
    claims.chain(units)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use aliquot_node::SliceRequest;
    use tokio::task::JoinSet;

    use super::*;
    use crate::device_plugin::test_kubelet::TestKubelet;
    use crate::device_plugin::test_node::{GIB, TestNode, device, slice_of};

    const CORE: &str = "aliquot.dev/gpu-core";

    fn slice(name: &str, aliases: &[String]) -> Slice {
        Slice {
            content: SliceRequest {
                name: name.into(),
                aliases: aliases.iter().cloned().collect(),
                ..SliceRequest::default()
            },
            cdi_device: format!("aliquot.dev/slice={name}"),
            processes: 0,
            consumers: BTreeSet::new(),
        }
    }

    fn consumer(pod: &str) -> Consumer {
        Consumer { namespace: "n".into(), pod: pod.into(), container: "c".into() }
    }

    /// The slice `name` for a container that has this unit of a resource.
    fn slice_with_unit(name: &str, resource: &str, unit: &str) -> SliceRequest {
        let mut content = slice_of(name, &device(0, 16), 10, GIB).content;
        content.aliases.insert(CdiName::of_units(resource, &BTreeSet::from([unit.to_owned()])).alias().to_owned());
        content
    }

    #[tokio::test]
    async fn a_slice_that_is_made_while_kubelet_is_asked_keeps_its_container() {
        let dir = tempfile::tempdir().unwrap();
        let (kubelet, node) = (TestKubelet::start(dir.path()), TestNode::new(vec![device(0, 16)]));
        kubelet.known().give("before", CORE, &["GPU-1::0".to_owned()]);
        // In the order of names, this slice is handled last.
        node.create(&slice_with_unit("pod.default.before.main", CORE, "GPU-1::0")).unwrap();
        let new = Consumer { namespace: "default".into(), pod: "a".into(), container: "main".into() };
        kubelet.meanwhile({
            let (known, node, new) = (kubelet.known(), Arc::clone(&node), new.clone());
            move || {
                known.give("a", CORE, &["GPU-1::1".to_owned()]);
                node.create(&slice_with_unit("pod.default.a.main", CORE, "GPU-1::1")).unwrap();
                node.set_consumers("pod.default.a.main", &BTreeSet::from([new]));
            }
        });
        let mut keeping = JoinSet::new();
        keeping.spawn(keep_consumers(
            node.clone(),
            Arc::new(PodResources::new(dir.path())),
            Arc::new(|_: &str, _: &Consumer| true),
        ));
        while node.get("pod.default.before.main").unwrap().consumers.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(node.get("pod.default.a.main").unwrap().consumers, BTreeSet::from([new]));
    }

    /// A container is in the last slice, and until it was learned about it may be in all.
    #[derive(Default)]
    struct InTheLast(AtomicBool);

    #[tonic::async_trait]
    impl Parts for InTheLast {
        async fn learn(&self, _: &BTreeMap<String, BTreeSet<Consumer>>) -> Result<(), String> {
            self.0.store(true, Ordering::Relaxed);
            // Of others it is not known.
            Err("the API server does not answer".into())
        }

        fn has(&self, slice: &str, _: &Consumer) -> bool {
            slice == "last" || !self.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn what_a_container_has_is_asked_before_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (kubelet, node) = (TestKubelet::start(dir.path()), TestNode::new(vec![device(0, 16)]));
        for (slice, resource) in [("first", CORE), ("last", "aliquot.dev/gpu-memory")] {
            node.create(&slice_with_unit(slice, resource, "GPU-1::0")).unwrap();
            kubelet.give("joins", resource, &["GPU-1::0".to_owned()]);
        }
        let mut keeping = JoinSet::new();
        let parts = Arc::new(InTheLast::default());
        keeping.spawn(keep_consumers(node.clone(), Arc::new(PodResources::new(dir.path())), parts));
        // They are told in the order of names.
        while node.get("last").unwrap().consumers.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(node.get("first").unwrap().consumers.is_empty());
    }

    #[test]
    fn a_slice_of_a_claim_that_is_several_belongs_to_who_has_it() {
        let slices = [slice("claim-1.0", &[]), slice("claim-1.1", &[])];
        let holder = |pod: &str| Holder {
            consumer: consumer(pod),
            devices: BTreeMap::new(),
            cdi_devices: slices.iter().map(|slice| slice.cdi_device.clone()).collect(),
        };
        let holders = Holders::from_iter([holder("a"), holder("b")]);
        let has = |slice: &str, consumer: &Consumer| (slice == "claim-1.0") == (consumer.pod == "a");
        let found = of_slices(&slices, &holders, listed(&slices, &holders), &has);
        assert_eq!(
            found,
            BTreeMap::from([
                ("claim-1.0".to_owned(), BTreeSet::from([consumer("a")])),
                ("claim-1.1".to_owned(), BTreeSet::from([consumer("b")])),
            ])
        );
    }

    #[test]
    fn a_slice_belongs_to_who_has_its_claim_or_its_units() {
        let ids: BTreeSet<String> = ["GPU-1::0".to_owned(), "GPU-1::1".to_owned()].into();
        let alias = CdiName::of_units("aliquot.dev/gpu-core", &ids).alias().to_owned();
        let slices = [slice("claim-1", &[]), slice("pod.n.b.c", &[alias]), slice("train", &[])];
        let holder = |pod: &str, cdi: &str, units: bool| Holder {
            consumer: consumer(pod),
            devices: BTreeMap::from([("aliquot.dev/gpu-core".to_owned(), ids.clone())])
                .into_iter()
                .filter(|_| units)
                .collect(),
            cdi_devices: BTreeSet::from([cdi.to_owned()]),
        };
        let holders = Holders::from_iter([
            holder("a", "aliquot.dev/slice=claim-1", false),
            holder("a2", "aliquot.dev/slice=claim-1", false),
            holder("b", "other.dev/gpu=claim-1", true),
        ]);
        let found = of_slices(&slices, &holders, listed(&slices, &holders), &|_: &str, _: &Consumer| true);
        assert_eq!(
            found,
            BTreeMap::from([
                ("claim-1".to_owned(), BTreeSet::from([consumer("a"), consumer("a2")])),
                ("pod.n.b.c".to_owned(), BTreeSet::from([consumer("b")])),
            ])
        );
    }
}
