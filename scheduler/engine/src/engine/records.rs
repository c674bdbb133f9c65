//! What is saved: small records of what has changed, and now and then the memory as a whole.

use aliquot_scheduler_core::{ClaimId, Displacement, Dump, DumpedBounded, DumpedGroupRef, GroupId};

use super::Engine;
use crate::command::Amounts;
use crate::entries::Entry;
use crate::names::NodeName;
use crate::store::{
    Batch, BoundRecord, ClaimRecord, EvictionRecord, InstanceRecord, Memory, NodeRecord, Owner, ResizeRecord,
};

impl Engine {
    pub(super) fn next_save_ms(&self) -> Option<u64> {
        Some(if self.unsaved.is_empty() { self.next_memory_ms } else { self.now_ms })
    }

    /// What has changed since the last batch.
    pub(super) fn batch(&mut self) -> Option<Batch> {
        let unsaved = std::mem::take(&mut self.unsaved);
        let removed = unsaved.removed.into_iter().map(|key| (key, None));
        let entries = unsaved.entries.iter().filter_map(|id| self.entries.get(*id));
        // A claim may have been removed, and a stray with the same UID have come.
        let claims = removed.chain(entries.map(|entry| (entry.key.clone(), Some(self.record_of(entry)))));
        let removed_nodes = unsaved.removed_nodes.into_iter().map(|name| (name, None));
        let nodes = unsaved.nodes.iter().filter_map(|id| {
            let (state, node) = (self.nodes.get(*id)?, self.cluster.node(*id)?);
            let (spec, session, lease_ms) = (state.reported(node), state.session, state.lease_ms);
            let record = NodeRecord { spec, session, has_lapsed: self.has_lapsed(*id), lease_ms };
            Some((state.name.clone(), Some(record)))
        });
        let mut batch = Batch {
            term: self.generation.term,
            claims: claims.collect(),
            nodes: removed_nodes.chain(nodes).collect(),
            memory: None,
        };
        if self.next_memory_ms <= self.now_ms {
            self.next_memory_ms = self.now_ms.saturating_add(self.settings.memory_every_ms.max(1));
            batch.memory = Some(self.memory());
        }
        (!batch.is_empty()).then_some(batch)
    }

    pub(super) fn record_of(&self, entry: &Entry) -> ClaimRecord {
        let (failures, retry_at_ms) = entry.id.map_or((0, 0), |id| self.cluster.failures(id));
        let evicted = entry.id.and_then(|id| self.cluster.displaced(id)).map(|displaced| self.eviction(displaced));
        ClaimRecord {
            added_ms: entry.added_ms,
            failures,
            retry_at_ms,
            evicted,
            last_eviction: entry.id.and_then(|id| self.cluster.last_eviction(id)).copied(),
            is_ended: entry.is_ended,
            resize: entry
                .resize
                .as_ref()
                .map(|resize| ResizeRecord { from: resize.from.clone(), held: resize.held.clone() }),
            instance: self.instance_record(entry),
        }
    }

    fn instance_record(&self, entry: &Entry) -> Option<InstanceRecord> {
        let instance = entry.instance()?;
        let (started_ms, amounts) = match entry.id {
            Some(claim) => {
                let at = self.cluster.leaving(claim).or_else(|| self.cluster.allocation(claim))?;
                (self.cluster.started_ms(claim), self.amounts(claim, at))
            }
            // The books do not know what it holds, but it must be stopped all the same.
            None => (None, Amounts::default()),
        };
        Some(InstanceRecord {
            node: self.nodes.get(instance.node)?.name.clone(),
            session: instance.session,
            generation: instance.generation,
            phase: instance.phase,
            started_ms: started_ms.unwrap_or(self.now_ms),
            amounts,
        })
    }

    fn eviction(&self, displaced: &Displacement) -> EvictionRecord {
        EvictionRecord {
            action: displaced.action,
            by: displaced.by.and_then(|by| self.owner(by)),
            by_name: displaced.by_name.clone(),
            at_ms: displaced.at_ms,
            shares: displaced.shares.clone(),
        }
    }

    fn owner(&self, id: GroupId) -> Option<Owner> {
        let group = self.cluster.group(id)?;
        if group.is_declared() {
            return Some(Owner::Group(group.spec().namespace.clone(), group.spec().name.clone()));
        }
        let entry = self.entries.get(self.entries.of_claim(group.members().next()?)?)?;
        Some(Owner::Claim(entry.key.uid.clone()))
    }

    /// The memory that is saved as a whole.
    fn memory(&self) -> Memory {
        let dump = self.scheduler.dump_without_claims(&self.cluster);
        let mut claims: Vec<ClaimId> = self.cluster.claims().map(|(id, ..)| id).collect();
        claims.sort_unstable();
        let owner = |of: DumpedGroupRef| owner_in(&dump, of, |number| self.owner_of_claim(*claims.get(number)?));
        let node = |number: &usize| dump.nodes.get(*number).map(|node| NodeName::from(node.spec.name.as_str()));
        let holds = dump.blocked.iter().filter_map(|blocked| {
            Some((owner(blocked.group)?, blocked.since_ms, blocked.nodes.iter().filter_map(node).collect()))
        });
        let bounds = dump.bounded.iter().filter_map(|bounded| {
            let DumpedBounded { group, since_ms, times, keeping } = bounded;
            let owner = owner(*group)?;
            Some(BoundRecord { owner, since_ms: *since_ms, times: *times, keeping: keeping.clone() })
        });
        let searches = dump.searches.iter().filter_map(|search| {
            Some((search.action, owner(search.group)?, search.node.as_ref().and_then(node), search.times))
        });
        let groups = dump
            .groups
            .iter()
            .map(|group| (group.spec.namespace.clone(), group.spec.name.clone(), group.added_ms, group.stale_since_ms));
        Memory {
            holds: holds.collect(),
            bounds: bounds.collect(),
            searches: searches.collect(),
            groups: groups.collect(),
            usage: dump.queues.iter().map(|queue| (queue.spec.name.clone(), queue.usage.clone())).collect(),
            models: dump.models.clone(),
            capacity: dump.capacity.clone(),
            arrivals: dump.arrivals.clone(),
            turnover: dump.turnover,
        }
    }

    fn owner_of_claim(&self, claim: ClaimId) -> Option<Owner> {
        let entry = self.entries.get(self.entries.of_claim(claim)?)?;
        Some(Owner::Claim(entry.key.uid.clone()))
    }
}

fn owner_in(dump: &Dump, of: DumpedGroupRef, claim: impl Fn(usize) -> Option<Owner>) -> Option<Owner> {
    match of {
        DumpedGroupRef::Declared(number) => {
            let spec = &dump.groups.get(number)?.spec;
            Some(Owner::Group(spec.namespace.clone(), spec.name.clone()))
        }
        DumpedGroupRef::Claim(number) => claim(number),
    }
}
