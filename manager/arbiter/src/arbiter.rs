//! The arbiter of one device: turns the observations of a poll into commands to the gates.

use std::collections::BTreeMap;

use crate::charge::{self, Span};
use crate::container::{Container, ContainerId, Observation, Phase, Share};
use crate::fair::{self, Contender, VirtualClock};
use crate::gang::GangState;
use crate::lease::{self, Rivals, Verdict};
use crate::timing::{
    BUDGET_OPEN_NS, DRAIN_POLL_NS, GANG_DRAIN_NS, GANG_GAP_NS, OVERRUN_LAST_NS, OVERRUN_MAX_NS, QUANTUM_MAX_NS,
    QUANTUM_URGENT_NS, SHORT_LEASE_POLL_NS, TICK_NS,
};
use crate::usage::Usage;

mod guests;

/// A change to a container's gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GateCommand {
    /// Open the gate, and wake the threads that wait at it.
    Open {
        /// The container with the gate.
        container: ContainerId,
    },
    /// Open the gate for a container that is alone on the device, and so needs no ticks and no markers. Wake the
    /// threads that wait at it.
    OpenFree {
        /// The container with the gate.
        container: ContainerId,
    },
    /// Close the gate: launches wait from now on.
    Close {
        /// The container with the gate.
        container: ContainerId,
    },
    /// Change the counter in the word of the open gate.
    Tick {
        /// The container with the gate.
        container: ContainerId,
    },
}

/// The decisions of a poll.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PollOutcome {
    /// To be carried out in this order: a gate is closed before another one is opened.
    pub commands: Vec<GateCommand>,
    /// The latest time for the next poll; `None`: no poll is needed before something happens.
    pub next_poll_ns: Option<u64>,
}

/// Shares one device's time between containers.
///
/// The caller polls soon after each change ([`Arbiter::add`], [`Arbiter::remove`], [`Arbiter::resize`],
/// [`Arbiter::set_processes`], [`Arbiter::set_charges_all`]) and when a thread reports that it waits at a gate;
/// otherwise at [`PollOutcome::next_poll_ns`]. A late poll costs only accuracy.
#[derive(Debug)]
pub struct Arbiter {
    containers: BTreeMap<ContainerId, Container>,
    clock: VirtualClock,
    polled_ns: u64,
    /// Whether no container ever runs free.
    charges_all: bool,
    /// The longest lease while others wait.
    quantum_max_ns: u64,
    /// Since when the device has been kept empty for a container whose other devices are about to be ready.
    kept_empty_since_ns: Option<u64>,
}

