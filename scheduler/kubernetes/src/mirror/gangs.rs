//! Gangs: pods that start together or not at all.

mod members;
mod minimum;
mod told;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{GroupPlacement, PodGroup, PriorityClass, SubGroup};

use members::Members;
use minimum::minimum_of;
use told::Described;

use super::precedence::Precedence;
use super::{Access, KnownPod, Mirror};
use crate::gang::{Gang, GangFacts, GangKind, GroupPriority, Source};
use crate::pod::PodFacts;
use crate::scheduling_policy::PolicyFacts;

/// The wait of a pod before others may be evicted for it, if they never may be: more than two thousand years.
pub(super) const NEVER_MS: u64 = 1 << 46;

/// A gang may run so long with fewer pods than it needs. Then the rest is evicted: a leader may have died between the
/// bindings of a gang, and a member may have been deleted.
const STALENESS_GRACE_MS: u64 = 60_000;

/// A namespace and a name in it.
type Name = (String, String);

/// What is known of gangs, and what the engine was told of them.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    /// Whether all objects of a kind are known, and if not, why. A missing kind is absent from the cluster.
    access: BTreeMap<GangKind, Access>,
    /// What objects say. `Err`: something of it is not supported.
    objects: BTreeMap<(GangKind, Name), Result<GangFacts, String>>,
    /// The pods of each object, whether it is known or not.
    pods: BTreeMap<(GangKind, Name), BTreeSet<String>>,
    /// The pods of each gang.
    members: BTreeMap<Name, Members>,
    told: BTreeMap<Name, Described>,
    /// The UIDs of the pods of each gang of which the engine knows the claims.
    told_members: BTreeMap<Name, BTreeSet<String>>,
    /// Gangs that may have lost their last claim.
    thinned: BTreeSet<Name>,
    /// Gangs that may need more or fewer pods now.
    recounted: BTreeSet<Name>,
    /// The UIDs of pods whose gang was made anew.
    withdrawn: BTreeSet<String>,
}

impl Mirror {
    /// An object that says which pods start together.
    pub(crate) fn gang(&mut self, kind: GangKind, namespace: &str, name: &str, facts: Result<GangFacts, String>) {
        let key = (kind, (namespace.to_owned(), name.to_owned()));
        if self.gangs.objects.get(&key) != Some(&facts) {
            self.pods_of_gang_changed(&key);
            self.gangs.objects.insert(key, facts);
        }
    }

    pub(crate) fn gang_gone(&mut self, kind: GangKind, namespace: &str, name: &str) {
        let key = (kind, (namespace.to_owned(), name.to_owned()));
        if self.gangs.objects.remove(&key).is_some() {
            self.pods_of_gang_changed(&key);
            let made = Some((kind, name.to_owned()));
            let is_over = |gang: &Name, of: &Members| gang.0 == namespace && of.object == made && of.are_gone();
            self.gangs.members.retain(|gang, of| !is_over(gang, of));
        }
    }

