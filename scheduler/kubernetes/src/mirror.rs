//! What the API server says, as the engine needs to hear it. Pure: no clock, no network.
//!
//! Pods, nodes, queues and namespaces come in as facts. [`Mirror::reconcile`] compares them with what the engine was
//! told, and returns what is new as observations. The engine's commands come in as well, and go out as writes to the
//! API server. The outcome of a write comes in again.
//!
//! A pod that waits for this scheduler is a claim. A pod that one of our commands has bound is an instance, whatever
//! scheduler it names: the annotation `aliquot.dev/generation` names the command. All other pods on a node are
//! *foreign*: what they hold is subtracted from what the node has. It is not known which devices a foreign pod uses, so
//! devices of a node with such a user of devices are not given out.

mod access;
mod attached;
mod budgets;
mod chosen;
mod commands;
mod device_claims;
mod elastic_gpus;
mod gangs;
mod group_starts;
mod looks;
mod nodes;
mod nominated;
mod one_at_a_time;
mod owners;
mod peers;
mod pods;
mod policies;
mod ports;
mod precedence;
mod queues;
mod reported;
mod suspended;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{Claim, NodeSpec, Peers, QueueSpec};
use aliquot_scheduler_engine::{Amounts, DevicePart, Generation, Observation};

use crate::devices::Reading;
use crate::node::NodeFacts;
use crate::peers::PeerRules;
use crate::placement::NumberedTaints;
use crate::pod::PodFacts;

pub(crate) use access::Access;
pub(crate) use chosen::Choice;
pub(crate) use commands::{Binding, Eviction, Write};
pub(crate) use device_claims::{
    AboutDevices, DeviceId, LONGEST_MS, LeftOver, Looked, Readiness, Reservation, Shortage, is_worthless,
};
pub(crate) use group_starts::{GroupSaid, GroupStart, Wait};
pub(crate) use looks::{Imagined, Known};
pub(crate) use nodes::Held;
pub(crate) use policies::POLICY;
pub(crate) use queues::{NamespaceFacts, QueueSaid};
pub(crate) use reported::{DeviceSaid, DevicesSaid, IllDevice};
pub(crate) use suspended::{Suspended, Suspension};
pub(crate) use volumes::{SELECTED_NODE, Unmade};

/// What is known of the cluster, and what the engine was told of it.
#[derive(Debug)]
pub(crate) struct Mirror {
    own_name: String,
    term: u64,
    pods: BTreeMap<String, KnownPod>,
    nodes: BTreeMap<String, KnownNode>,
    /// UIDs of the pods that hold room on a node, or are being bound there, whether the node is known or not.
    on_node: BTreeMap<String, BTreeSet<String>>,
    gangs: gangs::Gangs,
    owners: owners::Owners,
    groups_said: group_starts::GroupsSaid,
    namespaces: BTreeMap<String, NamespaceFacts>,
    selections: peers::Selections,
    queues: BTreeMap<String, QueueSpec>,
    queues_of_kai: BTreeMap<String, QueueSpec>,
    queue_objects: BTreeMap<String, queues::QueueObject>,
    told_queues: BTreeMap<String, QueueSpec>,
    deleted_queues: BTreeMap<String, queues::DeletedQueue>,
    has_changed_queues: bool,
    policies: policies::Policies,
    priority_classes: precedence::PriorityClasses,
    suspended: suspended::SuspendedWorkloads,
    budgets: budgets::Budgets,
    volumes: volumes::Volumes,
    attachments: attached::Attachments,
    /// The UIDs of pods that may have their turn now, or have it no more, to have what one pod at a time may have.
    turned: BTreeSet<String>,
    device_claims: device_claims::DeviceClaims,
    elastic_gpus: elastic_gpus::ElasticGpus,
    /// By node, what its manager says of its devices, whether the node is known or not.
    said: BTreeMap<String, DevicesSaid>,
    ports: ports::Ports,
    /// The taints of nodes that tolerations of numbers are about.
    taints: NumberedTaints,
    nominated: nominated::Nominated,
    reading: Reading,
    /// Inventories have changed since they were read.
    is_to_read: bool,
    sequence: u64,
    claims_told: u64,
    session: u64,
    changed_pods: BTreeSet<String>,
    changed_nodes: BTreeSet<String>,
    /// UIDs of the pods that were looked at, or forgotten, since the report on pods was made last.
    to_report: BTreeSet<String>,
    /// Labels of nodes, the outermost level first.
    topology: Vec<String>,
    told: Vec<Observation>,
    /// The number of the first observation of `told` that happens at the same moment as those after it.
    together_from: Option<usize>,
    /// What became of pods that other schedulers have asked to be bound.
    answers: Vec<(String, Result<(), String>)>,
}

