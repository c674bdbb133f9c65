//! What readers learn from the mirror: for counts, for explanations, and for what-if questions.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Claim, DEFAULT_QUEUE, DeviceRequest, GroupPlacement, PodGroup};
use aliquot_scheduler_engine::DevicePart;

use super::gangs::NEVER_MS;
use super::precedence::Precedence;
use super::{AboutDevices, Mirror};
use crate::pod::PodFacts;

/// The name of the group of imagined pods. No pod can name it.
const IMAGINED: &str = "(what if)";

/// What is known of a pod.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) uid: String,
    pub(crate) queue: String,
    /// Why it will not be scheduled as it is.
    pub(crate) problem: Option<String>,
    /// This scheduler places it, or has placed it.
    pub(crate) is_ours: bool,
    pub(crate) is_gated: bool,
    /// The name in the books of a place with devices of other drivers for it.
    pub(crate) place: Option<String>,
    /// It is not known yet which nodes have such a place.
    pub(crate) is_searched: bool,
    /// The pod that it follows, if a claim of its PodGroup is allocated with another pod.
    pub(crate) follows: Option<String>,
    /// What keeps devices from it, if it lacks some.
    pub(crate) of_devices: Vec<String>,
}

/// Claims of pods that do not exist.
#[derive(Debug)]
pub(crate) struct Imagined {
    pub(crate) claim: Claim,
    /// The group that all of them are in.
    pub(crate) group: Option<PodGroup>,
    /// The name in the books of a place with devices of other drivers for one of them.
    pub(crate) place: Option<String>,
}

impl Mirror {
    /// How many pods wait for this scheduler and will not be scheduled as they are.
    pub(crate) fn unsupported(&self) -> usize {
        self.pods.values().filter(|pod| pod.problem.is_some()).count()
    }

    pub(crate) fn labels_of(&self, uid: &str) -> Option<&BTreeMap<String, String>> {
        self.pods.get(uid).map(|pod| &pod.facts.labels)
    }

    /// When a pod was created.
    pub(crate) fn created_ms(&self, uid: &str) -> Option<u64> {
        self.pods.get(uid).map(|pod| pod.facts.created_ms)
    }

    /// The nodes that are not ready: the API server does not hear from their kubelets, or these say so.
    pub(crate) fn nodes_not_ready(&self) -> BTreeSet<String> {
        self.nodes.values().filter(|node| !node.facts.is_ready).map(|node| node.facts.name.clone()).collect()
    }

    /// What is known of a pod of this name.
    pub(crate) fn pod_named(&self, namespace: &str, name: &str) -> Option<Known> {
        let is_it = |facts: &PodFacts| facts.namespace == namespace && facts.name == name;
        let pod = self.pods.values().find(|pod| is_it(&pod.facts))?;
        let facts = &pod.facts;
        let is_waiting = facts.scheduler == self.own_name && facts.node.is_none() && !facts.has_ended;
        Some(Known {
            uid: facts.uid.clone(),
            queue: some_queue(self.queue_of(facts)),
            problem: pod.problem.clone(),
            is_ours: pod.claim.is_some() || pod.instance.is_some() || is_waiting,
            is_gated: facts.is_gated && facts.node.is_none(),
            place: pod.place().map(str::to_owned),
            is_searched: self.searched_for(&facts.uid).is_some(),
            follows: self.about_first(pod),
            of_devices: self.about_devices(&facts.uid, &mut AboutDevices::default()),
        })
    }

    /// The pods bound to a node that have a lower priority than this, hold parts of devices and may be evicted for
    /// others, by UID: the lowest first, and of equals the newest.
    pub(crate) fn lower_on(&self, node: &str, priority: i32) -> Vec<String> {
        let there = self.on_node.get(node).into_iter().flatten().filter_map(|uid| self.pods.get_key_value(uid));
        let mut lower: Vec<_> = there
            .filter(|(_, pod)| pod.facts.priority < priority)
            .filter(|(_, pod)| pod.claim.as_ref().is_some_and(|told| told.claim.preemptible))
            .filter(|(_, pod)| pod.instance.as_ref().is_some_and(|of| of.is_bound && !of.amounts.devices.is_empty()))
            .collect();
        lower.sort_by_key(|(_, pod)| (pod.facts.priority, std::cmp::Reverse(pod.facts.created_ms)));
        lower.into_iter().map(|(uid, _)| uid.clone()).collect()
    }

