//! Pods that are bound only when drivers have made their devices and volumes ready, and gangs with such pods: no member is
//! bound before the devices and volumes of all members that start with it are ready.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_engine::Generation;

use super::super::gangs::sub_group_of;
use super::super::{Binding, Instance, KnownPod, Mirror};
use super::others::DeviceId;
use super::{Name, Reservation, names_of};
use crate::dra::{ClaimFacts, Unready};
use crate::placement;
use crate::pod::PodFacts;

/// The longest wait for a device, from its allocation on. It is kube-scheduler's.
pub(crate) const LONGEST_MS: i64 = 600_000;

/// What a pod waits for whose own devices are ready.
const OTHERS_ARE_NOT_READY: &str = "other pods of its gang are not ready to be bound";

/// What a pod that is being bound waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// For nothing more.
    Ready,
    Waits(String),
    /// It will not be bound now.
    GivenUp {
        why: String,
        /// The devices that did not become ready.
        devices: BTreeSet<DeviceId>,
    },
}

impl Readiness {
    /// No device is to blame.
    pub(in super::super) fn given_up(why: String) -> Readiness {
        Readiness::GivenUp { why, devices: BTreeSet::new() }
    }
}

/// Which pods wait for their devices.
#[derive(Debug, Default)]
pub(super) struct Awaiting {
    /// By gang, the members that are being bound together.
    starts: BTreeMap<Name, Start>,
    /// The gang of each of these members when its binding began.
    gang_of: BTreeMap<String, Name>,
    /// Why pods that are being bound are given up, by UID.
    given_up: BTreeMap<String, String>,
}

/// The members of a gang that are being bound together.
#[derive(Debug, Default)]
struct Start {
    /// By UID. None of them is bound yet.
    members: BTreeMap<String, Binding>,
    /// The members that were not ready yet when they were looked at, or that were not looked at.
    pending: BTreeSet<String>,
    /// Devices of one member at least must be made ready. Otherwise no member waits for another one.
    is_awaited: bool,
    /// Why none of them will be bound.
    given_up: Option<String>,
}

impl Mirror {
    /// Notes that a pod is being bound. `must_be_ready`: its new allocations have devices that must be ready before, its
    /// claims are allocated with another pod, or volumes are to be made for it.
    pub(in super::super) fn awaits_devices(&mut self, binding: &Binding, must_be_ready: bool) {
        let Some(known) = self.pods.get(&binding.uid) else { return };
        let Some(gang) = self.name_of_group(&known.facts) else { return };
        let is_awaited = must_be_ready
            || self
                .claims_of(&known.facts, binding)
                .any(|(_, claim)| claim.is_some_and(|of| of.unready().next().is_some()));
        let awaiting = &mut self.device_claims.awaiting;
        let start = awaiting.starts.entry(gang.clone()).or_default();
        start.members.insert(binding.uid.clone(), binding.clone());
        start.pending.insert(binding.uid.clone());
        start.is_awaited |= is_awaited;
        awaiting.gang_of.insert(binding.uid.clone(), gang);
    }

    /// No binding of the pod is on its way any more.
    pub(in super::super) fn awaits_devices_no_more(&mut self, uid: &str) {
        let awaiting = &mut self.device_claims.awaiting;
        awaiting.given_up.remove(uid);
        awaiting.leave(uid);
    }

    /// Has a binding given up that waits for devices: its pod is to leave the node.
    pub(in super::super) fn give_up_waiting(&mut self, uid: &str, instance: Generation) {
        let is_meant = |known: &&KnownPod| known.instance.as_ref().is_some_and(|of| of.generation == instance);
        if self.pods.get(uid).filter(is_meant).is_some_and(is_on_its_way) {
            let why = "it was to leave its place before it was bound".to_owned();
            self.device_claims.awaiting.given_up.insert(uid.to_owned(), why);
        }
    }

