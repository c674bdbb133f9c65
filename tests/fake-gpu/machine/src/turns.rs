//! Turns on a device: who runs, from when to when.
//!
//! All instants are on the device's timeline. A process that wants the device draws a ticket; the device goes to the
//! lowest ticket among those that wanted it by the instant at which it became free. Who is scheduled late by the
//! operating system still gets the time that was his: his work simply completes in the past.
//!
//! A holder that is dead, or has not come back a grace period after its turn's end (it may be stopped), loses the turn,
//! as the hardware would take it away. A chosen waiter that does not come is passed over after the same period, and waits again
//! once it does.

use core::sync::atomic::Ordering;
use core::time::Duration;

use crate::clock::now_ns;
use crate::layout::Device;
use crate::lock::{Owner, futex_wait, futex_wake};
use crate::member::Member;

/// How often a waiter looks whether those before it are alive.
const WAITER_CHECK: Duration = Duration::from_millis(2);
/// How late a live process may come, in real time, before others stop waiting for it.
const GRACE_NS: u64 = 20_000_000;

/// A turn on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// When it begins.
    pub start_ns: u64,
    /// When it must end, if others want the device then.
    pub end_ns: u64,
    id: u64,
}

impl Member {
    /// Waits for a turn on the device, wanted since `since_ns`.
    #[must_use]
    pub fn take_turn(&self, device: usize, since_ns: u64) -> Turn {
        let share = self.share(device);
        share.wanted_since_ns.store(since_ns, Ordering::Relaxed);
        loop {
            let bell = share.bell.load(Ordering::Acquire);
            if let Some(turn) = self.try_take(device) {
                return turn;
            }
            if !futex_wait(&share.bell, bell, WAITER_CHECK) {
                self.machine.reap();
            }
        }
    }

