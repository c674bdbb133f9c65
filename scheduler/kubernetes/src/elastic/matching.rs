//! Which claims get the parts that no claim has yet.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;

use super::known::{Known, Name, Room, bound_to, lost_part, name_of};
use super::{ElasticGpu, ElasticGpuClaim};

impl Known {
    /// Which parts are to be bound to which claims. A claim gets the part that names it, or else the smallest one of its
    /// class that is enough; older claims go first. `is_in_use`: a pod is being bound with the claim already.
    pub(crate) fn matched(&self, is_in_use: impl Fn(&Name) -> bool) -> BTreeMap<String, Name> {
        let is_free = |(name, gpu): &(&str, &ElasticGpu)| {
            let is_leaving = gpu.metadata.deletion_timestamp.is_some();
            bound_to(gpu).is_none() && !is_leaving && self.rooms.get(*name) == Some(&Room::Kept)
        };
        let mut free: Vec<(&str, &ElasticGpu)> = self.gpus().filter(is_free).collect();
        let mut matches: BTreeMap<String, Name> = BTreeMap::new();
        let mut claims: Vec<(Name, &ElasticGpuClaim)> = Vec::new();
        if !free.is_empty() {
            let waits = |name: &Name, claim: &ElasticGpuClaim| {
                let is_leaving = claim.metadata.deletion_timestamp.is_some();
                let is_unbound = self.gpu_of(claim).is_none() && lost_part(claim).is_none();
                !is_leaving && claim.uid().is_some() && is_unbound && !is_in_use(name)
            };
            let waiting = self.claims.iter().filter(|(name, claim)| waits(name, claim));
            claims = waiting.map(|(name, claim)| (name.clone(), claim)).collect();
            claims.sort_by_cached_key(|(name, claim)| {
                let is_named = free.iter().any(|(_, gpu)| names(gpu, claim));
                let is_matched = self.matches.values().any(|of| of == name);
                let created = claim.creation_timestamp().map(|at| at.0);
                (Reverse(is_named), Reverse(is_matched), created, name.clone())
            });
        }
        for (name, claim) in claims {
            let fitting = free.iter().filter(|(_, gpu)| self.is_enough(gpu, claim));
            let before = |gpu: &str| self.matches.get(gpu) == Some(&name);
            let best = fitting.min_by_key(|(gpu, of)| {
                let size = (of.spec.capacity.memory_bytes, of.spec.capacity.core);
                (Reverse(names(of, claim)), Reverse(before(gpu)), size, *gpu)
            });
            if let Some((gpu, _)) = best.copied() {
                free.retain(|(other, _)| *other != gpu);
                matches.insert(gpu.to_owned(), name);
            }
        }
        matches
    }

    /// Sets which parts are to be bound to which claims. Returns the claims and parts for which this has changed.
    pub(crate) fn set_matches(&mut self, matches: BTreeMap<String, Name>) -> BTreeSet<Name> {
        let before = std::mem::replace(&mut self.matches, matches);
        let differs = |one: &BTreeMap<String, Name>, other: &BTreeMap<String, Name>| -> BTreeSet<Name> {
            let differing = one.iter().filter(|(gpu, name)| other.get(*gpu) != Some(*name));
            differing.flat_map(|(gpu, name)| [name.clone(), (String::new(), gpu.clone())]).collect()
        };
        &differs(&before, &self.matches) | &differs(&self.matches, &before)
    }

    /// Whether a part is all that a claim requests.
    fn is_enough(&self, gpu: &ElasticGpu, claim: &ElasticGpuClaim) -> bool {
        let spec = &gpu.spec;
        let may_have = spec.claim_ref.is_none() || names(gpu, claim);
        let Ok(asked) = self.requested(claim).map_err(|_| ()) else { return false };
        let core = asked.core_percent.and_then(|percent| i32::try_from(percent).ok()).unwrap_or(0);
        let memory = asked.memory_bytes.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(0);
        let is_of = |word: &String| spec.model.to_lowercase().contains(&word.to_lowercase());
        may_have
            && spec.class == claim.spec.class
            && spec.capacity.core >= core.max(1)
            && spec.capacity.memory_bytes >= memory
            && (asked.models.is_empty() || asked.models.iter().any(is_of))
    }
}

/// Whether a part is reserved for this claim by name.
fn names(gpu: &ElasticGpu, claim: &ElasticGpuClaim) -> bool {
    gpu.spec.claim_ref.as_ref().is_some_and(|of| (of.namespace.clone(), of.name.clone()) == name_of(claim))
}
