//! From a file's entries to a state.

use std::collections::BTreeMap;

use aliquot_scheduler_core::explain::Share;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimBounds, DeviceSpec, DisruptionBudget, Dump, DumpEntry, DumpedBlocked, DumpedClaim,
    DumpedDisplacement, DumpedGroup, DumpedGroupRef, DumpedModel, DumpedNode, DumpedPlace, DumpedQueue, DumpedUsage,
    EventError, GroupPlacement, Health, LimitRange, MilliCpu, NamespaceSpec, NodeSpec, PlacementStrategy, PodGroup,
    QueueError, QueueSpec, Resource, RestoreError, RestoreReason, Settings, SubGroup,
};
use anyhow::{Context, Result, bail, ensure};

use crate::snapshot::amount::{ResourceKey, memory};
use crate::snapshot::format::{
    BoundsEntry, ClaimEntry, EvictedEntry, File, GpuEntry, GroupEntry, ModelEntry, NAMESPACE, NamespaceEntry,
    NodeEntry, PRIORITY, PodGroupEntry, PriorityClass, QueueEntry, SchedulerEntry, ShareEntry, Strategy, TaintEntry,
    UsageEntry, VERSION,
};

/// What `count` may be at most, in all entries of a list together: a typing error should not fill the machine's memory.
const ENTRIES_MAX: usize = 2_000_000;
/// GPUs of a node.
const GPUS_MAX: u16 = 1024;

/// Where each name stands in its list.
#[derive(Default)]
struct Names {
    nodes: BTreeMap<String, usize>,
    /// By namespace and name.
    groups: BTreeMap<(String, String), usize>,
    claims: BTreeMap<(String, String), usize>,
}

impl File {
    /// The state that the file describes.
    pub(super) fn to_dump(&self) -> Result<Dump> {
        match self.version {
            VERSION => {}
            0 => bail!("the file does not say its version; write \"version\": {VERSION}"),
            other => bail!("version {other} is not understood; this program reads version {VERSION}"),
        }
        let mut names = Names::default();
        let mut nodes = self.read_nodes(&mut names)?;
        let queues = each(&self.queues, "queues", |queue| queue.to_dumped())?;
        let budgets = each(&self.disruption_budgets, "disruption_budgets", |budget| {
            let namespace = namespaced(budget.namespace.as_deref(), &budget.name)?;
            Ok(DisruptionBudget { name: budget.name.clone(), namespace, min_available: budget.min_available })
        })?;
        for (number, group) in self.pod_groups.iter().enumerate() {
            let namespace = namespaced(group.namespace.as_deref(), &group.name);
            let key = (namespace.with_context(|| format!("pod_groups[{number}]"))?, group.name.clone());
            names.groups.insert(key, number);
        }
        let claims = self.expand_claims(&mut names)?;
        let groups = self.read_groups(&claims)?;
        let blocked = each(&self.history.blocked, "history.blocked", |blocked| {
            let nodes: Result<Vec<usize>> = blocked.nodes.iter().map(|node| names.node(node)).collect();
            Ok(DumpedBlocked { group: names.group(&blocked.who)?, since_ms: blocked.since_ms, nodes: nodes? })
        })?;
        for node in blocked.iter().flat_map(|blocked| &blocked.nodes) {
            if let Some(node) = nodes.get_mut(*node) {
                node.held = true;
            }
        }
        Ok(Dump {
            arrivals: None,
            now_ms: self.now_ms,
            usage_half_life_ms: self.scheduler.usage_half_life_ms,
            models: self.history.models.iter().map(model).collect(),
            capacity: self.history.capacity.to_dumped(),
            topology: self.topology.clone(),
            nodes,
            queues,
            namespaces: each(&self.namespaces, "namespaces", NamespaceEntry::to_spec)?,
            budgets,
            groups,
            claims: each_claim(&claims, |entry, name| entry.to_dumped(name, &names))?,
            blocked,
        })
    }

