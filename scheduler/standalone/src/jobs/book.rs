//! The book of jobs: the state of all jobs, and how it is saved.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use aliquot_scheduler_engine::Observation;
use aliquot_scheduler_store::Change;

use super::task::{Task, TaskState};
use super::{ClaimName, End, Job, JobId};
use crate::access::Identity;

/// The kinds of the records in which the book is saved.
pub(crate) const JOBS: &str = "job";
pub(crate) const TASKS: &str = "task";

/// The most ended jobs that are kept for people to look at, and the most members of their tasks. A job may have 100 000
/// members, each of which takes half a KiB of memory.
const ENDED_MAX: usize = 10_000;
pub(super) const ENDED_MEMBERS_MAX: u64 = 200_000;

/// The most members of open tasks of one user, and of all users.
const OF_USER_MAX: u64 = 200_000;
const OF_ALL_MAX: u64 = 1_000_000;

/// A job with its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) job: Job,
    pub(crate) tasks: BTreeMap<u32, Task>,
    /// The number of tasks that have not ended.
    open: usize,
}

impl Entry {
    pub(super) fn new(job: Job, tasks: BTreeMap<u32, Task>) -> Self {
        let open = tasks.values().filter(|task| task.end().is_none()).count();
        Self { job, tasks, open }
    }

    /// The job with only the task of this index.
    pub(crate) fn only(&self, index: u32) -> Self {
        let task = self.tasks.get(&index).cloned();
        Self::new(self.job.clone(), task.into_iter().map(|task| (index, task)).collect())
    }

    /// The number of members of tasks that have not ended.
    fn open_members(&self) -> u64 {
        (self.open as u64).saturating_mul(self.job.spec.gang.into())
    }

    fn members(&self) -> u64 {
        (self.tasks.len() as u64).saturating_mul(self.job.spec.gang.into())
    }

    /// How the job has ended; `None`: it has not ended.
    pub(crate) fn end(&self) -> Option<End> {
        if self.open > 0 {
            return None;
        }
        // The job ends like its worst task: a failure is worse than a cancellation, and that is worse than a success.
        let rank = |end: End| match end {
            End::Succeeded => 0,
            End::Cancelled => 1,
            End::Failed => 2,
        };
        self.tasks.values().filter_map(Task::end).max_by_key(|end| rank(*end))
    }
}

/// The effects of a change of the book, in the order in which they must happen.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// To be saved before everything else.
    pub(crate) changes: Vec<Change>,
    /// To be told to the engine after that, in this order.
    pub(crate) observations: Vec<Observation>,
    /// To be sent to nodes after that.
    pub(crate) starts: Vec<StartOrder>,
    /// Tasks of which something may still run, with their attempts. The book waits until the engine knows of no
    /// instance of them.
    pub(crate) leaving: Vec<(JobId, u32, u32)>,
    /// Jobs that have changed.
    pub(crate) touched: BTreeSet<JobId>,
}

/// A start that the engine has issued. The program is added when it is sent.
#[derive(Clone, Debug)]
pub(crate) struct StartOrder {
    pub(crate) node: aliquot_scheduler_engine::NodeName,
    pub(crate) session: u64,
    pub(crate) claim: ClaimName,
    pub(crate) generation: aliquot_scheduler_engine::Generation,
    pub(crate) amounts: aliquot_scheduler_engine::Amounts,
    pub(crate) deadline_ms: u64,
    /// The term of the engine that issued it.
    pub(crate) term: u64,
}

/// How an instance has ended, as its node says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Its program has ended by itself.
    Exited { code: Option<i32>, signal: u32 },
    /// It was stopped at its time limit.
    TimeLimit,
    /// It was stopped for another reason: it has lost its place.
    Displaced,
    /// Its node was lost, or has started anew and does not know how it ended: it has lost its place.
    NodeLost,
}

/// A user has named an object that does not exist. The sentence says which.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unknown(pub(crate) String);

/// All jobs of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(super) entries: BTreeMap<JobId, Entry>,
    /// For each job the jobs that wait for its end.
    pub(super) dependents: BTreeMap<JobId, BTreeSet<JobId>>,
    /// When failed tasks are tried again.
    pub(super) retries: BTreeSet<(u64, JobId, u32)>,
    /// Ended jobs in the order of their ends.
    ended: BTreeSet<(u64, JobId)>,
    /// The number of members of the ended jobs.
    ended_members: u64,
    /// Gangs with starts that wait: the other members must learn the address of the first one before they start.
    pub(super) gathering: BTreeMap<(JobId, u32), Vec<StartOrder>>,
    /// Members of tasks that have not ended, counted by user.
    open_members: BTreeMap<Identity, u64>,
    /// Jobs by owner and request ID.
    requests: BTreeMap<(Identity, String), JobId>,
    /// The address of each node, as the node has reported it.
    pub(super) addresses: BTreeMap<String, String>,
}

