//! The engine's view of a task: a claim for each member, and a group for a gang.

use aliquot_scheduler_core::{Claim, PodGroup};
use aliquot_scheduler_engine::Observation;

use super::task::Task;
use super::{ClaimName, JobId, JobSpec};

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
    for (name, member) in task.claims(id).zip(&task.members) {
        if member.exit.is_some() {
            continue;
        }
        let claim = Claim {
            name: shown(name, spec, is_gang),
            request: spec.request(),
            queue: spec.queue.clone(),
            priority: spec.priority,
            preemptible: spec.preemptible,
            pod_group: is_gang.then(|| group_name(id, task)),
            ..Claim::default()
        };
        told.push(Observation::Claim(name.to_string().into(), Box::new(claim)));
    }
    told
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
