//! One container on the device: its share, the state of its work, and its charges.

use crate::bucket::Bucket;
use crate::charge::Span;
use crate::gang::{GangState, Precedence, Siblings};
use crate::pauses::Pauses;
use crate::timing::{
    BUDGET_OPEN_NS, BURST_NS, EXPECTED_MAX_NS, HANDOVER_NS, HELD_OFF_MAX_NS, IDLE_GRACE_MIN_NS, IDLE_GRACE_NS,
    OVERDUE_NS, OVERRUN_MAX_NS, OVERRUN_REPORTED_NS, QUANTUM_MAX_NS, QUANTUM_URGENT_NS, WAKING_NS,
};
use crate::usage::Usage;

/// Identifies a container to its arbiter. The caller chooses the number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContainerId(pub u64);

/// A container's share of the device's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Guaranteed share while others want the device too, in percent. The requests on one device should add up to at
    /// most 100. A container with a request of 0 has the weight of an eighth of a percent.
    pub request_percent: u32,
    /// Maximum share, in percent. 0 counts as 1, and more than 100 as 100.
    pub limit_percent: u32,
    /// A greater priority goes first among containers within their requests, and for time that is left over.
    pub priority: i32,
}

impl Share {
    fn request(self) -> u32 {
        self.request_percent.min(100)
    }

    fn limit(self) -> u32 {
        self.limit_percent.clamp(1, 100)
    }
}

/// The state of a container's region at a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observation {
    /// The container with the region.
    pub container: ContainerId,
    /// A thread waits at the gate.
    pub waiting: bool,
    /// Processes whose marked work on the device is not done; 0 means drained.
    pub in_flight: u32,
    /// Sum of the numbers of the processes' newest markers. It changes when work is submitted.
    pub markers: u64,
    /// When the present work began: the submission that came after all earlier work was done. Meaningless for a
    /// container that has submitted nothing lately.
    pub busy_since_ns: u64,
    /// The container's state on its other devices; `None` if it has only this one.
    pub siblings: Option<Siblings>,
}