impl Arbiter {
    /// An arbiter without containers. `now_ns` is the present time of a steady clock of the caller's choice.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        Self {
            containers: BTreeMap::new(),
            clock: VirtualClock::default(),
            polled_ns: now_ns,
            charges_all: false,
            quantum_max_ns: QUANTUM_MAX_NS,
            kept_empty_since_ns: None,
        }
    }

    /// The same arbiter with leases of at most `lease_max_ns` while others wait, drain included. Less is better for
    /// those who wait, and costs more changes of lease. At least [`QUANTUM_URGENT_NS`], at most [`QUANTUM_MAX_NS`].
    #[must_use]
    pub fn with_leases_of_at_most(self, lease_max_ns: u64) -> Self {
        Self { quantum_max_ns: lease_max_ns.clamp(QUANTUM_URGENT_NS, QUANTUM_MAX_NS), ..self }
    }

    /// Sets whether a container that is alone gets leases too. On a device whose use no driver reports, it is charged
    /// for its use only so.
    pub fn set_charges_all(&mut self, charges_all: bool) {
        self.charges_all = charges_all;
    }

    /// Adds a container without processes. Its gate may be in any state: the next poll sets it. A container that exists
    /// already starts from the beginning.
    pub fn add(&mut self, container: ContainerId, share: Share) {
        self.containers.insert(container, Container::new(container, share, self.clock.now_ns()));
    }

    /// Forgets a container and leaves its gate as it is. Returns its usage, or `None` if there is no such container.
    pub fn remove(&mut self, container: ContainerId) -> Option<Usage> {
        self.containers.remove(&container).map(|container| container.usage)
    }

    /// Changes a container's share; usage and debt stay. Returns whether there is such a container.
    pub fn resize(&mut self, container: ContainerId, share: Share) -> bool {
        self.containers.get_mut(&container).map(|container| container.resize(share)).is_some()
    }

    /// Sets the number of a container's processes attached to the device. At 0 its lease ends, and its work in flight
    /// is forgotten. Returns whether there is such a container.
    pub fn set_processes(&mut self, container: ContainerId, processes: u32) -> bool {
        self.containers.get_mut(&container).map(|container| container.processes = processes).is_some()
    }

    /// A container's usage up to the last poll.
    #[must_use]
    pub fn usage(&self, container: ContainerId) -> Option<Usage> {
        self.containers.get(&container).map(|container| container.usage)
    }

    /// The state on this device, at the last poll, of a container with several devices. The caller must pass it to the
    /// arbiters of the other devices ([`Observation::siblings`]), and poll them soon if it [is
    /// news](GangState::is_news_after).
    #[must_use]
    pub fn gang_state(&self, container: ContainerId) -> GangState {
        self.containers.get(&container).map_or(GangState::Absent, |container| container.gang_state)
    }

    /// The containers, in the order of their ids.
    pub fn containers(&self) -> impl Iterator<Item = ContainerId> {
        self.containers.keys().copied()
    }

    /// Takes in the observations and decides. `observed` should contain each container once; a missing one counts as
    /// drained and not waiting. If `now_ns` is before the last poll, the time of the last poll is used instead.
    pub fn poll(&mut self, now_ns: u64, observed: &[Observation]) -> PollOutcome {
        let before_ns = self.polled_ns;
        let now_ns = now_ns.max(before_ns);
        self.polled_ns = now_ns;
        let mut outcome = PollOutcome::default();

        self.observe(before_ns, now_ns, observed);
        self.end_drains(now_ns, &mut outcome);
        self.admit();
        let looked_at_again_ns = match self.alone() {
            Some(container) => self.set_free(container, now_ns, &mut outcome),
            None => self.share(now_ns, &mut outcome),
        };
        self.publish_gang_states(now_ns);
        outcome.next_poll_ns = [looked_at_again_ns, self.next_drain_poll_ns(now_ns)].into_iter().flatten().min();
        outcome
    }

    /// Takes in the observations, and charges for the time since the last poll.
    fn observe(&mut self, before_ns: u64, now_ns: u64, observed: &[Observation]) {
        let mut spans: Vec<Span> = Vec::new();
        for container in self.containers.values_mut() {
            let seen = observed.iter().find(|seen| seen.container == container.id);
            spans.extend(container.observe(before_ns, now_ns, seen));
            container.account(before_ns, now_ns);
            container.meet(seen.and_then(|seen| seen.siblings));
        }
        charge::split(&spans, |id, ns| {
            if let Some(container) = self.containers.get_mut(&id) {
                container.charge(ns);
            }
        });
        // The containers that could use the device now: they wait for it, and for no other device.
        let takers: Vec<ContainerId> = self
            .contending()
            .filter(|container| container.waiting && container.siblings_ready_ns(now_ns) <= now_ns)
            .map(|container| container.id)
            .collect();
        let is_of_guest = |span: &Span| self.containers.get(&span.container).is_some_and(Container::is_guest);
        let used_by_guests = spans.iter().any(is_of_guest);
        for container in self.containers.values_mut() {
            let wanted = !used_by_guests && takers.iter().any(|&other| other != container.id);
            container.pay(before_ns, now_ns, spans.len() > 1, wanted);
        }
    }

    /// Ends leases whose work is done or whose processes are gone. Marks work that is overdue, so that it no longer
    /// keeps other containers out.
    fn end_drains(&mut self, now_ns: u64, outcome: &mut PollOutcome) {
        for container in self.containers.values_mut() {
            if !container.gate_known {
                container.gate_known = true;
                container.closed_ns = now_ns;
                outcome.commands.push(GateCommand::Close { container: container.id });
            }
            match container.phase {
                Phase::Closed if container.in_flight > 0 => container.show_work(now_ns),
                Phase::Draining { closed_ns } | Phase::Overrunning { closed_ns } if container.in_flight == 0 => {
                    container.drained(closed_ns);
                }
                Phase::Draining { closed_ns } if now_ns.saturating_sub(closed_ns) >= OVERRUN_MAX_NS => {
                    container.phase = Phase::Overrunning { closed_ns };
                }
                Phase::Open { .. } | Phase::Guest { .. } | Phase::Free if container.processes == 0 => {
                    container.closed_ns = now_ns;
                    container.drained(now_ns);
                    outcome.commands.push(GateCommand::Close { container: container.id });
                }
                _ => {}
            }
        }
    }

    /// Updates virtual time, and decides which containers contend.
    fn admit(&mut self) {
        let alone = self.present() <= 1;
        for container in self.containers.values_mut() {
            let may = lease::held_since_ns(container).is_some() || budget_wait_ns(container, alone) == Some(0);
            container.contending = container.wants() && may && !container.is_guest();
            // A short moment between two launches does not count as absence.
            let absent = container.idle || (container.waiting && !may);
            if container.absent && !absent {
                self.clock.admit(container);
            }
            container.absent = absent;
        }
        self.clock.advance(self.containers.values().filter(|container| !container.absent));
        self.give_precedence();
    }

    /// Gives summoned containers precedence over others of their class, unless they are too far ahead of those.
    fn give_precedence(&mut self) {
        if self.containers.values().all(|container| container.siblings.is_none()) {
            return;
        }
        let same_priority = self.same_priority();
        let contenders: Vec<Contender> =
            self.contending().map(|container| fair::contender_by_time(container, same_priority)).collect();
        for container in self.containers.values_mut() {
            let own = fair::contender_by_time(container, same_priority);
            let rivals = contenders.iter().filter(|other| other.container != own.container && other.class == own.class);
            let least_ns = rivals.map(|rival| rival.middle_ns).min().unwrap_or(u64::MAX);
            container.precedence = container.precedence(own.middle_ns.saturating_sub(least_ns));
        }
    }

    fn contending(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().filter(|container| container.contending)
    }

    /// Whether all contending containers and all guests have the same priority.
    fn same_priority(&self) -> bool {
        let mut priorities = self.contending().chain(self.guests()).map(|container| container.share.priority);
        let first = priorities.next();
        priorities.all(|priority| Some(priority) == first)
    }

    /// Number of containers that use the device or want to.
    fn present(&self) -> usize {
        self.containers.values().filter(|container| container.wants() || container.in_flight > 0).count()
    }

    /// The container that has the device to itself: no other container has processes, and it is not limited.
    fn alone(&self) -> Option<ContainerId> {
        if self.charges_all {
            return None;
        }
        let mut attached = self.containers.values().filter(|container| container.processes > 0);
        match (attached.next(), attached.next()) {
            (Some(only), None) if !only.is_limited() => Some(only.id),
            _ => None,
        }
    }

    fn set_free(&mut self, container: ContainerId, now_ns: u64, outcome: &mut PollOutcome) -> Option<u64> {
        let container = self.containers.get_mut(&container)?;
        if container.phase != Phase::Free {
            container.set_free(now_ns);
            outcome.commands.push(GateCommand::OpenFree { container: container.id });
        }
        None
    }

    /// Shares the device between containers. Returns when to poll again, apart from polls for drains.
    fn share(&mut self, now_ns: u64, outcome: &mut PollOutcome) -> Option<u64> {
        // A container that ran free until now holds the device: its lease begins.
        for container in self.containers.values_mut().filter(|container| container.phase == Phase::Free) {
            container.grant(now_ns);
            outcome.commands.push(GateCommand::Open { container: container.id });
        }
        if let Some((holder, since_ns)) = self.holder() {
            let next_ns = self.review(holder, since_ns, now_ns, outcome);
            if self.holder().is_some() || self.guests().next().is_none() {
                return next_ns;
            }
        }
        let rivals = self.rivals(None, now_ns);
        let first = lease::next(None, &rivals);
        if self.promote_guest(first, now_ns, outcome) {
            return Some(now_ns + SHORT_LEASE_POLL_NS);
        }
        let Some(first) = first else {
            return self.next_budget_ns(now_ns);
        };
        self.summon(first, now_ns);
        let is_recalled = self.containers.get(&first.container).is_some_and(Container::is_awaited_elsewhere);
        let keeps_out = |container: &Container| match container.phase {
            Phase::Draining { closed_ns } => {
                let is_stuck = is_recalled && container.is_stuck(closed_ns, first, now_ns);
                !is_stuck && container.hands_over_ns(closed_ns).is_none_or(|at_ns| now_ns < at_ns)
            }
            Phase::Overrunning { closed_ns } => {
                overrun_keeps_out(container, closed_ns, first, rivals.same_priority, now_ns)
            }
            _ => false,
        };
        if self.containers.values().any(keeps_out) {
            return None;
        }
        if let Some(until_ns) = self.joint_drain_until_ns(now_ns) {
            return Some(until_ns);
        }
        if rivals.held == Some(first)
            && let Some(until_ns) = self.keep_empty(first, rivals.best, now_ns)
        {
            return Some(until_ns);
        }
        let next = if self.kept_empty_since_ns.take().is_some() { first } else { rivals.best.unwrap_or(first) };
        let container = self.containers.get_mut(&next.container)?;
        container.grant(now_ns);
        outcome.commands.push(GateCommand::Open { container: container.id });
        Some(now_ns + SHORT_LEASE_POLL_NS)
    }

    /// The holder of the lease, and since when its quantum has run.
    fn holder(&self) -> Option<(ContainerId, u64)> {
        self.containers.values().find_map(|container| Some((container.id, lease::held_since_ns(container)?)))
    }

    /// Until when the device stays empty to see whether the work of the last lease ends on the other devices too.
    fn joint_drain_until_ns(&self, now_ns: u64) -> Option<u64> {
        let waiting_ns = self.containers.values().filter_map(|container| {
            let until_ns = container.drained_ns.saturating_add(GANG_DRAIN_NS);
            (container.is_awaited_elsewhere() && container.phase == Phase::Closed && until_ns > now_ns)
                .then_some(until_ns)
        });
        waiting_ns.max()
    }

    /// Until when the device stays empty for `held`, which is held back; `None` if `best` gets it in the meantime, or
    /// if it has been empty for long enough.
    fn keep_empty(&mut self, held: Contender, best: Option<Contender>, now_ns: u64) -> Option<u64> {
        let ready_ns = self.containers.get(&held.container)?.siblings_ready_ns(now_ns);
        if best.is_none() {
            // Only the limit of `held` could stop it from being let in now.
            return Some(ready_ns.min(now_ns + TICK_NS));
        }
        if ready_ns.saturating_sub(now_ns) > GANG_GAP_NS {
            self.kept_empty_since_ns = None;
            return None;
        }
        let until_ns = self.kept_empty_since_ns.get_or_insert(now_ns).saturating_add(GANG_GAP_NS);
        (now_ns < until_ns).then_some(until_ns.min(ready_ns))
    }

    /// Summons the siblings of the next holder.
    fn summon(&mut self, next: Contender, now_ns: u64) {
        if let Some(container) = self.containers.get_mut(&next.container) {
            container.lead(now_ns);
        }
    }

    /// Decides on the holder's lease, and ticks its gate.
    fn review(&mut self, holder: ContainerId, since_ns: u64, now_ns: u64, outcome: &mut PollOutcome) -> Option<u64> {
        let rivals = self.rivals(Some(holder), now_ns);
        let stays = self.steps_aside(self.containers.get(&holder)?, lease::next(None, &rivals));
        let container = self.containers.get_mut(&holder)?;
        let verdict = lease::verdict(container, since_ns, &rivals, now_ns);
        let until_ns = match verdict {
            Verdict::Goes { until_ns } => until_ns,
            Verdict::Renewed { until_ns, .. } => {
                container.renew(now_ns);
                until_ns
            }
            ending @ (Verdict::HandedBack | Verdict::NotUsed | Verdict::Ended) => {
                match ending {
                    Verdict::HandedBack if !stays => container.hand_back(now_ns),
                    Verdict::NotUsed => container.forfeit(since_ns, now_ns),
                    _ if stays => container.step_aside(now_ns),
                    _ => container.close(now_ns),
                }
                if !container.is_open() {
                    outcome.commands.push(GateCommand::Close { container: holder });
                }
                let next = lease::next(None, &rivals);
                next.into_iter().for_each(|next| self.summon(next, now_ns));
                return None;
            }
        };
        if let (Verdict::Renewed { summons: true, .. }, Some(held)) = (verdict, rivals.held) {
            self.summon(held, now_ns);
        }
        let container = self.containers.get_mut(&holder)?;
        if let Phase::Open { ticked_ns, .. } = &mut container.phase {
            if now_ns.saturating_sub(*ticked_ns) >= TICK_NS {
                *ticked_ns = now_ns;
                outcome.commands.push(GateCommand::Tick { container: holder });
            }
            let poll_ns = (container.expected_lease_ns / 8).clamp(SHORT_LEASE_POLL_NS, TICK_NS);
            let soon_ns = until_ns.min(*ticked_ns + TICK_NS).min(now_ns + poll_ns);
            let guests_ns = self.look_after_guests(holder, now_ns, outcome).unwrap_or(u64::MAX);
            return Some(soon_ns.min(guests_ns).max(now_ns + DRAIN_POLL_NS));
        }
        None
    }

    /// The containers that compete with `holder` for the device, or for a free device if it is `None`.
    fn rivals(&self, holder: Option<ContainerId>, now_ns: u64) -> Rivals {
        let same_priority = self.same_priority();
        let drain_ns =
            holder.and_then(|holder| self.containers.get(&holder)).map_or(0, |holder| holder.expected_drain_ns);
        let contenders = self.contending().count();
        let is_held = |container: &Container| {
            let counts = container.is_limited() || contenders > 1;
            counts && container.siblings_ready_ns(now_ns) > now_ns.saturating_add(drain_ns)
        };
        let others = || self.contending().filter(|container| Some(container.id) != holder);
        let least = |which: &dyn Fn(&Container) -> bool| -> Option<Contender> {
            others().filter(|other| which(other)).map(|other| fair::contender(other, same_priority)).min()
        };
        Rivals {
            best: least(&|other| !is_held(other)),
            held: least(&is_held),
            best_woken: least(&|other| other.woke && !is_held(other)),
            best_back: least(&|other| other.came_back && !is_held(other)),
            weights: self.contending().map(Container::weight).sum(),
            longest_drain_ns: self.contending().map(|container| container.expected_drain_ns).max().unwrap_or(0),
            same_priority,
            quantum_max_ns: self.quantum_max_ns,
        }
    }

    /// Notes the states of containers with several devices, for the arbiters of their other devices.
    fn publish_gang_states(&mut self, now_ns: u64) {
        if self.containers.values().all(|container| container.siblings.is_none()) {
            return;
        }
        let holder = self.containers.values().find(|container| lease::held_since_ns(container).is_some());
        let rivals = self.rivals(holder.map(|holder| holder.id), now_ns);
        let next = lease::next(holder, &rivals).map(|next| next.container);
        let empty_ns = match self.containers.values().map(|container| drain_left_ns(container, now_ns)).max() {
            None | Some(0) => 0,
            Some(left_ns) => now_ns.saturating_add(left_ns),
        };
        let alone = self.present() <= 1;
        for container in self.containers.values_mut() {
            let ready_ns = match budget_wait_ns(container, alone) {
                _ if next == Some(container.id) => empty_ns,
                Some(wait_ns) if wait_ns > 0 => now_ns.saturating_add(wait_ns),
                _ => u64::MAX,
            };
            container.gang_state = container.gang_state(ready_ns);
        }
    }

    /// When the first container that only lacks budget will have enough.
    fn next_budget_ns(&self, now_ns: u64) -> Option<u64> {
        let waiting = self.containers.values().filter(|container| container.wants());
        let alone = self.present() <= 1;
        waiting.filter_map(|container| budget_wait_ns(container, alone)).min().map(|ns| now_ns.saturating_add(ns))
    }

    /// When to check whether the work in flight of closed containers is done.
    fn next_drain_poll_ns(&self, now_ns: u64) -> Option<u64> {
        self.containers.values().filter_map(|container| drain_poll_in_ns(container, now_ns)).min().map(|ns| now_ns + ns)
    }
}

