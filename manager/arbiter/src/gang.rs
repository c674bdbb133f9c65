//! Containers with several devices: their leases begin and end together.
//!
//! Work that waits for a peer on another device keeps its own device busy until the peer has its lease. So the arbiters
//! of a container's devices exchange information through their caller: each publishes the container's state on its
//! device ([`GangState`]), and sees the states on the others ([`Siblings`]).
//!
//! * An arbiter whose next holder is such a container leads a **session** of it: it *summons* the siblings on the other
//!   devices. On each device the container of the oldest session goes before others of its class, as long as it is
//!   ahead of them by at most a credit of [`GANG_CREDIT_NS`]. So shares stay the same, and of two containers that want
//!   the same devices one gets both. Sessions are ordered by their beginning, then by container, so there is no
//!   circular waiting.
//! * The device that will be ready last closes its gate first. Until then the holders of the others go on. A device
//!   that is ready too early is lent out, or kept empty for at most [`GANG_GAP_NS`].
//! * When the lease ends on one device, it ends on all those of its devices that another container wants or on which a
//!   limit applies.
//! * Work can be left over because its peer was not launched in time. Where the container has drained but a sibling has
//!   not, it is **recalled**: let in until the sibling has drained too. Two containers with work left on each other's
//!   devices would keep each other out; after [`GANG_STUCK_NS`] the older one is let in beside the other.
//!
//! A recalled container can launch anything, not only the peer that is waited for. So if each device has a process of
//! its own whose kernels wait for peers, new work is left over again and again. Such programs make progress, but may
//! run at less than a fifth of their possible speed. Several of them on overlapping sets of devices cost neighbours a
//! part of their shares. Programs that launch on all devices from one thread lose little.
//!
//! All these waits are bounded. After [`GANG_HOLD_MAX_NS`] each device goes on without the others. It also does so as
//! long as the container is behind its share there ([`GANG_OWED_NS`]), because shares and work may differ between
//! devices.

use crate::bucket::Bucket;
use crate::container::{Container, Phase};
use crate::fair::Contender;
#[cfg(doc)]
use crate::timing::GANG_GAP_NS;
use crate::timing::{
    GANG_CREDIT_NS, GANG_HOLD_MAX_NS, GANG_OWED_NS, GANG_STUCK_NS, HELD_OFF_MAX_NS, OVERRUN_MAX_NS, QUANTUM_MAX_NS,
    TICK_NS,
};

/// A container's state on one device, for the arbiters of its other devices.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum GangState {
    /// The container does not want the device.
    #[default]
    Absent,
    /// The container does not want the device now, but from experience will when it has its other devices.
    Expected {
        /// When its gate could be opened, as things stand; `u64::MAX`: others go first.
        ready_ns: u64,
    },
    /// The container waits for its lease.
    Waiting {
        /// When its gate could be opened, as things stand; `u64::MAX`: others go first.
        ready_ns: u64,
        /// Since when that device's arbiter has summoned its siblings, if it has.
        session_ns: Option<u64>,
    },
    /// Its gate is open.
    Open {
        /// Since when that device's arbiter has summoned its siblings, if it has.
        session_ns: Option<u64>,
    },
    /// Its gate was closed, and its work is not done yet.
    Draining {
        /// When it was closed.
        since_ns: u64,
    },
}

impl GangState {
    /// Whether the siblings' arbiters should look at it at once. `before` is the state that they know.
    #[must_use]
    pub fn is_news_after(self, before: GangState) -> bool {
        let (now_ready_ns, ready_ns) = (self.ready_ns(), before.ready_ns());
        std::mem::discriminant(&self) != std::mem::discriminant(&before)
            || self.session_ns() != before.session_ns()
            || now_ready_ns.abs_diff(ready_ns) > TICK_NS
    }

    fn ready_ns(self) -> u64 {
        match self {
            GangState::Expected { ready_ns } | GangState::Waiting { ready_ns, .. } => ready_ns,
            _ => 0,
        }
    }

    fn draining_since_ns(self) -> Option<u64> {
        match self {
            GangState::Draining { since_ns } => Some(since_ns),
            _ => None,
        }
    }

    fn session_ns(self) -> Option<u64> {
        match self {
            GangState::Waiting { session_ns, .. } | GangState::Open { session_ns } => session_ns,
            GangState::Absent | GangState::Expected { .. } | GangState::Draining { .. } => None,
        }
    }
}

/// The part of a contender that is compared before virtual time within a class; the lesser goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Precedence {
    /// The container's work on another device may wait for launches here.
    Awaited {
        /// When the gate was closed there.
        since_ns: u64,
    },
    /// The container is to be let in together with its siblings.
    Summoned {
        /// When the session began.
        since_ns: u64,
    },
    /// The container goes by virtual time alone.
    None,
}

/// A container's combined state on its other devices.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Siblings {
    /// The beginning of the oldest session that one of its siblings leads.
    pub(crate) session_ns: Option<u64>,
    /// When the last of the waiting siblings will have its lease.
    pub(crate) ready_ns: u64,
    /// The gate is open on at least one other device.
    pub(crate) open: bool,
    /// The container waits on another device for its lease, or for the end of its work after a lease.
    pub(crate) apart: bool,
    /// When the first gate was closed that still has unfinished work behind it.
    pub(crate) draining_since_ns: Option<u64>,
}

