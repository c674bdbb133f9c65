//! The events in the life of jobs. Each call is one event, and returns its [`Effects`].

use aliquot_scheduler_engine::{Generation, Observation, Report, StepOutcome};

use super::book::{Book, Effects, Ended, Entry, StartOrder, Unknown};
use super::claims::{claims, request};
use super::member::{Exit, Member, Place};
use super::task::{Task, TaskState, Then};
use super::{ClaimName, End, Job, JobId};

/// An instance in a message from a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instance<'node> {
    pub(crate) node: &'node str,
    pub(crate) claim: ClaimName,
    pub(crate) generation: Generation,
}

/// Why an instance could not be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The node is at fault, so the engine tries another one.
    Node,
    /// The start would fail on every node, so it counts as a failure of the job.
    Job,
}

impl Book {
    /// Takes in a job.
    ///
    /// # Errors
    /// If it is to wait for a job that does not exist.
    pub(crate) fn submit(&mut self, now_ms: u64, job: Job, effects: &mut Effects) -> Result<(), Unknown> {
        let (id, after) = (job.id, job.spec.after.clone());
        if let Some(missing) = after.iter().find(|other| !self.entries.contains_key(other)) {
            return Err(Unknown(format!("the job is to wait for job {missing}, which does not exist")));
        }
        let tasks = job.spec.array.iter().map(|index| (*index, Task::new(*index, job.spec.gang))).collect();
        self.insert(Entry::new(job, tasks));
        for other in after {
            self.dependents.entry(other).or_default().insert(id);
        }
        self.note_job(id, effects);
        for index in self.indices(id) {
            self.note_task(id, index, effects);
        }
        self.unblock(now_ms, id, effects);
        Ok(())
    }

    /// All observations that the engine must get after a start, before [`Observation::Synced`].
    pub(crate) fn wanted(&self) -> Vec<Observation> {
        let mut wanted = Vec::new();
        for (id, entry) in &self.entries {
            for task in entry.tasks.values().filter(|task| task.state == TaskState::Active) {
                wanted.extend(claims(*id, &entry.job.spec, task));
            }
        }
        wanted
    }

    /// Cancels tasks for a user; `tasks` is empty: all of them.
    ///
    /// # Errors
    /// If there is no such job or no such task.
    pub(crate) fn cancel(
        &mut self,
        now_ms: u64,
        id: JobId,
        tasks: &[u32],
        effects: &mut Effects,
    ) -> Result<(), Unknown> {
        let entry = self.entries.get(&id).ok_or_else(|| Unknown(format!("there is no job {id}")))?;
        if let Some(missing) = tasks.iter().find(|index| !entry.tasks.contains_key(index)) {
            return Err(Unknown(format!("job {id} has no task {missing}")));
        }
        let tasks = if tasks.is_empty() { self.indices(id) } else { tasks.to_vec() };
        for index in tasks {
            let then = Then::End(End::Cancelled);
            match self.task(id, index).map(|task| task.state) {
                Some(TaskState::Blocked | TaskState::Active) => self.leave(now_ms, id, index, then, "", effects),
                Some(TaskState::Retrying { at_ms }) => {
                    self.retries.remove(&(at_ms, id, index));
                    self.leave(now_ms, id, index, then, "", effects);
                }
                Some(TaskState::Leaving { then: Then::Again { .. } }) => {
                    self.change(id, index, |task| task.state = TaskState::Leaving { then });
                    self.note_task(id, index, effects);
                }
                Some(TaskState::Leaving { .. } | TaskState::Ended(_)) | None => {}
            }
        }
        Ok(())
    }

    /// Executes the due steps.
    pub(crate) fn tick(&mut self, now_ms: u64, effects: &mut Effects) {
        while let Some((at_ms, id, index)) = self.retries.first().copied().filter(|(at_ms, ..)| *at_ms <= now_ms) {
            self.retries.remove(&(at_ms, id, index));
            self.begin(id, index, effects);
        }
    }

