//! What the engine was told of gangs.

use std::collections::BTreeSet;

use aliquot_scheduler_core::PodGroup;
use aliquot_scheduler_engine::Observation;

use super::Name;
use crate::mirror::{KnownPod, Mirror};

/// A gang as the engine knows it.
#[derive(Debug)]
pub(super) struct Described {
    group: PodGroup,
    /// The UID of the pod whose words these are. What other pods say counts when the claim of that one has ended.
    by: String,
}

impl Mirror {
    /// Tells the engine of a gang, as its first pod describes it: the pod `uid`, if the engine does not know the gang. Pods
    /// that the gang needs no more are taken off the number of pods that it needs. If the first pod describes it otherwise
    /// now, the gang changes as long as none of its pods has a place; after that only the number that it needs.
    pub(in crate::mirror) fn tell_group(&mut self, group: PodGroup, uid: &str) {
        let name = (group.namespace.clone(), group.name.clone());
        let Some(told) = self.gangs.told.get(&name) else {
            return self.tell_described(name, Described { group, by: uid.to_owned() });
        };
        if told.by != uid && self.is_told_of(&name, &told.by) {
            return;
        }
        let by = uid.to_owned();
        let sub_groups = |of: &PodGroup| of.sub_groups.iter().map(|sub| sub.name.clone()).collect::<Vec<_>>();
        let has_same_parts = sub_groups(&told.group) == sub_groups(&group);
        if self.has_place(&name) {
            let (min_members, sub_groups) = (group.min_members, group.sub_groups);
            let group = match has_same_parts {
                true => PodGroup { min_members, sub_groups, ..told.group.clone() },
                false => told.group.clone(),
            };
            return self.tell_described(name, Described { group, by });
        }
        // The books change neither a group's queue nor the names of its sub-groups.
        if !has_same_parts || told.group.queue != group.queue {
            self.withdraw_group(&name);
        }
        self.tell_described(name, Described { group, by });
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
