//! The course of a task: from one attempt to the next, to its end, and to the tasks that wait for that end.

use aliquot_scheduler_engine::Observation;

use super::book::{Book, Effects, Entry};
use super::claims::{claims, group_name};
use super::task::{RUN_MS, TaskState, Then};
use super::{ClaimName, End, JobId, Restart};

/// The wait before a gang starts anew after its second setback; it doubles with each further one.
const SETBACK_MS: u64 = 1_000;
pub(super) const SETBACK_MAX_MS: u64 = 300_000;
/// The number of nodes after which a task fails: it has lost them one after another, each soon after its start there.
const LOSSES_MAX: u32 = 5;
/// The most jobs that are named in the reason of a task that waits for them.
const WAITS_NAMED: usize = 3;

impl Book {
    /// Handles a member that has lost its place, with the reason.
    pub(super) fn displaced(&mut self, now_ms: u64, claim: ClaimName, reason: &str, effects: &mut Effects) {
        let (id, index) = (claim.job, claim.index);
        let restart = self.entries.get(&id).map(|entry| entry.job.spec.restart);
        match restart {
            Some(Restart::Never) => {
                let reason = format!("{reason}, and the job is never started again");
                self.leave(now_ms, id, index, Then::End(End::Failed), &reason, effects);
            }
            Some(Restart::Always) if self.is_gang(claim) => self.set_back(now_ms, id, index, reason, effects),
            _ => {}
        }
    }

    /// Handles a member whose node was lost. A task that takes down each node where it starts would take down all of
    /// them, so it fails after a few.
    pub(super) fn node_lost(&mut self, now_ms: u64, claim: ClaimName, node: &str, effects: &mut Effects) {
        let (id, index) = (claim.job, claim.index);
        self.change(id, index, |task| task.losses = task.losses.saturating_add(1));
        self.note_task(id, index, effects);
        if self.task(id, index).is_none_or(|task| task.losses < LOSSES_MAX) {
            return self.displaced(now_ms, claim, &format!("node {node} was lost"), effects);
        }
        let reason = format!(
            "node {node} was lost, the {LOSSES_MAX}th time in a row within {} minutes after this task had started; it may be \
             what takes its nodes down: look at its log and at the nodes, then submit it again",
            RUN_MS / 60_000
        );
        self.leave(now_ms, id, index, Then::End(End::Failed), &reason, effects);
    }

    /// Starts a gang anew as a whole, after an event that is not its own fault: at once the first time, and later each
    /// time after a longer wait. Once the gang has run for a while, the count begins again; see `Task::note_run`.
    pub(super) fn set_back(&mut self, now_ms: u64, id: JobId, index: u32, reason: &str, effects: &mut Effects) {
        let Some(task) = self.task(id, index) else { return };
        let before = task.setbacks;
        let wait_ms = match before {
            0 => 0,
            before => SETBACK_MS.saturating_mul(1 << (before - 1).min(10)).min(SETBACK_MAX_MS),
        };
        self.change(id, index, |task| task.setbacks = before.saturating_add(1));
        self.leave(now_ms, id, index, Then::Again { at_ms: now_ms.saturating_add(wait_ms) }, reason, effects);
    }

    pub(super) fn fail(&mut self, now_ms: u64, id: JobId, index: u32, reason: &str, effects: &mut Effects) {
        let Some(spec) = self.entries.get(&id).map(|entry| &entry.job.spec) else { return };
        let failures = self.task(id, index).map_or(0, |task| task.failures).saturating_add(1);
        let then = match failures <= spec.retries {
            true => Then::Again { at_ms: now_ms.saturating_add(spec.retry_delay_ms(failures)) },
            false => Then::End(End::Failed),
        };
        self.change(id, index, |task| task.failures = failures);
        self.leave(now_ms, id, index, then, reason, effects);
    }

    /// Ends a task's claims. `then` happens when none of them runs any more.
    pub(super) fn leave(
        &mut self,
        now_ms: u64,
        id: JobId,
        index: u32,
        then: Then,
        reason: &str,
        effects: &mut Effects,
    ) {
        self.gathering.remove(&(id, index));
        let Some(task) = self.task(id, index) else { return };
        if task.state == TaskState::Active {
            effects.observations.extend(task.claims(id).map(|name| Observation::ClaimEnded(name.to_string().into())));
            if task.members.len() > 1 {
                effects.observations.push(Observation::GroupRemoved(String::new(), group_name(id, task)));
            }
        }
        let attempt = task.attempt;
        self.change(id, index, |task| {
            task.state = TaskState::Leaving { then };
            task.reason = reason.to_owned();
            for member in &mut task.members {
                member.is_leaving = member.is_there;
            }
        });
        self.note_task(id, index, effects);
        self.finish_if_left(now_ms, id, index, effects);
        if self.task(id, index).is_some_and(|task| matches!(task.state, TaskState::Leaving { .. })) {
            effects.leaving.push((id, index, attempt));
        }
    }