    /// Handles a start that the engine issues. It goes to the node, unless the claim has ended or must not be started
    /// again: then the engine is told so.
    pub(crate) fn start(&mut self, now_ms: u64, order: StartOrder, effects: &mut Effects) {
        let ClaimName { job: id, index, rank, attempt } = order.claim;
        let refuse = |why: &str, effects: &mut Effects| {
            effects.observations.push(outcome(&order, StepOutcome::Refused(why.to_owned())));
        };
        let Some(task) = self.task(id, index) else {
            return refuse("there is no such job any more", effects);
        };
        let is_gang = task.members.len() > 1;
        let Some(member) = task.members.get(rank as usize).filter(|_| task.attempt == attempt) else {
            return refuse("the job is at another attempt", effects);
        };
        if task.state != TaskState::Active || member.exit.is_some() {
            return refuse("the job is not wanted any more", effects);
        }
        let is_same = |place: &Place| place.node == order.node.as_str() && place.instance() == order.generation;
        if member.place.as_ref().is_some_and(is_same) {
            // The engine repeats a start that the node may not have received. It is dropped if the node has answered
            // meanwhile.
            if member.is_there {
                self.release(order, is_gang, effects);
            }
            return;
        }
        if member.is_there {
            // The engine would not start it again if the instance before could still run.
            self.lost(now_ms, order.claim, effects);
            let is_same = |task: &&Task| task.state == TaskState::Active && task.attempt == attempt;
            if self.task(id, index).filter(is_same).is_none() {
                return refuse("the job has ended or starts anew, because a node was lost", effects);
            }
        }
        let devices = order.amounts.devices.iter();
        let devices = devices.map(|part| (part.uuid.clone(), part.core.get(), part.memory.get())).collect();
        let place = Place::new(order.node.to_string(), order.generation, devices);
        self.change(id, index, |task| {
            if rank == 0 {
                task.starts = task.starts.saturating_add(1);
            }
            if let Some(member) = task.members.get_mut(rank as usize) {
                (member.place, member.is_there, member.started_ms) = (Some(place), true, None);
            }
        });
        self.note_task(id, index, effects);
        self.release(order, is_gang, effects);
    }

    /// Sends a start to its node. The other members of a gang wait for the start of the first one, because they must
    /// learn its address.
    fn release(&mut self, order: StartOrder, is_gang: bool, effects: &mut Effects) {
        if !is_gang {
            effects.starts.push(order);
            return;
        }
        let (id, index) = (order.claim.job, order.claim.index);
        self.gathering.entry((id, index)).or_default().push(order);
        if self.first_address(id, index).is_some() {
            effects.starts.extend(self.gathering.remove(&(id, index)).unwrap_or_default());
        }
    }

    /// The address of the first member of a gang in the present attempt.
    pub(crate) fn first_address(&self, id: JobId, index: u32) -> Option<&str> {
        let first = self.task(id, index)?.members.first().filter(|first| first.is_there)?;
        let node = &first.place.as_ref()?.node;
        Some(self.addresses.get(node).filter(|address| !address.is_empty()).unwrap_or(node))
    }

    /// Notes that an instance runs, as its node says.
    ///
    /// Returns how long after the submission of the job the instance started, in milliseconds; `None` if it was known
    /// already.
    pub(crate) fn started(&mut self, now_ms: u64, of: Instance<'_>, effects: &mut Effects) -> Option<u64> {
        let claim = of.claim;
        let submitted_ms = self.entries.get(&claim.job).map(|entry| entry.job.submitted_ms);
        let mut is_first = false;
        let is_news = self.with_member(of, |task, rank| {
            let had_reason = task.state == TaskState::Active && !task.reason.is_empty();
            if had_reason {
                task.reason.clear();
            }
            is_first = task.members[rank].started_ms.is_none();
            task.members[rank].started_ms.get_or_insert(now_ms);
            let waits = |member: &Member| member.started_ms.is_none() && member.exit.is_none();
            if task.state == TaskState::Active && !task.members.iter().any(waits) {
                task.refused_by.clear();
            }
            had_reason || is_first
        });
        if is_news == Some(true) {
            self.note_task(claim.job, claim.index, effects);
        }
        submitted_ms.filter(|_| is_first).map(|submitted_ms| now_ms.saturating_sub(submitted_ms))
    }

