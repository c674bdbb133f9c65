//! Claims and pod groups.

use aliquot_scheduler_core::explain::Share;
use aliquot_scheduler_core::{
    Claim, DumpedClaim, DumpedDisplacement, DumpedPlace, GroupPlacement, LastEviction, PlacementStrategy, PodGroup,
    PriorityClass, SubGroup,
};
use anyhow::{Context, Result};

use crate::snapshot::format::{
    ClaimEntry, EvictedEntry, GroupEntry, PRIORITY, PodGroupEntry, PriorityName, ShareEntry, Strategy,
};
use crate::snapshot::read::Expanded;
use crate::snapshot::read::names::{Names, split_name};

/// The priority of an entry with these values, and whether it may be evicted.
fn standing(class: Option<PriorityName>, priority: Option<i32>, preemptible: Option<bool>) -> (i32, bool) {
    let priority = priority.or(class.map(|PriorityName(class)| class.value())).unwrap_or(PRIORITY);
    (priority, PriorityClass::is_preemptible(priority, preemptible))
}

impl PodGroupEntry {
    pub(super) fn to_spec(&self, namespace: String, all_members: u32) -> PodGroup {
        let (priority, preemptible) = standing(self.priority_class, self.priority, self.preemptible);
        let sub_groups = self.sub_groups.iter().map(|entry| SubGroup {
            name: entry.name.clone(),
            min_members: entry.min_members,
            required_level: entry.required_level.clone(),
            preferred_level: entry.preferred_level.clone(),
        });
        PodGroup {
            name: self.name.clone(),
            namespace,
            queue: self.queue.clone(),
            priority,
            preemptible,
            min_runtime_ms: self.min_runtime_ms,
            preemption_delay_ms: self.preemption_delay_ms,
            staleness_grace_ms: self.staleness_grace_ms,
            min_members: self.min_members.unwrap_or(all_members),
            sub_groups: sub_groups.collect(),
            spread: GroupPlacement {
                strategy: match self.strategy {
                    Strategy::BestFit => PlacementStrategy::BestFit,
                    Strategy::SpreadEvenly => PlacementStrategy::SpreadEvenly,
                    Strategy::SingleNode => PlacementStrategy::SingleNode,
                },
                required_level: self.required_level.clone(),
                preferred_level: self.preferred_level.clone(),
                max_devices_per_node: self.max_gpus_per_node,
            },
        }
    }
}

impl ClaimEntry {
    pub(super) fn to_dumped(&self, expanded: &Expanded<'_>, names: &Names) -> Result<DumpedClaim> {
        let (priority, preemptible) = standing(self.priority_class, self.priority, self.preemptible);
        let claim = Claim {
            name: expanded.name.clone(),
            request: self.request.to_request().context("request")?,
            namespace: expanded.namespace.clone(),
            queue: self.queue.clone(),
            priority,
            preemptible,
            immovable: self.immovable,
            min_runtime_ms: self.min_runtime_ms,
            pod_group: self.pod_group.clone(),
            sub_group: self.sub_group.clone(),
            disruption_budget: self.disruption_budget.clone(),
        };
        let mut dumped = DumpedClaim {
            claim: claim.into(),
            added_ms: self.added_ms,
            last_eviction: self.last_eviction.as_ref().map(|entry| LastEviction {
                ran_since_ms: entry.ran_since_ms,
                refusals: entry.refusals,
                left_alone_until_ms: entry.left_alone_until_ms,
            }),
            withdrawn: self.withdrawn,
            failures: self.failures,
            retry_at_ms: self.retry_at_ms,
            ..DumpedClaim::default()
        };
        if let Some(placed) = &self.placed {
            let place = names.place(&placed.node, &placed.gpus, placed.alternative).context("placed")?;
            dumped.place = Some(DumpedPlace { over_committed: placed.over_committed, ..place });
            let starts_after: Result<_> = placed.starts_after.iter().map(|name| names.claim(name)).collect();
            dumped.starts_after = starts_after.context("placed.starts_after")?;
            let runs = dumped.starts_after.is_empty();
            dumped.started_ms = runs.then(|| placed.since_ms.unwrap_or(self.added_ms));
        }
        if let Some(leaving) = &self.leaving {
            dumped.leaving = Some(names.place(&leaving.node, &leaving.gpus, leaving.alternative).context("leaving")?);
        }
        let displaced = self.evicted.as_ref().map(|evicted| evicted.to_dumped(names)).transpose();
        dumped.displaced = displaced.context("evicted")?;
        Ok(dumped)
    }
}

impl EvictedEntry {
    fn to_dumped(&self, names: &Names) -> Result<DumpedDisplacement> {
        let by_name = match (&self.by, self.by_name.as_str()) {
            (Some(GroupEntry::Claim(name) | GroupEntry::PodGroup(name)), "") => split_name(name).1,
            (_, name) => name.to_owned(),
        };
        let by = self.by.as_ref().map(|by| names.group(by)).transpose()?;
        let share = |entry: &ShareEntry| -> Result<Share> {
            Ok(Share {
                queue: entry.queue.clone(),
                resource: entry.resource.resource.clone(),
                held: entry.resource.amount(entry.held)?,
                asked: entry.resource.amount(entry.asked)?,
                fair_share: entry.resource.amount(entry.fair_share)?,
            })
        };
        let shares: Result<Vec<Share>> = self.shares.iter().map(share).collect();
        Ok(DumpedDisplacement { action: self.action, by, by_name, at_ms: self.at_ms, shares: shares? })
    }
}