/// The state of a container's gate, and why it is in that state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The gate is closed, and all work is done as far as is known.
    Closed,
    /// The container holds the lease. Its quantum began at `since_ns`; the gate last changed at `ticked_ns`.
    Open { since_ns: u64, ticked_ns: u64 },
    /// The container is alone on the device, and its gate stays open.
    Free,
    /// The gate was opened at `since_ns` beside that of the holder, which pauses. It last changed at `ticked_ns`.
    Guest { since_ns: u64, ticked_ns: u64 },
    /// The gate is closed, and the container's work keeps others out.
    Draining { closed_ns: u64 },
    /// The gate is closed, and the container's work has been there too long to keep others out.
    Overrunning { closed_ns: u64 },
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: ContainerId,
    pub(crate) share: Share,
    pub(crate) processes: u32,
    pub(crate) phase: Phase,
    /// Whether the arbiter knows the gate's state; it does once it has set it.
    pub(crate) gate_known: bool,
    /// When the arbiter last closed the gate.
    pub(crate) closed_ns: u64,
    /// When work was last seen to appear at the closed gate.
    shown_ns: u64,
    pub(crate) usage: Usage,

    /// Budget that its limit leaves.
    pub(crate) cap: Bucket,
    /// Budget that its request guarantees.
    pub(crate) guarantee: Bucket,
    /// Charged time divided by weight; see `fair`.
    pub(crate) virtual_ns: u64,
    /// The container wants the device and may have it.
    pub(crate) contending: bool,
    /// The container is idle, or kept away by its own limit: virtual time passes without it.
    pub(crate) absent: bool,
    /// The container was idle, wants the device now, and has had no lease since.
    pub(crate) woke: bool,
    /// The container handed its last lease back, wants the device again, and has had no lease since.
    pub(crate) came_back: bool,
    /// The container handed its last lease back.
    handed_back: bool,

    /// Expected charge of one of its leases, drain included, from experience.
    pub(crate) expected_lease_ns: u64,
    /// Expected time from the closing of its gate to the end of its work, from experience.
    pub(crate) expected_drain_ns: u64,
    /// How far its drains have been from what was expected, as a mean that forgets.
    drain_error_ns: u64,
    /// Charged time that is not paid yet.
    unpaid_ns: u64,
    /// How long the container held the lease between the last two polls and had no work.
    unused_ns: u64,
    /// Time charged since the quantum began.
    pub(crate) lease_charged_ns: u64,
    /// How long the holder may do nothing before it loses its lease to another container.
    pub(crate) idle_grace_ns: u64,

    /// How long the holder may wait at its own open gate while other containers wait for the device.
    pub(crate) patience_ns: u64,
    /// The holder has had no work since the lease was granted.
    pub(crate) unused: bool,
    pub(crate) pauses: Pauses,

    pub(crate) waiting: bool,
    /// The value of `waiting` at the previous poll.
    pub(crate) waited: bool,
    pub(crate) in_flight: u32,
    markers: Option<u64>,
    /// The container had work between the last two polls.
    active: bool,
    /// The container has had no work and has wanted none, for longer than a short pause.
    pub(crate) idle: bool,
    /// When the container was last seen working or waiting.
    pub(crate) last_active_ns: u64,
    /// When its work was done, if all of it is.
    pub(crate) drained_ns: u64,

    /// Its state on its other devices, if it has any.
    pub(crate) siblings: Option<Siblings>,
    /// Its state on this device, for its siblings.
    pub(crate) gang_state: GangState,
    /// Since when its siblings have been summoned from here.
    pub(crate) session_ns: Option<u64>,
    /// Precedence over virtual time because of its siblings.
    pub(crate) precedence: Precedence,
    /// Since its lease began, the container was seen open on all devices that it wants.
    pub(crate) together: bool,
    /// From experience the container wants this device once it has its others.
    pub(crate) follows: bool,
    /// The container is summoned, and is expected to want this device.
    pub(crate) is_expected: bool,
    /// The container's lease here is for letting its work on another device end.
    pub(crate) recalled: bool,
}

impl Container {
    pub(crate) fn new(id: ContainerId, share: Share, virtual_ns: u64) -> Self {
        Self {
            id,
            share,
            processes: 0,
            phase: Phase::Closed,
            gate_known: false,
            closed_ns: 0,
            shown_ns: 0,
            usage: Usage::default(),
            cap: Bucket::new(share.limit(), BUDGET_OPEN_NS),
            guarantee: Bucket::new(share.request(), QUANTUM_MAX_NS),
            virtual_ns,
            contending: false,
            absent: true,
            woke: false,
            came_back: false,
            handed_back: false,
            expected_lease_ns: QUANTUM_URGENT_NS,
            expected_drain_ns: QUANTUM_URGENT_NS,
            drain_error_ns: QUANTUM_URGENT_NS,
            unpaid_ns: 0,
            unused_ns: 0,
            lease_charged_ns: 0,
            idle_grace_ns: IDLE_GRACE_NS,
            patience_ns: QUANTUM_MAX_NS,
            unused: false,
            pauses: Pauses::new(),
            waiting: false,
            waited: false,
            in_flight: 0,
            markers: None,
            active: false,
            idle: true,
            last_active_ns: 0,
            drained_ns: 0,
            siblings: None,
            gang_state: GangState::Absent,
            session_ns: None,
            precedence: Precedence::None,
            together: false,
            follows: false,
            is_expected: false,
            recalled: false,
        }
    }

    pub(crate) fn resize(&mut self, share: Share) {
        self.share = share;
        self.cap.set_rate(share.limit());
        self.guarantee.set_rate(share.request());
    }

