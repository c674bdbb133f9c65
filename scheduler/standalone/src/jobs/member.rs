//! A member of a task: where it runs, and how it ended.

use aliquot_scheduler_engine::Generation;
use serde::{Deserialize, Serialize};

/// A member in the present attempt of its task.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Member {
    /// Where the member was started last, possibly in an earlier attempt. Its log is there.
    pub(crate) place: Option<Place>,
    /// Whether it may run, or may have run, at that place in this attempt.
    pub(crate) is_there: bool,
    /// When its node said that it had started.
    pub(crate) started_ms: Option<u64>,
    /// How it ended in this attempt; `None`: it has not ended, or has only lost its place.
    pub(crate) exit: Option<Exit>,
    /// Whether it may still run although its attempt has ended.
    pub(crate) is_leaving: bool,
}

/// Where a member was started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) node: String,
    /// The term and the number of the command that started it.
    term: u64,
    number: u64,
    /// For each device its UUID, thousandths of its time, and bytes of its memory.
    pub(crate) devices: Vec<(String, u32, u64)>,
}

impl Place {
    pub(crate) fn new(node: String, instance: Generation, devices: Vec<(String, u32, u64)>) -> Self {
        Self { node, term: instance.term, number: instance.number, devices }
    }

    pub(crate) fn instance(&self) -> Generation {
        Generation { term: self.term, number: self.number }
    }
}

/// How a member ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Exit {
    /// The exit code; `None`: it never ran, or the code is not known.
    pub(crate) code: Option<i32>,
    /// The signal that ended it; 0: none.
    pub(crate) signal: u32,
    pub(crate) ended_ms: u64,
}

impl Exit {
    pub(crate) fn has_succeeded(&self) -> bool {
        self.code == Some(0) && self.signal == 0
    }
}

impl Member {
    /// Whether this member is the instance of this generation on this node.
    pub(crate) fn is(&self, node: &str, instance: Generation) -> bool {
        let is_it = |place: &Place| place.node == node && place.instance() == instance;
        self.is_there && self.place.as_ref().is_some_and(is_it)
    }

    /// The same member at the beginning of the next attempt. The place of its log is kept.
    pub(crate) fn anew(&self) -> Self {
        Self { place: self.place.clone(), ..Self::default() }
    }
}