    pub(super) fn finish_if_left(&mut self, now_ms: u64, id: JobId, index: u32, effects: &mut Effects) {
        let Some(task) = self.task(id, index) else { return };
        let TaskState::Leaving { then } = task.state else { return };
        if task.members.iter().any(|member| member.is_leaving) {
            return;
        }
        match then {
            Then::Again { at_ms } if at_ms > now_ms => {
                self.change(id, index, |task| task.state = TaskState::Retrying { at_ms });
                self.retries.insert((at_ms, id, index));
                self.note_task(id, index, effects);
            }
            Then::Again { .. } => self.begin(id, index, effects),
            Then::End(end) => {
                self.change(id, index, |task| {
                    task.state = TaskState::Ended(end);
                    task.ended_ms = Some(now_ms);
                });
                self.count_end(id);
                self.note_task(id, index, effects);
                self.job_may_have_ended(now_ms, id, effects);
            }
        }
    }

    /// Begins a task's next attempt.
    pub(super) fn begin(&mut self, id: JobId, index: u32, effects: &mut Effects) {
        self.change(id, index, |task| {
            task.attempt = task.attempt.saturating_add(1);
            task.state = TaskState::Active;
            task.members = task.members.iter().map(super::Member::anew).collect();
        });
        self.note_task(id, index, effects);
        let Some(entry) = self.entries.get(&id) else { return };
        let Some(task) = entry.tasks.get(&index) else { return };
        effects.observations.extend(claims(id, &entry.job.spec, task));
    }

    fn job_may_have_ended(&mut self, now_ms: u64, id: JobId, effects: &mut Effects) {
        if self.entries.get(&id).and_then(Entry::end).is_none() {
            return;
        }
        self.note_ended(now_ms, id);
        for other in self.dependents.get(&id).cloned().unwrap_or_default() {
            self.unblock(now_ms, other, effects);
        }
        self.prune(effects);
    }

    /// Begins the tasks of a job that waits for no other job any more; ends them if a job that it waits for has not
    /// succeeded.
    pub(super) fn unblock(&mut self, now_ms: u64, id: JobId, effects: &mut Effects) {
        let Some(entry) = self.entries.get(&id) else { return };
        let mut waits = Vec::new();
        let mut lost = None;
        for other in &entry.job.spec.after {
            match self.entries.get(other).map(Entry::end) {
                Some(Some(End::Succeeded)) => {}
                Some(None) => waits.push(*other),
                Some(Some(End::Failed)) => lost = Some(format!("job {other}, which it waits for, has failed")),
                Some(Some(End::Cancelled)) => lost = Some(format!("job {other}, which it waits for, was cancelled")),
                None => lost = Some(format!("it waits for job {other}, which no longer exists")),
            }
        }
        let reason = lost.clone().unwrap_or_else(|| waits_for(&waits));
        for index in self.indices(id) {
            if self.task(id, index).is_none_or(|task| task.state != TaskState::Blocked) {
                continue;
            }
            match (&lost, waits.is_empty()) {
                (Some(_), _) => self.leave(now_ms, id, index, Then::End(End::Failed), &reason, effects),
                (None, true) => self.begin(id, index, effects),
                // Each task has a copy of the reason, and is saved with it.
                (None, false) if self.task(id, index).is_some_and(|task| task.reason == reason) => {}
                (None, false) => {
                    self.change(id, index, |task| task.reason.clone_from(&reason));
                    self.note_task(id, index, effects);
                }
            }
        }
    }
}

/// Says for which jobs a task waits. However many there are, it names the first ones only.
fn waits_for(jobs: &[JobId]) -> String {
    let named: Vec<String> = jobs.iter().take(WAITS_NAMED).map(JobId::to_string).collect();
    let others = match jobs.len().saturating_sub(WAITS_NAMED) {
        0 => String::new(),
        1 => " and 1 other".to_owned(),
        others => format!(" and {others} others"),
    };
    format!("it waits for job {}{others}", named.join(", "))
}
