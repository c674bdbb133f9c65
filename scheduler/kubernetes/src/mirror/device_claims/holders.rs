//! Allocations that no pod in the books holds: those of other schedulers, those made by hand, and those of claims that
//! several pods share.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Claim, Constraints, DeviceMemory, DeviceRequest, Request};
use aliquot_scheduler_engine::{Amounts, ClaimUid, DevicePart, Generation, Observation, Running, StepOutcome};

use super::super::{Instance, KnownPod, Mirror};
use super::Name;
use super::turns::Users;

/// A label that no node has: a holder is never placed, only seen.
const NEVER_PLACED: &str = "aliquot.dev/is-allocated-already";

/// The prefix of the names of holders. No UID of a pod has it.
const HOLDER: &str = "resourceclaim/";

/// The generation of all holders' instances. No command has it.
const HOLDS: Generation = Generation { term: 0, number: 1 };

/// A part of a device that is allocated, and that no pod in the books holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Holder {
    uid: String,
    node: String,
    part: DevicePart,
}

impl Mirror {
    /// The parts on a node that are allocated, and that no pod in the books holds.
    pub(in super::super) fn held_by_claims(&self, node: &str) -> impl Iterator<Item = Running> {
        let names = self.device_claims.holders_on.get(node).into_iter().flatten();
        let holders = names.filter_map(|name| self.device_claims.holders.get(name)).flatten();
        holders.map(|holder| Running {
            claim: ClaimUid::from(holder.uid.as_str()),
            instance: HOLDS,
            amounts: Amounts { devices: vec![holder.part.clone()], ..Amounts::default() },
            since_ms: None,
        })
    }

    /// The answer to a command about a holder; `None`: the claim is not a holder.
    pub(in super::super) fn answer_about_holder(&self, claim: &str) -> Option<StepOutcome> {
        claim.starts_with(HOLDER).then(|| {
            let is_there = self.device_claims.holders.values().flatten().any(|holder| holder.uid == claim);
            match is_there {
                true => StepOutcome::Refused("it is allocated until its users have ended".into()),
                false => StepOutcome::Gone,
            }
        })
    }

    /// Tells the engine which parts are allocated now without a pod in the books that holds them.
    pub(in super::super) fn tell_holders(&mut self) {
        for name in std::mem::take(&mut self.device_claims.changed) {
            let wanted = self.wanted_holders(&name);
            if self.device_claims.holders.get(&name).map(Vec::as_slice).unwrap_or_default() == wanted {
                continue;
            }
            self.end_holders(&name);
            for holder in &wanted {
                let request = Request {
                    devices: DeviceRequest {
                        count: 1,
                        core: holder.part.core,
                        memory: DeviceMemory::Bytes(holder.part.memory),
                    },
                    constraints: Constraints {
                        labels: BTreeMap::from([(NEVER_PLACED.to_owned(), "true".to_owned())]),
                        ..Constraints::default()
                    },
                    ..Request::default()
                };
                let claim = Claim {
                    name: format!("ResourceClaim {}/{}", name.0, name.1),
                    request,
                    namespace: name.0.clone(),
                    queue: self.queue_of_holders(&name.0),
                    ..Claim::default()
                };
                self.told.push(Observation::Claim(ClaimUid::from(holder.uid.as_str()), Box::new(claim)));
                self.device_claims.holders_on.entry(holder.node.clone()).or_default().insert(name.clone());
                self.report(&holder.node);
            }
            if !wanted.is_empty() {
                self.device_claims.holders.insert(name, wanted);
            }
        }
    }

    /// The queue of a namespace if that takes claims, else the default queue: an allocation is in the books in any
    /// case.
    fn queue_of_holders(&self, namespace: &str) -> String {
        let queue = self.queue_of_namespace(namespace).filter(|queue| self.takes_claims(queue));
        queue.unwrap_or_default()
    }

    fn wanted_holders(&self, name: &Name) -> Vec<Holder> {
        let Some(claim) = self.device_claims.claims.get(name) else { return Vec::new() };
        let holds_it = |pod: &KnownPod| {
            pod.instance.iter().flat_map(|instance| &instance.claims).any(|held| held.uid == claim.uid)
        };
        let users = claim.reserved_for.iter().map(|user| &user.uid);
        // The pods of a PodGroup are no users themselves.
        let of_group = self.device_claims.users.get(name).filter(|_| claim.is_of_group());
        if users.chain(of_group.into_iter().flat_map(Users::holding)).filter_map(|uid| self.pods.get(uid)).any(holds_it)
        {
            return Vec::new();
        }
        let parts = self.device_claims.parts_of(claim).into_iter().enumerate();
        let known = parts.filter(|(_, (node, _))| self.nodes.contains_key(node));
        known
            .map(|(number, (node, part))| Holder { uid: format!("{HOLDER}{}/{number}", claim.uid), node, part })
            .collect()
    }

    fn end_holders(&mut self, name: &Name) {
        for holder in self.device_claims.holders.remove(name).unwrap_or_default() {
            if let Some(there) = self.device_claims.holders_on.get_mut(&holder.node) {
                there.remove(name);
                if there.is_empty() {
                    self.device_claims.holders_on.remove(&holder.node);
                }
            }
            self.told.push(Observation::ClaimEnded(ClaimUid::from(holder.uid.as_str())));
            let Some(session) = self.nodes.get(&holder.node).map(|node| node.session) else { continue };
            let instance = Instance {
                node: holder.node.clone(),
                session,
                generation: HOLDS,
                amounts: Amounts::default(),
                claims: Vec::new(),
                kept: Vec::new(),
                is_bound: true,
            };
            self.tell_outcome(&holder.uid, &instance, HOLDS, StepOutcome::Gone);
            self.report(&holder.node);
        }
    }

    /// A node is gone, and with it what was allocated there.
    pub(in super::super) fn end_holders_on(&mut self, node: &str) {
        let names = self.device_claims.holders_on.get(node).cloned().unwrap_or_default();
        for name in names {
            self.end_holders(&name);
            self.device_claims.changed.insert(name);
        }
    }
}
