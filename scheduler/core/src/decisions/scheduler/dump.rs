//! Dumps a scheduler and its cluster as a value, and restores them from one.

use super::{Scheduler, Settings};
use crate::decisions::actions::Unfinished;
use crate::decisions::holds::{BoundWait, Keeping, Patience};
use crate::decisions::placement::Policy;
use crate::state::cluster::Cluster;
use crate::state::cluster::dump::Numbers;
use crate::vocabulary::dump::{
    Dump, DumpEntry, DumpedBlocked, DumpedBounded, DumpedKeeping, DumpedPatience, DumpedSearch, RestoreError,
    RestoreReason,
};
use crate::vocabulary::queue_spec::{QueueError, QueueId};

impl Scheduler {
    /// The state of a cluster, with what the scheduler remembers of it. What a policy remembers beyond the cluster's
    /// state, such as the state of its random numbers, is left out.
    #[must_use]
    pub fn dump(&self, cluster: &Cluster) -> Dump {
        let numbers = Numbers::of(cluster);
        Dump { claims: cluster.dump_claims(&numbers), ..self.dump_numbered(cluster, &numbers) }
    }

    /// The same dump without the claims, which are most of it. References to claims use the numbers that the claims
    /// would have: their positions in the order of their ids.
    #[must_use]
    pub fn dump_without_claims(&self, cluster: &Cluster) -> Dump {
        self.dump_numbered(cluster, &Numbers::of(cluster))
    }

    fn dump_numbered(&self, cluster: &Cluster, numbers: &Numbers) -> Dump {
        let blocked = self.holds.blocked().filter_map(|(group, since_ms)| {
            let nodes = self.holds.of(group).filter_map(|node| numbers.node(node)).collect();
            let patience = |Patience { claims, since_ms, times, given_up }: &Patience| DumpedPatience {
                claims: *claims,
                since_ms: *since_ms,
                times: *times,
                given_up: given_up.iter().filter_map(|node| numbers.node(*node)).collect(),
            };
            let patience = self.holds.patience(group).map(patience).unwrap_or_default();
            Some(DumpedBlocked { group: numbers.group(cluster, group)?, since_ms, nodes, patience })
        });
        let searches = self.memory.iter().filter_map(|unfinished| {
            let Unfinished { action, group, at, times } = *unfinished;
            let node = at.and_then(|at| numbers.node_from(at));
            Some(DumpedSearch { action, group: numbers.group(cluster, group)?, node, times })
        });
        let bounded = self.holds.bounds.waits().filter_map(|(group, wait)| {
            let name = |queue: &QueueId| Some(cluster.queue(*queue)?.spec().name.clone());
            let keeping = wait.keeping.as_ref().map(|keeping| DumpedKeeping {
                queues: keeping.queues.iter().filter_map(name).collect(),
                excess_per_mille: keeping.excess_per_mille,
                since_ms: keeping.since_ms,
                is_entitled: keeping.is_entitled,
            });
            let group = numbers.group(cluster, group)?;
            Some(DumpedBounded { group, since_ms: wait.since_ms, times: wait.times, keeping })
        });
        let mut dump = Dump {
            blocked: blocked.collect(),
            bounded: bounded.collect(),
            searches: searches.collect(),
            ..cluster.dump_without_claims(numbers)
        };
        // Nodes that are kept for a group that is gone are opened at the beginning of the next cycle, so the dump opens
        // them.
        for (node, _) in self.holds.kept().filter(|(_, group)| cluster.group(*group).is_none()) {
            let node = numbers.node(node).and_then(|number| dump.nodes.get_mut(number));
            node.into_iter().for_each(|node| node.held = false);
        }
        dump
    }

    /// Restores a cluster, and a scheduler that continues with it.
    ///
    /// # Errors
    /// If the dump cannot be restored. The error names the entry that contradicts the entries before it.
    pub fn restore(
        policy: Box<dyn Policy>,
        settings: Settings,
        mut dump: Dump,
    ) -> Result<(Self, Cluster), RestoreError> {
        let (blocked, searches) = (std::mem::take(&mut dump.blocked), std::mem::take(&mut dump.searches));
        let bounded = std::mem::take(&mut dump.bounded);
        let restored = Cluster::restore_numbered(dump)?;
        let mut scheduler = Self::new(policy, settings);
        for (number, DumpedBlocked { group, since_ms, nodes: kept, patience }) in blocked.into_iter().enumerate() {
            let entry = DumpEntry::Blocked(number);
            let group = restored.group(entry, group)?;
            let nodes = |numbers: Vec<usize>| -> Result<Vec<_>, _> {
                numbers.into_iter().map(|node| restored.node(entry, node)).collect()
            };
            let DumpedPatience { claims, since_ms: patient_since_ms, times, given_up } = patience;
            let given_up = nodes(given_up)?.into_iter().collect();
            let patience = Patience { claims, since_ms: patient_since_ms, times, given_up };
            scheduler.holds.restore(group, since_ms, nodes(kept)?, patience);
        }
        for (number, DumpedBounded { group, since_ms, times, keeping }) in bounded.into_iter().enumerate() {
            let entry = DumpEntry::Bounded(number);
            let group = restored.group(entry, group)?;
            let queue = |name: String| {
                let id = restored.cluster.queue_named(&name);
                let unknown = || RestoreReason::Event(QueueError::Unknown(name).into());
                id.ok_or_else(|| RestoreError { entry, reason: unknown() })
            };
            let keeping = keeping.map(|DumpedKeeping { queues, excess_per_mille, since_ms, is_entitled }| {
                let queues = queues.into_iter().map(queue).collect::<Result<_, _>>()?;
                Ok(Keeping { queues, excess_per_mille, since_ms, is_entitled })
            });
            let wait = BoundWait { since_ms, times, keeping: keeping.transpose()? };
            scheduler.holds.bounds.restore(&restored.cluster, group, wait);
        }
        for (number, DumpedSearch { action, group, node, times }) in searches.into_iter().enumerate() {
            let entry = DumpEntry::Search(number);
            let at = node.map(|node| restored.node(entry, node)).transpose()?;
            let group = restored.group(entry, group)?;
            scheduler.memory.push(Unfinished { action, group, at, times });
        }
        let mut cluster = restored.cluster;
        if let Some(mix) = cluster.known_mix().filter(|_| settings.counts_mix) {
            scheduler.engine.expect(mix);
        }
        scheduler.holds.close_all(&mut cluster);
        Ok((scheduler, cluster))
    }
}