    /// The parts of devices that pods hold, with the pod and the node, including pods that are being bound.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&PodFacts, &str, &DevicePart)> {
        let instances = self.pods.values().filter_map(|pod| Some((&pod.facts, pod.instance.as_ref()?)));
        instances.flat_map(|(facts, of)| {
            let parts = of.amounts.devices.iter().chain(&of.kept);
            parts.map(move |part| (facts, of.node.as_str(), part))
        })
    }

    /// The queues of the pods that hold parts of devices: namespace, pod and queue.
    pub(crate) fn queues_of_holders(&self) -> impl Iterator<Item = (&str, &str, String)> {
        let holds = |pod: &&super::KnownPod| {
            pod.instance.as_ref().is_some_and(|of| !of.amounts.devices.is_empty() || !of.kept.is_empty())
        };
        let pods = self.pods.values().filter(holds).map(|pod| &pod.facts);
        pods.map(|facts| (facts.namespace.as_str(), facts.name.as_str(), some_queue(self.queue_of(facts))))
    }

    /// The bytes that one unit of memory is in `GPUShare`'s words.
    pub(crate) fn gpushare_unit_bytes(&self) -> u64 {
        self.reading.facts.gpushare_unit_bytes
    }

    /// The claims of so many pods like this one. In a gang all of them start together. `devices`: what each asks of
    /// devices, in place of what the pod says.
    ///
    /// # Errors
    /// Why such a pod will not be scheduled.
    pub(crate) fn imagine(
        &self,
        facts: &PodFacts,
        count: u32,
        is_gang: bool,
        devices: Option<DeviceRequest>,
    ) -> Result<Imagined, String> {
        // Whatever waits already comes before it.
        let facts = PodFacts { gang: None, created_ms: u64::MAX, ..facts.clone() };
        self.check_can_be_imagined(&facts, count)?;
        let (mut request, means) = self.request_of(&facts)?;
        if let Some(devices) = devices {
            (request.devices, request.further, request.alternatives) = (devices, None, None);
            request.validate().map_err(|error| error.to_string())?;
        }
        let queue = self.queue_of(&facts);
        let policy = self.policy_of(&facts)?.cloned().unwrap_or_default();
        let Precedence { priority, never_preempts } = self.own_precedence(&facts);
        let preemptible = self.is_preemptible_at(&facts, priority);
        let delay_ms = policy.preemption_delay_ms.max(self.kai_words_of(&facts).preemption_delay_ms.unwrap_or(0));
        let preemption_delay_ms = if never_preempts { NEVER_MS } else { delay_ms };
        let group = (is_gang || preemption_delay_ms > 0).then(|| PodGroup {
            name: IMAGINED.to_owned(),
            namespace: facts.namespace.clone(),
            queue: queue.clone(),
            priority,
            preemptible,
            min_runtime_ms: policy.min_runtime_ms,
            preemption_delay_ms,
            min_members: if is_gang { count } else { 0 },
            spread: if is_gang { policy.spread.clone() } else { GroupPlacement::default() },
            ..PodGroup::default()
        });
        let claim = Claim {
            name: facts.full_name(),
            request,
            namespace: facts.namespace.clone(),
            queue,
            priority,
            preemptible,
            min_runtime_ms: policy.min_runtime_ms,
            pod_group: group.as_ref().map(|group| group.name.clone()),
            ..Claim::default()
        };
        Ok(Imagined { claim, group, place: means.claimed.place })
    }
}

fn some_queue(queue: String) -> String {
    if queue.is_empty() { DEFAULT_QUEUE.to_owned() } else { queue }
}
