//! What the engine was told of gangs.

use std::collections::BTreeSet;

use aliquot_scheduler_core::{PodGroup, SubGroup};
use aliquot_scheduler_engine::Observation;

use super::Name;
use crate::gang::{Gang, GangKind, Source};
use crate::mirror::{KnownPod, Mirror};

/// A gang as the engine knows it.
#[derive(Debug)]
pub(super) struct Described {
    group: PodGroup,
    /// The UID of the pod whose words these are. What other pods say counts when the claim of that one has ended.
    by: String,
    /// As many pods as it needs have had a place together, and one of its pods still has one. It needs no more pods from
    /// then on, whatever its object says: those that it has would be evicted because they are too few. Further ones follow
    /// one by one.
    has_started: bool,
}

impl Mirror {
    /// Tells the engine of a gang, as its first pod describes it: the pod `uid`, if the engine does not know the gang. Pods
    /// that the gang needs no more are taken off the number of pods that it needs. If the first pod describes it otherwise
    /// now, the gang changes as long as none of its pods has a place; after that only the number that it needs.
    pub(in crate::mirror) fn tell_group(&mut self, group: PodGroup, uid: &str) {
        let name = (group.namespace.clone(), group.name.clone());
        let Some(told) = self.gangs.told.get(&name) else {
            let found = self.found(group, uid);
            return self.tell_described(name, found);
        };
        if told.by != uid && self.is_told_of(&name, &told.by) {
            return;
        }
        let by = uid.to_owned();
        let sub_groups = |of: &PodGroup| of.sub_groups.iter().map(|sub| sub.name.clone()).collect::<Vec<_>>();
        let has_same_parts = sub_groups(&told.group) == sub_groups(&group);
        if self.has_place(&name) {
            let has_started = told.has_started || self.has_minimum(&name, &told.group);
            let group = match has_same_parts {
                true => with_needs_of(&told.group, &group, has_started),
                false => told.group.clone(),
            };
            return self.tell_described(name, Described { group, by, has_started });
        }
        // The books change neither a group's queue nor the names of its sub-groups.
        if !has_same_parts || told.group.queue != group.queue {
            self.withdraw_group(&name);
        }
        self.tell_described(name, Described { group, by, has_started: false });
    }

    /// A gang that the engine does not know. A PodGroup may have started under an earlier leader, and need more pods by now.
    fn found(&self, group: PodGroup, uid: &str) -> Described {
        let by = uid.to_owned();
        let gang = self.pods.get(uid).and_then(|pod| pod.facts.gang.as_ref()?.as_ref().ok());
        let Some(Gang { source: Source::Object(GangKind::Native, object), .. }) = gang else {
            return Described { group, by, has_started: false };
        };
        let runs = |pod: &&KnownPod| pod.facts.holds_room_on().is_some() && !pod.facts.is_leaving;
        let running = self.pods_of_object(GangKind::Native, &group.namespace, object).filter(runs).count();
        let running = u32::try_from(running).unwrap_or(u32::MAX);
        let has_started = running > 0 && self.has_said_that_it_started(&group.namespace, object);
        let min_members = if has_started { group.min_members.min(running) } else { group.min_members };
        Described { group: PodGroup { min_members, ..group }, by, has_started }
    }

    fn is_told_of(&self, name: &Name, uid: &str) -> bool {
        self.gangs.told_members.get(name).is_some_and(|members| members.contains(uid))
    }

    /// The pods of a gang that run or are being bound.
    fn placed_members(&self, name: &Name) -> impl Iterator<Item = &KnownPod> {
        let members = self.gangs.told_members.get(name).into_iter().flatten();
        members.filter_map(|uid| self.pods.get(uid)).filter(|pod| pod.instance.is_some())
    }

    fn has_place(&self, name: &Name) -> bool {
        self.placed_members(name).next().is_some()
    }

    /// Whether as many pods as a gang needs have a place.
    fn has_minimum(&self, name: &Name, group: &PodGroup) -> bool {
        let is_enough = |count: usize, least: u32| u32::try_from(count).is_ok_and(|count| count >= least);
        let of_claims = self.placed_members(name).filter_map(|pod| Some(&pod.claim.as_ref()?.claim));
        let sub_groups: Vec<Option<&str>> = of_claims.map(|claim| claim.sub_group.as_deref()).collect();
        let of = |sub: &SubGroup| sub_groups.iter().filter(|of| **of == Some(sub.name.as_str())).count();
        is_enough(sub_groups.len(), group.min_members)
            && group.sub_groups.iter().all(|sub| is_enough(of(sub), sub.min_members))
    }

