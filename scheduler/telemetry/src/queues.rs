//! The GPU usage of queues.

use std::collections::BTreeMap;

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
    /// The guaranteed amount, in thousandths of a device; `None`: all devices.
    pub quota_gpu_millis: Option<u64>,
    /// The amount that is never exceeded, in thousandths of a device; `None`: no limit.
    pub limit_gpu_millis: Option<u64>,
    /// The fair share at this time, in thousandths of a device; `None`: nothing is shared out.
    pub fair_share_gpu_millis: Option<u64>,
    /// What the queue's claims have held lately of the devices' time, in millionths of what there was.
    pub past_usage_ppm: u64,
    /// The amount that the queue's claims hold, in thousandths of a device.
    pub held_gpu_millis: u64,
    /// The amount that its pending claims ask for, in thousandths of a device.
    pub pending_gpu_millis: u64,
    /// Number of its running claims.
    pub running: u32,
    /// Number of its pod groups with pending claims. A single claim counts as a group.
    pub waiting: u32,
    /// The first of those in the order of turns.
    pub head: Option<Head>,
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
        let allowance = spec.and_then(|spec| spec.allowances.get(&Resource::DeviceCore));
        QueueUse {
            parent: spec.and_then(|spec| spec.parent.clone()),
            depth: report.depth,
            quota_gpu_millis: allowance.and_then(|allowance| allowance.quota),
            limit_gpu_millis: allowance.and_then(|allowance| allowance.limit),
            fair_share_gpu_millis: time.and_then(|of| of.fair_share),
            past_usage_ppm: time.map_or(0, |of| of.past_usage_ppm),
            held_gpu_millis: time.map_or(0, |of| of.held),
            pending_gpu_millis: time.map_or(0, |of| of.requested.saturating_sub(of.held)),
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
