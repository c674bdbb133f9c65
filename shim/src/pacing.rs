//! Keeping to the container's limit of device time when no manager opens and closes its gates.
//!
//! Each process looks at its own work and, while it has none itself, at that of the container's other processes, and
//! pays for the time in which there was any ([`aliquot_abi::pacing`]). A launch waits until what was used is earned. So
//! one kernel can be as long as it likes: what it takes beyond the limit is waited for after it.
//!
//! This begins when the manager's heartbeat has stopped for long enough that nobody else can be thought to care: early
//! for a gate that is open, as nobody will close it, and later for a closed one, whose device may be another
//! container's. What was used since the last heartbeat is paid for afterwards. When the heartbeat is back, gates count
//! again.

use crate::clock;
use crate::markers::{self, Look, Seen};
use crate::process::Part;
use crate::sys;
use aliquot_abi::ledger;
use aliquot_abi::pacing::{charge, hold, release};
use aliquot_abi::region::{Account, HEARTBEAT_INTERVAL_NS, HEARTBEAT_STALE_NS, Slot, gate, owner};
use core::sync::atomic::Ordering;

/// A heartbeat older than this leaves an open gate unwatched. A few intervals: on a busy machine a heartbeat can be
/// late, and a container that keeps to its limit meanwhile loses nothing.
const UNWATCHED_NS: u64 = 3 * HEARTBEAT_INTERVAL_NS;
/// Another process's work is believed to be in flight for so long after its last launch: it may have died, nobody is
/// there to free its slot, and its pid may mean nothing here.
const BELIEVED_NS: u64 = 1_000_000_000;
/// A waiting thread looks again after such a time: its own debt grows while the work of others goes on, and the manager
/// may be back.
const LOOK_INTERVAL_NS_MAX: u64 = 1_000_000;

/// Self-pacing on one device.
pub(crate) struct Pacing<'a> {
    part: &'a Part,
    account: &'static Account,
    limit_percent: u32,
    /// What was used before is none of its business.
    since_ns: u64,
}

/// Whether nobody watches over a gate with this word any more.
pub(crate) fn is_unwatched(part: &Part, word: u32, now_ns: u64) -> bool {
    let limit_ns = if word & gate::OPEN != 0 { UNWATCHED_NS } else { HEARTBEAT_STALE_NS };
    now_ns.saturating_sub(part.process.heartbeat_ns()) > limit_ns
}

/// Pays for what was used of a device, if nobody watches its gate.
pub(crate) fn pay_for_unwatched(part: &Part) {
    let now_ns = clock::now_ns();
    if is_unwatched(part, part.limits.gate.load(Ordering::Relaxed), now_ns)
        && let Some(pacing) = Pacing::of(part, now_ns)
    {
        pacing.pay();
    }
}

impl<'a> Pacing<'a> {
    /// `None`: there is no limit to keep to.
    pub(crate) fn of(part: &'a Part, now_ns: u64) -> Option<Pacing<'a>> {
        let limit_percent = part.limits.core_limit_percent.load(Ordering::Relaxed);
        if limit_percent >= 100 {
            return None;
        }
        let (account, _) = part.books()?;
        // A manager that lives, and cannot be rung, has not watched this process at all.
        let heartbeat_ns = part.process.heartbeat_ns();
        let since_ns = if now_ns.saturating_sub(heartbeat_ns) > UNWATCHED_NS { heartbeat_ns } else { 0 };
        Some(Pacing { part, account, limit_percent, since_ns })
    }

    /// Admits a launch, for which [`give_back`] must be called when its marker is there. Otherwise waits for a moment,
    /// and `None`: look at the gate again.
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

    /// Since when other processes of the container have work in flight.
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
            // A pid says nothing in another namespace.
            let namespace = |slot: &Slot| slot.pid_namespace.load(Ordering::Relaxed);
            let is_gone =
                namespace(slot) == namespace(own) && !sys::process_exists(owner::pid(word.load(Ordering::Relaxed)));
            (!is_gone).then(|| work.busy_since_ns.load(Ordering::Relaxed))
        });
        busy_since_ns.min()
    }
}

/// A launch that was admitted with this can be seen on the device now, or was not made.
pub(crate) fn give_back(part: &Part, held_ns: u64) {
    if let (true, Some((account, _))) = (held_ns > 0, part.books()) {
        release(account, held_ns);
    }
}
