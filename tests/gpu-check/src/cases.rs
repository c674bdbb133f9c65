//! The conformance cases. Each runs in its own process, in each of the three ways.

mod arrays;
mod cap;
mod capture;
mod context;
mod copies;
mod errors;
mod graph_changes;
mod graph_memory;
mod graphs;
mod host_memory;
mod launches;
mod ledger;
mod legacy;
pub(crate) mod lookup;
mod markers;
mod memory;
mod multicast;
mod pools;
mod processes;
mod sharing;
mod sizes;
mod streams;
mod views;
mod virtual_memory;

pub(crate) use processes::{Holder, hold_memory, take_memory};
pub(crate) use sharing::open_shared;

use crate::findings::Findings;
use crate::scene::Scene;

/// A conformance case.
pub(crate) struct Case {
    /// Its name, for the command line and the report.
    pub(crate) name: &'static str,
    /// Its subject.
    pub(crate) about: &'static str,
    /// Runs it. An error means that the case could not be completed, which counts as a failure.
    pub(crate) run: fn(&Scene, &mut Findings) -> anyhow::Result<()>,
}

/// All cases, in the order in which they are run.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "look-up",
        about: "functions are found by every route, and only those that there are",
        run: lookup::run,
    },
    Case { name: "errors", about: "the driver's own answers to bad calls", run: errors::run },
    Case { name: "views", about: "CUDA and NVML show the slice, and agree", run: views::run },
    Case { name: "cap", about: "the slice's memory comes to an end where it should", run: cap::run },
    Case { name: "memory", about: "each kind of memory is refused exactly at the cap", run: memory::run },
    Case {
        name: "virtual-memory",
        about: "a handle is charged until it and its mappings are gone",
        run: virtual_memory::run,
    },
    Case { name: "sizes", about: "allocations of every size and rows of every width", run: sizes::run },
    Case { name: "arrays", about: "arrays of every shape: their bytes are charged", run: arrays::run },
    Case { name: "pools", about: "what pools of stream-ordered memory reserve is charged", run: pools::run },
    Case { name: "graph-memory", about: "memory that graphs allocate", run: graph_memory::run },
    Case {
        name: "host-memory",
        about: "page-locked memory of the host is none of the device's",
        run: host_memory::run,
    },
    Case { name: "sharing", about: "memory that two processes share is charged to who made it", run: sharing::run },
    Case { name: "multicast", about: "multicast objects take no memory of their own", run: multicast::run },
    Case { name: "ledger", about: "what NVML lists for a process is what its slice is charged", run: ledger::run },
    Case { name: "copies", about: "every form of copy and set moves what it is told to", run: copies::run },
    Case { name: "context", about: "what a context held is free when it is destroyed", run: context::run },
    Case { name: "launches", about: "every form of launch", run: launches::run },
    Case { name: "legacy-launches", about: "launches as before CUDA 4", run: legacy::run },
    Case { name: "streams", about: "order, events, callbacks, contents of memory", run: streams::run },
    Case { name: "graphs", about: "graphs built by hand", run: graphs::run },
    Case { name: "graph-changes", about: "graphs copied, nested, and changed between runs", run: graph_changes::run },
    Case {
        name: "capture",
        about: "stream capture in three modes, with launches from other threads",
        run: capture::run,
    },
    Case { name: "processes", about: "fork, exec, and a process killed while it holds memory", run: processes::run },
    Case { name: "markers", about: "stream memory operations write into the slot's page", run: markers::run },
];
