//! Converts the entries of a file to a state.

mod claim;
mod names;
mod node;
mod queue;

use std::collections::BTreeMap;

use aliquot_scheduler_core::{
    DisruptionBudget, Dump, DumpEntry, DumpedBlocked, DumpedBounded, DumpedGroup, DumpedKeeping, DumpedNode,
    DumpedPatience, DumpedSearch, DumpedTurnover, EventError, NodeSpec, QueueError, RestoreError, RestoreReason,
    Settings,
};
use anyhow::{Context, Result, bail, ensure};

use crate::snapshot::format::{
    BoundedEntry, ClaimEntry, File, NAMESPACE, NamespaceEntry, PatienceEntry, SchedulerEntry, VERSION,
};
use names::Names;
pub(crate) use names::split_name;

/// The most claims that a file may stand for by `count`: a typing error should not fill the machine's memory.
const CLAIMS_MAX: usize = 2_000_000;
/// The most nodes. Each of them takes much more time and memory than a claim.
const NODES_MAX: usize = 100_000;

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
            let numbers =
                |nodes: &[String]| -> Result<Vec<usize>> { nodes.iter().map(|node| names.node(node)).collect() };
            let PatienceEntry { claims, since_ms, times, given_up } = &blocked.patience;
            let (claims, since_ms, times, given_up) = (*claims, *since_ms, *times, numbers(given_up)?);
            Ok(DumpedBlocked {
                group: names.group(&blocked.who)?,
                since_ms: blocked.since_ms,
                nodes: numbers(&blocked.nodes)?,
                patience: DumpedPatience { claims, since_ms, times, given_up },
            })
        })?;
        let bounded =
            each(&self.history.bounded, "history.bounded", |BoundedEntry { who, since_ms, times, keeping }| {
                let keeping = keeping.as_ref().map(|keeping| DumpedKeeping {
                    queues: keeping.queues.clone(),
                    excess_per_mille: keeping.excess_per_mille,
                    since_ms: keeping.since_ms,
                    is_entitled: keeping.is_entitled,
                });
                Ok(DumpedBounded { group: names.group(who)?, since_ms: *since_ms, times: *times, keeping })
            })?;
        let searches = each(&self.history.searches, "history.searches", |search| {
            let node = search.node.as_ref().map(|node| names.node(node)).transpose()?;
            let group = names.group(&search.who)?;
            Ok(DumpedSearch { action: search.action, group, node, times: search.times })
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
            models: self.history.models.clone(),
            capacity: self.history.capacity.to_dumped(),
            turnover: DumpedTurnover { ended: self.history.turnover.ended, eighths: self.history.turnover.eighths },
            topology: self.topology.clone(),
            nodes,
            queues,
            namespaces: each(&self.namespaces, "namespaces", NamespaceEntry::to_spec)?,
            budgets,
            groups,
            claims: each_claim(&claims, |entry, name| entry.to_dumped(name, &names))?,
            blocked,
            bounded,
            searches,
        })
    }

    fn read_nodes(&self, names: &mut Names) -> Result<Vec<DumpedNode>> {
        let mut nodes = Vec::new();
        for (number, entry) in self.nodes.iter().enumerate() {
            let spec = entry.to_spec().with_context(|| format!("nodes[{number}] {:?}", entry.name))?;
            for name in numbered(&entry.name, entry.count, nodes.len(), NODES_MAX)
                .with_context(|| format!("nodes[{number}]"))?
            {
                names.nodes.insert(name.clone(), nodes.len());
                nodes.push(DumpedNode { spec: NodeSpec { name, ..spec.clone() }, held: entry.held });
            }
        }
        Ok(nodes)
    }

    /// The claims, each with its own name.
    fn expand_claims(&self, names: &mut Names) -> Result<Vec<Expanded<'_>>> {
        let mut claims = Vec::new();
        for (number, entry) in self.claims.iter().enumerate() {
            let mut expand = || {
                let namespace = namespaced(entry.namespace.as_deref(), &entry.name)?;
                ensure!(
                    entry.count.is_none() || (entry.placed.is_none() && entry.leaving.is_none()),
                    "\"count\" is only for waiting claims; write placed claims one by one"
                );
                for name in numbered(&entry.name, entry.count, claims.len(), CLAIMS_MAX)? {
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

    /// Adds to an error of the core where in the file its cause is.
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
            DumpEntry::Bounded(number) => format!("history.bounded[{number}]"),
            DumpEntry::Search(number) => format!("history.searches[{number}]"),
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

    /// The path of the file's entry that became the entry of this number, where an entry can stand for several.
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

/// A claim with its own name, and the number of the entry in the file that it comes from.
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

/// The names that an entry stands for. The list may have at most `most` names, and `others` come before these.
fn numbered(name: &str, count: Option<u32>, others: usize, most: usize) -> Result<Vec<String>> {
    ensure!(!name.is_empty(), "it has no name; give it one by \"name\"");
    let Some(count) = count else { return Ok(vec![name.to_owned()]) };
    ensure!(
        others.saturating_add(count as usize) <= most,
        "\"count\": {count} makes the list longer than {most} entries, which is the maximum; give a smaller count"
    );
    Ok((0..count).map(|number| format!("{name}-{number}")).collect())
}

/// The namespace of an entry. The entry's name must not look like one with a namespace.
fn namespaced(namespace: Option<&str>, name: &str) -> Result<String> {
    ensure!(!name.is_empty(), "it has no name; give it one by \"name\"");
    ensure!(!name.contains('/'), "the name {name:?} has a slash; name the namespace by \"namespace\"");
    Ok(namespace.unwrap_or(NAMESPACE).to_owned())
}

impl SchedulerEntry {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            usage_weight: self.usage_weight_per_mille,
            disruption_per_mille: self.disruption_per_mille,
            search_budget: self.search_budget,
            search_budget_per_cycle: self.search_budget_per_cycle,
            moves_per_cycle: self.moves_per_cycle,
            hold_after_ms: self.hold_after_ms,
            held_nodes_per_mille: self.held_nodes_per_mille,
            counts_mix: false,
        }
    }
}
