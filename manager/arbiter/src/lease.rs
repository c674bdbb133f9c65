//! When the holder's lease ends.

use crate::container::{Container, Phase};
use crate::fair::{self, Claim};
use crate::timing::{CYCLE_NS, IDLE_GRACE_NS, QUANTUM_MAX_NS, QUANTUM_MIN_NS, QUANTUM_WAKING_NS, TICK_NS};

/// Those who wait for the holder's lease.
pub(crate) struct Rivals {
    /// The best claim among them, if there are any, without those that are held back.
    pub(crate) best: Option<Claim>,
    /// The best claim among those that are held back until their other devices are ready.
    pub(crate) held: Option<Claim>,
    /// The best claim among those who were idle before they began to wait.
    pub(crate) best_woken: Option<Claim>,
    /// Sum of the weights of all who want the device, the holder's included.
    pub(crate) weights: u64,
    /// The longest drain to be expected of any of them.
    pub(crate) longest_drain_ns: u64,
    /// Whether all who want the device have one priority.
    pub(crate) same_priority: bool,
}

/// What becomes of a lease now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It goes on, and is looked at again at the time given, if nothing happens before.
    Goes { until_ns: u64 },
    /// It goes on with a new quantum.
    Renewed {
        /// When the new quantum ends.
        until_ns: u64,
        /// Somebody who is held back would have had the device, and is to be got ready on its other devices.
        summons: bool,
    },
    /// It ends because its holder does nothing with it.
    HandedBack,
    /// It ends because nothing was done with it, and somebody else waits.
    NotUsed,
    /// It ends because the holder's budget is used up, or because somebody else has the better claim.
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
    let is_summoned_away = |best: Claim| best.precedence < renewal.precedence && best < renewal;
    let is_waste = holder.recalled || rivals.best.is_some() || holder.is_limited();
    if rivals.best.is_some_and(is_summoned_away) || (holder.has_parted() && is_waste) {
        return Verdict::Ended;
    }
    if holder.unused {
        // Its threads are still waking up: ending the lease now would make them wait for the next one, and so on. But
        // they may be stopped, or not exist.
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

/// When a gate must close so that the work that is in flight then uses up the rest of the holder's budget.
fn budget_spent_ns(holder: &Container, now_ns: u64) -> Option<u64> {
    if !holder.is_limited() {
        return Some(u64::MAX);
    }
    let kept_ns = holder.net_of_limit_ns(holder.expected_drain_ns);
    let left_ns = holder.cap.balance_ns().checked_sub(kept_ns)?;
    // While it runs it earns, too; looking again when what it has now is spent is soon enough.
    Some(now_ns.saturating_add(left_ns))
}

/// Who would have the device next if that were decided now; `None`: `holder` again.
pub(crate) fn next(holder: Option<&Container>, rivals: &Rivals) -> Option<Claim> {
    let renewal = holder.map(|holder| fair::renewal(holder, quantum_ns(holder, rivals), rivals.same_priority));
    let first = [rivals.best, rivals.held].into_iter().flatten().min()?;
    renewal.is_none_or(|renewal| first < renewal).then_some(first)
}

/// The holder's part of a cycle, by weight.
fn quantum_ns(holder: &Container, rivals: &Rivals) -> u64 {
    // Where kernels are long, a cycle is long whatever the quanta: then short ones would only add switches.
    let cycle_ns = CYCLE_NS.max(rivals.longest_drain_ns.saturating_mul(2));
    let part_ns = cycle_ns.saturating_mul(holder.weight()) / rivals.weights.max(holder.weight());
    part_ns.clamp(QUANTUM_MIN_NS, QUANTUM_MAX_NS)
}

/// The quantum, shortened for a container that was idle and now waits with the better claim.
fn curtailed_ns(holder: &Container, quantum_ns: u64, rivals: &Rivals) -> u64 {
    let renewal = fair::renewal(holder, quantum_ns, rivals.same_priority);
    match rivals.best_woken {
        Some(woken) if woken.class < renewal.class => quantum_ns.min(QUANTUM_MIN_NS),
        Some(woken) if woken < renewal => quantum_ns.min(QUANTUM_WAKING_NS),
        _ => quantum_ns,
    }
}

/// How long the gate stays open in a quantum, so that the drain still belongs to it.
fn gate_open_ns(holder: &Container, quantum_ns: u64) -> u64 {
    quantum_ns.saturating_sub(holder.expected_drain_ns).max(TICK_NS)
}

/// Whether a container holds the lease, and since when its quantum runs.
pub(crate) fn held_since_ns(container: &Container) -> Option<u64> {
    match container.phase {
        Phase::Open { since_ns, .. } => Some(since_ns),
        _ => None,
    }
}
