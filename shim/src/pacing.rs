//! Keeps to the container's limit of device time while no manager opens and closes its gates.
//!
//! Each process watches its own work and, while it has none, that of the container's other processes. It pays for the
//! time in which there was any ([`aliquot_abi::pacing`]). A launch waits until the container has earned what it used.
//! So a single kernel may be of any length: the container waits for the part beyond the limit afterwards.
//!
//! Pacing begins when the manager's heartbeat has been missing for a while. For an open gate the time is short, because
//! no manager will close it. For a closed gate it is longer, because another container may be using the device. Device
//! time that was used since the last heartbeat is paid for afterwards. When the heartbeat is back, gates count again.

use crate::clock;
use crate::markers::{self, Look, Seen};
use crate::process::Part;
use crate::sys;
use aliquot_abi::ledger;
use aliquot_abi::pacing::{charge, hold, release};
use aliquot_abi::region::{Account, HEARTBEAT_INTERVAL_NS, HEARTBEAT_STALE_NS, Slot, gate, owner};
use core::sync::atomic::Ordering;

/// With a heartbeat older than this, an open gate counts as unwatched. A few intervals: on a busy machine a heartbeat
/// can be late. A container that keeps to its limit meanwhile loses nothing.
const UNWATCHED_NS: u64 = 3 * HEARTBEAT_INTERVAL_NS;
/// Another process's work is assumed to be in flight for at most this long after its last launch. That process may have
/// died, with no manager to free its slot, and its pid may have no meaning in this namespace.
const BELIEVED_NS: u64 = 1_000_000_000;
/// A waiting thread looks again after this time at the latest: the container's debt grows while other processes' work
/// goes on, and the manager may be back.
const LOOK_INTERVAL_NS_MAX: u64 = 1_000_000;

/// Self-pacing on one device.
pub(crate) struct Pacing<'a> {
    part: &'a Part,
    account: &'static Account,
    limit_percent: u32,
    /// Device time that was used before this is not paid for.
    since_ns: u64,
}

/// Whether no manager watches over a gate with this word any more.
pub(crate) fn is_unwatched(part: &Part, word: u32, now_ns: u64) -> bool {
    let limit_ns = if word & gate::OPEN != 0 { UNWATCHED_NS } else { HEARTBEAT_STALE_NS };
    now_ns.saturating_sub(part.process.heartbeat_ns()) > limit_ns
}

/// Pays for the use of the device, if no manager watches its gate.
pub(crate) fn pay_for_unwatched(part: &Part) {
    let now_ns = clock::now_ns();
    if is_unwatched(part, part.limits.gate.load(Ordering::Relaxed), now_ns)
        && let Some(pacing) = Pacing::of(part, now_ns)
    {
        pacing.pay();
    }
}

impl<'a> Pacing<'a> {
    /// `None`: the limit is 100 % or more, or the process has no slot.
    pub(crate) fn of(part: &'a Part, now_ns: u64) -> Option<Pacing<'a>> {
        let limit_percent = part.limits.core_limit_percent.load(Ordering::Relaxed);
        if limit_percent >= 100 {
            return None;
        }
        let (account, _) = part.books()?;
        // If the manager lives but cannot be rung, it has never watched this process, so all its use is paid for.
        let heartbeat_ns = part.process.heartbeat_ns();
        let since_ns = if now_ns.saturating_sub(heartbeat_ns) > UNWATCHED_NS { heartbeat_ns } else { 0 };
        Some(Pacing { part, account, limit_percent, since_ns })
    }

    /// Admits a launch and returns the time that it holds: [`give_back`] must be called when the launch's marker is
    /// there. Otherwise waits for a moment and returns `None`: the caller must look at the gate again.
    pub(crate) fn admit(&self) -> Option<u64> {
        self.pay();
        let start_ns = clock::now_ns();
        match hold(self.account, start_ns, self.limit_percent) {
            Ok(held_ns) => Some(held_ns),
            Err(wait_ns) => {
                sys::sleep_ns(wait_ns.min(LOOK_INTERVAL_NS_MAX));
                if let Some(slot) = self.part.work() {
                    let waited_ns = clock::now_ns().saturating_sub(start_ns);
                    slot.throttled_ns.fetch_add(waited_ns, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// Pays for the time in which the container had work on the device.
    fn pay(&self) {
        match markers::look_now(self.part, Look::Anytime) {
            Some(Seen::InFlight { since_ns }) => self.pay_since(since_ns),
            Some(Seen::Drained { since_ns, until_ns }) => {
                self.pay_for(since_ns, until_ns);
                if let Some(since_ns) = self.others_at_work() {
                    self.pay_since(since_ns);
                }
            }
            None => {}
        }
    }

    fn pay_since(&self, since_ns: u64) {
        self.pay_for(since_ns, u64::MAX);
    }

    fn pay_for(&self, since_ns: u64, until_ns: u64) {
        let now_ns = clock::now_ns();
        charge(self.account, since_ns.max(self.since_ns), until_ns.min(now_ns), now_ns, self.limit_percent);
    }

    /// The time since which other processes of the container have had work in flight.
    fn others_at_work(&self) -> Option<u64> {
        let (ledger, own, now_ns) = (self.part.process.ledger(), self.part.slot(), clock::now_ns());
        let attached = ledger.owners.iter().zip(&ledger.slots).filter(|(word, slot)| {
            owner::state(word.load(Ordering::Relaxed)) == owner::ATTACHED && !core::ptr::eq(*slot, own)
        });
        let busy_since_ns = attached.filter_map(|(word, slot)| {
            let (work, row) = (slot.devices.get(self.part.index)?, slot.row(self.part.index)?);
            let launched_ns = work.marker_submitted_ns.load(Ordering::Relaxed);
            let is_believed = now_ns.saturating_sub(launched_ns) < BELIEVED_NS;
            if !is_believed || ledger::drained(work, row) {
                return None;
            }
            // A pid has no meaning in another namespace. 0: the process does not know its namespace.
            let namespace = |slot: &Slot| slot.pid_namespace.load(Ordering::Relaxed);
            let is_gone = namespace(own) != 0
                && namespace(slot) == namespace(own)
                && !sys::process_exists(owner::pid(word.load(Ordering::Relaxed)));
            (!is_gone).then(|| work.busy_since_ns.load(Ordering::Relaxed))
        });
        busy_since_ns.min()
    }
}

/// To be called when an admitted launch can be seen on the device, or was not made.
pub(crate) fn give_back(part: &Part, held_ns: u64) {
    if let (true, Some((account, _))) = (held_ns > 0, part.books()) {
        release(account, held_ns);
    }
}