    /// Notes that a node could not start an instance, which never ran. If the node is at fault, the task goes to others
    /// first from now on.
    pub(crate) fn not_started(
        &mut self,
        now_ms: u64,
        of: Instance<'_>,
        why: &str,
        fault: Fault,
        effects: &mut Effects,
    ) {
        let claim = of.claim;
        let done = self.with_member(of, |task, rank| {
            task.note_run(now_ms);
            let member = &mut task.members[rank];
            (member.is_there, member.is_leaving) = (false, false);
            task.reason = why.to_owned();
            if fault == Fault::Node {
                task.note_refusal(of.node);
            }
            task.state
        });
        let Some(state) = done else { return };
        self.note_task(claim.job, claim.index, effects);
        match state {
            TaskState::Active if fault == Fault::Job => self.fail(now_ms, claim.job, claim.index, why, effects),
            // The claims of the next attempt ask for other nodes.
            TaskState::Active if self.is_gang(claim) => self.set_back(now_ms, claim.job, claim.index, why, effects),
            TaskState::Active => effects.observations.extend(self.asks_anew(claim)),
            TaskState::Leaving { .. } => self.finish_if_left(now_ms, claim.job, claim.index, effects),
            _ => {}
        }
    }

    /// What a claim asks for now.
    fn asks_anew(&self, claim: ClaimName) -> Option<Observation> {
        let entry = self.entries.get(&claim.job)?;
        let request = request(&entry.job.spec, entry.tasks.get(&claim.index)?);
        Some(Observation::ClaimResized(claim.to_string().into(), Box::new(request)))
    }

    /// Notes that a start was not sent to its node, so that the node does not know the instance.
    pub(crate) fn not_sent(&mut self, now_ms: u64, order: &StartOrder, why: &str, fault: Fault, effects: &mut Effects) {
        let of = Instance { node: order.node.as_str(), claim: order.claim, generation: order.generation };
        self.not_started(now_ms, of, why, fault, effects);
        let become_of_it = match fault {
            Fault::Node => StepOutcome::Refused(why.to_owned()),
            Fault::Job => StepOutcome::Failed(why.to_owned()),
        };
        effects.observations.push(outcome(order, become_of_it));
    }

    /// Notes that a member in the book has no instance any more, as the engine knows: its node was lost.
    pub(crate) fn lost(&mut self, now_ms: u64, claim: ClaimName, effects: &mut Effects) {
        let member = self.task(claim.job, claim.index).and_then(|task| task.members.get(claim.rank as usize));
        let Some(place) = member.and_then(|member| member.place.clone()) else { return };
        let of = Instance { node: &place.node, claim, generation: place.instance() };
        self.ended(now_ms, of, Ended::NodeLost, effects);
    }

    /// The members that may run according to the book, of tasks that have not ended.
    pub(crate) fn there(&self) -> Vec<ClaimName> {
        let tasks = self.entries.iter().flat_map(|(id, entry)| entry.tasks.values().map(move |task| (*id, task)));
        let active = tasks.filter(|(_, task)| task.state == TaskState::Active);
        let there = active.flat_map(|(id, task)| task.claims(id).zip(&task.members));
        there.filter(|(_, member)| member.is_there).map(|(claim, _)| claim).collect()
    }

    /// Whether a member may run according to the book, in the present attempt of a task that has not ended.
    pub(crate) fn is_there(&self, claim: ClaimName) -> bool {
        let task = self.task(claim.job, claim.index).filter(|task| task.attempt == claim.attempt);
        let task = task.filter(|task| task.state == TaskState::Active);
        task.and_then(|task| task.members.get(claim.rank as usize)).is_some_and(|member| member.is_there)
    }

