//! Claims and nodes as the engine sees them, beside the books of the core.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_scheduler_core::{Chunks, Claim, ClaimId, EventError, Node, NodeId, NodeSpec, Request};

use crate::ids::IdMap;
use crate::names::{ClaimUid, Generation, NodeName};
use crate::store::{ClaimKey, Phase};

/// The number of an entry while it exists.
pub(crate) type EntryId = u32;

/// A claim, or a stray.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: ClaimKey,
    /// The claim's number in the books; `None`: they reject it, see `parked`.
    pub(crate) id: Option<ClaimId>,
    pub(crate) parked: Option<Box<Parked>>,
    pub(crate) added_ms: u64,
    /// Whether the claim has ended: its user no longer wants it.
    pub(crate) is_ended: bool,
    instance: Option<KeptInstance>,
    /// How the claim is being resized, or that its last resize was refused.
    pub(crate) resize: Option<Box<Resize>>,
    /// Why the claim could not be started last, in the node's words.
    pub(crate) complaint: Option<Arc<str>>,
}

/// A claim that the books reject for now.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    pub(crate) claim: Claim,
    pub(crate) why: EventError,
}

/// An instance of a claim, which runs or may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instance {
    pub(crate) node: NodeId,
    pub(crate) session: u64,
    pub(crate) generation: Generation,
    pub(crate) phase: Phase,
    /// The generation of the last command about the instance; of its start if it runs.
    pub(crate) command: Generation,
    /// When the engine acts if no answer has come; `None`: the instance runs.
    pub(crate) deadline_ms: Option<u64>,
    /// How often the instance was told to stop.
    pub(crate) attempts: u32,
}

/// An instance as its entry keeps it. Most instances run, and have no step under way.
#[derive(Clone, Debug)]
struct KeptInstance {
    node: NodeId,
    phase: Phase,
    session: u64,
    generation: Generation,
    step: Option<Box<Step>>,
}

/// What is known of an instance that starts or stops.
#[derive(Clone, Debug)]
struct Step {
    command: Generation,
    deadline_ms: Option<u64>,
    attempts: u32,
}

impl Entry {
    /// An entry without an instance.
    pub(crate) fn new(key: ClaimKey, added_ms: u64) -> Self {
        let (id, parked, instance, resize, complaint) = (None, None, None, None, None);
        Self { key, id, parked, added_ms, is_ended: false, instance, resize, complaint }
    }

    pub(crate) fn instance(&self) -> Option<Instance> {
        let KeptInstance { node, phase, session, generation, ref step } = *self.instance.as_ref()?;
        let running = Step { command: generation, deadline_ms: None, attempts: 0 };
        let Step { command, deadline_ms, attempts } = *step.as_deref().unwrap_or(&running);
        Some(Instance { node, session, generation, phase, command, deadline_ms, attempts })
    }

    pub(crate) fn set_instance(&mut self, instance: Option<Instance>) {
        self.instance = instance.map(|instance| {
            let Instance { node, session, generation, phase, command, deadline_ms, attempts } = instance;
            let step = (phase != Phase::Running).then(|| Box::new(Step { command, deadline_ms, attempts }));
            KeptInstance { node, phase, session, generation, step }
        });
    }
}

/// A change of what a claim may use while it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Resize {
    /// What the claim asked for before.
    pub(crate) from: Request,
    /// What the books hold for it.
    pub(crate) held: Request,
    /// What it asks for now.
    pub(crate) to: Request,
    /// The generation of the last command; `None`: no command is under way, because the resize was refused or has yet
    /// to begin.
    pub(crate) command: Option<Generation>,
    /// When the command is repeated if no answer has come.
    pub(crate) deadline_ms: Option<u64>,
    /// How often a command was sent; before a restart counts as once. A node may have carried each of them out.
    pub(crate) attempts: u32,
    /// Whether the node has refused the last of several commands. Its next report says whether it has carried out one
    /// before.
    pub(crate) is_in_doubt: bool,
}

/// All entries. Copies share what has not changed since they were made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    slots: Chunks<Option<Entry>, 64>,
    free: Vec<EntryId>,
    by_uid: IdMap<ClaimUid, EntryId>,
    strays: IdMap<(ClaimUid, Generation), EntryId>,
    /// The number of strays of each claim that has any.
    stray_counts: IdMap<ClaimUid, usize>,
    /// Entries by the number of the claim's slot in the books.
    by_claim: Chunks<Option<EntryId>, 256>,
}