    /// The weight: its request in eighths of a percent, at least 1.
    pub(crate) fn weight(&self) -> u64 {
        (u64::from(self.share.request()) * 8).max(1)
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.share.limit() < 100
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. } | Phase::Guest { .. } | Phase::Free)
    }

    /// Whether the container launches work, or would if it could.
    pub(crate) fn wants(&self) -> bool {
        let holds = matches!(self.phase, Phase::Open { .. } | Phase::Guest { .. });
        self.processes > 0 && (self.waiting || self.is_expected || holds)
    }

    /// The part of `ns` of running time that its limit does not refill in the same time.
    pub(crate) fn net_of_limit_ns(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.cap.earned_ns(ns))
    }

    /// Half of the budget that a lease consumes. With leases that begin at this budget, its use is centred on its
    /// limit.
    pub(crate) fn half_swing_ns(&self) -> u64 {
        self.net_of_limit_ns(self.expected_lease_ns) / 2
    }

    /// Takes in the observation of the poll at `now_ns`; the last poll was at `before_ns`. Returns the time in between
    /// in which the container had work.
    pub(crate) fn observe(&mut self, before_ns: u64, now_ns: u64, seen: Option<&Observation>) -> Option<Span> {
        let held_from_ns = self.held_from_ns(before_ns);
        let span = self.work(before_ns, now_ns, seen);
        let worked_ns = span.map_or(0, |span| span.end_ns.saturating_sub(span.start_ns));
        let held_ns = held_from_ns.map_or(0, |from_ns| now_ns.saturating_sub(from_ns));
        self.unused_ns = held_ns.saturating_sub(worked_ns);
        span
    }

    /// The time from which on it has held the lease since `before_ns`, without the time that its threads need to wake
    /// up.
    fn held_from_ns(&self, before_ns: u64) -> Option<u64> {
        match self.phase {
            Phase::Open { since_ns, .. } if self.unused => Some(before_ns.max(since_ns.saturating_add(WAKING_NS))),
            Phase::Open { .. } => Some(before_ns),
            _ => None,
        }
    }

    /// Updates the state of its work, and returns the time since the last poll in which it had work.
    fn work(&mut self, before_ns: u64, now_ns: u64, seen: Option<&Observation>) -> Option<Span> {
        let alive = seen.filter(|_| self.processes > 0);
        let in_flight = alive.map_or(0, |seen| seen.in_flight.min(self.processes));
        let submitted = alive.is_some_and(|seen| self.markers.is_some_and(|markers| markers != seen.markers));
        let begun_ns = alive.map_or(now_ns, |seen| seen.busy_since_ns.clamp(before_ns, now_ns));
        let (was_busy, was_active) = (self.in_flight > 0, self.active);
        let open = matches!(self.phase, Phase::Open { .. } | Phase::Guest { .. });

        self.markers = alive.map(|seen| seen.markers).or(self.markers);
        self.waited = self.waiting;
        self.waiting = alive.is_some_and(|seen| seen.waiting);
        self.active = in_flight > 0 || submitted;
        let processes = self.in_flight.max(in_flight);
        self.in_flight = in_flight;
        if self.active && self.unused {
            self.unused = false;
            self.patience_ns = QUANTUM_MAX_NS;
        }
        if self.phase == Phase::Free {
            return None;
        }

        // A holder that never pauses for longer than a poll interval counts as working all the time.
        let start_ns = if was_busy || (was_active && open) { before_ns } else { begun_ns };
        let end_ns = match (in_flight > 0, submitted) {
            (true, _) => now_ns,
            (false, true) if open && was_active => now_ns,
            (false, true) => begun_ns.max(start_ns).midpoint(now_ns),
            (false, false) if was_busy => before_ns.midpoint(now_ns),
            (false, false) => return None,
        };
        if in_flight == 0 {
            self.drained_ns = end_ns;
        }
        let overdue = matches!(
            self.phase,
            Phase::Overrunning { closed_ns } if before_ns.saturating_sub(closed_ns.max(self.shown_ns)) >= OVERDUE_NS
        );
        Some(Span { container: self.id, start_ns, end_ns, processes, overdue })
    }

    /// Updates activity, waits and overruns. Called after [`Container::observe`].
    pub(crate) fn account(&mut self, before_ns: u64, now_ns: u64) {
        if self.active || self.waiting {
            let paused = now_ns.saturating_sub(self.last_active_ns) > now_ns.saturating_sub(before_ns);
            if paused && matches!(self.phase, Phase::Open { .. }) {
                self.idle_grace_ns = (self.idle_grace_ns * 2).min(IDLE_GRACE_NS);
            }
            self.last_active_ns = now_ns;
            self.woke |= self.idle && self.waiting;
            self.came_back |= self.handed_back && self.waiting;
            self.idle = false;
        } else if self.processes == 0
            || (now_ns.saturating_sub(self.last_active_ns) > IDLE_GRACE_NS && !self.is_kept_elsewhere())
        {
            self.idle = true;
            self.woke = false;
        }
        match self.waiting && !self.is_open() {
            true => self.usage.begin_wait(now_ns),
            false => self.usage.end_wait(now_ns),
        }
        if let Phase::Draining { closed_ns } | Phase::Overrunning { closed_ns } = self.phase {
            let expected_end_ns = closed_ns.saturating_add(OVERRUN_REPORTED_NS);
            let end_ns = if self.in_flight > 0 { now_ns } else { self.drained_ns };
            if end_ns > expected_end_ns {
                self.usage.overruns += u64::from(before_ns <= expected_end_ns);
                self.usage.overrun_ns += end_ns.saturating_sub(expected_end_ns.max(before_ns));
            }
        }
    }

    /// Books `ns` of device time, to be paid in [`Container::pay`].
    pub(crate) fn charge(&mut self, ns: u64) {
        self.unpaid_ns += ns;
    }

    /// Pays the charges and earns budget for the time from `before_ns` to `now_ns`. `shared`: several containers had
    /// work on the device in that time. `wanted`: another container waited for the device, and could have used it.
    pub(crate) fn pay(&mut self, before_ns: u64, now_ns: u64, shared: bool, wanted: bool) {
        let (charged_ns, elapsed_ns) = (std::mem::take(&mut self.unpaid_ns), now_ns.saturating_sub(before_ns));
        self.usage.charged_ns += charged_ns;
        self.lease_charged_ns += charged_ns;
        // The others cannot use the time that a holder leaves unused. So it counts against the holder's request, but
        // it is not device time: it is neither charged nor limited.
        let withheld_ns = if wanted { self.unused_ns } else { 0 };
        self.virtual_ns = self.virtual_ns.saturating_add(self.weighted_ns(charged_ns.saturating_add(withheld_ns)));
        self.guarantee.spend(withheld_ns);

        // The time before the first poll that finds it waiting was its own pause, however long ago the previous poll
        // was.
        let held_off = (self.waited && !self.is_open()) || (self.in_flight > 0 && shared);
        let half_swing_ns = self.half_swing_ns();
        let pass = |bucket: &mut Bucket, idle_ns: u64| {
            let capacity_ns = if held_off {
                idle_ns.saturating_add(bucket.earned_ns(HELD_OFF_MAX_NS))
            } else if self.idle {
                idle_ns
            } else {
                // A container that uses little of its lease must not save more than an idle one. A container that
                // others kept waiting keeps its savings.
                bucket.balance_ns().max(idle_ns)
            };
            bucket.spend(charged_ns);
            bucket.refill(elapsed_ns, capacity_ns);
        };
        pass(&mut self.cap, BURST_NS.max(half_swing_ns));
        pass(&mut self.guarantee, QUANTUM_MAX_NS);
        // Time that others left, and that this container used, must not count against its request later.
        self.guarantee.forgive_beyond(self.expected_lease_ns.max(QUANTUM_MAX_NS));
    }

    /// Device time over weight. With a request of 100, virtual time equals device time.
    pub(crate) fn weighted_ns(&self, ns: u64) -> u64 {
        ns.saturating_mul(800) / self.weight()
    }

    /// Grants a lease: it begins now, with a new quantum.
    pub(crate) fn grant(&mut self, now_ns: u64) {
        self.let_in(Phase::Open { since_ns: now_ns, ticked_ns: now_ns }, now_ns);
        self.together = false;
        self.recalled = self.is_awaited_elsewhere();
    }

    /// Lets the container in beside the holder.
    pub(crate) fn invite(&mut self, now_ns: u64) {
        self.let_in(Phase::Guest { since_ns: now_ns, ticked_ns: now_ns }, now_ns);
    }

    fn let_in(&mut self, phase: Phase, now_ns: u64) {
        self.phase = phase;
        self.pauses.begin();
        self.usage.leases += 1;
        self.usage.end_wait(now_ns);
        self.woke = false;
        (self.came_back, self.handed_back) = (false, false);
        self.active = false;
        self.unused = true;
        self.last_active_ns = now_ns;
        self.lease_charged_ns = 0;
    }

    /// The guest becomes the holder. Its gate stays as it is.
    pub(crate) fn promote(&mut self, now_ns: u64) {
        self.phase = Phase::Open { since_ns: now_ns, ticked_ns: now_ns };
        (self.together, self.recalled) = (false, false);
    }

    /// The holder becomes a guest. Its gate stays as it is.
    pub(crate) fn step_aside(&mut self, now_ns: u64) {
        self.learn_lease();
        self.session_ns = None;
        self.phase = Phase::Guest { since_ns: now_ns, ticked_ns: now_ns };
    }

    /// Since when the container has been a guest, if it is one.
    pub(crate) fn guest_since_ns(&self) -> Option<u64> {
        match self.phase {
            Phase::Guest { since_ns, .. } => Some(since_ns),
            _ => None,
        }
    }

    /// Whether the container has been a guest for longer than its threads need to wake up, and has done nothing.
    pub(crate) fn has_not_come(&self, now_ns: u64) -> bool {
        self.unused && self.guest_since_ns().is_some_and(|since_ns| now_ns >= since_ns.saturating_add(IDLE_GRACE_NS))
    }

    /// The guest that has not come leaves. It is not let in again before it has paused in a lease of its own: its
    /// threads may be stopped, and would keep others from being let in.
    pub(crate) fn stay_away(&mut self, now_ns: u64) {
        self.pauses.forget();
        self.forfeit(self.guest_since_ns().unwrap_or(now_ns), now_ns);
    }

    /// Whether the container has or submits work, or is about to.
    pub(crate) fn is_at_work(&self) -> bool {
        self.active || self.waiting
    }

    /// When its open gate was last ticked.
    pub(crate) fn ticked_ns(&self) -> u64 {
        match self.phase {
            Phase::Open { ticked_ns, .. } | Phase::Guest { ticked_ns, .. } => ticked_ns,
            _ => 0,
        }
    }

    pub(crate) fn note_tick(&mut self, now_ns: u64) {
        if let Phase::Open { ticked_ns, .. } | Phase::Guest { ticked_ns, .. } = &mut self.phase {
            *ticked_ns = now_ns;
        }
    }

    /// Lets the container run free: its gate stays open without a lease.
    pub(crate) fn set_free(&mut self, now_ns: u64) {
        self.phase = Phase::Free;
        self.session_ns = None;
        self.usage.end_wait(now_ns);
        self.woke = false;
    }

    /// Ends the lease. Its work may still be in flight.
    pub(crate) fn close(&mut self, now_ns: u64) {
        self.session_ns = None;
        self.closed_ns = now_ns;
        self.phase = Phase::Draining { closed_ns: now_ns };
    }

    /// Work appears although the gate is closed. It was launched just before the gate was closed and is seen late, or
    /// it is a forgery. So its time to keep others out began when the gate was closed: work that comes and goes gains
    /// nothing.
    pub(crate) fn show_work(&mut self, now_ns: u64) {
        self.session_ns = None;
        self.shown_ns = now_ns;
        let closed_ns = self.closed_ns;
        self.phase =
            if self.is_late(closed_ns) { Phase::Overrunning { closed_ns } } else { Phase::Draining { closed_ns } };
    }

    /// Whether the work appeared too long after the gate was closed, at `closed_ns`, to be that of the lease before.
    fn is_late(&self, closed_ns: u64) -> bool {
        self.shown_ns.saturating_sub(closed_ns) >= OVERRUN_MAX_NS
    }

    /// Hands the lease back because its holder does nothing.
    pub(crate) fn hand_back(&mut self, now_ns: u64) {
        self.idle_grace_ns = (self.idle_grace_ns / 2).max(IDLE_GRACE_MIN_NS);
        self.handed_back = true;
        self.follows &= !(self.unused && self.together);
        if self.unused {
            self.pay_for_waking();
        }
        self.close(now_ns);
    }

    /// The container pays for the time to wake up too, which was excepted so far, because the lease was not used.
    fn pay_for_waking(&mut self) {
        self.virtual_ns = self.virtual_ns.saturating_add(self.weighted_ns(WAKING_NS));
        self.guarantee.spend(WAKING_NS);
    }

    /// Ends a lease that was waited for and not used. The next such lease is shorter.
    pub(crate) fn forfeit(&mut self, since_ns: u64, now_ns: u64) {
        self.pay_for_waking();
        // The container pays for the lease: it may have used time without showing it, and hiding work must gain
        // nothing.
        self.cap.spend(now_ns.saturating_sub(since_ns));
        self.patience_ns = (self.patience_ns / 2).max(QUANTUM_URGENT_NS);
        self.close(now_ns);
    }

    /// Its work is done: ends the lease, and learns from it.
    pub(crate) fn drained(&mut self, closed_ns: u64) {
        self.pauses.learn_drain(self.drained_ns.saturating_sub(closed_ns));
        if self.drained_ns > closed_ns && !self.is_late(closed_ns) {
            let drain_ns = (self.drained_ns - closed_ns).min(EXPECTED_MAX_NS);
            let error_ns = drain_ns.abs_diff(self.expected_drain_ns);
            self.drain_error_ns = (self.drain_error_ns * 3 + error_ns) / 4;
            self.expected_drain_ns = (self.expected_drain_ns * 3 + drain_ns) / 4;
        }
        self.learn_lease();
        self.phase = Phase::Closed;
    }

    /// When the next gate may be opened although the container's work, whose gate was closed at `closed_ns`, is not done:
    /// shortly before its end, so that the device is not empty until the next container's threads have woken up. `None`:
    /// its end is not known well enough, or the container needs its devices together.
    pub(crate) fn hands_over_ns(&self, closed_ns: u64) -> Option<u64> {
        let is_known = self.siblings.is_none() && self.drain_error_ns <= HANDOVER_NS && !self.pauses.are_usual();
        is_known.then(|| closed_ns.saturating_add(self.expected_drain_ns).saturating_sub(HANDOVER_NS))
    }

    /// Begins a new quantum without a switch.
    pub(crate) fn renew(&mut self, now_ns: u64) {
        self.learn_lease();
        if let Phase::Open { since_ns, .. } = &mut self.phase {
            *since_ns = now_ns;
        }
    }

    fn learn_lease(&mut self) {
        if self.lease_charged_ns > 0 {
            let lease_ns = std::mem::take(&mut self.lease_charged_ns).min(EXPECTED_MAX_NS);
            // The expectation falls slowly after long leases, because the debt that those cause must stay bounded.
            self.expected_lease_ns =
                lease_ns.max(self.expected_lease_ns - self.expected_lease_ns.saturating_sub(lease_ns) / 16);
        }
    }
}
