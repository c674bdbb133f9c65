//! A process that never uses CUDA.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use aliquot_harness::{GIB, Node, SimulatedGpu, tool};

use crate::client::INSTANT;
use crate::statistics::{median, quantile};
use crate::table::Table;

const RUNS: usize = 1000;
const US: f64 = 1e3;

/// Measures `true` from its start to its end: as it is, with an empty preloaded library, and with the shim,
/// alternately.
pub(crate) fn measure() {
    let gpu = SimulatedGpu::with(INSTANT);
    let node = Node::start(&gpu);
    let slice = node.slice("measured", 50, GIB);
    let empty = empty_library();
    let ways: [(&str, Option<&Path>); 3] =
        [("as it is", None), ("an empty library preloaded", Some(&empty)), ("the shim preloaded", Some(slice.shim()))];
    let mut times = ways.map(|_| Vec::new());
    for _ in 0..RUNS {
        for ((_, library), times) in ways.iter().zip(&mut times) {
            times.push(start_to_end_us(*library));
        }
    }
    let mut table = Table::new(&["`true`, start to end, µs", "median", "added", "quartiles"]);
    let bare = median(times[0].clone());
    for ((name, _), times) in ways.iter().zip(times) {
        let middle = median(times.clone());
        let quartiles = [0.25, 0.75].map(|part| quantile(times.clone(), part));
        table.row(&[
            (*name).to_owned(),
            format!("{middle:.0}"),
            format!("{:+.0}", middle - bare),
            format!("{:.0} to {:.0}", quartiles[0], quartiles[1]),
        ]);
    }
}

fn start_to_end_us(library: Option<&Path>) -> f64 {
    let mut command = Command::new("/bin/true");
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let start = Instant::now();
    assert!(command.status().expect("/bin/true runs").success());
    start.elapsed().as_nanos() as f64 / US
}

/// Makes a library without functions and variables, to measure the loader's cost of any library.
fn empty_library() -> PathBuf {
    let own = std::env::current_exe().expect("a running program has a path");
    let path = own.with_file_name("libaliquot-bench-empty.so");
    let mut compiler = Command::new(tool("cc", "gcc libc6-dev"));
    let compiled = compiler.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&path).status();
    assert!(compiled.expect("the compiler runs").success(), "an empty library does not compile");
    path
}
