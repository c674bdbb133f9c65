//! What must outlive the engine.

use aliquot_scheduler_core::explain::Share;
use aliquot_scheduler_core::{
    Action, DumpedKeeping, DumpedMixCounter, DumpedTurnover, DumpedUsage, LastEviction, NodeSpec, Request,
};

use crate::command::Amounts;
use crate::names::{ClaimUid, Generation, NodeName};

/// Keeps what must outlive the engine.
///
/// A [`Batch`] is small and comes often; now and then one has a [`Memory`], which is written as a whole. A batch is
/// durable before any command that was given with it goes out, and before any observation that it follows from is
/// acknowledged.
///
/// Each [load](Store::load) begins a term. Of several engines that load from the same place, the last one alone can save,
/// so no two of them give commands in the same term.
pub trait Store {
    /// Begins a term, and answers it with all that was saved. The new term is durable then, and engines that loaded
    /// before can no longer save.
    ///
    /// # Errors
    /// If it cannot be read, or the term cannot be made durable.
    fn load(&mut self) -> Result<Saved, StoreError>;

    /// Makes a batch durable, all of it or nothing. It must be of the term that was begun last.
    ///
    /// # Errors
    /// If it is of another term, or not durable. The engine must not go on then: its caller stops it, and starts a new
    /// one from what is stored.
    fn save(&mut self, batch: &Batch) -> Result<(), StoreError>;
}

/// Why a store could not load or save.
#[derive(Debug, thiserror::Error)]
#[error("the scheduler's store: {0}")]
pub struct StoreError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Changes of the saved records and of the memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// The term of the engine that writes this.
    pub term: u64,
    /// Records of claims; `None`: the record is removed.
    pub claims: Vec<(ClaimKey, Option<ClaimRecord>)>,
    /// Records of nodes; `None`: the record is removed.
    pub nodes: Vec<(NodeName, Option<NodeRecord>)>,
    /// Replaces the memory; `None`: it stays as it is.
    pub memory: Option<Memory>,
}

impl Batch {
    /// Whether the batch changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.nodes.is_empty() && self.memory.is_none()
    }
}

/// All that was saved.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Saved {
    /// The term that began when this was loaded, greater than all before.
    pub term: u64,
    /// The last record of each claim, in any order.
    pub claims: Vec<(ClaimKey, ClaimRecord)>,
    /// The last record of each node, in any order.
    pub nodes: Vec<(NodeName, NodeRecord)>,
    /// The last memory that was saved.
    pub memory: Memory,
}

/// Names a claim's record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClaimKey {
    /// The UID of the claim.
    pub uid: ClaimUid,
    /// The generation of a stray, which may exist without its claim; `None`: the claim itself.
    pub stray: Option<Generation>,
}

/// What only the engine knows of a claim.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClaimRecord {
    /// When the claim arrived, in milliseconds.
    pub added_ms: u64,
    /// How often it could not be started.
    pub failures: u32,
    /// The claim is not placed again before this time, in milliseconds.
    pub retry_at_ms: u64,
    /// Why it was evicted last.
    pub evicted: Option<EvictionRecord>,
    /// What is known of its last eviction, if that is under way or was refused.
    pub last_eviction: Option<LastEviction>,
    /// Whether the claim has ended: its user no longer wants it, and it is being stopped.
    pub is_ended: bool,
    /// The state of its resize, which is under way or was refused.
    pub resize: Option<ResizeRecord>,
    /// The instance that runs, or may run; `None`: there is none.
    pub instance: Option<InstanceRecord>,
}

/// What a claim held before it was resized, and what the books have held for it since. Its present request is told
/// again after a restart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResizeRecord {
    /// What the claim asked for before.
    pub from: Request,
    /// What the books hold for it: the larger of both while the resize is under way.
    pub held: Request,
}

/// Where an instance runs, or may run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstanceRecord {
    /// The node on which the instance is.
    pub node: NodeName,
    /// The node's session in which the instance was seen or started.
    pub session: u64,
    /// The generation that names the instance.
    pub generation: Generation,
    /// Whether the instance is starting, running or stopping.
    pub phase: Phase,
    /// When it was started.
    pub started_ms: u64,
    /// What the instance holds of the node.
    pub amounts: Amounts,
}

