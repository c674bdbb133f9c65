//! The usage of queues: devices, CPU and memory.

use std::collections::BTreeMap;

use aliquot_scheduler_core::explain::ResourceReport;
use aliquot_scheduler_core::{QueueId, Resource};
use aliquot_scheduler_engine::View;

use crate::tier_word;

/// A queue, with all queues below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueUse {
    /// The name of the queue.
    pub name: String,
    /// The name of the queue above it.
    pub parent: Option<String>,
    /// How many queues are above it.
    pub depth: u32,
    /// Devices' time, in thousandths of a device.
    pub gpu: ResourceUse,
    /// What the queue's claims have held lately of the devices' time, in millionths of what there was.
    pub past_usage_ppm: u64,
    /// CPU, in thousandths of a core.
    pub cpu: ResourceUse,
    /// Memory of nodes, in bytes.
    pub memory: ResourceUse,
    /// Number of its running claims.
    pub running: u32,
    /// Number of its pod groups with pending claims. A single claim counts as a group.
    pub waiting: u32,
    /// The first of those in the order of turns.
    pub head: Option<Head>,
}

/// A queue's amounts of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceUse {
    /// The guaranteed amount; `None`: everything.
    pub quota: Option<u64>,
    /// The amount that is never exceeded; `None`: no limit.
    pub limit: Option<u64>,
    /// The fair share at this time; `None`: the resource is not shared out.
    pub fair_share: Option<u64>,
    /// The amount that the queue's claims hold.
    pub held: u64,
    /// The amount that its pending claims ask for.
    pub pending: u64,
}

impl Default for ResourceUse {
    /// Of a resource that a queue does not name and does not use.
    fn default() -> ResourceUse {
        ResourceUse { quota: Some(0), limit: None, fair_share: None, held: 0, pending: 0 }
    }
}

impl ResourceUse {
    fn of(resource: &Resource, reports: &[ResourceReport]) -> ResourceUse {
        let report = reports.iter().find(|report| report.resource == *resource);
        report.map_or_else(ResourceUse::default, |report| ResourceUse {
            quota: report.quota,
            limit: report.limit,
            fair_share: report.fair_share,
            held: report.held,
            pending: report.requested.saturating_sub(report.held),
        })
    }

    /// Whether the queue has a quota or a limit of the resource.
    #[must_use]
    pub fn is_allotted(&self) -> bool {
        self.quota != Some(0) || self.limit.is_some()
    }
}

/// A pod group that waits, or a single claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The name of the group, or of the claim.
    pub name: String,
    /// What it waits for, in the word of [`tier_word`].
    pub tier: &'static str,
    /// Why it waits, in a sentence.
    pub reason: String,
}

/// All queues, each before those below it.
#[must_use]
pub fn queue_uses(view: &View) -> Vec<QueueUse> {
    let cluster = view.cluster();
    let mut running: BTreeMap<QueueId, u32> = BTreeMap::new();
    for claim in view.running() {
        let group = cluster.group_of(claim).and_then(|group| cluster.group(group));
        let mut queue = group.map(|group| group.queue());
        while let Some((id, of)) = queue.and_then(|id| Some((id, cluster.queue(id)?))) {
            *running.entry(id).or_default() += 1;
            queue = of.parent();
        }
    }
    let uses = view.queues().into_iter().map(|report| {
        let id = cluster.queue_named(&report.queue);
        let spec = id.and_then(|id| cluster.queue(id)).map(|queue| queue.spec());
        let time = report.resources.iter().find(|of| of.resource == Resource::DeviceCore);
        QueueUse {
            parent: spec.and_then(|spec| spec.parent.clone()),
            depth: report.depth,
            gpu: ResourceUse::of(&Resource::DeviceCore, &report.resources),
            past_usage_ppm: time.map_or(0, |of| of.past_usage_ppm),
            cpu: ResourceUse::of(&Resource::Cpu, &report.resources),
            memory: ResourceUse::of(&Resource::Memory, &report.resources),
            running: id.and_then(|id| running.get(&id)).copied().unwrap_or(0),
            waiting: report.waiting,
            head: report.head.map(|(name, reason)| Head {
                name,
                tier: tier_word(reason.tier()),
                reason: reason.to_string(),
            }),
            name: report.queue,
        }
    });
    uses.collect()
}
