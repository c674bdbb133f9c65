//! Reclaim: takes what queues hold beyond their fair share for queues that have less than theirs, and what queues hold
//! beyond their quota for queues that cannot use their own quota otherwise.

use crate::decisions::plan::Refusal;
use crate::decisions::shares::{Guarantees, Right};
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::resources::Charge;
use crate::vocabulary::claim::Action;

use super::bounds::lacks;
use super::context::{ActionResult, Context};
use super::evict::Attempt;
use super::protection::delayed_until_ms;
use super::takes::{Own, Takes};

/// Places a unit that would be entitled, by evicting borrowed units of other queues. Free and borrowed room may be too
/// scattered for that. Then a unit that would be guaranteed may also evict units beyond their queues' quotas: for
/// queues below the same division their own quotas count, and for others those of the divisions, too.
pub(crate) fn reclaim(cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> ActionResult {
    let least = unit.least_charge(cluster);
    if let Some(resource) = context.shares.exceeded(cluster, unit.queue, &least) {
        return Err(Refusal::above(context.shares, unit.queue, resource));
    }
    let needs = needs(cluster, unit);
    if !context.entitled.would_be_entitled(cluster, context.shares, unit, &least) {
        let own = context.entitled.know(cluster, context.shares, unit.queue);
        return Err(lacks(own, context.shares, Right::FairShare, unit, &least));
    }
    if let Some(until_ms) = delayed_until_ms(cluster, unit) {
        return Err(Refusal::Delayed { until_ms });
    }
    // Asked before the queue's set is made, which takes as long as a look at all that the queue has placed.
    if !others_give(cluster, context, unit, Guarantees::of(|_| true)) {
        return Err(Refusal::NothingToTake);
    }
    let own = context.entitled.know(cluster, context.shares, unit.queue);
    let guaranteed = Guarantees::of(|right| own.would_be(right, unit.rank, &least));
    by_rights(guaranteed, |right| reclaim_by(right, cluster, context, unit, &needs, None))
}

/// Reclaims for a unit that would be entitled, as [`reclaim`] does, but also evicts units of lower priority in the
/// unit's own queue. Those that the unit displaces from the fair share are taken first. The others are entitled beside
/// the unit, so they would take their places back.
pub(super) fn reclaim_with_own(cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> ActionResult {
    let (least, needs) = (unit.least_charge(cluster), needs(cluster, unit));
    context.know_evictable(cluster, unit.queue);
    let queue = context.evictable.number_of(unit.queue).ok_or(Refusal::NothingToTake)?;
    let own = context.entitled.know(cluster, context.shares, unit.queue);
    let guaranteed = Guarantees::of(|right| own.would_be(right, unit.rank, &least));
    let displaced = own.displaced_by(unit.rank, &least);
    let mut refused = Refusal::NothingToTake;
    for among in Some(displaced).filter(|displaced| !displaced.is_empty()).into_iter().map(Some).chain([None]) {
        let own = Own { queue, priority: unit.rank.priority.0, guaranteed, among };
        match by_rights(guaranteed, |right| reclaim_by(right, cluster, context, unit, &needs, Some(own.clone()))) {
            Err(refusal) if !matches!(refusal, Refusal::SearchExhausted) => refused = refused.more_telling(refusal),
            outcome => return outcome,
        }
    }
    Err(refused)
}

/// Reclaims by the fair share and, if that does not help a guaranteed unit, by its guarantees.
fn by_rights(guaranteed: Guarantees, mut reclaim: impl FnMut(Right) -> ActionResult) -> ActionResult {
    let mut outcome = reclaim(Right::FairShare);
    for right in guaranteed.rights() {
        match outcome {
            // A search that was cut short goes on in the next cycle.
            Err(first) if !matches!(first, Refusal::SearchExhausted) => {
                outcome = reclaim(right).map_err(|second| first.more_telling(second));
            }
            outcome => return outcome,
        }
    }
    outcome
}

/// Whether any other queue holds more than its share of what a unit needs or, if the unit would be guaranteed, more than
/// its quota.
pub(super) fn others_give(cluster: &Cluster, context: &mut Context<'_>, unit: &Unit, guaranteed: Guarantees) -> bool {
    let needs = needs(cluster, unit);
    let mut gives = |right| context.givers(cluster, right).is_any_other_among(&needs, unit.queue);
    gives(Right::FairShare) || guaranteed.rights().any(gives)
}

/// The resources that a unit needs; of device models, those that it may be placed on.
fn needs(cluster: &Cluster, unit: &Unit) -> Vec<usize> {
    let classes = unit.claims.iter().filter_map(|claim| cluster.class(cluster.class_of(*claim)?));
    let mut most = Charge::default();
    classes.for_each(|class| most.add(class.most_charge()));
    most.parts().map(|(resource, _)| resource).collect()
}

fn reclaim_by(
    right: Right,
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    unit: &Unit,
    needs: &[usize],
    own_units: Option<Own>,
) -> ActionResult {
    let mut givers = context.givers(cluster, right).among(needs);
    let shares = context.shares;
    givers.retain(|queue, _| *queue != unit.queue && shares.holds_against(right, unit.queue, *queue));
    if givers.is_empty() {
        return Err(Refusal::NothingToTake);
    }
    for queue in givers.keys() {
        context.know_evictable(cluster, *queue);
    }
    let Context { settings, engine, searches, frontiers, entitled, evictable, .. } = context;
    let own = entitled.know(cluster, shares, unit.queue);
    let mut gives: Vec<Vec<usize>> = Vec::new();
    for (queue, resources) in givers {
        let Some(number) = evictable.number_of(queue) else { continue };
        gives.resize(gives.len().max(number + 1), Vec::new());
        gives[number] = resources;
    }
    let (action, takes) = (Action::Reclaim, Takes::Reclaim { right, gives, own: own_units });
    let (victims, must_settle) = (evictable, false);
    let attempt = Attempt { action, right, unit, needs, victims, takes, must_settle, own, shares, settings };
    let steps = attempt.run(cluster, engine, searches, frontiers)?;
    context.changed(cluster, &steps);
    Ok(steps)
}