/// How long a container must wait until it has the budget for a lease; `None`: for ever.
///
/// A limited container without competitors begins a lease once it has half of the budget that a lease consumes, so that
/// its use is centred on its limit. Among competitors virtual time has this effect.
fn budget_wait_ns(container: &Container, alone: bool) -> Option<u64> {
    if !container.is_limited() {
        return Some(0);
    }
    let centred_ns = if alone { container.half_swing_ns() } else { 0 };
    container.cap.time_to_ns(BUDGET_OPEN_NS.max(centred_ns))
}

/// Whether the overrunning work of `container` still keeps `next` out. It does if `container` goes first: with `next`
/// beside it, it would get only a part of the device's time although it deserves more.
fn overrun_keeps_out(container: &Container, closed_ns: u64, next: Contender, same_priority: bool, now_ns: u64) -> bool {
    now_ns.saturating_sub(closed_ns) < OVERRUN_LAST_NS
        && container.id != next.container
        && fair::contender(container, same_priority) < next
}

/// How long the container's work is expected to keep others out from now on.
fn drain_left_ns(container: &Container, now_ns: u64) -> u64 {
    match container.phase {
        Phase::Open { .. } => container.expected_drain_ns,
        Phase::Draining { closed_ns } => {
            let elapsed_ns = now_ns.saturating_sub(closed_ns);
            // Overdue work is expected to go on for as long again as it is overdue.
            container.expected_drain_ns.abs_diff(elapsed_ns)
        }
        _ => 0,
    }
}

/// Time until the next drain poll. The closer work is to its expected end, the more often it is polled: the device is
/// empty from the end of the work to the next poll.
fn drain_poll_in_ns(container: &Container, now_ns: u64) -> Option<u64> {
    let (Phase::Draining { closed_ns } | Phase::Overrunning { closed_ns }) = container.phase else {
        return None;
    };
    let drained_ns = closed_ns.saturating_add(container.expected_drain_ns);
    let expected_ns = container.hands_over_ns(closed_ns).filter(|&at_ns| now_ns < at_ns).unwrap_or(drained_ns);
    Some((expected_ns.abs_diff(now_ns) / 8).clamp(DRAIN_POLL_NS, TICK_NS))
}