    fn try_take(&self, device: usize) -> Option<Turn> {
        let (shared, share) = (self.device(device), self.share(device));
        let _turns = shared.turns.lock(self.machine);
        if share.ticket.load(Ordering::Relaxed) == 0 {
            share.ticket.store(shared.next_ticket.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        let own = self.machine.token();
        let now = now_ns();
        let holder = shared.holder.load(Ordering::Relaxed);
        if holder != 0 {
            let end = shared.turn_end_ns.load(Ordering::Relaxed);
            if now <= end.saturating_add(GRACE_NS) && self.machine.is_alive(holder) {
                return None;
            }
            // What a dead holder had queued is gone; the time it used before is not known to the nanosecond.
            shared.holder.store(0, Ordering::Relaxed);
            let start = shared.turn_start_ns.load(Ordering::Relaxed);
            shared.free_at_ns.store(now.clamp(start, end.max(start)), Ordering::Relaxed);
            shared.released_at_ns.store(now, Ordering::Relaxed);
        }
        let next_is_late = now > shared.released_at_ns.load(Ordering::Relaxed).saturating_add(GRACE_NS);
        match self.next(device) {
            Some(next) if next == self.index => {}
            // It may be stopped: each later turn would begin as late.
            Some(late) if next_is_late => {
                self.machine.state.records[late].devices[device].ticket.store(0, Ordering::Relaxed);
            }
            _ => return None,
        }
        share.ticket.store(0, Ordering::Relaxed);
        let switches = !matches!(shared.last_holder.load(Ordering::Relaxed), last if last == own || last == 0);
        let switch_ns = if switches { self.config().context_switch_ns } else { 0 };
        let free_at = shared.free_at_ns.load(Ordering::Relaxed);
        let start_ns = free_at.max(share.wanted_since_ns.load(Ordering::Relaxed)) + switch_ns;
        shared.holder.store(own, Ordering::Relaxed);
        shared.last_holder.store(own, Ordering::Relaxed);
        Some(self.begin(shared, start_ns))
    }

    fn begin(&self, shared: &Device, start_ns: u64) -> Turn {
        let end_ns = start_ns + self.config().timeslice_ns;
        let id = shared.turn_id.fetch_add(1, Ordering::Relaxed) + 1;
        shared.turn_start_ns.store(start_ns, Ordering::Relaxed);
        shared.turn_end_ns.store(end_ns, Ordering::Relaxed);
        Turn { start_ns, end_ns, id }
    }

    /// Accounts for `busy_ns` of work in a turn that goes on; what its end or extension is told then is what came
    /// after.
    pub fn charge(&self, device: usize, busy_ns: u64) {
        let _turns = self.device(device).turns.lock(self.machine);
        self.add_use(device, busy_ns);
    }

    /// Ends a turn at `now_ns`, `busy_ns` of which were work. The device goes to the next in the queue.
    pub fn end_turn(&self, device: usize, turn: Turn, now_ns: u64, busy_ns: u64) {
        let shared = self.device(device);
        let _turns = shared.turns.lock(self.machine);
        self.add_use(device, busy_ns);
        if self.has(shared, turn) {
            self.hand_over(device, now_ns);
        }
    }

    /// Goes on at the end of a turn, `busy_ns` of which were work: with another turn if nobody else wants the device.
    #[must_use]
    pub fn extend_turn(&self, device: usize, turn: Turn, busy_ns: u64) -> Option<Turn> {
        let shared = self.device(device);
        let _turns = shared.turns.lock(self.machine);
        self.add_use(device, busy_ns);
        if !self.has(shared, turn) {
            return None;
        }
        shared.free_at_ns.store(turn.end_ns, Ordering::Relaxed);
        if self.earliest_waiter(device, turn.end_ns).is_none() {
            return Some(self.begin(shared, turn.end_ns));
        }
        self.hand_over(device, turn.end_ns);
        None
    }

    fn has(&self, shared: &Device, turn: Turn) -> bool {
        shared.holder.load(Ordering::Relaxed) == self.machine.token()
            && shared.turn_id.load(Ordering::Relaxed) == turn.id
    }

    fn add_use(&self, device: usize, busy_ns: u64) {
        let (now, share, shared) = (now_ns(), self.share(device), self.device(device));
        share.history.charge(&share.busy_ns, busy_ns, now);
        shared.history.charge(&shared.busy_ns, busy_ns, now);
    }

    fn hand_over(&self, device: usize, free_at_ns: u64) {
        let shared = self.device(device);
        shared.holder.store(0, Ordering::Relaxed);
        shared.free_at_ns.store(free_at_ns, Ordering::Relaxed);
        shared.released_at_ns.store(now_ns(), Ordering::Relaxed);
        if let Some(next) = self.next(device) {
            let bell = &self.machine.state.records[next].devices[device].bell;
            bell.fetch_add(1, Ordering::Release);
            futex_wake(bell, 1);
        }
    }

    /// The record whose turn comes next.
    fn next(&self, device: usize) -> Option<usize> {
        let free_at = self.device(device).free_at_ns.load(Ordering::Relaxed);
        self.earliest_waiter(device, free_at).or_else(|| {
            // Nobody wanted the device yet when it became free: it goes to whoever wanted it first afterwards.
            self.waiters(device).min_by_key(|&(since, ticket, _)| (since, ticket)).map(|(_, _, index)| index)
        })
    }

    /// The lowest ticket among those who wanted the device by `instant_ns`.
    fn earliest_waiter(&self, device: usize, instant_ns: u64) -> Option<usize> {
        let waiters = self.waiters(device).filter(|&(since, _, _)| since <= instant_ns);
        waiters.min_by_key(|&(_, ticket, _)| ticket).map(|(_, _, index)| index)
    }

    fn waiters(&self, device: usize) -> impl Iterator<Item = (u64, u64, usize)> {
        self.machine.records().filter_map(move |(index, record)| {
            let share = &record.devices[device];
            let ticket = share.ticket.load(Ordering::Relaxed);
            (ticket != 0).then(|| (share.wanted_since_ns.load(Ordering::Relaxed), ticket, index))
        })
    }
}