#[derive(Debug)]
struct KnownPod {
    facts: PodFacts,
    /// The claim as the engine knows it.
    claim: Option<Told>,
    /// Why it is no claim although it waits for this scheduler.
    problem: Option<String>,
    instance: Option<Instance>,
    /// Its rules about other pods that are in force.
    rules: PeerRules,
    /// Those rules, and the groups that it is a member of; `None`: neither.
    peers: Option<Arc<Peers>>,
    /// The node to which a binding is on its way. Its outcome is awaited, whatever happens to the node.
    binding_to: Option<String>,
    /// The node that another scheduler has chosen for it. That scheduler waits until the pod is bound there.
    chosen: Option<String>,
    /// The pod is deleted, but its devices are still allocated to it.
    is_gone: bool,
}

/// A claim that the engine was told of.
#[derive(Debug)]
struct Told {
    claim: Claim,
    means: Means,
    /// Its place in the order in which the engine was told of claims.
    number: u64,
}

/// What else is needed to bind a pod.
#[derive(Debug, Default)]
struct Means {
    /// The containers that get the devices, and how many parts each, in the order of the parts.
    containers: Vec<(String, usize)>,
    /// The containers that get parts whose room is kept for them, with these parts.
    kept: Vec<(String, DevicePart)>,
    /// Claims for which volumes are to be made on the node first.
    volume_claims: Vec<String>,
    claimed: device_claims::Claimed,
}

/// A pod's instance: what runs on a node, or may run there soon.
#[derive(Debug)]
struct Instance {
    node: String,
    session: u64,
    generation: Generation,
    amounts: Amounts,
    /// The claims to which the devices are allocated, in the order of the parts; empty: the pod has them without
    /// claims.
    claims: Vec<device_claims::HeldClaim>,
    /// Parts of devices that the pod has, and whose room is kept for them in any case. They are no part of the amounts.
    kept: Vec<DevicePart>,
    /// The pod is bound. Otherwise it is not known yet whether it is.
    is_bound: bool,
}

#[derive(Debug)]
struct KnownNode {
    facts: NodeFacts,
    session: u64,
    /// Pods with a binding on its way to an earlier node of this name. It is not known what they will hold, so the
    /// engine hears of this node only when these bindings are settled.
    awaited: BTreeSet<String>,
    /// The last command for it, and those that are not settled.
    last: Generation,
    unsettled: BTreeSet<Generation>,
    told: Option<NodeSpec>,
    /// Why none of its devices is given out now.
    withheld: Option<String>,
    /// The engine is to hear what runs there although the node itself has not changed.
    is_to_report: bool,
}

impl Mirror {
    /// What the leader of this term knows at first: nothing. `topology`: labels of nodes, the outermost level first.
    pub(crate) fn new(own_name: &str, term: u64, topology: &[String]) -> Mirror {
        Mirror {
            own_name: own_name.to_owned(),
            term,
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            on_node: BTreeMap::new(),
            gangs: gangs::Gangs::default(),
            owners: owners::Owners::default(),
            groups_said: group_starts::GroupsSaid::default(),
            namespaces: BTreeMap::new(),
            selections: peers::Selections::default(),
            queues: BTreeMap::new(),
            queues_of_kai: BTreeMap::new(),
            queue_objects: BTreeMap::new(),
            told_queues: BTreeMap::new(),
            deleted_queues: BTreeMap::new(),
            has_changed_queues: true,
            policies: policies::Policies::default(),
            priority_classes: precedence::PriorityClasses::default(),
            suspended: suspended::SuspendedWorkloads::default(),
            budgets: budgets::Budgets::default(),
            volumes: volumes::Volumes::default(),
            attachments: attached::Attachments::default(),
            turned: BTreeSet::new(),
            device_claims: device_claims::DeviceClaims::default(),
            elastic_gpus: elastic_gpus::ElasticGpus::default(),
            said: BTreeMap::new(),
            ports: ports::Ports::default(),
            taints: NumberedTaints::default(),
            nominated: nominated::Nominated::default(),
            reading: Reading::default(),
            is_to_read: false,
            sequence: 0,
            claims_told: 0,
            session: 0,
            changed_pods: BTreeSet::new(),
            changed_nodes: BTreeSet::new(),
            to_report: BTreeSet::new(),
            topology: topology.to_vec(),
            told: vec![Observation::Topology(topology.to_vec())],
            together_from: None,
            answers: Vec::new(),
        }
    }

