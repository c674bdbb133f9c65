//! Pods that are bound only when drivers have made their devices ready, and gangs with such pods: no member is bound before
//! the devices of all members that start with it are ready.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_engine::Generation;

use super::super::gangs::name_of;
use super::super::{KnownPod, Mirror};
use super::others::DeviceId;
use super::{DeviceClaims, Name, names_of};
use crate::dra::{ClaimFacts, PoolKey, Unready};
use crate::pod::PodFacts;

/// The longest wait for a device, from its allocation on. It is kube-scheduler's.
pub(crate) const LONGEST_MS: i64 = 600_000;

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

/// Which pods wait for their devices.
#[derive(Debug, Default)]
pub(super) struct Awaiting {
    /// By gang, the UIDs of the members whose devices are not ready yet.
    of_gangs: BTreeMap<Name, BTreeSet<String>>,
    /// The gang of each of these members when its binding began.
    gang_of: BTreeMap<String, Name>,
    /// Why pods that are being bound are given up, by UID.
    given_up: BTreeMap<String, String>,
    /// Devices that lately did not become ready. They are not given out meanwhile.
    shunned: BTreeSet<DeviceId>,
}

impl Mirror {
    /// Notes that a pod is being bound. `must_be_ready`: its new allocations have devices that must be ready before.
    pub(in super::super) fn awaits_devices(&mut self, uid: &str, must_be_ready: bool) {
        let Some(known) = self.pods.get(uid) else { return };
        let Some(gang) = gang_of(&known.facts) else { return };
        if must_be_ready || self.claims_used_by(&known.facts).any(|claim| claim.unready().next().is_some()) {
            let awaiting = &mut self.device_claims.awaiting;
            awaiting.of_gangs.entry(gang.clone()).or_default().insert(uid.to_owned());
            awaiting.gang_of.insert(uid.to_owned(), gang);
        }
    }

    /// No binding of the pod is on its way any more.
    pub(in super::super) fn awaits_devices_no_more(&mut self, uid: &str) {
        let awaiting = &mut self.device_claims.awaiting;
        awaiting.given_up.remove(uid);
        awaiting.end(uid);
    }

    /// Has a binding given up that waits for devices: its pod is to leave the node.
    pub(in super::super) fn give_up_waiting(&mut self, uid: &str, instance: Generation) {
        let is_meant = |known: &&KnownPod| known.instance.as_ref().is_some_and(|of| of.generation == instance);
        if self.pods.get(uid).filter(is_meant).is_some_and(is_on_its_way) {
            let why = "it was to leave its place before it was bound".to_owned();
            self.device_claims.awaiting.given_up.insert(uid.to_owned(), why);
        }
    }

    /// What a pod waits for whose claims are reserved. A failure gives up the other members of its gang, too, that are
    /// being bound. `now_ms`: the time, in milliseconds since 1970.
    pub(crate) fn readiness(&mut self, uid: &str, now_ms: i64) -> Readiness {
        let given_up = |why: String| Readiness::GivenUp { why, devices: BTreeSet::new() };
        let known = self.pods.get(uid).filter(|known| !known.facts.is_leaving && !known.is_gone);
        let Some(known) = known else { return given_up("the pod is gone".to_owned()) };
        let node = known.binding_to.as_ref().filter(|node| self.nodes.contains_key(*node));
        if node.is_none() {
            return given_up("the node is gone".to_owned());
        }
        if let Some(why) = self.device_claims.awaiting.given_up.get(uid) {
            return given_up(why.clone());
        }
        let unready: Vec<(&ClaimFacts, &Unready)> =
            self.claims_used_by(&known.facts).flat_map(|claim| claim.unready().map(move |of| (claim, of))).collect();
        let will_not = |(claim, of): &&(&ClaimFacts, &Unready)| of.has_failed() || is_too_late(claim, now_ms);
        let said = |(claim, of): &(&ClaimFacts, &Unready)| format!("ResourceClaim {:?}: {of}", claim.name);
        if let Some(first) = unready.iter().find(will_not) {
            let in_time = if first.1.has_failed() { "" } else { " after ten minutes" };
            let why = format!("{}{in_time}", said(first));
            let devices = unready.iter().filter(will_not).map(|(_, of)| (of.pool.clone(), of.device.clone())).collect();
            let (full_name, gang) = (known.facts.full_name(), gang_of(&known.facts));
            if let Some(gang) = gang {
                self.give_up_gang(&gang, uid, &format!("pod {full_name} of its gang: {why}"));
            }
            return Readiness::GivenUp { why, devices };
        }
        if let Some(first) = unready.first() {
            return Readiness::Waits(said(first));
        }
        let gang = gang_of(&known.facts);
        self.device_claims.awaiting.end(uid);
        match gang.is_some_and(|gang| self.device_claims.awaiting.of_gangs.contains_key(&gang)) {
            true => Readiness::Waits("the devices of other pods of its gang are not ready".to_owned()),
            false => Readiness::Ready,
        }
    }

