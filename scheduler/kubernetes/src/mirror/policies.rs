//! Scheduling policies, and which of them is a pod's.

use std::collections::{BTreeMap, BTreeSet};

use super::Mirror;
use crate::pod::PodFacts;
use crate::scheduling_policy::PolicyFacts;

/// The label of a pod, or of its namespace, that names the policy.
pub(crate) const POLICY: &str = "aliquot.dev/scheduling-policy";

/// What is known of scheduling policies, by name.
#[derive(Debug, Default)]
pub(super) struct Policies(BTreeMap<String, PolicyFacts>);

impl Mirror {
    pub(crate) fn scheduling_policy(&mut self, name: &str, facts: PolicyFacts) {
        if self.policies.0.get(name) != Some(&facts) {
            self.policies.0.insert(name.to_owned(), facts);
            self.look_at_pods_of_policy(name);
        }
    }

    pub(crate) fn scheduling_policy_gone(&mut self, name: &str) {
        if self.policies.0.remove(name).is_some() {
            self.look_at_pods_of_policy(name);
        }
    }

    pub(crate) fn scheduling_policy_names(&self) -> BTreeSet<String> {
        self.policies.0.keys().cloned().collect()
    }

    /// The policy of a pod; `None`: neither the pod nor its namespace names one.
    ///
    /// # Errors
    /// It does not exist.
    pub(super) fn policy_of(&self, facts: &PodFacts) -> Result<Option<&PolicyFacts>, String> {
        let Some(name) = self.policy_name(facts) else { return Ok(None) };
        let policy = self.policies.0.get(name);
        policy.map(Some).ok_or_else(|| {
            format!("there is no SchedulingPolicy {name:?}; make it, or remove the label {POLICY} of the pod or its namespace")
        })
    }

    /// The devices that the gang of a pod may have of one node, if it has a policy that says so.
    pub(super) fn devices_per_node_max(&self, facts: &PodFacts) -> Option<u16> {
        self.group_of(facts).and_then(|group| group.spread.max_devices_per_node)
    }

    /// Checks what a pod of a gang asks for against what its gang may have of one node.
    ///
    /// # Errors
    /// It asks for more devices.
    pub(super) fn check_devices_per_node(&self, facts: &PodFacts, devices: u16) -> Result<(), String> {
        match self.devices_per_node_max(facts).filter(|most| devices > *most) {
            None => Ok(()),
            Some(most) => Err(format!(
                "it asks for {devices} GPUs, and its gang may have {most} of one node; ask for fewer, or raise maxGPUsPerNode of its \
                 SchedulingPolicy"
            )),
        }
    }

    fn policy_name<'a>(&'a self, facts: &'a PodFacts) -> Option<&'a str> {
        let of_namespace = || self.namespaces.get(&facts.namespace)?.labels.get(POLICY);
        facts.labels.get(POLICY).or_else(of_namespace).map(String::as_str).filter(|name| !name.is_empty())
    }

    fn look_at_pods_of_policy(&mut self, name: &str) {
        let is_of_it = |facts: &PodFacts| self.policy_name(facts) == Some(name);
        let pods: Vec<String> = self
            .pods
            .values()
            .map(|pod| &pod.facts)
            .filter(|facts| is_of_it(facts))
            .map(|facts| facts.uid.clone())
            .collect();
        self.changed_pods.extend(pods);
    }
}
