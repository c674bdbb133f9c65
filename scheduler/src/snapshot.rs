//! Snapshots: a cluster in a file, with its nodes, its pending and running claims, and the settings of the scheduler.
//!
//! The file is JSON and can also be written by hand: everything except the version and names can be left out, and
//! amounts have their unit in the key. An unknown key is an error, so that a typing error is not read as a default. A
//! snapshot that a running scheduler writes also has a `history`.

mod amount;
mod change;
mod constraints;
mod format;
mod layout;
mod live;
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

/// The greatest count of a request in a mix. Only the ratios of the counts matter.
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
            return Err(anyhow!("it is empty; the smallest snapshot is {{\"version\": 1}}"));
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let file = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let error = anyhow!("{}", error.into_inner());
            if path == "." { error } else { error.context(path) }
        })?;
        json.end().context("there is text after the end of the snapshot")?;
        Ok(file)
    }

    /// The cluster, with the scheduler that decides for it.
    ///
    /// # Errors
    /// If such a cluster is impossible; the error names the entry.
    pub fn restore(&self) -> Result<(Scheduler, Cluster)> {
        let dump = self.to_dump()?;
        let Decisions { policy, settings, .. } = self.decisions(&dump)?;
        Scheduler::restore(policy, settings, dump).map_err(|error| self.locate(error))
    }

    /// An engine that begins with the cluster. It has no delays: a cycle runs at the time of each change, and at any
    /// later time.
    ///
    /// # Errors
    /// If such a cluster is impossible; the error names the entry.
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

    /// The mix of claims that is expected: the one in the file, or the requests of all its claims.
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

    /// The snapshot of a cluster, with a policy that knows a mix of claims.
    ///
    /// # Errors
    /// If the names of claims are not unique.
    pub fn of_cluster(cluster: &Cluster, policy: PolicyName, seed: u64, mix: &Mix) -> Result<Self> {
        let entry = |(request, count): (&Request, u64)| MixEntry { count, request: RequestEntry::of(request) };
        let mix_entries = mix.requests().map(entry).collect();
        let entry = SchedulerEntry { policy, seed, mix: Some(mix_entries), ..SchedulerEntry::default() };
        let scheduler = Scheduler::new(policy.make(mix, seed), entry.settings());
        Self::of(entry, &scheduler.dump(cluster))
    }

    /// The snapshot of a later state, with the same settings.
    ///
    /// # Errors
    /// If the names of claims are not unique.
    pub fn later(&self, scheduler: &Scheduler, cluster: &Cluster) -> Result<Self> {
        Self::of(self.scheduler.clone(), &scheduler.dump(cluster))
    }

    /// The snapshot as text, with one line for each node, queue, group and claim.
    ///
    /// # Errors
    /// None in practice: JSON can represent everything in it.
    pub fn render(&self) -> Result<String> {
        let mut text = Vec::new();
        self.serialize(&mut Serializer::with_formatter(&mut text, EntryPerLine::default()))?;
        text.push(b'\n');
        Ok(String::from_utf8(text)?)
    }
}
