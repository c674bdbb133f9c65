//! How exactly device time is shared, as the simulated device itself counts it, in real time.
//!
//! The device charges a process at the end of its turn, two milliseconds at most behind: 0.2 points of a second. Each
//! row says for how long the machine itself stood still meanwhile, so that a reader can tell what it did from what
//! Aliquot did.

mod capped;
mod collectives;
mod cost;
mod hardware_like;
mod idle_neighbours;
mod inside;
mod judgement;
mod manager_time;
mod marker_ways;
mod neighbours;
mod recording;
mod requests;
mod resizing;
mod self_pacing;
mod stage;

use crate::client::Client;
use crate::table::Table;

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// Short windows and few cases: minutes.
    Quick,
    /// Everything.
    Full,
}

/// A group of cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Case {
    /// One container alone under a cap.
    Capped,
    /// Several processes, several streams, graphs under one cap.
    Inside,
    /// Several containers that are always busy.
    Neighbours,
    /// Neighbours that are idle or come and go.
    IdleNeighbours,
    /// Requests beside batch work.
    Requests,
    /// What sharing costs.
    Cost,
    /// Kernels that wait for each other.
    Collectives,
    /// What the node manager takes.
    ManagerTime,
    /// No manager.
    SelfPacing,
    /// Shares that change.
    Resizing,
    /// The two ways to see progress.
    MarkerWays,
    /// A device whose launches, markers and changes of process cost what they do on an H100.
    HardwareLike,
}

impl Depth {
    /// How long shares are measured.
    fn window_ns(self) -> u64 {
        match self {
            Depth::Quick => 3_000_000_000,
            Depth::Full => 10_000_000_000,
        }
    }

    /// All of `cases`, or as many of the first.
    fn of<T>(self, cases: Vec<T>, quick: usize) -> Vec<T> {
        match self {
            Depth::Quick => cases.into_iter().take(quick).collect(),
            Depth::Full => cases,
        }
    }
}

/// Measures one group.
pub(crate) fn measure(case: Case, client: &Client, depth: Depth) -> Table {
    match case {
        Case::Capped => capped::measure(depth),
        Case::Inside => inside::measure(depth),
        Case::Neighbours => neighbours::measure(depth),
        Case::IdleNeighbours => idle_neighbours::measure(depth),
        Case::Requests => requests::measure(depth),
        Case::Cost => cost::measure(depth),
        Case::Collectives => collectives::measure(depth),
        Case::ManagerTime => manager_time::measure(depth),
        Case::SelfPacing => self_pacing::measure(depth),
        Case::Resizing => resizing::measure(depth),
        Case::MarkerWays => marker_ways::measure(client, depth),
        Case::HardwareLike => hardware_like::measure(depth),
    }
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// A duration for people.
fn duration(ns: u64) -> String {
    if ns < MS { format!("{} µs", ns / US) } else { format!("{} ms", ns / MS) }
}