    fn read_nodes(&self, names: &mut Names) -> Result<Vec<DumpedNode>> {
        let mut nodes = Vec::new();
        for (number, entry) in self.nodes.iter().enumerate() {
            let spec = entry.to_spec().with_context(|| format!("nodes[{number}] {:?}", entry.name))?;
            for name in numbered(&entry.name, entry.count, nodes.len()).with_context(|| format!("nodes[{number}]"))? {
                names.nodes.insert(name.clone(), nodes.len());
                nodes.push(DumpedNode { spec: NodeSpec { name, ..spec.clone() }, held: entry.held });
            }
        }
        Ok(nodes)
    }

    /// The claims, each under its own name.
    fn expand_claims(&self, names: &mut Names) -> Result<Vec<Expanded<'_>>> {
        let mut claims = Vec::new();
        for (number, entry) in self.claims.iter().enumerate() {
            let mut expand = || {
                let namespace = namespaced(entry.namespace.as_deref(), &entry.name)?;
                ensure!(
                    entry.count.is_none() || (entry.placed.is_none() && entry.leaving.is_none()),
                    "\"count\" stands for claims that wait; write those that are placed one by one"
                );
                for name in numbered(&entry.name, entry.count, claims.len())? {
                    let key = (namespace.clone(), name.clone());
                    if let Some(first) = names.claims.insert(key, claims.len()) {
                        let first = claims.get(first).map_or(number, |first: &Expanded<'_>| first.number);
                        bail!("claims[{first}] has the same namespace and name, {name:?}; give each its own");
                    }
                    claims.push(Expanded { number, entry, name, namespace: namespace.clone() });
                }
                Ok(())
            };
            expand().with_context(|| format!("claims[{number}]"))?;
        }
        Ok(claims)
    }

    fn read_groups(&self, claims: &[Expanded<'_>]) -> Result<Vec<DumpedGroup>> {
        let mut members: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for claim in claims {
            if let Some(group) = &claim.entry.pod_group {
                *members.entry((&claim.namespace, group)).or_default() += 1;
            }
        }
        each(&self.pod_groups, "pod_groups", |entry| {
            let namespace = namespaced(entry.namespace.as_deref(), &entry.name)?;
            let all = members.get(&(&namespace[..], &entry.name[..])).copied().unwrap_or(0);
            Ok(DumpedGroup {
                spec: entry.to_spec(namespace, all),
                after_claims: entry.after_claims,
                added_ms: entry.added_ms,
                stale_since_ms: entry.stale_since_ms,
            })
        })
    }

    /// Says where in the file it stands what the core refuses.
    pub(super) fn locate(&self, error: RestoreError) -> anyhow::Error {
        let place = match error.entry {
            DumpEntry::Topology => "topology".to_owned(),
            DumpEntry::Node(number) => {
                self.path("nodes", number, self.nodes.iter().map(|node| (&node.name, node.count)))
            }
            DumpEntry::Queue(number) => {
                self.path("queues", number, self.queues.iter().map(|queue| (&queue.name, None)))
            }
            DumpEntry::Namespace(number) => {
                self.path("namespaces", number, self.namespaces.iter().map(|namespace| (&namespace.name, None)))
            }
            DumpEntry::Group(number) => {
                self.path("pod_groups", number, self.pod_groups.iter().map(|group| (&group.name, None)))
            }
            DumpEntry::Claim(number) => {
                self.path("claims", number, self.claims.iter().map(|claim| (&claim.name, claim.count)))
            }
            DumpEntry::Blocked(number) => format!("history.blocked[{number}]"),
        };
        let reason = match error.reason {
            RestoreReason::Event(EventError::Queue(QueueError::Unknown(name))) => anyhow::anyhow!(
                "there is no queue {name:?} before it; the queues are listed under \"queues\", parents before their \
                 children"
            ),
            RestoreReason::Event(EventError::UnknownGroup { namespace, name }) => anyhow::anyhow!(
                "namespace {namespace:?} has no pod group {name:?} before it; pod groups are listed under \
                 \"pod_groups\""
            ),
            reason => anyhow::Error::from(reason),
        };
        reason.context(place)
    }

    /// The path of what became the entry of this number, when some of the file's stand for several.
    fn path<'a>(&self, list: &str, number: usize, entries: impl Iterator<Item = (&'a String, Option<u32>)>) -> String {
        let mut left = number;
        for (index, (name, count)) in entries.enumerate() {
            let count = count.map_or(1, |count| count as usize);
            if left < count {
                return format!("{list}[{index}] {name:?}");
            }
            left -= count;
        }
        list.to_owned()
    }
}