    /// The pods that name an object.
    pub(super) fn pods_of_object(
        &self,
        kind: GangKind,
        namespace: &str,
        name: &str,
    ) -> impl Iterator<Item = &KnownPod> + use<'_> {
        let pods = self.gangs.pods.get(&(kind, (namespace.to_owned(), name.to_owned())));
        pods.into_iter().flatten().filter_map(|uid| self.pods.get(uid))
    }

    /// How many pods of an object start together, if what it says is supported.
    pub(super) fn least_of_object(&self, kind: GangKind, namespace: &str, name: &str) -> Option<u32> {
        let object = self.gangs.objects.get(&(kind, (namespace.to_owned(), name.to_owned())))?;
        object.as_ref().ok().map(|of| of.min_members)
    }

    /// Tells whether all objects of a kind are known. If they are, a pod that names another one waits until it is there.
    pub(crate) fn gangs_are(&mut self, kind: GangKind, access: Access) {
        if self.gangs.access.insert(kind, access).unwrap_or_default() != access {
            let of_kind = self.gangs.pods.iter().filter(|((of, _), _)| *of == kind);
            self.changed_pods.extend(of_kind.flat_map(|(_, pods)| pods.iter().cloned()));
        }
    }

    pub(crate) fn gang_names(&self, kind: GangKind) -> impl Iterator<Item = (&str, &str)> {
        let of_kind = self.gangs.objects.keys().filter(move |(of, _)| *of == kind);
        of_kind.map(|(_, (namespace, name))| (namespace.as_str(), name.as_str()))
    }

    /// The pods of all groups that name a PriorityClass are looked at again, and those with a label that names it.
    pub(super) fn groups_of_class_changed(&mut self, class: &str) {
        let names_it = |namespace: &str, of: &GangFacts| {
            let mut above = self.words_from(namespace, of.above.as_ref());
            matches!(&of.priority, Some(GroupPriority::Class(name)) if name == class)
                || of.labelled_class.as_deref() == Some(class)
                || above.any(|words| words.kai.class.as_deref() == Some(class))
        };
        let names_it = |((_, name), of): &(&(GangKind, Name), &Result<GangFacts, String>)| {
            of.as_ref().is_ok_and(|of| names_it(&name.0, of))
        };
        let objects = self.gangs.objects.iter().filter(names_it);
        let pods = objects.filter_map(|(key, _)| self.gangs.pods.get(key)).flatten().cloned();
        let is_labelled = |facts: &PodFacts| self.labelled_classes(facts).any(|of| of == class);
        let labelled = self.pods.iter().filter(|(_, pod)| is_labelled(&pod.facts)).map(|(uid, _)| uid.clone());
        let changed: Vec<String> = labelled.chain(pods).collect();
        self.changed_pods.extend(changed);
    }

    /// The UIDs of the pods of some objects of a namespace.
    pub(super) fn pods_of_gangs(
        &self,
        namespace: &str,
        is_one: impl Fn(&GangFacts) -> bool,
    ) -> impl Iterator<Item = &String> {
        let objects = self
            .gangs
            .objects
            .iter()
            .filter(move |((_, name), of)| name.0 == namespace && of.as_ref().is_ok_and(&is_one));
        objects.filter_map(|(key, _)| self.gangs.pods.get(key)).flatten()
    }

    fn pods_of_gang_changed(&mut self, key: &(GangKind, Name)) {
        self.changed_pods.extend(self.gangs.pods.get(key).into_iter().flatten().cloned());
    }

    /// Lists a pod with the objects that say something of it, and among its gang's pods.
    pub(super) fn list_in_gang(&mut self, facts: &PodFacts) {
        for key in objects_of(facts) {
            self.gangs.pods.entry(key).or_default().insert(facts.uid.clone());
        }
        if facts.has_ended {
            self.minimum_has_room(facts);
        }
        for gang in gangs_of(facts) {
            let members = self.gangs.members.entry(name_of(facts, gang)).or_default();
            if members.list(facts, gang) {
                self.recount(facts, gang);
            }
        }
    }

    /// Some pod of a gang has changed so that the others may need more or fewer.
    fn recount(&mut self, facts: &PodFacts, gang: &Gang) {
        let name = name_of(facts, gang);
        let object = match &gang.source {
            Source::Object(kind, name) if kind.is_workload() => Some((*kind, name.clone())),
            _ => None,
        };
        let key = object.clone().map(|(kind, object)| (kind, (facts.namespace.clone(), object)));
        let is_there = key.is_some_and(|key| self.gangs.objects.contains_key(&key));
        if let Some(members) = self.gangs.members.get_mut(&name) {
            members.object = object;
            if members.forget_what_is_over(is_there) {
                self.gangs.members.remove(&name);
            }
        }
        let part = gang.sub_group.as_ref().map(|part| (name.0.clone(), format!("{}/{part}", name.1)));
        let groups = part.into_iter().chain([name]).filter(|group| self.gangs.told.contains_key(group));
        self.gangs.recounted.extend(groups.collect::<Vec<_>>());
    }

    /// Removes a pod from the pods of its gang's object: the pod is gone, or names another object now.
    pub(super) fn leave_object_of_gang(&mut self, facts: &PodFacts) {
        self.minimum_has_room(facts);
        for key in objects_of(facts) {
            if let Some(pods) = self.gangs.pods.get_mut(&key) {
                pods.remove(&facts.uid);
                if pods.is_empty() {
                    self.gangs.pods.remove(&key);
                }
            }
        }
    }

    /// A pod is gone. If it has succeeded, the rest of its gang goes on without it. It does not count for a gang that
    /// begins anew.
    pub(super) fn unlist_in_gang(&mut self, facts: &PodFacts) {
        self.leave_object_of_gang(facts);
        for gang in gangs_of(facts) {
            if let Some(members) = self.gangs.members.get_mut(&name_of(facts, gang)) {
                members.unlist(&facts.uid);
                self.recount(facts, gang);
            }
        }
    }

    /// What Kubernetes' own PodGroup of a pod says, if that is known. An annotation can have the pod start with others, or
    /// by itself.
    pub(super) fn pod_group_of(&self, facts: &PodFacts) -> Option<&GangFacts> {
        let name = (facts.namespace.clone(), facts.pod_group()?.to_owned());
        self.gangs.objects.get(&(GangKind::Native, name))?.as_ref().ok()
    }

    /// The gang that a pod is in, with what is known of it.
    ///
    /// # Errors
    /// Why the pod cannot be scheduled: it is not known with how many others it starts.
    pub(super) fn gang_of<'a>(&self, facts: &'a PodFacts) -> Result<Option<(&'a Gang, GangFacts)>, String> {
        let gang = match &facts.gang {
            None => return Ok(None),
            Some(Ok(gang)) => gang,
            Some(Err(problem)) => return Err(problem.clone()),
        };
        let (kind, name) = match &gang.source {
            Source::Pods(size) => {
                let of_gang = GangFacts::new(*size).or_in_words(&self.kai_words_of(facts));
                let checked = self.check_within_minimum(facts, gang, &of_gang);
                checked.map_err(|why| format!("it is in gang {:?}: {why}", gang.name))?;
                return Ok(Some((gang, of_gang)));
            }
            Source::Object(kind, name) => (*kind, name),
        };
        let full_name = kind.full_name(name);
        match self.gangs.objects.get(&(kind, (facts.namespace.clone(), name.clone()))) {
            Some(Ok(of_gang)) => {
                let of_gang = self.with_words_above(&facts.namespace, of_gang.clone().of_size(gang.size));
                let checked = || {
                    self.precedence(facts, &of_gang)?;
                    self.placement_of(facts, &of_gang)?;
                    self.check_within_minimum(facts, gang, &of_gang)
                };
                checked().map_err(|why| format!("it is in {full_name}: {why}"))?;
                Ok(Some((gang, of_gang)))
            }
            Some(Err(problem)) => Err(format!("it is in {full_name}: {problem}")),
            None => match self.gangs.access.get(&kind).copied().unwrap_or_default() {
                Access::Read => Err(format!(
                    "it is in {full_name}, which does not exist; create that, or create the pod without it"
                )),
                Access::Forbidden => Err(format!(
                    "it is in {full_name}, which the scheduler has no right to read; apply the scheduler's manifests, \
                     which give it the right"
                )),
                Access::Unanswered => Err(format!(
                    "it is in {full_name}, and the API server does not say whether it has such objects; see its log, or \
                     that of the API service of this group"
                )),
                Access::Absent if kind.is_workload() => Ok(None),
                Access::Absent => Err(format!(
                    "it is in {full_name}, and this cluster has no such kind of object; define the kind, or create the \
                     pod without it"
                )),
            },
        }
    }

    /// The namespace and the name of the group of pods that a pod starts with.
    pub(super) fn name_of_group(&self, facts: &PodFacts) -> Option<Name> {
        let (gang, of_gang) = self.gang_of(facts).ok().flatten()?;
        Some((facts.namespace.clone(), of_gang.name_of_group(gang)))
    }

    /// Where a group's pods may be.
    ///
    /// # Errors
    /// The topology lacks a tier that the group names.
    fn placement_of(&self, facts: &PodFacts, of_gang: &GangFacts) -> Result<GroupPlacement, String> {
        match of_gang.network.as_ref().map(|network| network.placement(&self.topology)) {
            None => Ok(of_gang.spread.clone()),
            Some(Ok(near)) => Ok(near),
            // A bound pod stays in its group whatever the levels are now.
            Some(Err(_)) if facts.node.is_some() => Ok(GroupPlacement::default()),
            Some(Err(why)) => Err(why),
        }
    }

    /// The pod group that a pod is in: its gang, or a group of its own if no pod may be evicted for it at first, or
    /// ever.
    pub(super) fn group_of(&self, facts: &PodFacts) -> Option<PodGroup> {
        let nothing_special = PolicyFacts::default();
        let policy = self.policy_of(facts).ok().flatten().unwrap_or(&nothing_special);
        let Precedence { priority, never_preempts } = self.own_precedence(facts);
        let words = self.kai_words_of(facts);
        let said_delay_ms = words.preemption_delay_ms.unwrap_or(0);
        let own = PodGroup {
            name: format!("pod/{}", facts.name),
            namespace: facts.namespace.clone(),
            queue: self.queue_of(facts),
            priority,
            preemptible: self.is_preemptible_at(facts, priority),
            min_runtime_ms: policy.min_runtime_ms,
            preemption_delay_ms: if never_preempts { NEVER_MS } else { policy.preemption_delay_ms.max(said_delay_ms) },
            staleness_grace_ms: Some(STALENESS_GRACE_MS),
            min_members: 1,
            ..PodGroup::default()
        };
        // A bound pod is by itself if its group is not there any more.
        let Some((gang, of_gang)) = self.gang_of(facts).ok().flatten() else {
            return (own.preemption_delay_ms > 0).then_some(own);
        };
        let members = self.gangs.members.get(&name_of(facts, gang));
        let needed_no_more = members.map(Members::needed_no_more).unwrap_or_default();
        let still = |least: u32, ended: usize| least.saturating_sub(u32::try_from(ended).unwrap_or(u32::MAX));
        let of_sub_group =
            |name: &str| needed_no_more.values().filter(|of| of.sub_group.as_deref() == Some(name)).count();
        let sub_group =
            |sub: SubGroup| SubGroup { min_members: still(sub.min_members, of_sub_group(&sub.name)), ..sub };
        let min_members = match of_gang.part_of(gang) {
            Some((part, size)) => still(size, of_sub_group(part)),
            None => still(of_gang.min_members, needed_no_more.len()),
        };
        // A part of the object is a gang without the others.
        let part = of_gang.part_of(gang).map(|(part, _)| part);
        let is_of_it = |sub: &&SubGroup| part.is_none_or(|part| part == sub.name);
        let sub_groups = of_gang.sub_groups.iter().filter(is_of_it).cloned().map(sub_group).collect();
        let Precedence { priority, never_preempts } = self.precedence(facts, &of_gang).ok()?;
        let own_delay_ms = if never_preempts { NEVER_MS } else { policy.preemption_delay_ms };
        let said = self.preemptibility(facts, &of_gang).map(|of| of.lets_minimum_go(minimum_of(gang, &of_gang)));
        let spread = self.placement_of(facts, &of_gang).ok()?;
        Some(PodGroup {
            name: of_gang.name_of_group(gang),
            priority,
            preemptible: PriorityClass::is_preemptible(priority, said),
            preemption_delay_ms: own_delay_ms.max(of_gang.preemption_delay_ms.unwrap_or(said_delay_ms)),
            staleness_grace_ms: of_gang
                .staleness_grace_ms
                .or(words.staleness_grace_ms)
                .unwrap_or(own.staleness_grace_ms),
            min_members,
            sub_groups,
            spread: policy.spread_of(spread),
            ..own
        })
    }

    /// The queue that a pod's group names.
    pub(super) fn queue_of_gang(&self, facts: &PodFacts) -> Option<String> {
        self.gang_of(facts).ok().flatten().and_then(|(_, of_gang)| of_gang.queue)
    }
}