    /// What a pod still waits for, if a look by [`readiness`](Self::readiness) would change nothing; `None`: it would, or the
    /// pod may be ready.
    pub(crate) fn still_waits(&self, binding: &Binding, now_ms: i64) -> Option<String> {
        match self.look(binding, now_ms) {
            Readiness::Waits(why) => Some(why),
            Readiness::Ready => {
                let start = self.device_claims.awaiting.start_of(&binding.uid)?;
                let waits = start.waits_for_others() && !start.pending.contains(&binding.uid);
                waits.then(|| OTHERS_ARE_NOT_READY.to_owned())
            }
            Readiness::GivenUp { .. } => None,
        }
    }

    /// What a pod waits for whose claims are reserved. If it will not be bound, this gives up the other members of its gang
    /// that cannot start without it. `now_ms`: the time, in milliseconds since 1970. `is_last`: the pod has waited for so
    /// long that it is given up if it is not ready now.
    pub(crate) fn readiness(&mut self, binding: &Binding, now_ms: i64, is_last: bool) -> Readiness {
        let uid = &binding.uid;
        let found = match self.look(binding, now_ms) {
            Readiness::Ready => self.with_gang(uid, now_ms),
            found => found,
        };
        let found = match found {
            Readiness::Waits(why) if is_last => Readiness::given_up(format!("{why} after ten minutes")),
            found => found,
        };
        if let Readiness::GivenUp { why, .. } = &found {
            self.note_unmade(binding, is_last);
            self.will_not_be_bound(uid, why);
        }
        found
    }

    /// Gives up the binding of a pod, and the members of its gang that wait with it and cannot start without it.
    pub(crate) fn will_not_be_bound(&mut self, uid: &str, why: &str) {
        let awaiting = &mut self.device_claims.awaiting;
        let Some((gang, binding)) = awaiting.leave(uid) else { return };
        awaiting.given_up.insert(uid.to_owned(), why.to_owned());
        let is_open = awaiting.starts.get(&gang).is_some_and(|start| start.is_awaited && start.given_up.is_none());
        if is_open
            && !self.is_enough_of(&gang)
            && let Some(start) = self.device_claims.awaiting.starts.get_mut(&gang)
        {
            start.given_up = Some(format!("pod {}/{} of its gang: {why}", binding.namespace, binding.name));
        }
    }

    /// Whether the bound members of a gang and those that are being bound are as many as it needs.
    fn is_enough_of(&self, gang: &Name) -> bool {
        let awaiting = &self.device_claims.awaiting;
        let is_there = |(uid, known): &(&String, &KnownPod)| {
            let facts = &known.facts;
            let stays = !facts.is_leaving && !facts.has_ended && !known.is_gone && known.instance.is_some();
            stays && !awaiting.given_up.contains_key(*uid) && self.name_of_group(facts).as_ref() == Some(gang)
        };
        let there: Vec<&PodFacts> = self.pods.iter().filter(is_there).map(|(_, known)| &known.facts).collect();
        let Some(group) = there.first().and_then(|facts| self.group_of(facts)) else { return false };
        let are_enough = |least: u32, members: usize| u32::try_from(members).is_ok_and(|members| members >= least);
        let of_sub_group =
            |name: &str| there.iter().filter(|facts| sub_group_of(facts, &group).is_some_and(|of| of == name)).count();
        are_enough(group.min_members, there.len())
            && group.sub_groups.iter().all(|sub| are_enough(sub.min_members, of_sub_group(&sub.name)))
    }

