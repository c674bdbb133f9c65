//! Volumes that are made for pods that are being bound. The API server is told the node of one pod for each claim. Other
//! pods that start with the same claim wait for that volume, and then see whether their nodes can mount it.

use std::collections::BTreeSet;
use std::iter::repeat_n;
use std::sync::Arc;

use aliquot_scheduler_core::{NodeOperator, NodeRequirement, NodeTerm, Preference, Preferences};

use super::super::{Binding, Mirror, Readiness};
use super::{ClaimFacts, Name, VolumeFacts, named_by};
use crate::placement::{self, NODE_NAME};
use crate::pod::PodFacts;

/// The weight of the wish for another node, beside as much as all wishes of the pod itself. It is the greatest that a pod
/// can give.
const WEIGHT: u8 = 100;

/// A claim for which a volume is to be made on the node of a binding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unmade {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The version of the claim on which the decision was based.
    pub(crate) resource_version: String,
}

/// How a volume is being made.
#[derive(Debug)]
pub(super) struct Making {
    /// The UID of the pod on whose node it is made.
    pod: String,
    /// The version of the claim that names the node; `None`: it was not written yet.
    asked: Option<String>,
}

/// Where no volume could be made for a claim: the nodes in the order of the tries. When one of them has failed again, the
/// others are forgotten, so that each node has its turn.
#[derive(Debug, Default)]
pub(super) struct Unmakable(Vec<String>);

impl Mirror {
    /// Notes that volumes are to be made with this pod, and returns the claims that nobody has had made yet.
    pub(in super::super) fn begin_making(&mut self, binding: &Binding) -> Vec<Unmade> {
        let mut begun = Vec::new();
        for name in &binding.volume_claims {
            let key = (binding.namespace.clone(), name.clone());
            let Some(claim) = self.volumes.claims.get(&key) else { continue };
            self.volumes.making.entry(key).or_insert_with(|| {
                let (uid, resource_version) = (claim.uid.clone(), claim.resource_version.clone());
                begun.push(Unmade { name: name.clone(), uid, resource_version });
                Making { pod: binding.uid.clone(), asked: None }
            });
        }
        begun
    }

    /// No binding of the pod is on its way any more.
    pub(in super::super) fn end_making(&mut self, uid: &str) {
        self.volumes.making.retain(|_, making| making.pod != uid);
    }

    /// The API server was asked for a volume: the claim has this version since.
    pub(crate) fn volume_asked_for(&mut self, binding: &Binding, name: &str, resource_version: String) {
        let making = self.volumes.making.get_mut(&(binding.namespace.clone(), name.to_owned()));
        if let Some(making) = making.filter(|making| making.pod == binding.uid) {
            making.asked = Some(resource_version);
        }
    }

    /// Whether the volumes of a pod that is being bound are there, and its node can mount them.
    pub(in super::super) fn look_at_volumes_of(&self, facts: &PodFacts, binding: &Binding) -> Readiness {
        let mut waits = Readiness::Ready;
        for named in named_by(facts).filter(|named| binding.volume_claims.contains(&named.claim)) {
            let looked =
                self.volumes.usable(facts, &named).and_then(|claim| self.look_at_volume(claim, binding, &named.claim));
            match looked {
                Ok(None) => {}
                Ok(Some(why)) => {
                    waits = Readiness::Waits(format!("PersistentVolumeClaim {:?}: {why}", named.claim));
                }
                Err(why) => return Readiness::given_up(why),
            }
        }
        waits
    }

    /// What a pod that is being bound waits for to have this claim's volume; `None`: nothing.
    ///
    /// # Errors
    /// Why it will not have the volume on its node.
    fn look_at_volume(&self, claim: &ClaimFacts, binding: &Binding, name: &str) -> Result<Option<String>, String> {
        let node = &binding.node;
        if let Some(volume) = &claim.volume {
            let Some(VolumeFacts { terms, .. }) = self.volumes.volumes.get(volume) else {
                return Ok(Some(format!("nothing is known yet of its volume {volume:?}")));
            };
            let terms = terms.as_ref().map_err(|error| format!("the PersistentVolume {volume:?}: {error}"))?;
            let labels = self.nodes.get(node).map(|node| &node.facts.labels);
            return match labels.is_some_and(|labels| placement::admit(terms, labels)) {
                true => Ok(None),
                false => Err(format!(
                    "node {node} cannot mount the volume {volume:?} that was made for the PersistentVolumeClaim {name:?}"
                )),
            };
        }
        match self.volumes.making.get(&(binding.namespace.clone(), name.to_owned())) {
            None => Err(format!(
                "the pod that was to have a volume made for the PersistentVolumeClaim {name:?} is not bound"
            )),
            Some(making) if making.pod != binding.uid => {
                let maker = self.pods.get(&making.pod).map(|pod| pod.facts.full_name()).unwrap_or_default();
                Ok(Some(format!("its volume is made with pod {maker}")))
            }
            Some(making) if making.has_failed(claim, node) => {
                Err(format!("no volume can be made for the PersistentVolumeClaim {name:?} on node {node}"))
            }
            Some(_) => Ok(Some("no volume is made for it yet".to_owned())),
        }
    }

    /// A binding is given up. Where no volume was made with it, other nodes are better from now on. `is_last`: there was
    /// time enough.
    pub(in super::super) fn note_unmade(&mut self, binding: &Binding, is_last: bool) {
        for name in &binding.volume_claims {
            let key: Name = (binding.namespace.clone(), name.clone());
            let Some(making) = self.volumes.making.get(&key).filter(|making| making.pod == binding.uid) else {
                continue;
            };
            let Some(claim) = self.volumes.claims.get(&key).filter(|claim| claim.volume.is_none()) else { continue };
            if is_last || making.has_failed(claim, &binding.node) {
                self.volumes.unmakable.entry(key).or_default().note(&binding.node);
            }
        }
    }

    /// What a pod wants of nodes, and before all else that it comes to none where a volume of its could not be made.
    pub(in super::super) fn prefer_where_volumes_can_be_made(
        &self,
        facts: &PodFacts,
        volume_claims: &[String],
        preferences: Option<Arc<Preferences>>,
    ) -> Option<Arc<Preferences>> {
        let unmakable = volume_claims.iter().filter_map(|name| {
            let key = (facts.namespace.clone(), name.clone());
            self.volumes.unmakable.get(&key)
        });
        let nodes: BTreeSet<String> = unmakable.flat_map(|of| &of.0).cloned().collect();
        if nodes.is_empty() {
            return preferences;
        }
        let elsewhere = NodeRequirement { key: NODE_NAME.to_owned(), operator: NodeOperator::NotIn(nodes) };
        let elsewhere = Preference { weight: WEIGHT, term: NodeTerm { requirements: [elsewhere].into() } };
        let own = preferences.map(|own| own.0.clone()).unwrap_or_default();
        let times = own.len() + 1;
        Some(Arc::new(Preferences(own.into_iter().chain(repeat_n(elsewhere, times)).collect())))
    }
}

impl Making {
    /// Whether no volume can be made: the provisioner takes the node away from the claim then.
    fn has_failed(&self, claim: &ClaimFacts, node: &str) -> bool {
        let number = |version: &str| version.parse::<u64>().ok();
        let is_seen = self.asked.as_deref().is_some_and(|asked| number(&claim.resource_version) >= number(asked));
        is_seen && claim.selected_node.as_deref() != Some(node)
    }
}

impl Unmakable {
    fn note(&mut self, node: &str) {
        if self.0.iter().any(|known| known == node) {
            self.0.clear();
        }
        self.0.push(node.to_owned());
    }
}