/// How far an instance is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The node was told to start it.
    Starting,
    /// It was seen running.
    Running,
    /// The node was told to stop it.
    Stopping,
}

/// Why a claim was evicted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EvictionRecord {
    /// The action that evicted it.
    pub action: Action,
    /// The pod group or claim that needed its room.
    pub by: Option<Owner>,
    /// The name of that owner.
    pub by_name: String,
    /// When the claim was evicted.
    pub at_ms: u64,
    /// What the queues held just before, with their fair shares.
    pub shares: Vec<Share>,
}

/// A pod group, or a claim that is in none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// The namespace and the name of a pod group.
    Group(String, String),
    /// The UID of a claim that is in no group.
    Claim(ClaimUid),
}

/// What the engine must still know of a node after a restart, before the node reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeRecord {
    /// What the node has reported about itself.
    pub spec: NodeSpec,
    /// The last session of the node.
    pub session: u64,
    /// Whether no instance runs there any more, because the node's lease has lapsed.
    pub has_lapsed: bool,
    /// The longest lease that the node may hold, in milliseconds. It may be longer than the leases of today's settings.
    pub lease_ms: u64,
}

/// What changes slowly and is saved as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Models in the order in which they became known.
    pub models: Vec<String>,
    /// The capacity of each resource over time.
    pub capacity: DumpedUsage,
    /// What each queue has used.
    pub usage: Vec<(String, DumpedUsage)>,
    /// The mix of what claims have asked for on arrival.
    pub arrivals: Option<DumpedMixCounter>,
    /// How much of the running work has ended lately.
    pub turnover: DumpedTurnover,
    /// For each pod group its namespace, its name, when it arrived, and since when it has been stale.
    pub groups: Vec<(String, String, u64, Option<u64>)>,
    /// For each owner that has been pending for long: since when, and which nodes are kept for it.
    pub holds: Vec<(Owner, u64, Vec<NodeName>)>,
    /// The owners that wait for their queues' limits and quotas.
    pub bounds: Vec<BoundRecord>,
    /// Searches that go on: the action, the owner that it searches for, the node to continue at, and how often the
    /// search was cut short.
    pub searches: Vec<(Action, Owner, Option<NodeName>, u32)>,
}

/// The wait of an owner for its queue's limit or quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BoundRecord {
    /// Who waits.
    pub owner: Owner,
    /// Since when it waits, or since when nothing more is kept for it, in milliseconds.
    pub since_ms: u64,
    /// How often something was kept for it in vain.
    pub times: u32,
    /// What is kept for it of which queues' bounds. `None`: nothing is kept for it.
    pub keeping: Option<DumpedKeeping>,
}

/// A store in the memory of the process, for tests and for worlds that do not outlive it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryStore {
    term: u64,
    claims: std::collections::BTreeMap<ClaimKey, ClaimRecord>,
    nodes: std::collections::BTreeMap<NodeName, NodeRecord>,
    memory: Memory,
}

impl Store for MemoryStore {
    fn load(&mut self) -> Result<Saved, StoreError> {
        self.term += 1;
        let claims = self.claims.iter().map(|(key, record)| (key.clone(), record.clone()));
        let nodes = self.nodes.iter().map(|(name, record)| (name.clone(), record.clone()));
        Ok(Saved { term: self.term, claims: claims.collect(), nodes: nodes.collect(), memory: self.memory.clone() })
    }

    fn save(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if batch.term != self.term {
            let error = format!("term {} cannot save; it is term {} now", batch.term, self.term);
            return Err(StoreError(error.into()));
        }
        for (key, record) in &batch.claims {
            match record {
                Some(record) => _ = self.claims.insert(key.clone(), record.clone()),
                None => _ = self.claims.remove(key),
            }
        }
        for (name, record) in &batch.nodes {
            match record {
                Some(record) => _ = self.nodes.insert(name.clone(), record.clone()),
                None => _ = self.nodes.remove(name),
            }
        }
        if let Some(memory) = &batch.memory {
            self.memory = memory.clone();
        }
        Ok(())
    }
}
