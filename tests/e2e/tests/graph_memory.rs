//! Graph allocations are charged with all memory that the device reserves for graphs.

use std::sync::atomic::Ordering;

use aliquot_harness::{MIB, like_a_device_of};

#[test]
fn a_graph_s_memory_is_charged_from_its_launch_until_it_is_trimmed() {
    let (said, region) = like_a_device_of(64 * MIB, "pool_chunk = '2MiB'", "graph_memory", &[]);
    for line in [
        "instantiated: 0 MiB in use",
        "and five times more without a pause: 24 MiB in use",
        "more than there is, launched: 2",
        "beside 40 MiB: 0",
        "all destroyed, and trimmed: 0 MiB in use",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}\n{said}");
    }
    assert_eq!(region.used_bytes(0), 0);
    // One launch and one upload were refused.
    assert_eq!(region.ledger().devices[0].refused.load(Ordering::Relaxed), 2);
}
