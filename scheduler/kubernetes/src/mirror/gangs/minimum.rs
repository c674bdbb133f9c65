//! Groups of which only as many pods can run as start together: further pods could not be treated as the group wants.

use aliquot_scheduler_core::SubGroup;

use super::{Members, Mirror, name_of};
use crate::gang::{Gang, GangFacts, Source};
use crate::kai_words::Preemptibility;
use crate::pod::PodFacts;

/// The pods that a pod is counted with, and how many of them start together.
struct Counted<'a> {
    /// `None`: all of the group.
    sub_group: Option<&'a str>,
    most: u32,
}

impl Mirror {
    /// Checks that a pod is among as many as start together, if its group can have no others.
    ///
    /// # Errors
    /// The group has more pods, and wants them to be evicted only together, or not to be treated like those.
    pub(super) fn check_within_minimum(
        &self,
        facts: &PodFacts,
        gang: &Gang,
        of_gang: &GangFacts,
    ) -> Result<(), String> {
        let most = of_gang.min_members;
        if of_gang.is_evicted_whole {
            if self.is_within(facts, gang, &Counted { sub_group: None, most }) {
                return Ok(());
            }
            return Err(format!(
                "its disruptionMode lets its pods be evicted only all together, which is supported for as many as \
                 minCount says, {most}, and it has more"
            ));
        }
        // Where no pod is needed, all may be evicted.
        if self.preemptibility(facts, of_gang) != Some(Preemptibility::BeyondMinimum) || minimum_of(gang, of_gang) == 0
        {
            return Ok(());
        }
        let counted = counted(gang, of_gang);
        if self.is_within(facts, gang, &counted) {
            return Ok(());
        }
        let of_sub_group = counted.sub_group.map(|name| format!(" in sub-group {name:?}")).unwrap_or_default();
        Err(format!(
            "semi-preemptible is supported for as many pods as start together, {}{of_sub_group}, and it has more; make it \
             preemptible or non-preemptible, or have all its pods start together",
            counted.most
        ))
    }

    /// Whether a pod that waits is among the first of those that it is counted with.
    fn is_within(&self, facts: &PodFacts, gang: &Gang, counted: &Counted<'_>) -> bool {
        if facts.node.is_some() {
            return true;
        }
        let turn = |of: &PodFacts| (of.node.is_none(), of.created_ms, of.uid.clone());
        let is_counted = |other: &PodFacts| match &other.gang {
            Some(Ok(of)) => {
                of.name == gang.name && counted.sub_group.is_none_or(|name| of.sub_group.as_deref() == Some(name))
            }
            _ => false,
        };
        // Those that have succeeded are not evicted any more, but the group needs so many less.
        let others = self.members_of(facts, gang).filter_map(|uid| self.pods.get(uid)).map(|pod| &pod.facts);
        let before = others.filter(|other| is_counted(other) && !other.has_failed() && turn(other) < turn(facts));
        u32::try_from(before.count()).is_ok_and(|before| before < counted.most)
    }

    /// The UIDs of the pods of a pod's gang.
    fn members_of(&self, facts: &PodFacts, gang: &Gang) -> impl Iterator<Item = &String> + use<'_> {
        self.gangs.members.get(&name_of(facts, gang)).into_iter().flat_map(Members::uids)
    }

    /// A pod is a member no more. Where only as many pods can run as start together, another one may be one of them now.
    pub(super) fn minimum_has_room(&mut self, facts: &PodFacts) {
        let Some(Ok(gang)) = &facts.gang else { return };
        let of_object = match &gang.source {
            Source::Object(kind, name) => self.gangs.objects.get(&(*kind, (facts.namespace.clone(), name.clone()))),
            Source::Pods(_) => None,
        };
        let of_object = of_object.and_then(|of| of.as_ref().ok());
        let said = of_object.and_then(|of| of.preemptibility).or_else(|| self.said_preemptibility(facts));
        if said == Some(Preemptibility::BeyondMinimum) || of_object.is_some_and(|of| of.is_evicted_whole) {
            let others: Vec<String> = self.members_of(facts, gang).cloned().collect();
            self.changed_pods.extend(others);
        }
    }

    /// Which pods of a pod's group may be evicted for others: as the group says, and where it does not, as the pod's owner
    /// or the pod says.
    pub(super) fn preemptibility(&self, facts: &PodFacts, of_gang: &GangFacts) -> Option<Preemptibility> {
        of_gang.preemptibility.or_else(|| self.said_preemptibility(facts))
    }
}

/// The number of pods that start together with a pod of this gang, and with itself.
pub(super) fn minimum_of(gang: &Gang, of_gang: &GangFacts) -> u32 {
    of_gang.part_of(gang).map_or_else(|| of_gang.minimum(), |(_, size)| size)
}

/// Where the sub-groups are all that a group needs, pods count in their sub-group, and those in none are not needed.
fn counted<'a>(gang: &'a Gang, of_gang: &'a GangFacts) -> Counted<'a> {
    if let Some((part, most)) = of_gang.part_of(gang) {
        return Counted { sub_group: Some(part), most };
    }
    let of_sub_groups = of_gang.sub_groups.iter().map(|of| of.min_members).fold(0, u32::saturating_add);
    let named = |of: &&SubGroup| gang.sub_group.as_deref() == Some(of.name.as_str());
    if of_sub_groups == 0 || of_sub_groups < of_gang.min_members {
        return Counted { sub_group: None, most: of_gang.min_members };
    }
    match of_gang.sub_groups.iter().find(named) {
        Some(of) => Counted { sub_group: Some(&of.name), most: of.min_members },
        None => Counted { sub_group: None, most: 0 },
    }
}