/// The objects that say something of a pod: that of its gang, and its PodGroup, with which it may share claims.
fn objects_of(facts: &PodFacts) -> BTreeSet<(GangKind, Name)> {
    let of_gang = match &facts.gang {
        Some(Ok(Gang { source: Source::Object(kind, name), .. })) => Some((*kind, name.as_str())),
        _ => None,
    };
    let objects = of_gang.into_iter().chain(facts.pod_group().map(|name| (GangKind::Native, name)));
    objects.map(|(kind, name)| (kind, (facts.namespace.clone(), name.to_owned()))).collect()
}

/// The sub-group of a pod. A pod whose sub-group its group does not name counts only for the group as a whole.
pub(super) fn sub_group_of(facts: &PodFacts, group: &PodGroup) -> Option<String> {
    let Some(Ok(gang)) = &facts.gang else { return None };
    gang.sub_group.clone().filter(|name| group.sub_groups.iter().any(|sub_group| sub_group.name == *name))
}

/// The gang of a pod, and the gang of its workload if it does not start with that one.
fn gangs_of(facts: &PodFacts) -> impl Iterator<Item = &Gang> {
    facts.gang.iter().flatten().chain(&facts.apart_from)
}

fn name_of(facts: &PodFacts, gang: &Gang) -> Name {
    (facts.namespace.clone(), gang.name.clone())
}