    /// Ends a group and the claims of its pods. These pods are told again.
    fn withdraw_group(&mut self, name: &Name) {
        let members = self.gangs.told_members.get(name).cloned().unwrap_or_default();
        members.iter().for_each(|uid| self.end_claim(uid));
        self.gangs.withdrawn.extend(members);
        self.happens_together();
        self.gangs.told.remove(name);
        self.gangs.told_members.remove(name);
        self.told.push(Observation::GroupRemoved(name.0.clone(), name.1.clone()));
    }

    /// The pods whose gang was made anew since this was asked last.
    pub(in crate::mirror) fn take_withdrawn(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.gangs.withdrawn)
    }

    fn tell_described(&mut self, name: Name, described: Described) {
        let group = described.group.clone();
        if self.gangs.told.insert(name, described).is_none_or(|before| before.group != group) {
            self.told.push(Observation::Group(group));
        }
    }

    /// Tells the engine of a gang again, as the pod `uid` describes it, if it knows the gang.
    pub(in crate::mirror) fn tell_group_again(&mut self, group: Option<PodGroup>, uid: &str) {
        let is_told = |group: &PodGroup| self.gangs.told.contains_key(&(group.namespace.clone(), group.name.clone()));
        if let Some(group) = group.filter(is_told) {
            self.tell_group(group, uid);
        }
    }

    /// Tells the engine again of the gangs that may need more or fewer pods now.
    pub(in crate::mirror) fn tell_recounted_gangs(&mut self) {
        for name in std::mem::take(&mut self.gangs.recounted) {
            let Some((told, members)) = self.gangs.told.get(&name).zip(self.gangs.told_members.get(&name)) else {
                continue;
            };
            let Some(by) = members.get(&told.by).or_else(|| members.first()).cloned() else { continue };
            let group = self.pods.get(&by).and_then(|pod| self.group_of(&pod.facts));
            self.tell_group_again(group, &by);
        }
    }

    /// The engine knows the claim of one more pod of a gang.
    pub(in crate::mirror) fn count_in_gang(&mut self, namespace: &str, gang: &str, uid: &str) {
        let name = (namespace.to_owned(), gang.to_owned());
        self.gangs.told_members.entry(name).or_default().insert(uid.to_owned());
    }

    /// The claim of a pod of a gang has ended.
    pub(in crate::mirror) fn uncount_in_gang(&mut self, namespace: String, gang: String, uid: &str) {
        let name = (namespace, gang);
        if let Some(members) = self.gangs.told_members.get_mut(&name) {
            members.remove(uid);
        }
        if self.gangs.told.get(&name).is_some_and(|told| told.by == uid) {
            // Another pod describes the gang from now on.
            self.gangs.recounted.insert(name.clone());
        }
        self.gangs.thinned.insert(name);
    }

    /// Tells the engine that gangs have ended with their last pods.
    pub(in crate::mirror) fn tell_gangs_gone(&mut self) {
        for name in std::mem::take(&mut self.gangs.thinned) {
            if self.gangs.told_members.get(&name).is_none_or(BTreeSet::is_empty) {
                self.gangs.told_members.remove(&name);
                self.gangs.told.remove(&name);
                self.told.push(Observation::GroupRemoved(name.0, name.1));
            }
        }
    }
}

/// A gang with places that needs as many pods as another description of it says, but no more if it `has_started`.
fn with_needs_of(told: &PodGroup, said: &PodGroup, has_started: bool) -> PodGroup {
    let least = |told: u32, said: u32| if has_started { told.min(said) } else { said };
    let sub_groups = told
        .sub_groups
        .iter()
        .zip(&said.sub_groups)
        .map(|(told, said)| SubGroup { min_members: least(told.min_members, said.min_members), ..said.clone() });
    PodGroup {
        min_members: least(told.min_members, said.min_members),
        sub_groups: sub_groups.collect(),
        ..told.clone()
    }
}
