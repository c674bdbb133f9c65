//! The heartbeat in every region, by which processes know that a manager grants their leases.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use aliquot_abi::region::HEARTBEAT_INTERVAL_NS;

use crate::clock::monotonic_ns;
use crate::live::LiveSlices;
use crate::periodic::Periodic;

/// Starts the heartbeat thread. It sleeps while there is no slice.
///
/// # Errors
/// The kernel gives no thread.
pub(crate) fn start(slices: Arc<LiveSlices>) -> io::Result<Periodic> {
    Periodic::start("heartbeat", move || {
        let all = slices.all();
        let now_ns = monotonic_ns();
        for live in &all {
            live.region.beat(now_ns);
        }
        (!all.is_empty()).then_some(Duration::from_nanos(HEARTBEAT_INTERVAL_NS))
    })
}