    /// The observations of all that has changed, for the engine.
    pub(crate) fn reconcile(&mut self) -> Vec<Observation> {
        self.read_inventories();
        self.look_at_volumes();
        self.look_at_device_claims();
        self.tell_queues();
        self.look_at_elastic_gpus();
        self.tell_pods();
        self.tell_holders();
        self.look_at_nominated();
        for name in std::mem::take(&mut self.changed_nodes) {
            self.tell_node(&name);
        }
        self.tell_gangs_gone();
        self.tell_budgets();
        let mut told = std::mem::take(&mut self.told);
        if let Some(first) = self.together_from.take() {
            let at_once = told.split_off(first);
            // The choice of another scheduler has an answer of its own.
            let (chosen, at_once): (Vec<_>, Vec<_>) =
                at_once.into_iter().partition(|of| matches!(of, Observation::ClaimOnNode(..)));
            told.push(Observation::Together(at_once));
            told.extend(chosen);
        }
        told.extend(self.take_asked());
        told
    }

    /// Tells the engine what the changed pods are now. Returns how many pods were looked at for this.
    fn tell_pods(&mut self) -> usize {
        let mut to_tell: Vec<String> = std::mem::take(&mut self.changed_pods).into_iter().collect();
        let mut looks = 0;
        loop {
            looks += to_tell.len();
            for uid in to_tell {
                self.tell_pod(&uid);
                self.elastic_gpu_claims_of_pod_are_due(&uid);
                self.note_turns(&uid);
                self.note_waiting(&uid);
                self.to_report.insert(uid);
            }
            self.tell_recounted_gangs();
            // Another pod may have its turn now, for which others wait.
            to_tell = self.take_turned();
            to_tell.extend(self.take_turned_in_line());
            to_tell.extend(self.take_withdrawn());
            if to_tell.is_empty() {
                return looks;
            }
        }
    }

    /// What is told from now on until the end of this look happens at the same moment.
    fn happens_together(&mut self) {
        self.together_from.get_or_insert(self.told.len());
    }

    /// When pods were created, by UID, so that their waiting does not begin anew with each leader.
    pub(crate) fn added_ms(&self) -> impl Iterator<Item = (&str, u64)> {
        self.pods.iter().map(|(uid, pod)| (uid.as_str(), pod.facts.created_ms))
    }

    /// A pod, if it waits for this scheduler and no command is about it.
    pub(crate) fn waiting(&self, uid: &str) -> Option<Waiting<'_>> {
        let pod = self.pods.get(uid).filter(|pod| pod.instance.is_none() && pod.chosen.is_none())?;
        (pod.claim.is_some() || pod.problem.is_some()).then(|| Waiting {
            facts: &pod.facts,
            problem: pod.problem.as_deref(),
            place: pod.place(),
            is_searched: self.searched_for(uid).is_some(),
            follows: self.about_first(pod),
        })
    }

    /// Takes the UIDs of the pods that may have begun or ceased to wait since this was asked last.
    pub(crate) fn take_to_report(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.to_report)
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn all_changed(&mut self) {
        self.changed_pods.extend(self.pods.keys().cloned());
        self.changed_nodes.extend(self.nodes.keys().cloned());
    }
}

/// A part of a device whose room is kept although no pod uses it now.
#[derive(Clone, Debug)]
pub(crate) struct KeptPart {
    /// What it is kept for: an `ElasticGPUClaim`, or an `ElasticGPU` without a claim.
    pub(crate) of: String,
    pub(crate) node: String,
    pub(crate) part: DevicePart,
}

/// A pod that waits.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    pub(crate) facts: &'a PodFacts,
    /// Why it will not be scheduled as it is.
    pub(crate) problem: Option<&'a str>,
    /// The name in the books of a place with devices of other drivers for it.
    pub(crate) place: Option<&'a str>,
    /// It is not known yet which nodes have such a place.
    pub(crate) is_searched: bool,
    /// The pod that it follows, if a claim of its PodGroup is allocated with another pod.
    pub(crate) follows: Option<String>,
}

impl KnownPod {
    fn place(&self) -> Option<&str> {
        self.claim.as_ref()?.means.claimed.place.as_deref()
    }
}

#[cfg(test)]
mod tests;