    fn give_up_gang(&mut self, gang: &Name, but: &str, why: &str) {
        let others = self.pods.iter().filter(|(uid, known)| {
            is_on_its_way(known) && uid.as_str() != but && gang_of(&known.facts).as_ref() == Some(gang)
        });
        let others: Vec<String> = others.map(|(uid, _)| uid.clone()).collect();
        self.device_claims.awaiting.given_up.extend(others.into_iter().map(|uid| (uid, why.to_owned())));
    }

    /// Does not give out these devices for now.
    pub(crate) fn shun_devices(&mut self, devices: BTreeSet<DeviceId>) {
        self.device_claims.awaiting.shunned.extend(devices.iter().cloned());
        self.forget_places_with(devices);
    }

    /// Gives out these devices again.
    pub(crate) fn shun_devices_no_more(&mut self, devices: BTreeSet<DeviceId>) {
        devices.iter().for_each(|device| _ = self.device_claims.awaiting.shunned.remove(device));
        self.forget_places_with(devices);
    }

    /// The claims of a pod that are there.
    fn claims_used_by<'a>(&'a self, facts: &'a PodFacts) -> impl Iterator<Item = &'a ClaimFacts> {
        let made = self.device_claims.made.get(&facts.uid).into_iter().flatten().cloned();
        names_of(facts).chain(made).filter_map(|name| self.device_claims.claims.get(&name))
    }
}

impl Awaiting {
    /// A gang waits no more for the devices of this member.
    fn end(&mut self, uid: &str) {
        let Some(gang) = self.gang_of.remove(uid) else { return };
        if let Some(members) = self.of_gangs.get_mut(&gang) {
            members.remove(uid);
            if members.is_empty() {
                self.of_gangs.remove(&gang);
            }
        }
    }
}

impl DeviceClaims {
    pub(super) fn is_shunned(&self, pool: &PoolKey, device: &str) -> bool {
        let shunned = &self.awaiting.shunned;
        !shunned.is_empty() && shunned.contains(&(pool.clone(), device.to_owned()))
    }
}

/// Whether a claim has devices that will not become ready. Nobody can use its allocation.
pub(crate) fn is_worthless(claim: &ClaimFacts, now_ms: i64) -> bool {
    claim.unready().any(|of| of.has_failed() || is_too_late(claim, now_ms))
}

fn is_too_late(claim: &ClaimFacts, now_ms: i64) -> bool {
    let allocated_ms = claim.allocation.as_ref().and_then(|allocation| allocation.allocated_ms);
    allocated_ms.is_some_and(|allocated_ms| now_ms.saturating_sub(allocated_ms) >= LONGEST_MS)
}

/// Whether a pod is being bound.
fn is_on_its_way(known: &KnownPod) -> bool {
    known.binding_to.is_some() && known.instance.as_ref().is_some_and(|instance| !instance.is_bound)
}

fn gang_of(facts: &PodFacts) -> Option<Name> {
    let gang = facts.gang.as_ref()?.as_ref().ok()?;
    Some(name_of(facts, gang))
}
