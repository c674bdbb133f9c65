//! Reports requests for memory that a slice's limit refused as events: the first refusal at once, and those of the next
//! seconds together in one event.

use aliquot_abi::region::HOST_ACCOUNT;

use crate::clock::monotonic_ns;
use crate::events::{Event, Events, Kind};
use crate::live::LiveSlice;
use crate::region::{Region, view};
use crate::usage::SECOND_NS;

/// Minimum time between two events about one account of a slice.
const INTERVAL_NS: u64 = 10 * SECOND_NS;

/// The refusals of one account that have been reported.
#[derive(Debug)]
struct Told {
    refused: u64,
    at_ns: Option<u64>,
}

/// The refusals of a slice's accounts that have been reported: first the accounts of its devices, then the host's.
#[derive(Debug)]
pub(crate) struct Refusals(Vec<Told>);

impl Refusals {
    /// Starts with the refusals that the region shows. These are not reported again.
    #[must_use]
    pub(crate) fn from_now_on(region: &Region) -> Refusals {
        let told = |account| Told { refused: view::account(region.ledger(), account).refused, at_ns: None };
        Refusals((0..region.device_count()).chain([HOST_ACCOUNT]).map(told).collect())
    }
}

/// Reports the refusals that are due; all of them if the slice is about to end.
pub(crate) fn report(live: &LiveSlice, events: &Events, is_last: bool) {
    // The numbers of a damaged ledger are not trusted.
    if live.damage().is_some() {
        return;
    }
    let now_ns = monotonic_ns();
    let devices = live.parts().into_iter().map(|part| Some(part.device)).enumerate();
    let accounts = devices.chain([(HOST_ACCOUNT, None)]);
    for ((account, device), told) in accounts.zip(live.refusals.lock().0.iter_mut()) {
        let all = view::account(live.region.ledger(), account).refused;
        let refused = all.saturating_sub(told.refused);
        let is_due = is_last || told.at_ns.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= INTERVAL_NS);
        if refused == 0 || !is_due {
            continue;
        }
        *told = Told { refused: all, at_ns: Some(now_ns) };
        let requests = if refused == 1 { "a request".to_owned() } else { format!("{refused} requests") };
        let memory = if device.is_some() { "memory" } else { "page-locked host memory" };
        let text = format!("{requests} for {memory} beyond the limit refused");
        let event = Event::of(Kind::MemoryRefused, text).of_slice(&live.name);
        events.record(match device {
            Some(device) => event.of_device(&device),
            None => event,
        });
    }
}
