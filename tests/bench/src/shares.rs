//! The exactness of sharing device time, by the simulated device's own account, in real time.
//!
//! The device charges a process at the end of its turn, so its account is at most 2 ms behind: 0.2 points of one
//! second. Each row gives the time for which the machine itself stood still, so that a reader can tell its effect from
//! Aliquot's.

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

/// The extent of a measurement.
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
    /// The cost of sharing.
    Cost,
    /// Kernels that wait for each other.
    Collectives,
    /// Processor time of the node manager.
    ManagerTime,
    /// Containers without a node manager.
    SelfPacing,
    /// Shares that change.
    Resizing,
    /// The two ways to see progress.
    MarkerWays,
    /// A device whose launches, markers and changes of process cost as much as on an H100.
    HardwareLike,
}

impl Depth {
    /// Length of a measurement of shares.
    fn window_ns(self) -> u64 {
        match self {
            Depth::Quick => 3_000_000_000,
            Depth::Full => 10_000_000_000,
        }
    }

    /// All of `cases`, or for a quick run only the first `quick` of them.
    fn of<T>(self, cases: Vec<T>, quick: usize) -> Vec<T> {
        match self {
            Depth::Quick => cases.into_iter().take(quick).collect(),
            Depth::Full => cases,
        }
    }
}

/// Measures one group.
pub(crate) fn measure(case: Case, client: &Client, depth: Depth) {
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

/// A duration as text.
fn duration(ns: u64) -> String {
    if ns < MS { format!("{} µs", ns / US) } else { format!("{} ms", ns / MS) }
}
