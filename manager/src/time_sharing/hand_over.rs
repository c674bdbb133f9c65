//! The moment between two leases, in which the device is empty.
//!
//! It is made of three delays: until the end of the last work is seen, until somebody who waits for the next lease is awake, and until
//! that one's first launch is on the device. The first is made short by looking often while the end is near; of the second nothing is
//! left where a thread of the next container is woken before.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use aliquot_abi::region::gate;
use aliquot_arbiter::ContainerId;

use super::device_thread::Member;
use crate::clock::monotonic_ns;

/// Between two looks at work that is about to be done. Each takes a few microseconds of a processor.
const LOOK_INTERVAL: Duration = Duration::from_micros(20);

/// Tells those who wait at the gate of `next` that it is about to open, and everybody else that theirs is not.
pub(super) fn announce(members: &BTreeMap<ContainerId, Member>, next: Option<ContainerId>) {
    for (&container, member) in members {
        let Some(flags) = member.closed_gate_flags() else { continue };
        match (flags & gate::SOON != 0, next == Some(container)) {
            (false, true) => member.set_gate(gate::WATCHED | gate::SOON),
            (true, false) => member.set_gate(flags & !gate::SOON),
            _ => {}
        }
    }
}

/// Waits until the work of a container whose gate is closed is done, but not longer than `until_ns`. Returns whether it is.
pub(super) fn wait_for_drain(members: &BTreeMap<ContainerId, Member>, until_ns: u64) -> bool {
    let in_flight =
        || members.values().filter(|member| member.closed_gate_flags().is_some() && !member.is_drained()).count();
    let before = in_flight();
    while monotonic_ns() < until_ns {
        thread::park_timeout(LOOK_INTERVAL);
        if in_flight() < before {
            return true;
        }
    }
    false
}
