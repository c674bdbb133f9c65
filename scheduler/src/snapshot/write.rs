//! Converts a state to the entries of a file.

use std::collections::BTreeMap;

use aliquot_scheduler_core::explain::Share;
use aliquot_scheduler_core::{
    Allowance, Claim, ClaimBounds, Dump, DumpedBounded, DumpedClaim, DumpedDisplacement, DumpedGroup, DumpedGroupRef,
    DumpedNode, DumpedPlace, DumpedQueue, DumpedUsage, Health, LimitRange, NamespaceSpec, PlacementStrategy,
    PriorityClass, Resource,
};
use anyhow::{Result, bail};

use crate::snapshot::amount::{ResourceKey, memory_entry};
use crate::snapshot::format::{
    AllowanceEntry, BlockedEntry, BoundedEntry, BoundsEntry, BudgetEntry, ClaimEntry, EvictedEntry, File, GpuEntry,
    GroupEntry, HistoryEntry, KeepingEntry, LastEvictionEntry, LeavingEntry, NAMESPACE, NamespaceEntry, NodeEntry,
    PRIORITY, PatienceEntry, PeersEntry, PlacedEntry, PodGroupEntry, QueueEntry, RequestEntry, SchedulerEntry,
    SearchEntry, ShareEntry, Strategy, SubGroupEntry, TaintEntry, TurnoverEntry, UsageEntry, VERSION,
};

impl File {
    /// The file that describes a state.
    ///
    /// # Errors
    /// If the names of two claims are the same, or a claim has no name.
    pub(super) fn of(scheduler: SchedulerEntry, dump: &Dump) -> Result<Self> {
        check_names(&dump.claims)?;
        let kept = |node: &usize| dump.blocked.iter().any(|blocked| blocked.nodes.contains(node));
        let node = |(number, node): (usize, &DumpedNode)| NodeEntry {
            held: node.held && !kept(&number),
            ..NodeEntry::of(node)
        };
        let blocked = dump.blocked.iter().map(|blocked| BlockedEntry {
            who: group(dump, blocked.group),
            since_ms: blocked.since_ms,
            nodes: blocked.nodes.iter().map(|number| node_name(dump, *number)).collect(),
            patience: PatienceEntry {
                claims: blocked.patience.claims,
                since_ms: blocked.patience.since_ms,
                times: blocked.patience.times,
                given_up: blocked.patience.given_up.iter().map(|number| node_name(dump, *number)).collect(),
            },
        });
        let bounded = dump.bounded.iter().map(|DumpedBounded { group: of, since_ms, times, keeping }| BoundedEntry {
            who: group(dump, *of),
            since_ms: *since_ms,
            times: *times,
            keeping: keeping.as_ref().map(|keeping| KeepingEntry {
                queues: keeping.queues.clone(),
                excess_per_mille: keeping.excess_per_mille,
                since_ms: keeping.since_ms,
                is_entitled: keeping.is_entitled,
            }),
        });
        let searches = dump.searches.iter().map(|search| SearchEntry {
            who: group(dump, search.group),
            action: search.action,
            node: search.node.map(|number| node_name(dump, number)),
            times: search.times,
        });
        let budget = |budget: &aliquot_scheduler_core::DisruptionBudget| BudgetEntry {
            name: budget.name.clone(),
            namespace: namespace(&budget.namespace),
            min_available: budget.min_available,
        };
        Ok(Self {
            version: VERSION,
            now_ms: dump.now_ms,
            scheduler,
            topology: dump.topology.clone(),
            nodes: dump.nodes.iter().enumerate().map(node).collect(),
            queues: dump.queues.iter().map(QueueEntry::of).collect(),
            namespaces: dump.namespaces.iter().map(NamespaceEntry::of).collect(),
            disruption_budgets: dump.budgets.iter().map(budget).collect(),
            pod_groups: dump.groups.iter().map(PodGroupEntry::of).collect(),
            claims: dump.claims.iter().map(|claim| ClaimEntry::of(dump, claim)).collect(),
            history: HistoryEntry {
                models: dump.models.clone(),
                capacity: UsageEntry::of(&dump.capacity),
                turnover: TurnoverEntry { ended: dump.turnover.ended, eighths: dump.turnover.eighths },
                blocked: blocked.collect(),
                bounded: bounded.collect(),
                searches: searches.collect(),
            },
        })
    }
}

fn check_names(claims: &[DumpedClaim]) -> Result<()> {
    let mut seen = BTreeMap::new();
    for (number, DumpedClaim { claim, .. }) in claims.iter().enumerate() {
        if claim.name.is_empty() || claim.name.contains('/') {
            bail!(
                "claim {number} is named {:?}; a snapshot needs names that are not empty and have no slash",
                claim.name
            );
        }
        if seen.insert((&claim.namespace, &claim.name), number).is_some() {
            bail!(
                "two claims of namespace {:?} are named {:?}; a snapshot needs different names",
                claim.namespace,
                claim.name
            );
        }
    }
    Ok(())
}

