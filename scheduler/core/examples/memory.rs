//! What a cluster's state takes in memory: bytes for each node, each waiting claim and each placed one, and what a
//! scheduler keeps beside it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use aliquot_scheduler_core::placement::{ExpectedWaste, Mix, Weights};
use aliquot_scheduler_core::{
    Bytes, Claim, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event, MilliCpu, NodeSpec, Request,
    Scheduler, Settings,
};

/// Counts what is allocated and not yet freed.
struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator as they are; the counter only watches.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NODES: usize = 10_000;
const CLAIMS: usize = 50_000;

fn node(number: usize) -> NodeSpec {
    let device = |index| DeviceSpec {
        uuid: format!("GPU-{number:08x}-{index:04x}-0000-0000-000000000000"),
        model: "H100".into(),
        memory: Bytes::from_mib(80 << 10),
        ..DeviceSpec::default()
    };
    NodeSpec {
        name: format!("node-{number}"),
        labels: [("zone".to_owned(), format!("zone-{}", number % 8))].into(),
        cpu: MilliCpu::new(128_000),
        memory: Bytes::from_mib(1 << 20),
        devices: (0..8).map(device).collect(),
        ..NodeSpec::default()
    }
}

fn claim(number: usize) -> Claim {
    let devices = match number % 4 {
        0 => DeviceRequest::whole(2),
        1 => DeviceRequest::whole(1),
        _ => DeviceRequest {
            count: 1,
            core: DeviceCore::from_percent(50),
            memory: DeviceMemory::Bytes(Bytes::from_mib(20_000)),
        },
    };
    Claim {
        name: format!("claim-{number}"),
        namespace: format!("team-{}", number % 100),
        request: Request { cpu: MilliCpu::new(4000), memory: Bytes::from_mib(16_000), devices, ..Request::default() },
        priority: 50,
        preemptible: true,
        ..Claim::default()
    }
}

/// What is allocated by `step` and kept, for each of `count`.
fn report(what: &str, count: usize, step: impl FnOnce()) {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    step();
    let kept = LIVE_BYTES.load(Ordering::Relaxed).saturating_sub(before);
    println!("{what:<55} {:>8} bytes each, {:>7} KiB in all", kept / count, kept >> 10);
}

fn main() {
    let mut cluster = Cluster::new();
    let mut scheduler =
        Scheduler::new(Box::new(ExpectedWaste::new(&Mix::default(), Weights::default())), Settings::default());
    let apply = |cluster: &mut Cluster, event| {
        cluster.apply(event).unwrap_or_else(|error| panic!("{error}"));
    };
    report("a node with eight devices", NODES, || {
        (0..NODES).for_each(|number| apply(&mut cluster, Event::NodeAdded(node(number))));
    });
    report("a claim that waits", CLAIMS, || {
        (0..CLAIMS).for_each(|number| apply(&mut cluster, Event::ClaimAdded(claim(number))));
    });
    report("more for a claim that is placed, and for the scheduler", CLAIMS, || {
        let plan = scheduler.cycle(&mut cluster);
        assert_eq!(plan.steps.len(), CLAIMS, "there is room for all");
    });
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    drop(scheduler);
    let freed = before.saturating_sub(LIVE_BYTES.load(Ordering::Relaxed));
    println!("{:<55} {:>8} bytes for each node", "of which the scheduler", freed / NODES);
}
