//! The pods of a gang, and which of them it needs no more.

use std::collections::{BTreeMap, BTreeSet};

use crate::gang::{self, Gang, GangKind, Run};
use crate::pod::PodFacts;

/// Controllers without pods that are remembered for a gang, at most.
const CONTROLLERS_MAX: usize = 1000;

/// All pods of a gang, also those that have ended. Pods that have succeeded and are gone stay as long as others may need
/// that.
#[derive(Debug, Default)]
pub(super) struct Members {
    pods: BTreeMap<String, Member>,
    /// By controller, when it created its first pod. That pod may be gone, and its successor belongs to the same run.
    begun_ms: BTreeMap<String, u64>,
    /// The object that makes the pods.
    pub(super) object: Option<(GangKind, String)>,
}

/// A pod of a gang, or of the same workload.
#[derive(Debug, PartialEq)]
pub(super) struct Member {
    pub(super) sub_group: Option<String>,
    run: Run,
    created_ms: u64,
    is_at_work: bool,
    succeeded_ms: Option<u64>,
    is_gone: bool,
    /// It is not scheduled with the gang.
    is_apart: bool,
}

impl Member {
    fn of(facts: &PodFacts, gang: &Gang) -> Member {
        Member {
            sub_group: gang.sub_group.clone(),
            run: gang::run_of(&facts.labels, facts.controller.as_deref()),
            created_ms: facts.created_ms,
            // The pod that is made in place of a leaving one counts.
            is_at_work: !facts.has_ended && !facts.is_leaving,
            succeeded_ms: facts.succeeded_ms,
            is_gone: false,
            is_apart: facts.apart_from.as_ref() == Some(gang),
        }
    }
}

impl Members {
    /// Lists a pod as it is now. Returns whether something of it has changed that matters to the gang.
    pub(super) fn list(&mut self, facts: &PodFacts, gang: &Gang) -> bool {
        let member = Member::of(facts, gang);
        if let Run::OfController(controller) = &member.run {
            let begun_ms = self.begun_ms.entry(controller.clone()).or_insert(facts.created_ms);
            *begun_ms = facts.created_ms.min(*begun_ms);
        }
        let is_same = self.pods.get(&facts.uid) == Some(&member);
        self.pods.insert(facts.uid.clone(), member);
        !is_same
    }

    /// A pod is gone.
    pub(super) fn unlist(&mut self, uid: &str) {
        if let Some(member) = self.pods.get_mut(uid) {
            (member.is_at_work, member.is_gone) = (false, true);
        }
    }

    /// The pods that the gang needs no more in its present run, by UID: those that have succeeded, and those that are not
    /// scheduled with it. Pods of an earlier run of the same name, such as those of a CronJob's last Job, do not count.
    pub(super) fn needed_no_more(&self) -> BTreeMap<&str, &Member> {
        let at_work = || self.pods.values().filter(|member| member.is_at_work);
        let runs: BTreeSet<&Run> = at_work().map(|member| &member.run).collect();
        let begun_ms = at_work().map(|member| self.begun_ms(member)).min().unwrap_or(0);
        let is_of_this_run = |member: &Member, ended_ms: u64| match &member.run {
            Run::Named(_) => runs.contains(&member.run),
            Run::OfController(_) => runs.contains(&member.run) || ended_ms >= begun_ms,
            Run::Unknown => ended_ms >= begun_ms,
        };
        let has_done = |member: &Member| member.succeeded_ms.is_some_and(|ended_ms| is_of_this_run(member, ended_ms));
        let needed_no_more = |member: &&Member| member.is_apart && member.is_at_work || has_done(member);
        let pods = self.pods.iter().map(|(uid, member)| (uid.as_str(), member));
        pods.filter(|(_, member)| needed_no_more(member)).collect()
    }

    /// When the first pod was created of the controller of this one.
    fn begun_ms(&self, member: &Member) -> u64 {
        match &member.run {
            Run::OfController(controller) => self.begun_ms.get(controller).copied(),
            Run::Named(_) | Run::Unknown => None,
        }
        .unwrap_or(member.created_ms)
    }

    /// Forgets pods that are gone and that the rest of the gang does not need to know of. `is_there`: the object that
    /// makes the pods is there. Returns whether nothing is left.
    pub(super) fn forget_what_is_over(&mut self, is_there: bool) -> bool {
        if self.are_gone() && !is_there {
            return true;
        }
        if self.pods.values().any(|member| member.is_gone) {
            // As long as no pod is at work it is not known which run comes next.
            let has_begun = self.pods.values().any(|member| member.is_at_work);
            let needed_no_more: BTreeSet<String> = self.needed_no_more().into_keys().map(str::to_owned).collect();
            let is_to_know = |uid: &str, member: &Member| match has_begun {
                true => needed_no_more.contains(uid),
                false => member.succeeded_ms.is_some(),
            };
            self.pods.retain(|uid, member| !member.is_gone || is_to_know(uid, member));
        }
        if self.begun_ms.len() > self.pods.len() + CONTROLLERS_MAX {
            self.forget_oldest_controller();
        }
        self.pods.is_empty()
    }

    fn forget_oldest_controller(&mut self) {
        let runs: BTreeSet<&Run> = self.pods.values().map(|member| &member.run).collect();
        let has_pods = |controller: &String| runs.contains(&Run::OfController(controller.clone()));
        let without = self.begun_ms.iter().filter(|(controller, _)| !has_pods(controller));
        let oldest = without.min_by_key(|(_, begun_ms)| **begun_ms).map(|(controller, _)| controller.clone());
        oldest.into_iter().for_each(|controller| _ = self.begun_ms.remove(&controller));
    }

    /// The UIDs of all pods.
    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    /// Whether all pods are gone.
    pub(super) fn are_gone(&self) -> bool {
        self.pods.values().all(|member| member.is_gone)
    }
}