/// A claim under its own name, with the number of the entry that it stands in.
struct Expanded<'a> {
    number: usize,
    entry: &'a ClaimEntry,
    name: String,
    namespace: String,
}

fn each<E, T>(entries: &[E], list: &str, read: impl Fn(&E) -> Result<T>) -> Result<Vec<T>> {
    let with_path = |(number, entry)| read(entry).with_context(|| format!("{list}[{number}]"));
    entries.iter().enumerate().map(with_path).collect()
}

fn each_claim<T>(claims: &[Expanded<'_>], read: impl Fn(&ClaimEntry, &Expanded<'_>) -> Result<T>) -> Result<Vec<T>> {
    let read = |claim: &Expanded<'_>| {
        read(claim.entry, claim).with_context(|| format!("claims[{}] {:?}", claim.number, claim.entry.name))
    };
    claims.iter().map(read).collect()
}

/// The names that an entry stands for, when there are so many others before it.
fn numbered(name: &str, count: Option<u32>, others: usize) -> Result<Vec<String>> {
    ensure!(!name.is_empty(), "it has no name; give it one by \"name\"");
    let Some(count) = count else { return Ok(vec![name.to_owned()]) };
    ensure!(
        others.saturating_add(count as usize) <= ENTRIES_MAX,
        "\"count\": {count} makes the list longer than {ENTRIES_MAX}; say less"
    );
    Ok((0..count).map(|number| format!("{name}-{number}")).collect())
}

/// The namespace of an entry, whose name must not be taken for one with a namespace.
fn namespaced(namespace: Option<&str>, name: &str) -> Result<String> {
    ensure!(!name.is_empty(), "it has no name; give it one by \"name\"");
    ensure!(!name.contains('/'), "the name {name:?} has a slash; name the namespace by \"namespace\"");
    Ok(namespace.unwrap_or(NAMESPACE).to_owned())
}

/// Splits `NAMESPACE/NAME`, or `NAME` in the namespace of who names none.
pub(crate) fn split_name(name: &str) -> (String, String) {
    let (namespace, name) = name.split_once('/').unwrap_or((NAMESPACE, name));
    (namespace.to_owned(), name.to_owned())
}

impl Names {
    fn node(&self, name: &str) -> Result<usize> {
        let known = self.nodes.get(name).copied();
        known.with_context(|| format!("there is no node {name:?}; nodes are listed under \"nodes\""))
    }

    fn claim(&self, name: &str) -> Result<usize> {
        let known = self.claims.get(&split_name(name)).copied();
        known.with_context(|| format!("there is no claim {name:?}; write NAME, or NAMESPACE/NAME"))
    }

    fn group(&self, group: &GroupEntry) -> Result<DumpedGroupRef> {
        match group {
            GroupEntry::Claim(name) => self.claim(name).map(DumpedGroupRef::Claim),
            GroupEntry::PodGroup(name) => {
                let known = self.groups.get(&split_name(name)).copied();
                let known =
                    known.with_context(|| format!("there is no pod group {name:?}; write NAME, or NAMESPACE/NAME"));
                known.map(DumpedGroupRef::Declared)
            }
        }
    }

    fn place(&self, node: &str, devices: &[u16]) -> Result<DumpedPlace> {
        Ok(DumpedPlace { node: self.node(node)?, devices: devices.to_vec() })
    }
}

impl SchedulerEntry {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            usage_weight: self.usage_weight_per_mille,
            disruption_per_mille: self.disruption_per_mille,
            search_budget: self.search_budget,
            moves_per_cycle: self.moves_per_cycle,
            hold_after_ms: self.hold_after_ms,
            held_nodes_per_mille: self.held_nodes_per_mille,
            counts_mix: false,
        }
    }
}

