//! A cluster in a file: what there is, who waits and who runs, and how it is decided.
//!
//! The file is JSON and meant to be written by hand as well: all but the version and names can be left out, and amounts
//! have their unit in the key. A key that is not known is an error: a typing error must not become a default. What a
//! running scheduler writes has a `history` too.

mod amount;
mod change;
mod constraints;
mod format;
mod layout;
mod peers;
mod read;
mod request;
mod write;

use std::fs;
use std::path::Path;

use aliquot_scheduler_core::placement::Mix;
use aliquot_scheduler_core::{Cluster, Dump, Request, Scheduler};
use aliquot_scheduler_engine::{Decisions, Engine, Settings};
use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use serde_json::Serializer;

use crate::policy::PolicyName;

pub use format::File;
pub(crate) use format::NAMESPACE;
use format::{MixEntry, RequestEntry, SchedulerEntry};
use layout::EntryPerLine;
pub(crate) use read::split_name;
pub(crate) use write::full_name;

/// How often a request of a mix may occur at most; what counts is how often one occurs beside another.
const MIX_COUNT_MAX: u64 = 1_000_000_000;

impl File {
    /// Reads a snapshot.
    ///
    /// # Errors
    /// If the file cannot be read or is not a snapshot; the error names the key.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads a snapshot from its text.
    ///
    /// # Errors
    /// If it is not a snapshot; the error names the key.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Err(anyhow!("it is empty; the least snapshot is {{\"version\": 1}}"));
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let file = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let error = anyhow!("{}", error.into_inner());
            if path == "." { error } else { error.context(path) }
        })?;
        json.end().context("something follows the snapshot")?;
        Ok(file)
    }

    /// The cluster, and the scheduler that decides for it.
    ///
    /// # Errors
    /// If there can be no such cluster; the error names the entry.
    pub fn restore(&self) -> Result<(Scheduler, Cluster)> {
        let dump = self.to_dump()?;
        let Decisions { policy, settings, .. } = self.decisions(&dump)?;
        Scheduler::restore(policy, settings, dump).map_err(|error| self.locate(error))
    }

    /// An engine that begins with the cluster. Nothing is waited for: a cycle runs at the time of each change, and at
    /// any later time.
    ///
    /// # Errors
    /// If there can be no such cluster; the error names the entry.
    pub fn engine(&self) -> Result<Engine> {
        let dump = self.to_dump()?;
        let decisions = self.decisions(&dump)?;
        let settings = Settings {
            cycle_delay_ms: 0,
            cycle_gap_ms: 0,
            idle_cycle_ms: 1,
            publish_gap_ms: 0,
            lease: None,
            ..Settings::default()
        };
        Engine::restore(decisions, settings, dump).map_err(|error| self.locate(error))
    }

    fn decisions(&self, dump: &Dump) -> Result<Decisions> {
        let policy = self.scheduler.policy.make(&self.mix(dump)?, self.scheduler.seed);
        let usage_half_life_ms = self.scheduler.usage_half_life_ms;
        Ok(Decisions { policy, settings: self.scheduler.settings(), usage_half_life_ms })
    }

    /// What is expected to come: what the file says, or the requests of all its claims.
    fn mix(&self, dump: &Dump) -> Result<Mix> {
        let Some(entries) = &self.scheduler.mix else {
            return Ok(Mix::of(dump.claims.iter().map(|dumped| &dumped.claim.request)));
        };
        let mut requests = Vec::with_capacity(entries.len());
        for (number, entry) in entries.iter().enumerate() {
            let request = entry.request.to_request().with_context(|| format!("scheduler.mix[{number}].request"))?;
            ensure!(entry.count <= MIX_COUNT_MAX, "scheduler.mix[{number}].count: {MIX_COUNT_MAX} at most");
            requests.push((request, entry.count));
        }
        Ok(Mix::counted(requests))
    }

    /// The snapshot of a cluster for which a policy decides that knows a mix of tasks.
    ///
    /// # Errors
    /// If claims have no names that tell them apart.
    pub fn of_cluster(cluster: &Cluster, policy: PolicyName, seed: u64, mix: &Mix) -> Result<Self> {
        let entry = |(request, count): (&Request, u64)| MixEntry { count, request: RequestEntry::of(request) };
        let mix_entries = mix.requests().map(entry).collect();
        let entry = SchedulerEntry { policy, seed, mix: Some(mix_entries), ..SchedulerEntry::default() };
        let scheduler = Scheduler::new(policy.make(mix, seed), entry.settings());
        Self::of(entry, &scheduler.dump(cluster))
    }

    /// The snapshot of a later state, decided in the same way.
    ///
    /// # Errors
    /// If claims have no names that tell them apart.
    pub fn later(&self, scheduler: &Scheduler, cluster: &Cluster) -> Result<Self> {
        Self::of(self.scheduler.clone(), &scheduler.dump(cluster))
    }

    /// The snapshot as text, with a line for each node, queue, group and claim.
    ///
    /// # Errors
    /// Never, as far as we know: there is nothing in it that JSON cannot say.
    pub fn render(&self) -> Result<String> {
        let mut text = Vec::new();
        self.serialize(&mut Serializer::with_formatter(&mut text, EntryPerLine::default()))?;
        text.push(b'\n');
        Ok(String::from_utf8(text)?)
    }
}
