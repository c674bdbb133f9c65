//! A book, an engine that starts every claim, and nodes on which instances end.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_proto::scheduler::v1 as wire;
use aliquot_scheduler_engine::{Amounts, Generation, Observation, StepOutcome};

use crate::jobs::book::{Book, Effects, Ended, StartOrder};
use crate::jobs::run::Instance;
use crate::jobs::{ClaimName, End, JOBS, Job, JobId, JobSpec, TASKS};

/// The saved records, and the knowledge of the engine and the nodes.
#[derive(Default)]
pub(super) struct World {
    pub(super) book: Book,
    pub(super) saved: BTreeMap<(&'static str, String), String>,
    pub(super) now_ms: u64,
    pub(super) next_id: JobId,
    pub(super) number: u64,
    /// Claims that the engine has been told and that have not ended.
    pub(super) wanted: BTreeSet<String>,
    pub(super) groups: BTreeSet<String>,
    /// Running instances, by the generation of their start.
    pub(super) running: BTreeMap<Generation, ClaimName>,
    /// How often each member of a job has run, over all attempts.
    pub(super) starts: BTreeMap<(JobId, u32, u32), u32>,
    /// Attempts that the engine has been told to end.
    pub(super) left: Vec<(JobId, u32, u32)>,
}

impl World {
    pub(super) fn act<T>(&mut self, act: impl FnOnce(&mut Book, u64, &mut Effects) -> T) -> T {
        let mut effects = Effects::default();
        self.now_ms += 1;
        let done = act(&mut self.book, self.now_ms, &mut effects);
        let Effects { changes, observations, starts, leaving, .. } = effects;
        for change in changes {
            match change.value {
                Some(value) => _ = self.saved.insert((change.kind, change.key), value),
                None => _ = self.saved.remove(&(change.kind, change.key)),
            }
        }
        for observation in observations {
            match observation {
                Observation::Claim(uid, claim) => {
                    if let Some(group) = claim.pod_group {
                        assert!(self.groups.contains(&group), "a group comes before its members");
                    }
                    assert!(self.wanted.insert(uid.to_string()), "{uid} is told once");
                }
                Observation::ClaimResized(uid, _) => assert!(self.wanted.contains(uid.as_str()), "{uid} is not wanted"),
                Observation::ClaimEnded(uid) => _ = self.wanted.remove(uid.as_str()),
                Observation::Group(group) => _ = self.groups.insert(group.name),
                Observation::GroupRemoved(_, name) => _ = self.groups.remove(&name),
                Observation::Outcome(report) => {
                    assert!(matches!(report.outcome, StepOutcome::Refused(_) | StepOutcome::Failed(_)));
                }
                other => panic!("the book says {other:?}"),
            }
        }
        for order in starts {
            let claim = order.claim;
            assert!(self.wanted.contains(&claim.to_string()), "{claim} is started and not wanted");
            *self.starts.entry((claim.job, claim.index, claim.rank)).or_default() += 1;
            self.running.insert(order.generation, claim);
        }
        self.left.extend(leaving);
        done
    }

    pub(super) fn submit(&mut self, spec: wire::JobSpec) -> JobId {
        self.submit_as("", spec)
    }

    /// Submits a job with this request ID.
    pub(super) fn submit_as(&mut self, request_id: &str, spec: wire::JobSpec) -> JobId {
        self.next_id += 1;
        let id = self.next_id;
        let spec = JobSpec::read(wire::JobSpec { command: vec!["true".into()], ..spec }).expect("a sound job");
        let (user, local_user, request_id) = ("u".into(), "u".into(), request_id.into());
        let job =
            Job { id, spec, uid: 1000, local_user, user, is_remote: false, submitted_ms: self.now_ms, request_id };
        self.act(|book, now_ms, effects| book.submit(now_ms, job, effects)).expect("it can be submitted");
        id
    }

    /// The engine starts a claim.
    pub(super) fn start(&mut self, claim: ClaimName) -> Generation {
        self.number += 1;
        let generation = Generation { term: 1, number: self.number };
        self.repeat_start(claim, generation);
        generation
    }

    /// The engine sends the start of an instance, for the first time or again.
    pub(super) fn repeat_start(&mut self, claim: ClaimName, generation: Generation) {
        let (amounts, deadline_ms) = (Amounts::default(), 1000);
        let (node, term) = ("node".into(), generation.term);
        let order = StartOrder { node, session: 1, claim, generation, amounts, deadline_ms, term };
        self.act(|book, now_ms, effects| book.start(now_ms, order, effects));
    }

    pub(super) fn start_all(&mut self) {
        for uid in self.wanted.clone() {
            let claim = ClaimName::parse(&uid).expect("a claim of the book");
            if !self.running.values().any(|running| *running == claim) {
                self.start(claim);
            }
        }
    }

    pub(super) fn started(&mut self, instance: Generation) {
        let Some(claim) = self.running.get(&instance).copied() else { return };
        let of = Instance { node: "node", claim, generation: instance };
        self.act(|book, now_ms, effects| book.started(now_ms, of, effects));
    }

    pub(super) fn ends(&mut self, instance: Generation, ended: Ended) {
        let Some(claim) = self.running.remove(&instance) else { return };
        let of = Instance { node: "node", claim, generation: instance };
        self.act(|book, now_ms, effects| book.ended(now_ms, of, ended, effects));
    }

    /// The node of an instance is lost, and its lease lapses: only the engine's views show it.
    pub(super) fn vanishes(&mut self, instance: Generation) {
        self.running.remove(&instance);
    }

    pub(super) fn tick(&mut self, after_ms: u64) {
        self.now_ms += after_ms;
        self.act(|book, now_ms, effects| book.tick(now_ms, effects));
    }

    /// Nodes stop ended claims, and the engine's views show that their instances are gone.
    pub(super) fn let_go(&mut self) {
        let unwanted: Vec<Generation> = self
            .running
            .iter()
            .filter(|(_, claim)| !self.wanted.contains(&claim.to_string()))
            .map(|(instance, _)| *instance)
            .collect();
        for instance in unwanted {
            self.ends(instance, Ended::Displaced);
        }
        for attempt in std::mem::take(&mut self.left) {
            for claim in self.book.leaving_claims(attempt) {
                self.act(|book, now_ms, effects| book.gone(now_ms, claim, effects));
            }
        }
    }

    /// The scheduler is killed, and starts from the saved records.
    pub(super) fn restart(&mut self) {
        let of = |kind| {
            let records = self.saved.iter().filter(move |((of, _), _)| *of == kind);
            records.map(|((_, key), value)| (key.clone(), value.clone())).collect()
        };
        let book = Book::load(of(JOBS), of(TASKS)).expect("it can be read");
        assert_eq!(book.entries, self.book.entries, "all that is known is saved");
        let uid = |observation: &Observation| match observation {
            Observation::Claim(uid, _) => Some(uid.to_string()),
            _ => None,
        };
        let wanted: BTreeSet<String> = book.wanted().iter().filter_map(uid).collect();
        assert_eq!(wanted, self.wanted, "the engine is told what it knew");
        self.left = book.leaving();
        self.book = book;
    }

    pub(super) fn end(&self, id: JobId) -> Option<End> {
        self.book.entry(id).expect("the job is known").end()
    }

    pub(super) fn reason(&self, id: JobId) -> &str {
        &self.book.entry(id).expect("the job is known").tasks.values().next().expect("it has a task").reason
    }

    pub(super) fn only(&self) -> Generation {
        assert_eq!(self.running.len(), 1, "{:?}", self.running);
        *self.running.keys().next().expect("one")
    }
}
