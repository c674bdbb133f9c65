//! Measures the memory that a cluster's state takes: bytes for each node, each pending claim and each placed claim, and
//! what a scheduler keeps in addition.

use aliquot_scheduler_core::placement::{ExpectedWaste, Mix, Weights};
use aliquot_scheduler_core::{
    Bytes, Claim, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event, MilliCpu, NodeSpec, Request,
    Scheduler, Settings,
};
use aliquot_scheduler_kit as kit;

mod counting;

use counting::live_bytes;

const NODES: usize = 10_000;
const CLAIMS: usize = 50_000;

fn node(number: usize) -> NodeSpec {
    let uuid = |index| format!("GPU-{number:08x}-{index:04x}-0000-0000-000000000000");
    NodeSpec {
        labels: [("zone".to_owned(), format!("zone-{}", number % 8))].into(),
        memory: Bytes::from_mib(1 << 20),
        devices: (0..8).map(|index| DeviceSpec { uuid: uuid(index), ..kit::device("H100") }).collect(),
        ..kit::node(&format!("node-{number}"), 128, 0)
    }
}

/// A node as Kubernetes and its manager report it: most labels are those of all nodes of its pool.
fn node_of_kubernetes(number: usize) -> NodeSpec {
    let mut node = node(number);
    let of_pool = (0..18).map(|label| (format!("node.example.com/label-{label}"), format!("value-{}", number % 4)));
    let own = [("kubernetes.io/hostname".to_owned(), node.name.clone())];
    node.labels = of_pool.chain(own).collect();
    node.counted = [("pods".to_owned(), 110), ("hugepages-2Mi".to_owned(), 0)].into();
    for device in &mut node.devices {
        let own = ("uuid".to_owned(), device.uuid.clone());
        device.attributes = [own, ("architecture".to_owned(), "hopper".to_owned())].into();
    }
    node
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

/// Prints the bytes that `step` allocates and keeps, for each of `count` things.
fn report(what: &str, count: usize, step: impl FnOnce()) {
    let before = live_bytes();
    step();
    let kept = live_bytes().saturating_sub(before);
    println!("{what:<55} {:>8} bytes each, {:>7} KiB in all", kept / count, kept >> 10);
}

fn main() {
    let apply = |cluster: &mut Cluster, event| {
        cluster.apply(event).unwrap_or_else(|error| panic!("{error}"));
    };
    let of_nodes = |what: &str, node: fn(usize) -> NodeSpec| {
        let mut cluster = Cluster::new();
        report(what, NODES, || (0..NODES).for_each(|number| apply(&mut cluster, Event::NodeAdded(node(number)))));
        cluster
    };
    drop(of_nodes("a node with eight devices on Kubernetes", node_of_kubernetes));
    let mut cluster = of_nodes("a node with eight devices", node);
    let mut scheduler =
        Scheduler::new(Box::new(ExpectedWaste::new(&Mix::default(), Weights::default())), Settings::default());
    report("a claim that waits", CLAIMS, || {
        (0..CLAIMS).for_each(|number| apply(&mut cluster, Event::ClaimAdded(claim(number))));
    });
    report("more for a claim that is placed, and for the scheduler", CLAIMS, || {
        let plan = scheduler.cycle(&mut cluster);
        assert_eq!(plan.steps.len(), CLAIMS, "there is room for all");
    });
    let before = live_bytes();
    drop(scheduler);
    let freed = before.saturating_sub(live_bytes());
    println!("{:<55} {:>8} bytes for each node", "of which the scheduler", freed / NODES);
}