impl Book {
    /// The book from its saved records.
    ///
    /// # Errors
    /// If a record cannot be read: its name, and the reason.
    pub(crate) fn load(jobs: Vec<(String, String)>, tasks: Vec<(String, String)>) -> Result<Self, String> {
        let mut read: BTreeMap<JobId, (Job, BTreeMap<u32, Task>)> = BTreeMap::new();
        for (key, value) in jobs {
            let job: Job = serde_json::from_str(&value).map_err(|error| format!("job {key}: {error}"))?;
            read.insert(job.id, (job, BTreeMap::new()));
        }
        for (key, value) in tasks {
            let unreadable = |why: String| format!("task {key}: {why}");
            let task: Task = serde_json::from_str(&value).map_err(|error| unreadable(error.to_string()))?;
            let id = key.split('.').next().and_then(|id| id.parse::<JobId>().ok());
            let (_, tasks) = id.and_then(|id| read.get_mut(&id)).ok_or_else(|| unreadable("no such job".into()))?;
            if task.members.is_empty() {
                return Err(unreadable("it has no members".into()));
            }
            tasks.insert(task.index, task);
        }
        let mut book = Self::default();
        for (id, (job, tasks)) in read {
            if tasks.is_empty() {
                return Err(format!("job {id}: it has no tasks"));
            }
            book.insert(Entry::new(job, tasks));
        }
        let mut ended = Vec::new();
        for (id, entry) in &book.entries {
            for task in entry.tasks.values() {
                match task.state {
                    TaskState::Retrying { at_ms } => _ = book.retries.insert((at_ms, *id, task.index)),
                    TaskState::Blocked => {
                        for other in &entry.job.spec.after {
                            book.dependents.entry(*other).or_default().insert(*id);
                        }
                    }
                    _ => {}
                }
            }
            if entry.end().is_some() {
                ended.push((entry.tasks.values().filter_map(|task| task.ended_ms).max().unwrap_or(0), *id));
            }
        }
        ended.into_iter().for_each(|(at_ms, id)| book.note_ended(at_ms, id));
        Ok(book)
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        *self.open_members.entry(entry.job.owner()).or_default() += entry.open_members();
        self.requests.extend(request_of(&entry.job).map(|request| (request, entry.job.id)));
        self.entries.insert(entry.job.id, entry);
    }

    /// Counts one more ended task of a job.
    pub(super) fn count_end(&mut self, id: JobId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.open = entry.open.saturating_sub(1);
        let members = u64::from(entry.job.spec.gang);
        if let Some(open) = self.open_members.get_mut(&entry.job.owner()) {
            *open = open.saturating_sub(members);
        }
    }

    /// The job that an earlier copy of the same request made; `None`: there is none.
    ///
    /// # Errors
    /// If the earlier request with this ID asked for something else.
    pub(crate) fn made_before(&self, job: &Job) -> Option<Result<JobId, String>> {
        let request = request_of(job)?;
        let made = &self.entry(*self.requests.get(&request)?)?.job;
        Some(if made.spec == job.spec {
            Ok(made.id)
        } else {
            Err(format!(
                "job {} was submitted with the request ID {:?}, and asked for something else; each job needs an ID of its own",
                made.id, made.request_id
            ))
        })
    }

    /// Says why this user cannot have `members` more members; `None`: the user can.
    pub(crate) fn too_many(&self, owner: &Identity, members: u64) -> Option<String> {
        let own = self.open_members.get(owner).copied().unwrap_or(0);
        let all: u64 = self.open_members.values().sum();
        if own.saturating_add(members) > OF_USER_MAX {
            return Some(format!(
                "{own} tasks of yours have not ended, and with {members} more they would be above {OF_USER_MAX}; wait for \
                 some, or cancel them"
            ));
        }
        (all.saturating_add(members) > OF_ALL_MAX).then(|| {
            format!(
                "{all} tasks have not ended, and with {members} more they would be above {OF_ALL_MAX}; try again later"
            )
        })
    }

    /// The smallest number that the next job can have.
    pub(crate) fn next_id(&self) -> JobId {
        self.entries.last_key_value().map_or(1, |(id, _)| id.saturating_add(1))
    }

    /// Shortens waits that are longer than the job's settings allow, which happens if the clock has changed since they
    /// were saved.
    pub(crate) fn bound_retries(&mut self, now_ms: u64) {
        self.retries.clear();
        for (id, entry) in &mut self.entries {
            let spec = &entry.job.spec;
            for task in entry.tasks.values_mut() {
                let longest_ms = spec.retry_delay_ms(task.failures).max(super::attempts::SETBACK_MAX_MS);
                let latest_ms = now_ms.saturating_add(longest_ms);
                match &mut task.state {
                    TaskState::Retrying { at_ms } => {
                        *at_ms = (*at_ms).min(latest_ms);
                        self.retries.insert((*at_ms, *id, task.index));
                    }
                    TaskState::Leaving { then: super::Then::Again { at_ms } } => *at_ms = (*at_ms).min(latest_ms),
                    _ => {}
                }
            }
        }
    }

    /// The job of this number, with its state.
    pub(crate) fn entry(&self, id: JobId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// All jobs, the newest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries_before(0)
    }

