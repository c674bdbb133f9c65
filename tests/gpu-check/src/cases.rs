//! The conformance cases. Each is run in a process of its own, in each of the three ways.

mod capture;
mod context;
mod errors;
mod graphs;
mod launches;
mod lookup;
mod markers;
mod memory;
mod processes;
mod streams;
mod views;
mod virtual_memory;

pub(crate) use processes::hold_memory;

use crate::findings::Findings;
use crate::scene::Scene;

/// A conformance case.
pub(crate) struct Case {
    /// Its name, for the command line and the report.
    pub(crate) name: &'static str,
    /// What it is about.
    pub(crate) about: &'static str,
    /// Runs it. An error is a case that could not be run to its end, and does not hold.
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
    Case { name: "memory", about: "each kind of memory is refused exactly at the cap", run: memory::run },
    Case {
        name: "virtual-memory",
        about: "a handle is charged until it and its mappings are gone",
        run: virtual_memory::run,
    },
    Case { name: "context", about: "what a context held is free when it is destroyed", run: context::run },
    Case { name: "launches", about: "every form of launch", run: launches::run },
    Case { name: "streams", about: "order, events, callbacks, contents of memory", run: streams::run },
    Case { name: "graphs", about: "graphs built by hand", run: graphs::run },
    Case {
        name: "capture",
        about: "stream capture in three modes, with launches from other threads",
        run: capture::run,
    },
    Case { name: "processes", about: "fork, exec, and a process killed while it holds memory", run: processes::run },
    Case { name: "markers", about: "stream memory operations write into the slot's page", run: markers::run },
];
