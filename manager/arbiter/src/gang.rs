//! Containers with several devices: their leases come and go together.
//!
//! Work that waits for a peer on another device keeps its own device busy until the peer's lease has come. So the
//! arbiters of a container's devices look at each other, through their caller: each says how the container stands there
//! ([`Turn`]), and sees what the others say ([`Siblings`]).
//!
//! * An arbiter whose next holder is such a container leads a **session** of it: the others are *summoned*. On each device the
//!   container of the oldest session goes before others of its class, as long as it is not ahead of them by more than a credit
//!   of [`GANG_CREDIT_NS`]; so shares stay what they are, and of two containers that want the same devices one
//!   has both. Sessions are ordered by their beginning, then by the container: nobody waits for anybody in a circle.
//! * The device that will be ready last closes its gate first. Until then the others' holders go on, and a device that is
//!   ready too soon is lent out or, for [`GANG_GAP_NS`] at most, kept empty.
//! * When the lease ends on one device, it ends on all where somebody else wants the device or a limit counts.
//! * Work may then be left whose peer was not launched any more. Where the container has drained while a sibling has not, it is
//!   **recalled**: let in until the sibling has drained, too. Two containers whose work is left on each other's devices would keep
//!   each other out: after [`GANG_STUCK_NS`] the older one is let in beside the other.
//!
//! A container that is recalled launches what it likes, and not only what is waited for. So where each device has a
//! process of its own whose kernels wait for peers, new such work is left behind again and again: such programs
//! progress, but do as little as a fifth of what they could, and several of them on overlapping sets of devices cost
//! neighbours a part of their shares. Programs that launch on all devices from one thread lose little.
//!
//! Nothing of this is waited for without bound: after [`GANG_HOLD_MAX_NS`] each device goes its own way, and so it does
//! as long as the container is behind its share there ([`GANG_OWED_NS`]): shares may differ from device to device, and
//! so may the work.

use crate::bucket::Bucket;
use crate::container::{Container, Phase};
use crate::fair::Claim;
#[cfg(doc)]
use crate::timing::GANG_GAP_NS;
use crate::timing::{
    GANG_CREDIT_NS, GANG_HOLD_MAX_NS, GANG_OWED_NS, GANG_STUCK_NS, HELD_OFF_MAX_NS, OVERRUN_MAX_NS, QUANTUM_MAX_NS,
    TICK_NS,
};

/// How a container stands on one device, for the arbiters of its other devices.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Turn {
    /// It wants nothing there.
    #[default]
    Absent,
    /// It wants nothing there, but will by experience when it has its other devices.
    Expected {
        /// When its gate could be opened, as things stand; `u64::MAX`: others go first.
        ready_ns: u64,
    },
    /// It waits for its lease.
    Waiting {
        /// When its gate could be opened, as things stand; `u64::MAX`: others go first.
        ready_ns: u64,
        /// Since when that device's arbiter has summoned its siblings, if it does.
        session_ns: Option<u64>,
    },
    /// Its gate is open.
    Open {
        /// Since when that device's arbiter has summoned its siblings, if it does.
        session_ns: Option<u64>,
    },
    /// Its gate was closed and its work is not done yet.
    Draining {
        /// When it was closed.
        since_ns: u64,
    },
}

impl Turn {
    /// Whether the siblings' arbiters should look at it at once, where `before` is what they know.
    #[must_use]
    pub fn is_news_after(self, before: Turn) -> bool {
        let (now_ready_ns, ready_ns) = (self.ready_ns(), before.ready_ns());
        std::mem::discriminant(&self) != std::mem::discriminant(&before)
            || self.session_ns() != before.session_ns()
            || now_ready_ns.abs_diff(ready_ns) > TICK_NS
    }

    fn ready_ns(self) -> u64 {
        match self {
            Turn::Expected { ready_ns } | Turn::Waiting { ready_ns, .. } => ready_ns,
            _ => 0,
        }
    }

    fn draining_since_ns(self) -> Option<u64> {
        match self {
            Turn::Draining { since_ns } => Some(since_ns),
            _ => None,
        }
    }

    fn session_ns(self) -> Option<u64> {
        match self {
            Turn::Waiting { session_ns, .. } | Turn::Open { session_ns } => session_ns,
            Turn::Absent | Turn::Expected { .. } | Turn::Draining { .. } => None,
        }
    }
}

/// What goes before virtual time among containers of one class; the lesser goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Precedence {
    /// Its work on another device may wait for launches here.
    Awaited {
        /// When the gate was closed there.
        since_ns: u64,
    },
    /// It is to be let in together with its siblings.
    Summoned {
        /// When the session began.
        since_ns: u64,
    },
    /// Nothing.
    None,
}

/// How a container stands on its other devices.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Siblings {
    /// The beginning of the oldest session that one of them leads.
    pub(crate) session_ns: Option<u64>,
    /// When the last one of those that wait for their lease will have it.
    pub(crate) ready_ns: u64,
    /// The gate is open on one of them at least.
    pub(crate) open: bool,
    /// One of them waits for its lease, or for its work to be done after one.
    pub(crate) apart: bool,
    /// When the first gate was closed of those behind which work is not done yet.
    pub(crate) draining_since_ns: Option<u64>,
}

