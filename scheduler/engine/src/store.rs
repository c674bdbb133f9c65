//! What must outlive the engine.

use aliquot_scheduler_core::explain::Share;
use aliquot_scheduler_core::{Action, DumpedMixCounter, DumpedTurnover, DumpedUsage, LastEviction, NodeSpec, Request};

use crate::command::Amounts;
use crate::names::{ClaimUid, Generation, NodeName};

/// Keeps what must outlive the engine.
///
/// A [`Batch`] is small and comes often; once in a while one has a [`Memory`], which is written whole. What a batch
/// says is durable before any command goes out that was given with it, and before any observation is acknowledged that
/// it follows from.
///
/// Each [load](Store::load) begins a term. Of several engines that load from the same place, the last one alone can save,
/// so no two of them give commands in the same term.
pub trait Store {
    /// Begins a term, and answers it with all that was saved. It is durable that the term has begun, and who has loaded
    /// before cannot save any more.
    ///
    /// # Errors
    /// If it cannot be read, or the term cannot be made durable.
    fn load(&mut self) -> Result<Saved, StoreError>;

    /// Makes a batch durable, all of it or nothing. It must be of the term that was begun last.
    ///
    /// # Errors
    /// If it is of another term, or not durable. The engine must not go on then: whoever runs it ends, and starts anew from what is there.
    fn save(&mut self, batch: &Batch) -> Result<(), StoreError>;
}

/// Why a store does not do what it is asked.
#[derive(Debug, thiserror::Error)]
#[error("the scheduler's store: {0}")]
pub struct StoreError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Changes of what is saved.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// The term of who writes this.
    pub term: u64,
    /// Records of claims; `None`: there is none any more.
    pub claims: Vec<(ClaimKey, Option<ClaimRecord>)>,
    /// Records of nodes; `None`: there is none any more.
    pub nodes: Vec<(NodeName, Option<NodeRecord>)>,
    /// Replaces what is remembered.
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
    /// What was remembered last.
    pub memory: Memory,
}

/// Names a claim's record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClaimKey {
    /// The UID of the claim.
    pub uid: ClaimUid,
    /// An instance that runs beside the claim, or without one; `None`: the claim itself.
    pub stray: Option<Generation>,
}

/// What the engine knows of a claim and nobody else does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClaimRecord {
    /// When the claim came.
    pub added_ms: u64,
    /// How often it could not be started.
    pub failures: u32,
    /// Before this it is not placed again.
    pub retry_at_ms: u64,
    /// Why it was evicted last.
    pub evicted: Option<EvictionRecord>,
    /// What is known of its last eviction, if that is under way or was refused.
    pub last_eviction: Option<LastEviction>,
    /// Nobody wants it any more; it is stopped.
    pub is_ended: bool,
    /// How it is being resized where it runs, or what it goes on with because that was refused.
    pub resize: Option<ResizeRecord>,
    /// What runs of it, or may; `None`: nothing does.
    pub instance: Option<InstanceRecord>,
}

/// What a claim held before it was resized, and what is held for it since. What it asks for now is told again after a
/// restart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResizeRecord {
    /// What the claim asked for before.
    pub from: Request,
    /// What the books hold for it: the larger of both while the resize is under way.
    pub held: Request,
}

/// Where an instance is, or may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstanceRecord {
    /// The node on which the instance is.
    pub node: NodeName,
    /// The node's session in which it was seen or started.
    pub session: u64,
    /// The generation that names the instance.
    pub generation: Generation,
    /// How far it is.
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
    /// Whom its room was needed for.
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

/// What the engine knows of a node while it is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeRecord {
    /// What the node has reported about itself.
    pub spec: NodeSpec,
    /// The last session of the node.
    pub session: u64,
    /// Whether nothing runs there any more, because its lease has lapsed.
    pub has_lapsed: bool,
    /// The longest lease that the node may hold. It may be longer than what the engine gives today.
    pub lease_ms: u64,
}

/// What is remembered as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Models in the order in which they became known.
    pub models: Vec<String>,
    /// What there was of each resource over time.
    pub capacity: DumpedUsage,
    /// What each queue has used.
    pub usage: Vec<(String, DumpedUsage)>,
    /// What claims have asked for as they came.
    pub arrivals: Option<DumpedMixCounter>,
    /// How much of what runs has lately ended.
    pub turnover: DumpedTurnover,
    /// Since when each pod group was there and was stale: its namespace, its name, and both times.
    pub groups: Vec<(String, String, u64, Option<u64>)>,
    /// Who waits long, since when, and which nodes are kept for it.
    pub holds: Vec<(Owner, u64, Vec<NodeName>)>,
    /// Searches that go on: the action, for whom, the node to go on at, and how often they were cut short.
    pub searches: Vec<(Action, Owner, Option<NodeName>, u32)>,
}

/// A store in the memory of the process, for tests and for worlds that need not outlive it.
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
