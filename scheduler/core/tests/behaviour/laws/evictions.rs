//! Laws about claims that leave their places for others.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Action, ClaimId, Cluster, GroupId, Plan, Queue, Request, Settings, Step};

use super::{Declared, Verdict, group_of, path, require};

/// Only claims that may be evicted are evicted, by an action that may evict them, for a claim that may have others
/// evicted.
pub(super) fn victims_are_fair_game(before: &Cluster, plan: &Plan) -> Verdict {
    for planned in &plan.steps {
        let (victim, moved) = match &planned.step {
            Step::Evict { claim, .. } => (*claim, false),
            Step::Move { claim, .. } => (*claim, true),
            Step::Place { .. } => continue,
        };
        let Some(group) = group_of(before, victim) else { continue };
        // A claim that was placed in this very cycle can only be evicted before it has started.
        let Some(started_ms) = before.started_ms(victim) else { continue };
        let alone_until_ms = before.last_eviction(victim).map_or(0, |last| last.left_alone_until_ms);
        require(alone_until_ms <= before.now_ms(), || format!("{victim:?} is left alone until {alone_until_ms} ms"))?;
        let complain = |what: &str| format!("{:?} evicts {victim:?} of {:?}: {what}", planned.action, group.spec());
        if planned.action == Action::StaleGang {
            let since = group.stale_since_ms().zip(group.spec().staleness_grace_ms);
            let due = since.is_some_and(|(since, grace)| before.now_ms() >= since.saturating_add(grace));
            require(due && !moved, || complain("it is not stale"))?;
            continue;
        }
        require(group.spec().preemptible, || complain("it may not be evicted"))?;
        let mut min_runtime_ms = group.spec().min_runtime_ms;
        let queue_says =
            |of: fn(&Queue) -> Option<u64>| path(before, group.queue()).into_iter().find_map(|(_, q)| of(q));
        let evictor = planned.for_group.and_then(|id| before.group(id));
        let Some(evictor) = evictor else { return Err(complain("for no group")) };
        match planned.action {
            Action::Allocate => return Err(complain("allocate takes only what is free")),
            Action::Consolidate => require(moved, || complain("consolidation only moves"))?,
            Action::Reclaim => {
                min_runtime_ms =
                    min_runtime_ms.max(queue_says(|queue| queue.spec().reclaim_min_runtime_ms).unwrap_or(0));
                let other = evictor.queue() != group.queue();
                require(other, || complain("reclaim is between queues"))?;
            }
            Action::Preempt => {
                min_runtime_ms =
                    min_runtime_ms.max(queue_says(|queue| queue.spec().preempt_min_runtime_ms).unwrap_or(0));
                let lower = evictor.queue() == group.queue() && evictor.spec().priority > group.spec().priority;
                require(lower, || complain("preemption is by priority within a queue"))?;
            }
            Action::StaleGang | Action::Relieve => {}
        }
        require(before.now_ms() >= started_ms.saturating_add(min_runtime_ms), || complain("too early"))?;
        let waited = before.now_ms().saturating_sub(evictor.added_ms());
        require(waited >= evictor.spec().preemption_delay_ms, || complain("its delay is not over"))?;
    }
    Ok(())
}

/// No cycle leaves a budget with fewer placed claims than it wants.
pub(super) fn budgets_hold(before: &Cluster, after: &Cluster, declared: &Declared) -> Verdict {
    let placed = |cluster: &Cluster| {
        let mut placed: BTreeMap<(String, String), u32> = BTreeMap::new();
        for (_, claim, at) in cluster.claims() {
            if let (Some(budget), true) = (&claim.disruption_budget, at.is_some()) {
                *placed.entry((claim.namespace.clone(), budget.clone())).or_default() += 1;
            }
        }
        placed
    };
    let (was, is) = (placed(before), placed(after));
    for (budget, min_available) in &declared.budgets {
        let (was, is) = (was.get(budget).copied().unwrap_or(0), is.get(budget).copied().unwrap_or(0));
        require(is >= was.min(*min_available), || {
            format!("{budget:?}: {was} placed become {is}, {min_available} must be there")
        })?;
    }
    Ok(())
}

/// What is evicted for a member of a group is one other group, or at most what the settings allow for the member's
/// request. And few claims are moved.
pub(super) fn disruption_is_bounded(before: &Cluster, plan: &Plan, settings: &Settings) -> Verdict {
    let mut moves = 0;
    let mut taken: BTreeMap<(Action, Option<GroupId>), Vec<ClaimId>> = BTreeMap::new();
    for planned in &plan.steps {
        let Some(claim) = evictee(&planned.step) else { continue };
        match planned.action {
            Action::Consolidate => moves += 1,
            Action::Reclaim | Action::Preempt => {
                taken.entry((planned.action, planned.for_group)).or_default().push(claim);
            }
            Action::Allocate | Action::StaleGang | Action::Relieve => {}
        }
    }
    require(moves <= settings.moves_per_cycle, || format!("{moves} moves in a cycle"))?;
    let sum = |of: &dyn Fn(&Request) -> u64, claims: &[ClaimId]| -> u64 {
        claims.iter().filter_map(|claim| before.claim(*claim)).map(|claim| of(&claim.request)).sum()
    };
    for ((action, group), evicted) in taken {
        let members = group.and_then(|id| before.group(id)).into_iter().flat_map(|group| group.members());
        let members: Vec<ClaimId> = members.collect();
        // For a claim that asks for no device time, another measure applies.
        let asked = sum(&|request| request.least_core(), &members);
        let allowed = asked.saturating_mul(settings.disruption_per_mille) / 1000;
        // The same plan may first have moved a claim to a smaller one of its alternatives, for another group.
        let amount = |claim: &ClaimId| {
            let held = before.allocation(*claim).into_iter().flat_map(|at| &at.devices);
            let held: u64 = held.map(|part| u64::from(part.core.get())).sum();
            before.claim(*claim).map_or(held, |claim| held.min(claim.request.least_core()))
        };
        let mut amounts: BTreeMap<Option<GroupId>, u64> = BTreeMap::new();
        evicted.iter().for_each(|claim| *amounts.entry(before.group_of(*claim)).or_default() += amount(claim));
        let groups: Vec<Option<GroupId>> = amounts.keys().copied().collect();
        let mut amounts: Vec<u64> = amounts.into_values().collect();
        amounts.sort_unstable();
        // All members but one may each have the room of one group, whatever that holds.
        let bounded: u64 = amounts[..amounts.len().saturating_sub(members.len().saturating_sub(1))].iter().sum();
        require(asked == 0 || bounded <= allowed || groups.len() <= members.len(), || {
            format!("{action:?} evicts {amounts:?} thousandths of devices for {asked} of {group:?}, of {groups:?}")
        })?;
    }
    Ok(())
}

/// The claim that a step makes leave its place.
fn evictee(step: &Step) -> Option<ClaimId> {
    match step {
        Step::Evict { claim, .. } | Step::Move { claim, .. } => Some(*claim),
        Step::Place { .. } => None,
    }
}