fn namespace(name: &str) -> Option<String> {
    (name != NAMESPACE).then(|| name.to_owned())
}

/// `NAMESPACE/NAME`; `NAME` alone in the default namespace.
pub(crate) fn full_name(namespace: &str, name: &str) -> String {
    if namespace == NAMESPACE { name.to_owned() } else { format!("{namespace}/{name}") }
}

fn node_name(dump: &Dump, number: usize) -> String {
    dump.nodes.get(number).map(|node| node.spec.name.clone()).unwrap_or_default()
}

fn claim_name(dump: &Dump, number: usize) -> String {
    dump.claims.get(number).map(|dumped| full_name(&dumped.claim.namespace, &dumped.claim.name)).unwrap_or_default()
}

fn group(dump: &Dump, group: DumpedGroupRef) -> GroupEntry {
    match group {
        DumpedGroupRef::Claim(number) => GroupEntry::Claim(claim_name(dump, number)),
        DumpedGroupRef::Declared(number) => {
            let spec = dump.groups.get(number).map(|group| &group.spec);
            GroupEntry::PodGroup(spec.map(|spec| full_name(&spec.namespace, &spec.name)).unwrap_or_default())
        }
    }
}

impl NodeEntry {
    fn of(node: &DumpedNode) -> Self {
        let spec = &node.spec;
        let (memory_bytes, memory_gib) = memory_entry(spec.memory);
        let mut gpus: Vec<GpuEntry> = Vec::new();
        for device in &spec.devices {
            let (memory_bytes, memory_gib) = memory_entry(device.memory);
            let entry = GpuEntry {
                model: device.model.clone(),
                count: 1,
                uuid: device.uuid.clone(),
                memory_bytes,
                memory_gib,
                memory_outside_bytes: device.memory_outside.get(),
                unhealthy: device.health == Health::Unhealthy,
                nvlink_group: device.nvlink_group,
                switch: device.switch,
                numa: device.numa,
                attributes: (&device.attributes).into(),
            };
            let same = |last: &&mut GpuEntry| GpuEntry { count: 1, ..(**last).clone() } == entry;
            match gpus.last_mut().filter(|_| device.uuid.is_empty()).filter(same) {
                Some(last) => last.count += 1,
                None => gpus.push(entry),
            }
        }
        Self {
            name: spec.name.clone(),
            count: None,
            cpu_milli: spec.cpu.get(),
            memory_bytes,
            memory_gib,
            gpus,
            labels: (&spec.labels).into(),
            taints: spec.taints.iter().map(TaintEntry::of).collect(),
            cordoned: spec.cordoned,
            counted: spec.counted.clone(),
            foreign: spec.foreign.iter().map(|peers| PeersEntry::of(peers)).collect(),
            held: node.held,
        }
    }
}

impl QueueEntry {
    fn of(queue: &DumpedQueue) -> Self {
        let spec = &queue.spec;
        let resources = spec.allowances.iter().map(|(resource, allowance)| {
            let Allowance { quota, limit, weight, priority } = *allowance;
            let amounts: Vec<u64> = [quota, limit].into_iter().flatten().collect();
            let key = ResourceKey::usual(resource.clone(), &amounts);
            let in_unit = |amount: Option<u64>| amount.map(|amount| amount / key.unit);
            let entry = AllowanceEntry { quota: in_unit(quota), limit: in_unit(limit), weight, priority };
            (key, entry)
        });
        Self {
            name: spec.name.clone(),
            parent: spec.parent.clone(),
            priority: spec.priority,
            preempt_min_runtime_ms: spec.preempt_min_runtime_ms,
            reclaim_min_runtime_ms: spec.reclaim_min_runtime_ms,
            resources: resources.collect(),
            used: UsageEntry::of(&queue.usage),
        }
    }
}

fn share(share: &Share) -> ShareEntry {
    ShareEntry {
        queue: share.queue.clone(),
        resource: ResourceKey::smallest(share.resource.clone()),
        held: share.held,
        asked: share.asked,
        fair_share: share.fair_share,
    }
}

impl NamespaceEntry {
    fn of(spec: &NamespaceSpec) -> Self {
        let amounts = |amounts: &BTreeMap<Resource, u64>| {
            let in_usual_unit = amounts.iter().map(|(resource, amount)| {
                let key = ResourceKey::usual(resource.clone(), &[*amount]);
                let amount = amount / key.unit;
                (key, amount)
            });
            in_usual_unit.collect()
        };
        let LimitRange { cpu, memory, device_core, device_memory } = spec.limit_range;
        let bounds = [
            (Resource::Cpu, cpu),
            (Resource::Memory, memory),
            (Resource::DeviceCore, device_core),
            (Resource::DeviceMemory, device_memory),
        ];
        let named = bounds.into_iter().filter(|(_, bounds)| *bounds != ClaimBounds::default());
        let per_claim = named.map(|(resource, ClaimBounds { default, minimum, maximum })| {
            let given: Vec<u64> = [default, minimum, maximum].into_iter().flatten().collect();
            let key = ResourceKey::usual(resource, &given);
            let in_unit = |amount: Option<u64>| amount.map(|amount| amount / key.unit);
            let entry = BoundsEntry { default: in_unit(default), minimum: in_unit(minimum), maximum: in_unit(maximum) };
            (key, entry)
        });
        Self {
            name: spec.name.clone(),
            queue: spec.queue.clone(),
            guaranteed: amounts(&spec.guaranteed),
            limit: amounts(&spec.limit),
            per_claim: per_claim.collect(),
        }
    }
}