    /// The jobs with smaller numbers than `before`, the newest first; 0: all of them.
    pub(crate) fn entries_before(&self, before: JobId) -> impl Iterator<Item = &Entry> {
        let end = if before == 0 { Bound::Unbounded } else { Bound::Excluded(before) };
        self.entries.range((Bound::Unbounded, end)).rev().map(|(_, entry)| entry)
    }

    /// Whether a job in this queue has not ended.
    pub(crate) fn is_in_use(&self, queue: &str) -> bool {
        self.entries.values().any(|entry| entry.job.spec.queue == queue && entry.end().is_none())
    }

    /// When the book next has something to do without a message.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.retries.first().map(|(at_ms, ..)| *at_ms)
    }

    /// Notes the address at which processes on other nodes reach this node.
    pub(crate) fn note_address(&mut self, node: &str, address: &str) {
        if self.addresses.get(node).is_none_or(|known| known != address) {
            self.addresses.insert(node.to_owned(), address.to_owned());
        }
    }

    /// Tasks that have ended for the user and may still have running members, with their attempts.
    pub(crate) fn leaving(&self) -> Vec<(JobId, u32, u32)> {
        let tasks = self.entries.iter().flat_map(|(id, entry)| entry.tasks.values().map(move |task| (*id, task)));
        let leaving = tasks.filter(|(_, task)| matches!(task.state, TaskState::Leaving { .. }));
        leaving.map(|(id, task)| (id, task.index, task.attempt)).collect()
    }

    /// The claims of a task that have ended for the user and may still run.
    pub(crate) fn leaving_claims(&self, (id, index, attempt): (JobId, u32, u32)) -> Vec<ClaimName> {
        let task = self.entries.get(&id).and_then(|entry| entry.tasks.get(&index));
        let Some(task) = task.filter(|task| task.attempt == attempt) else { return Vec::new() };
        if !matches!(task.state, TaskState::Leaving { .. }) {
            return Vec::new();
        }
        task.claims(id).zip(&task.members).filter(|(_, member)| member.is_leaving).map(|(name, _)| name).collect()
    }

    /// Adds the saving of a job to the effects.
    pub(super) fn note_job(&self, id: JobId, effects: &mut Effects) {
        let value = self.entries.get(&id).and_then(|entry| serde_json::to_string(&entry.job).ok());
        effects.changes.push(Change { kind: JOBS, key: job_key(id), value });
        effects.touched.insert(id);
    }

    /// Adds the saving of a task to the effects.
    pub(super) fn note_task(&self, id: JobId, index: u32, effects: &mut Effects) {
        let task = self.entries.get(&id).and_then(|entry| entry.tasks.get(&index));
        let value = task.and_then(|task| serde_json::to_string(task).ok());
        effects.changes.push(Change { kind: TASKS, key: task_key(id, index), value });
        effects.touched.insert(id);
    }

    /// Notes the end of a job: all its tasks have ended.
    pub(super) fn note_ended(&mut self, at_ms: u64, id: JobId) {
        if self.ended.insert((at_ms, id)) {
            self.ended_members += self.entries.get(&id).map_or(0, Entry::members);
        }
    }

    /// Forgets the oldest ended jobs if there are too many. The newest one is always kept, however large it is.
    pub(super) fn prune(&mut self, effects: &mut Effects) {
        let mut kept = Vec::new();
        while self.ended.len() + kept.len() > ENDED_MAX
            || (self.ended_members > ENDED_MEMBERS_MAX && self.ended.len() > 1)
        {
            let Some((ended_ms, id)) = self.ended.pop_first() else { break };
            if self.is_waited_for(id) {
                kept.push((ended_ms, id));
                continue;
            }
            self.dependents.remove(&id);
            let Some(entry) = self.entries.remove(&id) else { continue };
            self.ended_members = self.ended_members.saturating_sub(entry.members());
            if let Some(request) = request_of(&entry.job) {
                self.requests.remove(&request);
            }
            effects.changes.push(Change { kind: JOBS, key: job_key(id), value: None });
            let tasks = entry.tasks.keys();
            effects.changes.extend(tasks.map(|index| Change { kind: TASKS, key: task_key(id, *index), value: None }));
        }
        self.ended.extend(kept);
    }

    /// Whether another job that has not begun waits for this one.
    fn is_waited_for(&self, id: JobId) -> bool {
        let is_blocked = |other: &JobId| {
            let tasks = self.entries.get(other).into_iter().flat_map(|entry| entry.tasks.values());
            tasks.into_iter().any(|task| task.state == TaskState::Blocked)
        };
        self.dependents.get(&id).is_some_and(|others| others.iter().any(is_blocked))
    }
}

/// The owner and the ID of the request that made a job; `None`: it has no ID.
fn request_of(job: &Job) -> Option<(Identity, String)> {
    (!job.request_id.is_empty()).then(|| (job.owner(), job.request_id.clone()))
}

/// Keys are sorted as text, so numbers are written with leading zeros.
fn job_key(id: JobId) -> String {
    format!("{id:020}")
}

fn task_key(id: JobId, index: u32) -> String {
    format!("{id:020}.{index:010}")
}
