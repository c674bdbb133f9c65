//! Time slices of a device: which process runs, from when to when.
//!
//! All instants are on the device's timeline. A process that wants the device draws a ticket. The device goes to the
//! lowest ticket among the processes that wanted it by the instant at which it became free. A process that the
//! operating system schedules late still gets its device time: its work then completes in the past.
//!
//! A holder loses the time slice if it is dead or has not come back within a grace period after the end of the time slice
//! (it may be stopped), as the hardware would take the device away. A chosen waiter that does not come is passed over
//! after the same period, and waits again when it comes.

use core::sync::atomic::Ordering;
use core::time::Duration;

use crate::clock::now_ns;
use crate::layout::Device;
use crate::lock::{Owner, futex_wait, futex_wake};
use crate::member::Member;

/// How often a waiter checks whether the processes before it are alive.
const WAITER_CHECK: Duration = Duration::from_millis(2);
/// How late a live process may come, in real time, before other processes stop waiting for it.
const GRACE_NS: u64 = 20_000_000;

/// A time slice on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeSlice {
    /// The instant at which the time slice begins.
    pub start_ns: u64,
    /// The instant at which the time slice must end, if other processes want the device then.
    pub end_ns: u64,
    id: u64,
}

impl Member {
    /// Waits for a time slice on the device, which this process has wanted since `since_ns`.
    #[must_use]
    pub fn take_time_slice(&self, device: usize, since_ns: u64) -> TimeSlice {
        let share = self.share(device);
        share.wanted_since_ns.store(since_ns, Ordering::Relaxed);
        loop {
            let bell = share.bell.load(Ordering::Acquire);
            if let Some(time_slice) = self.try_take(device) {
                return time_slice;
            }
            if !futex_wait(&share.bell, bell, WAITER_CHECK) {
                self.machine.reap();
            }
        }
    }

    fn try_take(&self, device: usize) -> Option<TimeSlice> {
        let (shared, share) = (self.device(device), self.share(device));
        let _held = shared.time_slices.lock(self.machine);
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
            // A dead holder's queued work is gone. The exact device time that it used is not known.
            shared.holder.store(0, Ordering::Relaxed);
            let start = shared.turn_start_ns.load(Ordering::Relaxed);
            shared.free_at_ns.store(now.clamp(start, end.max(start)), Ordering::Relaxed);
            shared.released_at_ns.store(now, Ordering::Relaxed);
        }
        let next_is_late = now > shared.released_at_ns.load(Ordering::Relaxed).saturating_add(GRACE_NS);
        match self.next(device) {
            Some(next) if next == self.index => {}
            // The chosen process may be stopped. Without this, each later time slice would start as late.
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

    fn begin(&self, shared: &Device, start_ns: u64) -> TimeSlice {
        let end_ns = start_ns + self.config().timeslice_ns;
        let id = shared.time_slice_id.fetch_add(1, Ordering::Relaxed) + 1;
        shared.turn_start_ns.store(start_ns, Ordering::Relaxed);
        shared.turn_end_ns.store(end_ns, Ordering::Relaxed);
        TimeSlice { start_ns, end_ns, id }
    }

    /// Charges `busy_ns` of work within a time slice. Its end or extension must then charge only later work.
    pub fn charge(&self, device: usize, busy_ns: u64) {
        let _held = self.device(device).time_slices.lock(self.machine);
        self.add_use(device, busy_ns);
    }

    /// Ends a time slice at `now_ns` and charges `busy_ns` of work. The device goes to the next process in the queue.
    pub fn end_time_slice(&self, device: usize, time_slice: TimeSlice, now_ns: u64, busy_ns: u64) {
        let shared = self.device(device);
        let _held = shared.time_slices.lock(self.machine);
        self.add_use(device, busy_ns);
        if self.has(shared, time_slice) {
            self.hand_over(device, now_ns);
        }
    }

    /// Charges `busy_ns` of work at the end of a time slice. Returns another one if no other process wants the device.
    #[must_use]
    pub fn extend_time_slice(&self, device: usize, time_slice: TimeSlice, busy_ns: u64) -> Option<TimeSlice> {
        let shared = self.device(device);
        let _held = shared.time_slices.lock(self.machine);
        self.add_use(device, busy_ns);
        if !self.has(shared, time_slice) {
            return None;
        }
        shared.free_at_ns.store(time_slice.end_ns, Ordering::Relaxed);
        if self.earliest_waiter(device, time_slice.end_ns).is_none() {
            return Some(self.begin(shared, time_slice.end_ns));
        }
        self.hand_over(device, time_slice.end_ns);
        None
    }

    fn has(&self, shared: &Device, time_slice: TimeSlice) -> bool {
        shared.holder.load(Ordering::Relaxed) == self.machine.token()
            && shared.time_slice_id.load(Ordering::Relaxed) == time_slice.id
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

    /// The index of the record that gets the next time slice.
    fn next(&self, device: usize) -> Option<usize> {
        let free_at = self.device(device).free_at_ns.load(Ordering::Relaxed);
        self.earliest_waiter(device, free_at).or_else(|| {
            // No process wanted the device when it became free. It goes to the first one that wanted it afterwards.
            self.waiters(device).min_by_key(|&(since, ticket, _)| (since, ticket)).map(|(_, _, index)| index)
        })
    }

    /// The record with the lowest ticket among those that wanted the device by `instant_ns`.
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
