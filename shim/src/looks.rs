//! The manager's looks at the use of a device's memory, and the waits of this process for them.
//!
//! From the driver's figures the manager learns what no call of this process shows: how large a context is, and when
//! the driver has back the memory of a process that has ended. It looks at once when it is asked or when a process
//! ends. Both waits here are bounded, and end at once if no manager lives.

use crate::clock;
use crate::process::{self, Part, Process};
use crate::sys;
use aliquot_abi::ledger::{self, Identity};
use aliquot_abi::region::{AttachMessage, HEARTBEAT_STALE_NS, NO_SLOT, SLOTS_MAX, end_of_next_look};
use core::cell::Cell;
use core::sync::atomic::Ordering;

/// A look takes some milliseconds, and begins within 20 ms. The driver can need seconds to free what a killed process
/// held.
const WAIT_NS: u64 = 5_000_000_000;
/// Pauses while waiting. They grow, because hundreds of processes that wait must leave the processors to the manager.
const STEP_NS_MIN: u64 = 1_000_000;
const STEP_NS_MAX: u64 = 16_000_000;

impl Part {
    /// Asks the manager for a look at the use of the device's memory. If it cannot be told, it looks a little later.
    pub(crate) fn ask_for_look(&self) {
        let _ = self.process.send(AttachMessage::LOOK, self.index);
    }

    /// Asks for a look, and waits for the end of a look that began after this call.
    pub(crate) fn await_look(&self) {
        let looks = || self.limits.memory_looks.load(Ordering::Acquire);
        let end = end_of_next_look(looks());
        self.ask_for_look();
        wait(self.process, &|| looks() < end);
    }
}

/// Before a refusal: repeats `attempt` while the books hold memory of processes that have ended. Returns whether it has
/// succeeded.
///
/// A program that is started after another one has ended must find that one's memory free: the parent of both may learn
/// of the end before the manager does.
#[cold]
pub(crate) fn ended_make_room(process: &'static Process, account: usize, attempt: &dyn Fn() -> bool) -> bool {
    let has_succeeded = Cell::new(false);
    wait(process, &|| {
        // Asking for every process is dear, so the manager's word comes first. It comes last, too: the manager says that
        // memory settles before it gives back the slot of the ended process.
        let settles = || is_settling(process, account);
        let lasts = settles() || ended_hold_some(process, account) || settles();
        // What was given back before these two loads is available to this attempt.
        has_succeeded.set(attempt());
        lasts && !has_succeeded.get()
    });
    has_succeeded.get()
}

fn is_settling(process: &'static Process, account: usize) -> bool {
    process.all_parts().nth(account).is_some_and(|part| part.limits.memory_settling.load(Ordering::Acquire) != 0)
}

/// Whether a process has ended, as far as this process can know, while its slot still holds bytes of the account.
fn ended_hold_some(process: &'static Process, account: usize) -> bool {
    let ledger = process.ledger();
    let namespace = process.slot().pid_namespace.load(Ordering::Relaxed);
    // A process that does not know its namespace cannot tell whether another process has ended.
    let has_ended = |owner: Identity| namespace != 0 && owner.pid_namespace == namespace && !process::is_alive(owner);
    (NO_SLOT + 1..SLOTS_MAX).any(|index| {
        ledger::identity(ledger, index).is_some_and(|owner| {
            let account = ledger.slots.get(index).and_then(|slot| slot.memory(account));
            account.is_some_and(|held| ledger::held_bytes(held) > 0) && has_ended(owner)
        })
    })
}

/// Waits while `lasts` returns `true`, for [`WAIT_NS`] at most, and only while the manager lives.
fn wait(process: &'static Process, lasts: &dyn Fn() -> bool) {
    let start_ns = clock::now_ns();
    let mut step_ns = STEP_NS_MIN;
    while lasts() {
        let now_ns = clock::now_ns();
        let is_stale = now_ns.saturating_sub(process.heartbeat_ns()) > HEARTBEAT_STALE_NS;
        if is_stale || now_ns.saturating_sub(start_ns) >= WAIT_NS {
            return;
        }
        sys::sleep_ns(step_ns);
        step_ns = (2 * step_ns).min(STEP_NS_MAX);
    }
}
