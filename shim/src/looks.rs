//! The manager's looks at the use of a device's memory, and the waits of this process for them.
//!
//! From the driver's figures the manager learns three things that no call of this process shows: the size of a context,
//! the memory that the driver takes beyond the requests, and when the driver has back the memory of an ended process.
//! It looks at once when a process asks for a look or ends. All waits here are bounded, and end at once if no manager
//! lives.

use crate::call::Call;
use crate::clock;
use crate::process::{self, Part, Process};
use crate::sys;
use aliquot_abi::ledger::{self, Identity};
use aliquot_abi::region::{AttachMessage, DEVICES_MAX, HEARTBEAT_STALE_NS, NO_SLOT, SLOTS_MAX, end_of_next_look};
use aliquot_abi::rounding::{self, MOVING_BYTES_MIN};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

/// A look takes some milliseconds, and begins within 20 ms. The driver can need seconds to free the memory of a killed
/// process.
const WAIT_NS: u64 = 5_000_000_000;
/// Pauses while waiting. They grow, because hundreds of processes that wait must leave the processors to the manager.
const STEP_NS_MIN: u64 = 1_000_000;
const STEP_NS_MAX: u64 = 16_000_000;

impl Process {
    /// Whether the manager has written no heartbeat for `silence_ns`.
    fn has_silent_manager(&self, silence_ns: u64) -> bool {
        clock::now_ns().saturating_sub(self.heartbeat_ns()) > silence_ns
    }
}

impl Part {
    /// Asks the manager for a look at the use of the device's memory. If the message cannot be sent, the manager looks
    /// a little later.
    pub(crate) fn ask_for_look(&self) {
        let _ = self.process.send(AttachMessage::LOOK, self.index);
    }

    /// Asks for a look, and waits for the end of a look that began after this call. Returns whether it has ended. On a
    /// machine so busy that the manager's heartbeat is late, the look is only late, too.
    pub(crate) fn await_look(&self) -> bool {
        let looks = || self.limits.memory_looks.load(Ordering::Acquire);
        let end = end_of_next_look(looks());
        self.ask_for_look();
        wait(self.process, WAIT_NS, &|| looks() < end)
    }
}

/// Maximum looks that one request waits for. The first one shows everything that was allocated and freed before the
/// request; it may miss changes that other threads make meanwhile.
const LOOKS_MAX: u32 = 2;
/// For each device, the number of looks, plus one, at which a look was last waited for in vain. It is not waited for
/// again: the driver does not answer the manager.
static IN_VAIN_AT: [AtomicU64; DEVICES_MAX] = [const { AtomicU64::new(0) }; DEVICES_MAX];

/// Called before a refusal of a request that takes at least `bytes`. Repeats `attempt` with the limit, and has the
/// manager look if it may not have seen everything. Returns whether the attempt has succeeded.
///
/// A request is refused only for overhead that was found by a look which began after the request, or if nothing has
/// changed the overhead since the last look. If no manager looks, or other threads disturb the looks, the request is
/// granted by the last figures: a slice that exceeds its limit for a moment is better than a program that fails for
/// nothing.
#[cold]
pub(crate) fn overhead_was_less(
    process: &'static Process,
    account: usize,
    bytes: u64,
    attempt: &dyn Fn(u64) -> bool,
) -> bool {
    let (Some(part), Some(books), Some(in_vain_at)) =
        (process.part_of_account(account), process.ledger().devices.get(account), IN_VAIN_AT.get(account))
    else {
        return false;
    };
    if ledger::used_bytes(books).saturating_add(bytes) > part.limits.memory_limit_bytes.load(Ordering::Relaxed) {
        // There would be no room without any overhead.
        return false;
    }
    if process.queued_frees.load(Ordering::Relaxed) != 0 {
        // A stream may have got to such a free since the last look. Then there is less overhead than that look found.
        rounding::note_overhead(books, 1);
    }
    let looks = || part.limits.memory_looks.load(Ordering::Acquire);
    for _ in 0..LOOKS_MAX {
        // The order matters: the limit below includes the findings of every look that is known here.
        let is_exact = part.unseen().is_nothing();
        if attempt(process.limit_bytes_until_look(account)) {
            return true;
        }
        if is_exact {
            return false;
        }
        if process.has_silent_manager(WAIT_NS) || in_vain_at.load(Ordering::Relaxed) == looks().wrapping_add(1) {
            break;
        }
        // While this thread waits, its own bytes do not move.
        let moving = if bytes >= MOVING_BYTES_MIN { part.work().map(|work| &work.moving_bytes) } else { None };
        moving.inspect(|moving| _ = moving.fetch_sub(bytes, Ordering::Release));
        let has_looked = part.await_look();
        moving.inspect(|moving| _ = moving.fetch_add(bytes, Ordering::Relaxed));
        if !has_looked {
            in_vain_at.store(looks().wrapping_add(1), Ordering::Relaxed);
            break;
        }
    }
    attempt(process.limit_bytes(account))
}

/// Has the manager look if it may not have seen everything. Returns whether it has looked.
#[cold]
pub(crate) fn has_looked_again(process: &'static Process, account: usize) -> bool {
    let Some(part) = process.part_of_account(account) else { return false };
    (process.queued_frees.load(Ordering::Relaxed) != 0 || !part.unseen().is_nothing()) && part.await_look()
}

/// Called before a refusal. Repeats `attempt` while the ledger holds memory of ended processes. Returns whether it has
/// succeeded.
///
/// A program that is started after another one has ended must find that program's memory free, although the parent of
/// both may learn of the end before the manager does.
#[cold]
pub(crate) fn ended_make_room(process: &'static Process, account: usize, attempt: &dyn Call<bool>) -> bool {
    let has_succeeded = Cell::new(false);
    wait(process, HEARTBEAT_STALE_NS, &|| {
        // Asking about every process takes long, so the manager's flag is read first. It is also read last: the manager
        // sets the flag before it gives back the slot of the ended process.
        let settles = || is_settling(process, account);
        let lasts = settles() || ended_hold_some(process, account) || settles();
        // Memory that was given back before these two loads is available to this attempt.
        has_succeeded.set(attempt.make());
        lasts && !has_succeeded.get()
    });
    has_succeeded.get()
}

fn is_settling(process: &'static Process, account: usize) -> bool {
    process.part_of_account(account).is_some_and(|part| part.limits.memory_settling.load(Ordering::Acquire) != 0)
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

/// Waits while `lasts` returns `true`, for [`WAIT_NS`] at most, and only until the manager has been silent for
/// `silence_ns`. Returns whether `lasts` has returned `false`.
fn wait(process: &'static Process, silence_ns: u64, lasts: &dyn Call<bool>) -> bool {
    let start_ns = clock::now_ns();
    let mut step_ns = STEP_NS_MIN;
    while lasts.make() {
        if process.has_silent_manager(silence_ns) || clock::now_ns().saturating_sub(start_ns) >= WAIT_NS {
            return false;
        }
        sys::sleep_ns(step_ns);
        step_ns = (2 * step_ns).min(STEP_NS_MAX);
    }
    true
}
