//! Queues and namespaces.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{
    Allowance, ClaimBounds, DumpedQueue, DumpedUsage, LimitRange, NamespaceSpec, QueueSpec, Resource,
};
use anyhow::{Context, Result, bail, ensure};

use crate::snapshot::amount::ResourceKey;
use crate::snapshot::format::{BoundsEntry, NamespaceEntry, QueueEntry, UsageEntry};

impl QueueEntry {
    pub(super) fn to_dumped(&self) -> Result<DumpedQueue> {
        ensure!(!self.name.is_empty(), "it has no name; give it one by \"name\"");
        let mut allowances = BTreeMap::new();
        for (key, entry) in &self.resources {
            let in_smallest = |amount: Option<u64>| {
                amount.map(|amount| key.amount(amount)).transpose().with_context(|| format!("resources.{key}"))
            };
            let allowance = Allowance {
                quota: in_smallest(entry.quota)?,
                limit: in_smallest(entry.limit)?,
                weight: entry.weight,
                priority: entry.priority,
            };
            if allowances.insert(key.resource.clone(), allowance).is_some() {
                bail!("resources.{key}: the same resource is named in another unit; name it once");
            }
        }
        Ok(DumpedQueue {
            spec: QueueSpec {
                name: self.name.clone(),
                parent: self.parent.clone(),
                priority: self.priority,
                allowances,
                preempt_min_runtime_ms: self.preempt_min_runtime_ms,
                reclaim_min_runtime_ms: self.reclaim_min_runtime_ms,
            },
            usage: self.used.to_dumped(),
        })
    }
}

impl NamespaceEntry {
    pub(super) fn to_spec(&self) -> Result<NamespaceSpec> {
        ensure!(!self.name.is_empty(), "it has no name; give it one by \"name\"");
        let mut limit_range = LimitRange::default();
        for (key, entry) in &self.per_claim {
            let scaled = |amount: Option<u64>| amount.map(|amount| key.amount(amount)).transpose();
            let bounds = || -> Result<ClaimBounds> {
                let BoundsEntry { default, minimum, maximum } = *entry;
                Ok(ClaimBounds { default: scaled(default)?, minimum: scaled(minimum)?, maximum: scaled(maximum)? })
            };
            let bounds = bounds().with_context(|| format!("per_claim.{key}"))?;
            let place = match &key.resource {
                Resource::Cpu => &mut limit_range.cpu,
                Resource::Memory => &mut limit_range.memory,
                Resource::DeviceCore => &mut limit_range.device_core,
                Resource::DeviceMemory => &mut limit_range.device_memory,
                Resource::ModelCore(_) => {
                    bail!("per_claim.{key}: a claim's bounds are for GPUs of any model; leave the model out")
                }
            };
            ensure!(
                *place == ClaimBounds::default(),
                "per_claim.{key}: the same resource is named in another unit; name it once"
            );
            *place = bounds;
        }
        Ok(NamespaceSpec {
            name: self.name.clone(),
            queue: self.queue.clone(),
            guaranteed: ResourceKey::amounts(&self.guaranteed).context("guaranteed")?,
            limit: ResourceKey::amounts(&self.limit).context("limit")?,
            limit_range,
        })
    }
}

impl UsageEntry {
    pub(super) fn to_dumped(&self) -> DumpedUsage {
        let scaled = |(key, integral): (&ResourceKey, &u128)| {
            (key.resource.clone(), integral.saturating_mul(u128::from(key.unit)))
        };
        DumpedUsage { until_ms: self.until_ms, integrals: self.integrals.iter().map(scaled).collect() }
    }
}
