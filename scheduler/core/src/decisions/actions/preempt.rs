//! Preempt: units of lower priority in the same queue make way.

use crate::decisions::plan::Refusal;
use crate::decisions::shares::{Guarantees, Right};
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::vocabulary::claim::Action;
use crate::vocabulary::step::Step;

use super::context::{ActionResult, Context};
use super::evict::Attempt;
use super::protection::delayed_until_ms;
use super::reclaim::{others_give, reclaim_with_own};
use super::takes::Takes;

/// Places a unit by evicting units of strictly lower priority in its queue. If the unit would be entitled, it may take
/// any of them, otherwise only borrowed ones. It may take guaranteed ones only if it would be guaranteed in the same
/// way.
///
/// A unit that would be entitled also takes from other queues if its own queue cannot make all the room, or if the
/// evicted units of its own queue would only take their places back from the others. Returns the action that placed it.
pub(crate) fn preempt(
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    unit: &Unit,
) -> Result<(Vec<Step>, Action), Refusal> {
    // A unit of the lowest priority can take from no other unit.
    let last = cluster.queue(unit.queue).and_then(|queue| queue.placed().last());
    if last.is_none_or(|last| last.priority <= unit.rank.priority) {
        return Err(Refusal::NothingToTake);
    }
    if let Some(until_ms) = delayed_until_ms(cluster, unit) {
        return Err(Refusal::Delayed { until_ms });
    }
    let own = context.entitled.know(cluster, context.shares, unit.queue);
    let least = unit.least_charge(cluster);
    let entitled = own.would_be(Right::FairShare, unit.rank, &least);
    let guaranteed = Guarantees::of(|right| own.would_be(right, unit.rank, &least));
    context.know_evictable(cluster, unit.queue);
    let queue = context.evictable.number_of(unit.queue).ok_or(Refusal::NothingToTake)?;
    let takes = Takes::Preempt { queue, priority: unit.rank.priority.0, entitled, guaranteed };
    // A search that was cut short goes on first.
    let others_give = entitled
        && !context.searches.is_unfinished(Action::Reclaim, unit.group)
        && others_give(cluster, context, unit, guaranteed);
    // Where searches are scarce, what is found is not given up for a second search.
    let must_settle = others_give && context.searches.has_plenty();
    let refused = match preempt_within(cluster, context, unit, &takes, must_settle) {
        Err(refusal) if others_give && !matches!(refusal, Refusal::SearchExhausted) => refusal,
        outcome => return outcome.map(|steps| (steps, Action::Preempt)),
    };
    match reclaim_with_own(cluster, context, unit) {
        Ok(steps) => Ok((steps, Action::Reclaim)),
        Err(_) if refused == Refusal::Unsettled => {
            preempt_within(cluster, context, unit, &takes, false).map(|steps| (steps, Action::Preempt))
        }
        Err(refusal) => Err(refused.more_telling(refusal)),
    }
}

/// Places a unit by evicting units of its own queue only.
fn preempt_within(
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    unit: &Unit,
    takes: &Takes,
    must_settle: bool,
) -> ActionResult {
    let Context { shares, settings, engine, searches, frontiers, entitled, evictable: victims, .. } = context;
    let own = entitled.know(cluster, shares, unit.queue);
    let needs: Vec<usize> = unit.least_charge(cluster).parts().map(|(resource, _)| resource).collect();
    let (action, right, needs, takes) = (Action::Preempt, Right::FairShare, &needs, takes.clone());
    let attempt = Attempt { action, right, unit, needs, victims, takes, must_settle, own, shares, settings };
    let steps = attempt.run(cluster, engine, searches, frontiers)?;
    context.changed(cluster, &steps);
    Ok(steps)
}