impl Entries {
    pub(crate) fn get(&self, id: EntryId) -> Option<&Entry> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: EntryId) -> Option<&mut Entry> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        (0..).zip(self.slots.iter()).filter_map(|(id, entry)| Some((id, entry.as_ref()?)))
    }

    pub(crate) fn of_uid(&self, uid: &ClaimUid) -> Option<EntryId> {
        self.by_uid.get(uid)
    }

    /// The entry of an instance: the claim's own, or a stray's.
    pub(crate) fn of_instance(&self, uid: &ClaimUid, generation: Generation) -> Option<EntryId> {
        let own = self.by_uid.get(uid).filter(|id| {
            self.get(*id).and_then(Entry::instance).is_some_and(|instance| instance.generation == generation)
        });
        own.or_else(|| self.strays.get(&(uid.clone(), generation)))
    }

    /// Whether a claim has a stray: an instance, which runs or may run, that is not its own.
    pub(crate) fn has_stray(&self, uid: &ClaimUid) -> bool {
        self.stray_counts.get(uid).is_some()
    }

    pub(crate) fn of_claim(&self, claim: ClaimId) -> Option<EntryId> {
        let id = (*self.by_claim.get(claim.index())?)?;
        (self.get(id)?.id == Some(claim)).then_some(id)
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> EntryId {
        let (key, claim) = (entry.key.clone(), entry.id);
        let id = match self.free.pop() {
            Some(id) => {
                if let Some(slot) = self.slots.get_mut(id as usize) {
                    *slot = Some(entry);
                }
                id
            }
            None => {
                let id = EntryId::try_from(self.slots.len()).expect("fewer than 2^32 entries");
                self.slots.push(Some(entry));
                id
            }
        };
        match key.stray {
            Some(generation) => {
                let count = self.stray_counts.get(&key.uid).unwrap_or(0);
                self.stray_counts.insert(key.uid.clone(), count + 1);
                self.strays.insert((key.uid, generation), id);
            }
            None => self.by_uid.insert(key.uid, id),
        }
        if let Some(claim) = claim {
            self.note_claim(id, claim);
        }
        id
    }

    /// Notes the number of an entry's claim in the books.
    pub(crate) fn note_claim(&mut self, id: EntryId, claim: ClaimId) {
        while self.by_claim.len() <= claim.index() {
            self.by_claim.push(None);
        }
        if let Some(slot) = self.by_claim.get_mut(claim.index()) {
            *slot = Some(id);
        }
        if let Some(entry) = self.get_mut(id) {
            (entry.id, entry.parked) = (Some(claim), None);
        }
    }

    pub(crate) fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.slots.get_mut(id as usize)?.take()?;
        self.free.push(id);
        match entry.key.stray {
            Some(generation) => {
                let uid = &entry.key.uid;
                match self.stray_counts.get(uid) {
                    Some(count) if count > 1 => self.stray_counts.insert(uid.clone(), count - 1),
                    _ => self.stray_counts.remove(uid),
                }
                self.strays.remove(&(uid.clone(), generation));
            }
            None => self.by_uid.remove(&entry.key.uid),
        }
        Some(entry)
    }
}

/// A node as the engine sees it.
#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    pub(crate) name: NodeName,
    /// Whether the node takes nothing new by its own report. In the books it also takes nothing new while it is not up.
    pub(crate) is_cordoned: bool,
    pub(crate) session: u64,
    /// The greatest number of a message in this session.
    pub(crate) sequence: u64,
    /// When the last message came.
    pub(crate) heard_ms: u64,
    /// When the node's lease ends; `None`: it holds none.
    pub(crate) lease_until_ms: Option<u64>,
    /// The longest lease that the node may hold, in milliseconds.
    pub(crate) lease_ms: u64,
    /// Whether new claims may be started there.
    pub(crate) is_up: bool,
    /// Whether the node has reported since the engine's start.
    pub(crate) has_reported: bool,
    /// Whether the books rejected what the node last said of itself.
    pub(crate) is_refused: bool,
    /// The instances on the node that run, or may run.
    pub(crate) instances: Arc<BTreeSet<EntryId>>,
}

impl NodeState {
    /// What the node has reported of itself, from the books' node.
    pub(crate) fn reported(&self, node: &Node) -> NodeSpec {
        NodeSpec { cordoned: self.is_cordoned, ..node.spec().into() }
    }
}

/// All nodes. Copies share what has not changed since they were made.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeStates {
    states: Chunks<Option<NodeState>, 16>,
}

impl NodeStates {
    pub(crate) fn get(&self, id: NodeId) -> Option<&NodeState> {
        self.states.get(id.index())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: NodeId) -> Option<&mut NodeState> {
        self.states.get_mut(id.index())?.as_mut()
    }

    pub(crate) fn set(&mut self, id: NodeId, state: Option<NodeState>) {
        while self.states.len() <= id.index() {
            self.states.push(None);
        }
        if let Some(slot) = self.states.get_mut(id.index()) {
            *slot = state;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &NodeState> {
        self.states.iter().flatten()
    }
}