impl Siblings {
    /// Combines the states on the other devices.
    #[must_use]
    pub fn of(states: impl IntoIterator<Item = GangState>) -> Self {
        states.into_iter().fold(Self::default(), |all, state| Self {
            session_ns: [all.session_ns, state.session_ns()].into_iter().flatten().min(),
            ready_ns: all.ready_ns.max(state.ready_ns()),
            open: all.open || matches!(state, GangState::Open { .. }),
            apart: all.apart || matches!(state, GangState::Waiting { .. } | GangState::Draining { .. }),
            draining_since_ns: [all.draining_since_ns, state.draining_since_ns()].into_iter().flatten().min(),
        })
    }
}

/// The parts of a container's policy that concern its other devices.
impl Container {
    /// Records the container's state on its other devices.
    pub(crate) fn meet(&mut self, siblings: Option<Siblings>) {
        self.siblings = siblings.filter(|_| !self.is_owed());
        self.together |= self.is_open() && siblings.is_some_and(|siblings| siblings.open && !siblings.apart);
        self.follows |= (self.waiting || self.in_flight > 0) && siblings.is_some_and(|siblings| siblings.open);
        self.is_expected = self.follows && siblings.is_some_and(|siblings| siblings.session_ns.is_some());
        if !self.contending && self.phase == Phase::Closed {
            self.session_ns = None;
        }
    }

    /// Whether the container is so far behind its share of this device that it no longer waits for the others.
    fn is_owed(&self) -> bool {
        let owes = |bucket: &Bucket| {
            let idle_ns = QUANTUM_MAX_NS.saturating_add(self.half_swing_ns());
            bucket.balance_ns() > GANG_OWED_NS.min(bucket.earned_ns(HELD_OFF_MAX_NS) / 2).max(idle_ns)
        };
        owes(&self.guarantee) || (self.is_limited() && owes(&self.cap))
    }

    /// Called when this device chooses the container: summons its siblings, unless one of them has summoned it.
    pub(crate) fn lead(&mut self, now_ns: u64) {
        if self.siblings.is_some_and(|siblings| siblings.session_ns.is_none()) {
            self.session_ns.get_or_insert(now_ns);
        }
    }

    /// Since when the container has been summoned, by this device's arbiter or another one.
    pub(crate) fn summoned_since_ns(&self) -> Option<u64> {
        [self.session_ns, self.siblings.and_then(|siblings| siblings.session_ns)].into_iter().flatten().min()
    }

    /// Until when to wait for its siblings' leases.
    pub(crate) fn siblings_ready_ns(&self, now_ns: u64) -> u64 {
        let Some(siblings) = self.siblings.filter(|_| !self.is_awaited_elsewhere()) else { return 0 };
        let since_ns = self.summoned_since_ns().unwrap_or(now_ns);
        siblings.ready_ns.min(since_ns.saturating_add(GANG_HOLD_MAX_NS))
    }

    /// Whether the container's lease has lost its purpose: either it ended on another device, or it was given to let
    /// work end there and that work has ended.
    pub(crate) fn has_parted(&self) -> bool {
        if self.recalled { !self.is_awaited_elsewhere() } else { self.together && self.is_awaited_elsewhere() }
    }

    /// Whether its work on another device may wait for launches here.
    pub(crate) fn is_awaited_elsewhere(&self) -> bool {
        self.awaited_since_ns().is_some()
    }

    fn awaited_since_ns(&self) -> Option<u64> {
        self.siblings?.draining_since_ns
    }

    /// The container's precedence, if it is `ahead_ns` of virtual time ahead of the others in its class.
    pub(crate) fn precedence(&self, ahead_ns: u64) -> Precedence {
        match (self.awaited_since_ns(), self.summoned_since_ns()) {
            (Some(since_ns), _) if ahead_ns <= self.weighted_ns(OVERRUN_MAX_NS) => Precedence::Awaited { since_ns },
            (None, Some(since_ns)) if ahead_ns <= self.weighted_ns(GANG_CREDIT_NS) => Precedence::Summoned { since_ns },
            _ => Precedence::None,
        }
    }

    /// Whether the container's work, whose gate was closed at `closed_ns`, may wait for another device, because work
    /// there waits for `next` to be let in here.
    pub(crate) fn is_stuck(&self, closed_ns: u64, next: Contender, now_ns: u64) -> bool {
        self.siblings.is_some()
            && self.id != next.container
            && (next.precedence, next.container) < (Precedence::Awaited { since_ns: closed_ns }, self.id)
            && now_ns.saturating_sub(closed_ns) >= GANG_STUCK_NS
    }

    /// Whether the container leaves this device unused only because it lacks its others.
    pub(crate) fn is_kept_elsewhere(&self) -> bool {
        self.follows && self.siblings.is_some_and(|siblings| siblings.open || siblings.apart)
    }

    /// The container's state here. `ready_ns` is used if it waits.
    pub(crate) fn gang_state(&self, ready_ns: u64) -> GangState {
        match self.phase {
            Phase::Free | Phase::Guest { .. } => GangState::Open { session_ns: None },
            Phase::Open { .. } => GangState::Open { session_ns: self.session_ns },
            Phase::Draining { closed_ns } if self.in_flight > 0 => GangState::Draining { since_ns: closed_ns },
            _ if self.waiting => GangState::Waiting { ready_ns, session_ns: self.session_ns },
            _ if self.follows && self.processes > 0 => GangState::Expected { ready_ns },
            _ => GangState::Absent,
        }
    }
}