    /// What a pod waits for, apart from other pods.
    fn look(&self, binding: &Binding, now_ms: i64) -> Readiness {
        let Binding { uid, node, generation, .. } = binding;
        let awaiting = &self.device_claims.awaiting;
        let known = self.pods.get(uid).filter(|known| !known.facts.is_leaving && !known.is_gone);
        let Some(known) = known else { return Readiness::given_up("the pod is deleted".to_owned()) };
        let of_gang = awaiting.start_of(uid).and_then(|start| start.given_up.as_ref());
        if let Some(why) = awaiting.given_up.get(uid).or(of_gang) {
            return Readiness::given_up(why.clone());
        }
        let is_this = |of: &Instance| of.generation == *generation && !of.is_bound;
        if !known.instance.as_ref().is_some_and(is_this) {
            return Readiness::given_up(format!("node {node} is gone, or the pod is not to be bound to it any more"));
        }
        let of_volumes = self.look_at_volumes_of(&known.facts, binding);
        if let Readiness::GivenUp { .. } = of_volumes {
            return of_volumes;
        }
        let mut unready: Vec<(&ClaimFacts, &Unready)> = Vec::new();
        for (name, claim) in self.claims_of(&known.facts, binding) {
            if let Some(first) = claim.and_then(|claim| self.allocated_soon(binding, &name, claim)) {
                return Readiness::Waits(format!(
                    "ResourceClaim {:?} is being allocated with the pod {}",
                    name.1,
                    first.full_name()
                ));
            }
            match self.usable(known, binding, &name, claim) {
                Ok(claim) => unready.extend(claim.unready().map(|of| (claim, of))),
                Err(why) => return Readiness::given_up(format!("ResourceClaim {:?} {why}", name.1)),
            }
        }
        let will_not = |(claim, of): &&(&ClaimFacts, &Unready)| of.has_failed() || is_too_late(claim, now_ms);
        let said = |(claim, of): &(&ClaimFacts, &Unready)| format!("ResourceClaim {:?}: {of}", claim.name);
        if let Some(first) = unready.iter().find(will_not) {
            let in_time = if first.1.has_failed() { "" } else { " after ten minutes" };
            let devices = unready.iter().filter(will_not).map(|(_, of)| (of.pool.clone(), of.device.clone())).collect();
            return Readiness::GivenUp { why: format!("{}{in_time}", said(first)), devices };
        }
        unready.first().map_or(of_volumes, |first| Readiness::Waits(said(first)))
    }

    /// What a pod waits for whose own devices are ready. The last member of a gang that becomes ready lets all of them be
    /// bound, if nothing has happened to the others since they were looked at.
    fn with_gang(&mut self, uid: &str, now_ms: i64) -> Readiness {
        let Some(start) = self.device_claims.awaiting.start_of_mut(uid) else { return Readiness::Ready };
        start.pending.remove(uid);
        if start.is_awaited && start.pending.is_empty() {
            self.look_at_members(uid, now_ms);
        }
        let awaiting = &mut self.device_claims.awaiting;
        let Some(start) = awaiting.start_of(uid) else { return Readiness::Ready };
        if let Some(why) = &start.given_up {
            return Readiness::given_up(why.clone());
        }
        if start.waits_for_others() {
            return Readiness::Waits(OTHERS_ARE_NOT_READY.to_owned());
        }
        for member in start.members.keys().cloned().collect::<Vec<String>>() {
            awaiting.leave(&member);
        }
        Readiness::Ready
    }

    /// Looks again at all members that are being bound together with this one.
    fn look_at_members(&mut self, uid: &str, now_ms: i64) {
        let start = self.device_claims.awaiting.start_of(uid);
        let members = start.map(|start| start.members.values().cloned().collect::<Vec<Binding>>());
        for member in members.into_iter().flatten() {
            match self.look(&member, now_ms) {
                Readiness::Ready => {}
                Readiness::Waits(_) => {
                    if let Some(start) = self.device_claims.awaiting.start_of_mut(&member.uid) {
                        start.pending.insert(member.uid);
                    }
                }
                Readiness::GivenUp { why, .. } => self.will_not_be_bound(&member.uid, &why),
            }
        }
    }

    /// The pod that a pod waits for to have a claim: the claim is allocated with that pod, which is being bound, too.
    fn allocated_soon<'a>(&'a self, binding: &Binding, name: &'a Name, claim: &ClaimFacts) -> Option<&'a PodFacts> {
        let is_reserved_here = || binding.reservations.iter().any(|of| of.claim.name == name.1);
        if claim.allocation.is_some() || is_reserved_here() {
            return None;
        }
        self.allocating(name).filter(|first| !self.device_claims.awaiting.given_up.contains_key(&first.uid))
    }

