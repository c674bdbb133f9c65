//! Decides when the holder's lease ends.

use crate::container::{Container, Phase};
use crate::fair::{self, Contender};
use crate::timing::{CYCLE_NS, IDLE_GRACE_NS, QUANTUM_MIN_NS, QUANTUM_URGENT_NS, TICK_NS};

/// The containers that wait for the holder's lease.
pub(crate) struct Rivals {
    /// The best contender among those that are not held back, if there are any.
    pub(crate) best: Option<Contender>,
    /// The best contender among those held back until their other devices are ready.
    pub(crate) held: Option<Contender>,
    /// The best contender among those that were idle before they began to wait.
    pub(crate) best_woken: Option<Contender>,
    /// The best contender among those that handed their last lease back.
    pub(crate) best_back: Option<Contender>,
    /// Sum of the weights of all containers that want the device, including the holder's.
    pub(crate) weights: u64,
    /// The longest expected drain among them.
    pub(crate) longest_drain_ns: u64,
    /// Whether they all have the same priority.
    pub(crate) same_priority: bool,
    /// The longest lease while any of them waits.
    pub(crate) quantum_max_ns: u64,
}

/// The decision on a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The lease goes on. The next decision is due at `until_ns`, unless something happens before.
    Goes { until_ns: u64 },
    /// The lease goes on with a new quantum.
    Renewed {
        /// When the new quantum ends.
        until_ns: u64,
        /// A container that is held back would have been next, and must be made ready on its other devices.
        summons: bool,
    },
    /// The lease ends because its holder does nothing.
    HandedBack,
    /// The lease ends because it was never used, and another container waits or the holder is limited.
    NotUsed,
    /// The lease ends because the holder's budget is used up, or another container goes first.
    Ended,
}

/// Decides on the lease of `holder`, whose quantum began at `since_ns`.
pub(crate) fn verdict(holder: &Container, since_ns: u64, rivals: &Rivals, now_ns: u64) -> Verdict {
    let grace_ns = if rivals.best.is_some() { holder.idle_grace_ns } else { IDLE_GRACE_NS };
    let busy = holder.waiting || holder.in_flight > 0;
    let idle_ns = holder.last_active_ns.saturating_add(grace_ns);
    if !busy && idle_ns <= now_ns {
        return Verdict::HandedBack;
    }
    let quantum_ns = quantum_ns(holder, rivals);
    let renewal = fair::renewal(holder, quantum_ns, rivals.same_priority);
    let is_summoned_away = |best: Contender| best.precedence < renewal.precedence && best < renewal;
    let is_waste = holder.recalled || rivals.best.is_some() || holder.is_limited();
    if rivals.best.is_some_and(is_summoned_away) || (holder.has_parted() && is_waste) {
        return Verdict::Ended;
    }
    if holder.unused {
        // Its threads may still be waking up; if the lease ended now, they would wait for the next one, and so on. But
        // they may also be stopped, or not exist.
        let patience_end_ns = since_ns.saturating_add(holder.patience_ns);
        return match (now_ns < patience_end_ns, rivals.best) {
            (false, Some(_)) => Verdict::NotUsed,
            (false, None) if holder.is_limited() => Verdict::NotUsed,
            _ => Verdict::Goes { until_ns: if busy { patience_end_ns.max(now_ns) } else { idle_ns } },
        };
    }
    let Some(spent_ns) = budget_spent_ns(holder, now_ns).filter(|&spent_ns| spent_ns > now_ns) else {
        return Verdict::Ended;
    };
    let until_ns = if busy { spent_ns } else { spent_ns.min(idle_ns) };

    let end_ns = since_ns.saturating_add(gate_open_ns(holder, curtailed_ns(holder, quantum_ns, rivals)));
    if now_ns < end_ns {
        return Verdict::Goes { until_ns: until_ns.min(end_ns) };
    }
    if rivals.best.is_some_and(|best| best < renewal) {
        return Verdict::Ended;
    }
    let summons = rivals.held.is_some_and(|held| held < renewal);
    Verdict::Renewed { until_ns: until_ns.min(now_ns.saturating_add(gate_open_ns(holder, quantum_ns))), summons }
}

/// When the gate must close so that the work then in flight uses up the rest of the holder's budget; `None`: it is used
/// up already.
pub(crate) fn budget_spent_ns(holder: &Container, now_ns: u64) -> Option<u64> {
    if !holder.is_limited() {
        return Some(u64::MAX);
    }
    let kept_ns = holder.net_of_limit_ns(holder.expected_drain_ns);
    let left_ns = holder.cap.balance_ns().checked_sub(kept_ns)?;
    // The holder earns budget while it runs, so this is a lower bound. The next decision comes when the present balance
    // is spent, and looks again.
    Some(now_ns.saturating_add(left_ns))
}

/// The container that would be next if the decision were made now; `None` if that is `holder` again.
pub(crate) fn next(holder: Option<&Container>, rivals: &Rivals) -> Option<Contender> {
    let renewal = holder.map(|holder| fair::renewal(holder, quantum_ns(holder, rivals), rivals.same_priority));
    let first = [rivals.best, rivals.held].into_iter().flatten().min()?;
    renewal.is_none_or(|renewal| first < renewal).then_some(first)
}

/// The holder's part of a cycle, by weight.
fn quantum_ns(holder: &Container, rivals: &Rivals) -> u64 {
    // Long kernels make a cycle long whatever the quanta are. Short quanta would then only add switches.
    let cycle_ns = CYCLE_NS.max(rivals.longest_drain_ns.saturating_mul(2));
    let part_ns = cycle_ns.saturating_mul(holder.weight()) / rivals.weights.max(holder.weight());
    part_ns.clamp(QUANTUM_MIN_NS.min(rivals.quantum_max_ns), rivals.quantum_max_ns)
}

/// The quantum, shortened if a container that was idle or had handed its lease back now waits and goes first. Short
/// pauses shorten it less, even for a higher class: work with many of them would lose too much time of others to
/// changes of lease.
fn curtailed_ns(holder: &Container, quantum_ns: u64, rivals: &Rivals) -> u64 {
    let renewal = fair::renewal(holder, quantum_ns, rivals.same_priority);
    match rivals.best_woken {
        Some(woken) if woken.class < renewal.class => quantum_ns.min(QUANTUM_URGENT_NS),
        Some(woken) if woken < renewal => quantum_ns.min(QUANTUM_MIN_NS),
        _ if rivals.best_back.is_some_and(|back| back < renewal) => quantum_ns.min(QUANTUM_MIN_NS),
        _ => quantum_ns,
    }
}

/// How long the gate stays open in a quantum, so that the quantum includes the drain.
fn gate_open_ns(holder: &Container, quantum_ns: u64) -> u64 {
    quantum_ns.saturating_sub(holder.expected_drain_ns).max(TICK_NS)
}

/// Since when the container's quantum has run, if it holds the lease.
pub(crate) fn held_since_ns(container: &Container) -> Option<u64> {
    match container.phase {
        Phase::Open { since_ns, .. } => Some(since_ns),
        _ => None,
    }
}