impl Siblings {
    /// What the turns on the other devices come to.
    #[must_use]
    pub fn of(turns: impl IntoIterator<Item = Turn>) -> Self {
        turns.into_iter().fold(Self::default(), |all, turn| Self {
            session_ns: [all.session_ns, turn.session_ns()].into_iter().flatten().min(),
            ready_ns: all.ready_ns.max(turn.ready_ns()),
            open: all.open || matches!(turn, Turn::Open { .. }),
            apart: all.apart || matches!(turn, Turn::Waiting { .. } | Turn::Draining { .. }),
            draining_since_ns: [all.draining_since_ns, turn.draining_since_ns()].into_iter().flatten().min(),
        })
    }
}

/// What a container is to its siblings on other devices.
impl Container {
    /// Takes in how it stands on its other devices.
    pub(crate) fn meet(&mut self, siblings: Option<Siblings>) {
        self.siblings = siblings.filter(|_| !self.is_owed());
        self.together |= self.is_open() && siblings.is_some_and(|siblings| siblings.open && !siblings.apart);
        self.follows |= (self.waiting || self.in_flight > 0) && siblings.is_some_and(|siblings| siblings.open);
        self.is_expected = self.follows && siblings.is_some_and(|siblings| siblings.session_ns.is_some());
        if !self.contending && self.phase == Phase::Closed {
            self.session_ns = None;
        }
    }

    /// Whether it is so far behind its share of this device that it does not wait for the others any more.
    fn is_owed(&self) -> bool {
        let owes = |bucket: &Bucket| {
            let idle_ns = QUANTUM_MAX_NS.saturating_add(self.half_swing_ns());
            bucket.balance_ns() > GANG_OWED_NS.min(bucket.earned_ns(HELD_OFF_MAX_NS) / 2).max(idle_ns)
        };
        owes(&self.guarantee) || (self.is_limited() && owes(&self.cap))
    }

    /// It is this device's choice: summons its siblings, if none of them has summoned it.
    pub(crate) fn lead(&mut self, now_ns: u64) {
        if self.siblings.is_some_and(|siblings| siblings.session_ns.is_none()) {
            self.session_ns.get_or_insert(now_ns);
        }
    }

    /// Since when it has been summoned, by this device's arbiter or another one's.
    pub(crate) fn summoned_since_ns(&self) -> Option<u64> {
        [self.session_ns, self.siblings.and_then(|siblings| siblings.session_ns)].into_iter().flatten().min()
    }

    /// Until when its siblings' leases are to be waited for.
    pub(crate) fn siblings_ready_ns(&self, now_ns: u64) -> u64 {
        let Some(siblings) = self.siblings.filter(|_| !self.is_awaited_elsewhere()) else { return 0 };
        let since_ns = self.summoned_since_ns().unwrap_or(now_ns);
        siblings.ready_ns.min(since_ns.saturating_add(GANG_HOLD_MAX_NS))
    }

    /// Whether what its lease was good for is over: it was ended on another device, or was given to let work end there.
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

    /// What goes before its virtual time, by which it is `ahead_ns` ahead of the others of its class.
    pub(crate) fn precedence(&self, ahead_ns: u64) -> Precedence {
        match (self.awaited_since_ns(), self.summoned_since_ns()) {
            (Some(since_ns), _) if ahead_ns <= self.weighted_ns(OVERRUN_MAX_NS) => Precedence::Awaited { since_ns },
            (None, Some(since_ns)) if ahead_ns <= self.weighted_ns(GANG_CREDIT_NS) => Precedence::Summoned { since_ns },
            _ => Precedence::None,
        }
    }

    /// Whether its work, whose gate was closed at `closed_ns`, may wait for a device on which work waits for `next`
    /// here.
    pub(crate) fn is_stuck(&self, closed_ns: u64, next: Claim, now_ns: u64) -> bool {
        self.siblings.is_some()
            && self.id != next.container
            && (next.precedence, next.container) < (Precedence::Awaited { since_ns: closed_ns }, self.id)
            && now_ns.saturating_sub(closed_ns) >= GANG_STUCK_NS
    }

    /// Whether it is only kept from using this device by not having its others.
    pub(crate) fn is_kept_elsewhere(&self) -> bool {
        self.follows && self.siblings.is_some_and(|siblings| siblings.open || siblings.apart)
    }

    /// How it stands here; it waits with `ready_ns` if it waits.
    pub(crate) fn turn(&self, ready_ns: u64) -> Turn {
        match self.phase {
            Phase::Free => Turn::Open { session_ns: None },
            Phase::Open { .. } => Turn::Open { session_ns: self.session_ns },
            Phase::Draining { closed_ns } if self.in_flight > 0 => Turn::Draining { since_ns: closed_ns },
            _ if self.waiting => Turn::Waiting { ready_ns, session_ns: self.session_ns },
            _ if self.follows && self.processes > 0 => Turn::Expected { ready_ns },
            _ => Turn::Absent,
        }
    }
}