    /// A claim, if the pod can use it that it was reserved for.
    ///
    /// # Errors
    /// What has become of it.
    fn usable<'a>(
        &self,
        known: &KnownPod,
        binding: &Binding,
        name: &Name,
        claim: Option<&'a ClaimFacts>,
    ) -> Result<&'a ClaimFacts, &'static str> {
        let claim = claim.ok_or("is gone")?;
        // The UID of a claim that was to be made was not known when the binding was decided.
        let is_other = |of: &Reservation| of.claim.name == name.1 && of.to_make.is_none() && of.claim.uid != claim.uid;
        if binding.reservations.iter().any(is_other) {
            return Err("was deleted, and there is another one of its name");
        }
        let Some(allocation) = &claim.allocation else { return Err("is not allocated any more") };
        if !claim.is_reserved_for(known.facts.as_user()) {
            return Err("is not reserved for the pod any more");
        }
        let follows = known.claim.as_ref().map_or(&[][..], |told| &told.means.claimed.follows);
        let terms = allocation.terms.as_ref().ok().filter(|_| follows.iter().any(|of| of.claim == name.1));
        let labels = self.nodes.get(&binding.node).map(|node| &node.facts.labels);
        match terms.zip(labels).is_none_or(|(terms, labels)| placement::admit(terms, labels)) {
            true => Ok(claim),
            false => Err("was allocated where the pod is not"),
        }
    }

    /// The claims of a pod that is being bound, each with what is known of it.
    fn claims_of(&self, facts: &PodFacts, binding: &Binding) -> impl Iterator<Item = (Name, Option<&ClaimFacts>)> {
        let reserved = binding.reservations.iter().map(|of| (binding.namespace.clone(), of.claim.name.clone()));
        let names: BTreeSet<Name> = names_of(facts).chain(reserved).collect();
        names.into_iter().map(|name| {
            let claim = self.device_claims.claims.get(&name);
            (name, claim)
        })
    }
}

impl Start {
    /// Whether a member that is ready waits for others.
    fn waits_for_others(&self) -> bool {
        self.is_awaited && !self.pending.is_empty()
    }
}

impl Awaiting {
    fn start_of(&self, uid: &str) -> Option<&Start> {
        self.starts.get(self.gang_of.get(uid)?)
    }

    fn start_of_mut(&mut self, uid: &str) -> Option<&mut Start> {
        self.starts.get_mut(self.gang_of.get(uid)?)
    }

    /// A member of a gang does not wait any more. Returns its gang and its binding.
    fn leave(&mut self, uid: &str) -> Option<(Name, Binding)> {
        let gang = self.gang_of.remove(uid)?;
        let start = self.starts.get_mut(&gang)?;
        start.pending.remove(uid);
        let binding = start.members.remove(uid)?;
        if start.members.is_empty() {
            self.starts.remove(&gang);
        }
        Some((gang, binding))
    }
}

/// Whether a claim has devices that will not become ready. Nobody can use its allocation.
pub(crate) fn is_worthless(claim: &ClaimFacts, now_ms: i64) -> bool {
    claim.unready().any(|of| of.has_failed() || is_too_late(claim, now_ms))
}

pub(super) fn is_too_late(claim: &ClaimFacts, now_ms: i64) -> bool {
    let allocated_ms = claim.allocation.as_ref().and_then(|allocation| allocation.allocated_ms);
    allocated_ms.is_some_and(|allocated_ms| now_ms.saturating_sub(allocated_ms) >= LONGEST_MS)
}

/// Whether a pod is being bound.
fn is_on_its_way(known: &KnownPod) -> bool {
    known.binding_to.is_some() && known.instance.as_ref().is_some_and(|instance| !instance.is_bound)
}