impl UsageEntry {
    fn of(usage: &DumpedUsage) -> Self {
        let entry = |(resource, integral): &(_, u128)| (ResourceKey::smallest(Clone::clone(resource)), *integral);
        Self { until_ms: usage.until_ms, integrals: usage.integrals.iter().map(entry).collect() }
    }
}

/// The entries for a priority and whether it may be evicted. A usual value is left out.
fn standing(priority: i32, preemptible: bool) -> (Option<i32>, Option<bool>) {
    let usual = PriorityClass::is_preemptible(priority, None);
    ((priority != PRIORITY).then_some(priority), (preemptible != usual).then_some(preemptible))
}

impl PodGroupEntry {
    fn of(group: &DumpedGroup) -> Self {
        let spec = &group.spec;
        let (priority, preemptible) = standing(spec.priority, spec.preemptible);
        let sub_groups = spec.sub_groups.iter().map(|sub_group| SubGroupEntry {
            name: sub_group.name.clone(),
            min_members: sub_group.min_members,
            required_level: sub_group.required_level.clone(),
            preferred_level: sub_group.preferred_level.clone(),
        });
        Self {
            name: spec.name.clone(),
            namespace: namespace(&spec.namespace),
            queue: spec.queue.clone(),
            priority_class: None,
            priority,
            preemptible,
            min_runtime_ms: spec.min_runtime_ms,
            preemption_delay_ms: spec.preemption_delay_ms,
            staleness_grace_ms: spec.staleness_grace_ms,
            min_members: Some(spec.min_members),
            sub_groups: sub_groups.collect(),
            strategy: match spec.spread.strategy {
                PlacementStrategy::BestFit => Strategy::BestFit,
                PlacementStrategy::SpreadEvenly => Strategy::SpreadEvenly,
                PlacementStrategy::SingleNode => Strategy::SingleNode,
            },
            required_level: spec.spread.required_level.clone(),
            preferred_level: spec.spread.preferred_level.clone(),
            max_gpus_per_node: spec.spread.max_devices_per_node,
            after_claims: group.after_claims,
            added_ms: group.added_ms,
            stale_since_ms: group.stale_since_ms,
        }
    }
}

impl ClaimEntry {
    fn of(dump: &Dump, dumped: &DumpedClaim) -> Self {
        let Claim {
            name,
            request,
            namespace: of_namespace,
            queue,
            priority,
            preemptible,
            immovable,
            min_runtime_ms,
            pod_group,
            sub_group,
            disruption_budget,
        } = &*dumped.claim;
        let (priority, preemptible) = standing(*priority, *preemptible);
        let placed = |place: &DumpedPlace| PlacedEntry {
            node: node_name(dump, place.node),
            gpus: place.devices.clone(),
            alternative: place.alternative,
            since_ms: dumped.started_ms.filter(|since_ms| *since_ms != dumped.added_ms),
            starts_after: dumped.starts_after.iter().map(|number| claim_name(dump, *number)).collect(),
            over_committed: place.over_committed,
        };
        let leaving = |DumpedPlace { node, devices, alternative, .. }: &DumpedPlace| LeavingEntry {
            node: node_name(dump, *node),
            gpus: devices.clone(),
            alternative: *alternative,
        };
        let evicted = |displaced: &DumpedDisplacement| EvictedEntry {
            action: displaced.action,
            by: displaced.by.map(|by| group(dump, by)),
            by_name: displaced.by_name.clone(),
            at_ms: displaced.at_ms,
            shares: displaced.shares.iter().map(share).collect(),
        };
        Self {
            name: name.clone(),
            count: None,
            namespace: namespace(of_namespace),
            queue: queue.clone(),
            priority_class: None,
            priority,
            preemptible,
            immovable: *immovable,
            min_runtime_ms: *min_runtime_ms,
            pod_group: pod_group.clone(),
            sub_group: sub_group.clone(),
            disruption_budget: disruption_budget.clone(),
            request: RequestEntry::of(request),
            placed: dumped.place.as_ref().map(placed),
            leaving: dumped.leaving.as_ref().map(leaving),
            last_eviction: dumped.last_eviction.map(|last| LastEvictionEntry {
                ran_since_ms: last.ran_since_ms,
                refusals: last.refusals,
                left_alone_until_ms: last.left_alone_until_ms,
            }),
            withdrawn: dumped.withdrawn,
            evicted: dumped.displaced.as_ref().map(evicted),
            added_ms: dumped.added_ms,
            failures: dumped.failures,
            retry_at_ms: dumped.retry_at_ms,
        }
    }
}