    /// Notes that an instance has ended, as its node says.
    pub(crate) fn ended(&mut self, now_ms: u64, of: Instance<'_>, ended: Ended, effects: &mut Effects) {
        let claim = of.claim;
        let (id, index) = (claim.job, claim.index);
        let exit = match ended {
            Ended::Exited { code, signal } => Exit { code, signal, ended_ms: now_ms },
            Ended::TimeLimit | Ended::Displaced | Ended::NodeLost => Exit { code: None, signal: 0, ended_ms: now_ms },
        };
        let state = self.with_member(of, |task, rank| {
            task.note_run(now_ms);
            let member = &mut task.members[rank];
            (member.is_there, member.is_leaving) = (false, false);
            // A member that has only lost its place starts again in the same attempt.
            match ended {
                Ended::Displaced | Ended::NodeLost if task.state == TaskState::Active => member.started_ms = None,
                _ => member.exit = Some(exit.clone()),
            }
            task.state
        });
        let Some(state) = state else { return };
        self.note_task(id, index, effects);
        if state != TaskState::Active {
            self.finish_if_left(now_ms, id, index, effects);
            return;
        }
        match ended {
            Ended::Exited { .. } if exit.has_succeeded() => {
                effects.observations.push(Observation::ClaimEnded(claim.to_string().into()));
                let succeeded = |task: &Task| {
                    task.members.iter().all(|member| member.exit.as_ref().is_some_and(Exit::has_succeeded))
                };
                if self.task(id, index).is_some_and(succeeded) {
                    self.leave(now_ms, id, index, Then::End(End::Succeeded), "", effects);
                }
            }
            Ended::Exited { .. } => {
                let reason = format!("{}{}", self.rank_of(claim), how(&exit));
                self.fail(now_ms, id, index, &reason, effects);
            }
            Ended::TimeLimit => {
                let reason = format!("{}reached its time limit", self.rank_of(claim));
                self.leave(now_ms, id, index, Then::End(End::Failed), &reason, effects);
            }
            Ended::Displaced => {
                let reason = format!("{}has lost its place", self.rank_of(claim));
                self.displaced(now_ms, claim, &reason, effects);
            }
            Ended::NodeLost => self.node_lost(now_ms, claim, of.node, effects),
        }
    }

    /// Notes that a claim that was ended has no instance left, as the engine knows.
    pub(crate) fn gone(&mut self, now_ms: u64, claim: ClaimName, effects: &mut Effects) {
        let ClaimName { job: id, index, rank, attempt } = claim;
        let Some(task) = self.task(id, index).filter(|task| task.attempt == attempt) else { return };
        if !task.members.get(rank as usize).is_some_and(|member| member.is_leaving) {
            return;
        }
        self.change(id, index, |task| {
            let member = &mut task.members[rank as usize];
            (member.is_there, member.is_leaving) = (false, false);
        });
        self.note_task(id, index, effects);
        self.finish_if_left(now_ms, id, index, effects);
    }

    pub(super) fn indices(&self, id: JobId) -> Vec<u32> {
        self.entries.get(&id).map(|entry| entry.tasks.keys().copied().collect()).unwrap_or_default()
    }

    pub(super) fn task(&self, id: JobId, index: u32) -> Option<&Task> {
        self.entries.get(&id)?.tasks.get(&index)
    }

    pub(super) fn change(&mut self, id: JobId, index: u32, change: impl FnOnce(&mut Task)) {
        if let Some(task) = self.entries.get_mut(&id).and_then(|entry| entry.tasks.get_mut(&index)) {
            change(task);
        }
    }

    /// Changes the task of a member, given the member's rank, if this instance is the member's present one. A node can
    /// report only its own instances.
    fn with_member<T>(&mut self, of: Instance<'_>, change: impl FnOnce(&mut Task, usize) -> T) -> Option<T> {
        let Instance { node, claim, generation } = of;
        let task = self.entries.get_mut(&claim.job)?.tasks.get_mut(&claim.index)?;
        let rank = claim.rank as usize;
        let is_it = task.attempt == claim.attempt && task.members.get(rank)?.is(node, generation);
        is_it.then(|| change(task, rank))
    }

    pub(super) fn is_gang(&self, claim: ClaimName) -> bool {
        self.task(claim.job, claim.index).is_some_and(|task| task.members.len() > 1)
    }

    /// The beginning of a sentence about a member: its rank, or nothing if it is not in a gang.
    pub(super) fn rank_of(&self, claim: ClaimName) -> String {
        if self.is_gang(claim) { format!("rank {} ", claim.rank) } else { String::new() }
    }
}

fn how(exit: &Exit) -> String {
    match (exit.code, exit.signal) {
        (_, signal) if signal > 0 => format!("was ended by signal {signal}"),
        (Some(code), _) => format!("ended with code {code}"),
        (None, _) => "ended in an unknown way".to_owned(),
    }
}

/// The outcome of a start that was not sent to a node.
fn outcome(order: &StartOrder, outcome: StepOutcome) -> Observation {
    Observation::Outcome(Report {
        node: order.node.clone(),
        session: order.session,
        // The node sends no message with this number, so the outcome makes none of its messages look old.
        sequence: 0,
        claim: order.claim.to_string().into(),
        instance: order.generation,
        generation: order.generation,
        outcome,
    })
}
