//! A report of all queues: what each holds, may hold and waits for.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::decisions::plan::{Pending, Plan};
use crate::decisions::scheduler::Scheduler;
use crate::decisions::shares::{Shares, usage_ppm};
use crate::explain::reason::Reason;
use crate::explain::sentence::Owner;
use crate::state::cluster::Cluster;
use crate::vocabulary::amount::{Amount, Count};
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::resource::Resource;

/// A report of one queue. Amounts and counts include those of all queues below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueReport {
    /// Its name.
    pub queue: String,
    /// How many queues are above it.
    pub depth: u32,
    /// Each resource that the queue names, holds or asks for.
    pub resources: Vec<ResourceReport>,
    /// The number of pod groups with pending members, single claims included.
    pub waiting: u32,
    /// The name of the pending group with the first turn, and why it waits.
    pub head: Option<(String, Reason)>,
}

/// What a queue has of a resource. All amounts are in the resource's unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceReport {
    /// The resource.
    pub resource: Resource,
    /// What its claims hold.
    pub held: u64,
    /// The part that is held by claims that may not be evicted.
    pub held_non_preemptible: u64,
    /// The most that its claims, placed or pending, can be charged.
    pub requested: u64,
    /// The fair share; `None`: the resource is not shared out, because no queue names it.
    pub fair_share: Option<u64>,
    /// Its quota; `None`: everything that there is.
    pub quota: Option<u64>,
    /// The most that it may hold; `None`: no limit.
    pub limit: Option<u64>,
    /// What its claims have held lately, in millionths of the capacity that there was. The settings say how much that
    /// counts against it.
    pub past_usage_ppm: u64,
}

impl Scheduler {
    /// Reports all queues after a cycle that made `plan`: each before the queues below it, and siblings by age.
    #[must_use]
    pub fn queue_reports(&self, cluster: &Cluster, plan: &Plan) -> Vec<QueueReport> {
        let shares = Shares::of(cluster, self.settings.usage_weight);
        let mut waiting: BTreeMap<QueueId, (u32, usize)> = BTreeMap::new();
        for (turn, pending) in plan.pending.iter().enumerate() {
            let Some(group) = cluster.group(pending.group) else { continue };
            for (queue, _) in cluster.queues().path(group.queue()) {
                waiting.entry(queue).or_insert((0, turn)).0 += 1;
            }
        }
        // The first group of a queue is mostly also the first of the queues above it.
        let mut heads: BTreeMap<usize, (String, Reason)> = BTreeMap::new();
        let mut reports = Vec::with_capacity(cluster.queues().len());
        let mut next: Vec<(QueueId, u32)> = cluster.queues().roots().iter().rev().map(|root| (*root, 0)).collect();
        while let Some((id, depth)) = next.pop() {
            let Some(queue) = cluster.queue(id) else { continue };
            next.extend(queue.children().iter().rev().map(|child| (*child, depth + 1)));
            let (count, head) = waiting.get(&id).copied().unzip();
            let head = head.and_then(|turn| Some((turn, plan.pending.get(turn)?)));
            let told = |pending: &Pending| (cluster.group_name(pending.group), pending.reason(cluster));
            reports.push(QueueReport {
                queue: queue.spec().name.clone(),
                depth,
                resources: resources(cluster, &shares, id),
                waiting: count.unwrap_or(0),
                head: head.map(|(turn, pending)| heads.entry(turn).or_insert_with(|| told(pending)).clone()),
            });
        }
        reports
    }
}

fn resources(cluster: &Cluster, shares: &Shares, id: QueueId) -> Vec<ResourceReport> {
    let Some(queue) = cluster.queue(id) else { return Vec::new() };
    let reports = (0..cluster.resources().len()).filter_map(|number| {
        let named = queue.named_allowance(number);
        let (held, requested) = (queue.allocated().get(number), queue.requested().get(number));
        if named.is_none() && held == 0 && requested == 0 {
            return None;
        }
        let allowance = queue.allowance(number);
        Some(ResourceReport {
            resource: cluster.resources().resource(number),
            held,
            held_non_preemptible: queue.allocated_non_preemptible().get(number),
            requested,
            fair_share: Some(shares.fair_share(id, number)).filter(|fair_share| *fair_share < u64::MAX),
            quota: allowance.quota,
            limit: allowance.limit,
            past_usage_ppm: usage_ppm(queue, number, cluster.capacity_used()),
        })
    });
    reports.collect()
}

impl Display for QueueReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let indent = "  ".repeat(usize::try_from(self.depth).unwrap_or(0));
        write!(f, "{indent}{}", Owner(&self.queue))?;
        for resource in &self.resources {
            write!(f, "\n{indent}  {resource}")?;
        }
        match &self.head {
            Some((name, reason)) => {
                write!(f, "\n{indent}  {}; the first is {name:?}: {reason}", Waiting(self.waiting))
            }
            None => write!(f, "\n{indent}  nothing waits"),
        }
    }
}

struct Waiting(u32);

impl Display for Waiting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", Count(self.0.into(), "pod group"), if self.0 == 1 { "waits" } else { "wait" })
    }
}

impl Display for ResourceReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let amount = |amount: u64| Amount(&self.resource, amount).to_string();
        write!(f, "holds {} of {} asked for", amount(self.held), amount(self.requested))?;
        if let Some(fair_share) = self.fair_share {
            write!(f, ", fair share {}", amount(fair_share))?;
        }
        match self.quota {
            Some(quota) => write!(f, ", quota {}", amount(quota))?,
            None => write!(f, ", quota everything")?,
        }
        match self.limit {
            Some(limit) => write!(f, ", limit {}", amount(limit)),
            None => Ok(()),
        }
    }
}
