//! The engine's view of a task: a claim for each member, and a group for a gang.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_scheduler_core::{
    Claim, NodeOperator, NodeRequirement, NodeTerm, PodGroup, Preference, Preferences, Request,
};
use aliquot_scheduler_engine::Observation;

use super::task::Task;
use super::{ClaimName, JobId, JobSpec, NODE_LABEL, Restart};

/// The observations with which the engine learns of a task's attempt.
pub(super) fn claims(id: JobId, spec: &JobSpec, task: &Task) -> Vec<Observation> {
    let mut told = Vec::new();
    let is_gang = task.members.len() > 1;
    let left = task.members.iter().filter(|member| member.exit.is_none()).count();
    if is_gang {
        told.push(Observation::Group(PodGroup {
            name: group_name(id, task),
            queue: spec.queue.clone(),
            priority: spec.priority,
            preemptible: spec.preemptible,
            min_members: u32::try_from(left).unwrap_or(u32::MAX),
            ..PodGroup::default()
        }));
    }
    let request = request(spec, task);
    for (name, member) in task.claims(id).zip(&task.members) {
        if member.exit.is_some() {
            continue;
        }
        let claim = Claim {
            name: shown(name, spec, is_gang),
            request: request.clone(),
            queue: spec.queue.clone(),
            priority: spec.priority,
            preemptible: spec.preemptible,
            // A move would fail a job that is never started again, and would start all members of a gang anew, only so
            // that another job fits.
            immovable: is_gang || spec.restart == Restart::Never,
            pod_group: is_gang.then(|| group_name(id, task)),
            ..Claim::default()
        };
        told.push(Observation::Claim(name.to_string().into(), Box::new(claim)));
    }
    told
}

/// The request of each member of a task. It prefers all nodes to those that have refused the task, and of those the one
/// that has refused it longest ago: the later a node has refused, the more weighs the wish for another one.
pub(super) fn request(spec: &JobSpec, task: &Task) -> Request {
    let other_than = |(weight, node): (u8, &String)| {
        let operator = NodeOperator::NotIn(BTreeSet::from([node.clone()]));
        let requirements = BTreeSet::from([NodeRequirement { key: NODE_LABEL.to_owned(), operator }]);
        Preference { weight, term: NodeTerm { requirements } }
    };
    let preferences: Vec<Preference> = (1..).zip(&task.refused_by).map(other_than).collect();
    let preferences = (!preferences.is_empty()).then(|| Arc::new(Preferences(preferences)));
    Request { preferences, ..spec.request() }
}

/// The name of the pod group of a gang's attempt.
pub(super) fn group_name(id: JobId, task: &Task) -> String {
    format!("{id}.{}.{}", task.index, task.attempt)
}

/// The name of a member in messages.
fn shown(name: ClaimName, spec: &JobSpec, is_gang: bool) -> String {
    let index = if spec.has_array { format!(".{}", name.index) } else { String::new() };
    let rank = if is_gang { format!(" rank {}", name.rank) } else { String::new() };
    format!("job {}{index}{rank}", name.job)
}
