//! One container alone on its device under a cap, measured from its first second on.

use crate::shares::judgement::{self, Wanted};
use crate::shares::stage::{Stage, share};
use crate::shares::{Depth, MS, US, duration};

const PERCENTS: [u32; 4] = [10, 30, 50, 80];
const MIXED: &[u64] = &[50 * US, MS, 20 * MS];
const KERNELS: [&[u64]; 5] = [&[MS], &[50 * US], &[20 * MS], &[200 * MS], MIXED];
const BLOCKS: [u32; 4] = [1, 132, 1056, 10_000];
const BLOCKS_PERCENT: u32 = 50;

/// A container's work.
#[derive(Clone)]
struct Load {
    percent: u32,
    kernels_ns: &'static [u64],
    blocks: u32,
    synchronised: bool,
}

/// Measures the loads one after the other.
pub(super) fn measure(depth: Depth) {
    let mut table = judgement::table("alone under a cap");
    for load in loads(depth) {
        let stage = Stage::new();
        let tenant = stage.tenant("capped", share(load.percent), 1, &load.arguments());
        let recording = stage.play(&[&tenant], depth.window_ns());
        let longest_ns = load.kernels_ns.iter().copied().max();
        judgement::add(
            &mut table,
            Wanted { what: load.name(), percent: f64::from(load.percent), longest_ns },
            &recording,
            0,
        );
    }
}

fn loads(depth: Depth) -> Vec<Load> {
    let load = |percent, kernels_ns, synchronised| Load { percent, kernels_ns, blocks: 1, synchronised };
    let asynchronous = KERNELS.iter().flat_map(|kernels_ns| PERCENTS.map(|percent| load(percent, *kernels_ns, false)));
    let synchronised = KERNELS.iter().flat_map(|kernels_ns| [30, 80].map(|percent| load(percent, *kernels_ns, true)));
    let blocks = BLOCKS.map(|blocks| Load { blocks, ..load(BLOCKS_PERCENT, KERNELS[0], false) });
    match depth {
        Depth::Full => asynchronous.chain(synchronised).chain(blocks).collect(),
        Depth::Quick => {
            let chosen = [(30, KERNELS[0], false), (80, KERNELS[1], false), (50, KERNELS[2], true), (30, MIXED, false)];
            chosen.map(|(percent, kernels_ns, synchronised)| load(percent, kernels_ns, synchronised)).into()
        }
    }
}

impl Load {
    fn arguments(&self) -> String {
        let kernels = self.kernels_ns.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        format!("kernels={kernels} blocks={} sync={}", self.blocks, u32::from(self.synchronised))
    }

    fn name(&self) -> String {
        let kernels = self.kernels_ns.iter().map(|&ns| duration(ns)).collect::<Vec<_>>().join(", ");
        let blocks = if self.blocks == 1 { String::new() } else { format!(" of {} blocks", self.blocks) };
        let waits = if self.synchronised { ", each waited for" } else { "" };
        format!("{} %, kernels of {kernels}{blocks}{waits}", self.percent)
    }
}