impl NodeEntry {
    fn to_spec(&self) -> Result<NodeSpec> {
        let mut devices = Vec::new();
        for (number, gpu) in self.gpus.iter().enumerate() {
            let device = gpu.to_spec().with_context(|| format!("gpus[{number}]"))?;
            let count = usize::from(gpu.count);
            ensure!(devices.len() + count <= usize::from(GPUS_MAX), "a node has {GPUS_MAX} GPUs at most");
            ensure!(
                count == 1 || gpu.uuid.is_empty(),
                "gpus[{number}]: a \"uuid\" names one GPU, and \"count\" is {count}"
            );
            devices.extend(std::iter::repeat_n(device, count));
        }
        Ok(NodeSpec {
            name: self.name.clone(),
            labels: self.labels.clone(),
            taints: self.taints.iter().map(TaintEntry::to_taint).collect(),
            cpu: MilliCpu::new(self.cpu_milli),
            memory: memory(self.memory_bytes, self.memory_gib)?,
            devices,
            cordoned: self.cordoned,
        })
    }
}

impl GpuEntry {
    fn to_spec(&self) -> Result<DeviceSpec> {
        Ok(DeviceSpec {
            uuid: self.uuid.clone(),
            model: self.model.clone(),
            memory: memory(self.memory_bytes, self.memory_gib)?,
            health: if self.unhealthy { Health::Unhealthy } else { Health::Healthy },
            nvlink_group: self.nvlink_group,
            switch: self.switch,
            numa: self.numa,
            attributes: self.attributes.clone(),
        })
    }
}

impl QueueEntry {
    fn to_dumped(&self) -> Result<DumpedQueue> {
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
    fn to_spec(&self) -> Result<NamespaceSpec> {
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
    fn to_dumped(&self) -> DumpedUsage {
        let scaled = |(key, integral): (&ResourceKey, &u128)| {
            (key.resource.clone(), integral.saturating_mul(u128::from(key.unit)))
        };
        DumpedUsage { until_ms: self.until_ms, integrals: self.integrals.iter().map(scaled).collect() }
    }
}

fn model(entry: &ModelEntry) -> DumpedModel {
    let memory = entry.memory_bytes.map(|(least, most)| (Bytes::new(least.min(most)), Bytes::new(least.max(most))));
    DumpedModel { name: entry.name.clone(), memory }
}

/// The priority, and whether it may be evicted, of who says this much about it.
fn standing(class: Option<PriorityClass>, priority: Option<i32>, preemptible: Option<bool>) -> (i32, bool) {
    let priority = priority.or(class.map(PriorityClass::value)).unwrap_or(PRIORITY);
    (priority, preemptible.unwrap_or(priority < PriorityClass::NON_PREEMPTIBLE))
}

impl PodGroupEntry {
    fn to_spec(&self, namespace: String, all_members: u32) -> PodGroup {
        let (priority, preemptible) = standing(self.priority_class, self.priority, self.preemptible);
        let sub_groups = self.sub_groups.iter().map(|entry| SubGroup {
            name: entry.name.clone(),
            min_members: entry.min_members,
            required_level: entry.required_level.clone(),
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
    fn to_dumped(&self, expanded: &Expanded<'_>, names: &Names) -> Result<DumpedClaim> {
        let (priority, preemptible) = standing(self.priority_class, self.priority, self.preemptible);
        let claim = Claim {
            name: expanded.name.clone(),
            request: self.request.to_request().context("request")?,
            namespace: expanded.namespace.clone(),
            queue: self.queue.clone(),
            priority,
            preemptible,
            min_runtime_ms: self.min_runtime_ms,
            pod_group: self.pod_group.clone(),
            sub_group: self.sub_group.clone(),
            disruption_budget: self.disruption_budget.clone(),
        };
        let mut dumped = DumpedClaim {
            claim,
            added_ms: self.added_ms,
            failures: self.failures,
            retry_at_ms: self.retry_at_ms,
            ..DumpedClaim::default()
        };
        if let Some(placed) = &self.placed {
            dumped.place = Some(names.place(&placed.node, &placed.gpus).context("placed")?);
            let starts_after: Result<_> = placed.starts_after.iter().map(|name| names.claim(name)).collect();
            dumped.starts_after = starts_after.context("placed.starts_after")?;
            let runs = dumped.starts_after.is_empty();
            dumped.started_ms = runs.then(|| placed.since_ms.unwrap_or(self.added_ms));
        }
        if let Some(leaving) = &self.leaving {
            dumped.leaving = Some(names.place(&leaving.node, &leaving.gpus).context("leaving")?);
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
