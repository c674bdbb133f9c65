//! Slices whose container is gone.
//!
//! A slice is removed when three agree:
//!
//! 1. Kubelet: no container has the slice's units.
//! 2. The API server, because kubelet may have forgotten the pod only for a moment: while it starts, it does not know
//!    all of its pods. The pod is gone, has ended, or was replaced by another one of its name. If the API server has
//!    the pod, or does not answer, kubelet must not have known it for a while.
//! 3. The node's kernel: no process has the slice. Both others may not know a pod that was deleted by force, or a
//!    static pod whose mirror was, while its container still runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_node::{self as node, Consumer, Node, Slice};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::cluster::Cluster;
use super::prepare::ChoiceLock;
use super::slice_name::made_for;
use super::starting::RecordedNames;
use super::unit_id::{CdiName, is_alias_of_units};
use crate::pod_resources::{Holder, Holders, PodName, PodResources};

/// The slices of containers that no container has any more, and in which no process runs.
pub(super) fn of_nobody<'a>(slices: &'a [Slice], holders: &Holders) -> Vec<&'a Slice> {
    let units = |holder: &Holder| -> Vec<CdiName> {
        holder.devices.iter().map(|(resource, ids)| CdiName::of_units(resource, ids)).collect()
    };
    let held: BTreeSet<CdiName> = holders.iter().flat_map(units).collect();
    let is_held = |slice: &Slice| slice.content.aliases.iter().any(|alias| held.contains(&CdiName::of_slice(alias)));
    let recorded = RecordedNames::new(holders);
    let unused = slices.iter().filter(|slice| is_of_units(slice) && slice.processes == 0);
    unused.filter(|slice| !is_held(slice) && recorded.consumer_of(slice).is_none()).collect()
}

/// Whether a slice was made for a container that has units of a resource.
pub(super) fn is_of_units(slice: &Slice) -> bool {
    slice.content.aliases.iter().any(|alias| is_alias_of_units(alias))
}

/// For each slice without a container, the time since when it has had none.
#[derive(Debug, Default)]
struct Deserted {
    since: BTreeMap<String, Instant>,
}

impl Deserted {
    /// The names of the slices that have had no container for at least `grace`. `of_nobody` are those without one at
    /// `now`.
    fn for_long(&mut self, of_nobody: &[&Slice], now: Instant, grace: Duration) -> BTreeSet<String> {
        let names: BTreeSet<&str> = of_nobody.iter().map(|slice| slice.content.name.as_str()).collect();
        self.since.retain(|name, _| names.contains(name.as_str()));
        let mut found = BTreeSet::new();
        for name in names {
            let since = *self.since.entry(name.to_owned()).or_insert(now);
            if now.duration_since(since) >= grace {
                found.insert(name.to_owned());
            }
        }
        found
    }
}

/// Removes slices that have had no container for long, or whose pods are gone.
pub(super) struct Sweeper {
    node: Arc<dyn Node>,
    cluster: Arc<dyn Cluster>,
    pod_resources: Arc<PodResources>,
    choice_lock: ChoiceLock,
    grace: Duration,
    deserted: Deserted,
}

impl Sweeper {
    pub(super) fn new(
        node: Arc<dyn Node>,
        cluster: Arc<dyn Cluster>,
        pod_resources: Arc<PodResources>,
        choice_lock: ChoiceLock,
        grace: Duration,
    ) -> Sweeper {
        Sweeper { node, cluster, pod_resources, choice_lock, grace, deserted: Deserted::default() }
    }

    /// Takes in which containers have these slices.
    pub(super) async fn sweep(&mut self, slices: &[Slice], holders: &Holders) {
        let of_nobody_now = of_nobody(slices, holders);
        let mut deserted = self.deserted.for_long(&of_nobody_now, Instant::now(), self.grace);
        deserted.extend(self.of_gone_pods(&of_nobody_now, holders).await);
        if deserted.is_empty() {
            return;
        }
        let _held = self.choice_lock.lock().await;
        // Looked at again: a new pod of the same name has a new slice under the old slice's name.
        let slices = node::blocking(&self.node, |node| node.list()).await;
        let Ok(holders) = self.pod_resources.list().await else { return };
        for slice in of_nobody(&slices, &holders) {
            let name = slice.content.name.clone();
            if !deserted.contains(&name) {
                continue;
            }
            let removed = name.clone();
            match node::blocking(&self.node, move |node| node.remove_unused(&name)).await {
                Ok(true) => info!(slice = removed, "removed the slice of a container that is gone"),
                Ok(false) => debug!(slice = removed, "a container runs that kubelet does not know: its slice stays"),
                Err(error) => warn!(slice = removed, "cannot remove the slice of a container that is gone: {error}"),
            }
        }
    }

    /// The slices among these, which have no container, whose pods are gone for more than a moment.
    async fn of_gone_pods(&self, slices: &[&Slice], holders: &Holders) -> BTreeSet<String> {
        let known: BTreeSet<&PodName> = holders.pods().collect();
        let mut found = BTreeSet::new();
        for slice in slices {
            let Some(Consumer { namespace, pod, .. }) = made_for(slice) else { continue };
            let pod_name = (namespace, pod);
            // Kubelet knows a pod of that name and the units of its containers, and these are not the slice's.
            if known.contains(&pod_name) && holders.unread().is_none() {
                found.insert(slice.content.name.clone());
                continue;
            }
            let (namespace, pod) = pod_name;
            match self.cluster.has_gone(&namespace, &pod).await {
                Some(true) => _ = found.insert(slice.content.name.clone()),
                Some(false) => {}
                // If the server does not answer for one pod, it would not answer for the others.
                None => break,
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_plugin::test_node::{GIB, device, holder, slice_of};

    const CORE: &str = "aliquot.dev/gpu-core";

    fn slice(name: &str, units: &[&str]) -> Slice {
        let mut slice = slice_of(name, &device(0, 16), 10, GIB);
        let ids = units.iter().map(|id| (*id).to_owned()).collect();
        slice.content.aliases.insert(CdiName::of_units(CORE, &ids).alias().to_owned());
        slice
    }

    #[test]
    fn only_containers_slices_that_nobody_has_and_nothing_runs_in_are_stale() {
        let mut busy = slice("busy", &["a::9"]);
        busy.processes = 1;
        let by_hand = slice_of("train", &device(0, 16), 10, GIB);
        let slices = [slice("held", &["a::1", "a::2"]), slice("gone", &["a::1"]), busy, by_hand];
        let holders = Holders::from_iter([holder("p", CORE, &["a::1", "a::2"])]);
        let found: Vec<&str> =
            of_nobody(&slices, &holders).into_iter().map(|slice| slice.content.name.as_str()).collect();
        assert_eq!(found, ["gone"]);
    }

    #[tokio::test]
    async fn a_slice_is_deserted_only_after_a_while_without_a_break() {
        let (gone, grace, start) = (slice("gone", &["a::1"]), Duration::from_secs(30), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deserted = Deserted::default();
        assert!(deserted.for_long(&[&gone], at(0), grace).is_empty());
        assert!(deserted.for_long(&[], at(29), grace).is_empty());
        assert!(deserted.for_long(&[&gone], at(30), grace).is_empty());
        assert!(deserted.for_long(&[&gone], at(59), grace).is_empty());
        assert_eq!(deserted.for_long(&[&gone], at(60), grace), BTreeSet::from(["gone".to_owned()]));
    }
}
