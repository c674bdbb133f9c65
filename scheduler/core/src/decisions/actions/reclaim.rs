//! Reclaim: takes what queues hold beyond their fair share for queues that have less than theirs, and what queues hold
//! beyond their quota for queues that cannot use their own quota otherwise.

use crate::decisions::plan::Refusal;
use crate::decisions::shares::Right;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::resources::Charge;
use crate::vocabulary::claim::Action;

use super::context::{ActionResult, Context};
use super::evict::Attempt;
use super::protection::delayed_until_ms;
use super::takes::Takes;

/// Places a unit that would be entitled, by evicting borrowed units of other queues. Free and borrowed room may be too
/// scattered for that. Then a unit that would be guaranteed may also evict units beyond their queues' quotas.
pub(crate) fn reclaim(cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> ActionResult {
    let least = unit.least_charge(cluster);
    if let Some(resource) = context.shares.exceeded(cluster, unit.queue, &least) {
        return Err(Refusal::above(context.shares, unit.queue, resource));
    }
    let needs = needs(cluster, unit);
    let own = context.entitled.know(cluster, context.shares, unit.queue);
    if !own.would_be(Right::FairShare, unit.rank, &least) {
        return Err(Refusal::above(context.shares, unit.queue, needs.first().copied().unwrap_or(0)));
    }
    let is_guaranteed = own.would_be(Right::Guarantee, unit.rank, &least);
    if let Some(until_ms) = delayed_until_ms(cluster, unit) {
        return Err(Refusal::Delayed { until_ms });
    }
    match reclaim_by(Right::FairShare, cluster, context, unit, &needs) {
        // A search that was cut short goes on in the next cycle.
        Err(first) if is_guaranteed && !matches!(first, Refusal::SearchExhausted) => {
            reclaim_by(Right::Guarantee, cluster, context, unit, &needs).map_err(|second| first.more_telling(second))
        }
        outcome => outcome,
    }
}

/// The resources that a unit needs; of device models, those that it may be placed on.
fn needs(cluster: &Cluster, unit: &Unit) -> Vec<usize> {
    let classes = unit.claims.iter().filter_map(|claim| cluster.class(cluster.class_of(*claim)?));
    let mut most = Charge::default();
    classes.for_each(|class| most.add(&cluster.resources().most_charge(class.request())));
    most.parts().map(|(resource, _)| resource).collect()
}

fn reclaim_by(
    right: Right,
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    unit: &Unit,
    needs: &[usize],
) -> ActionResult {
    let mut givers = context.givers(cluster, right, needs);
    givers.remove(&unit.queue);
    for queue in givers.keys() {
        context.know_evictable(cluster, *queue);
    }
    let Context { shares, settings, engine, searches, frontiers, entitled, evictable, .. } = context;
    let own = entitled.know(cluster, shares, unit.queue);
    let mut gives: Vec<Vec<usize>> = Vec::new();
    for (queue, resources) in givers {
        let Some(number) = evictable.number_of(queue) else { continue };
        gives.resize(gives.len().max(number + 1), Vec::new());
        gives[number] = resources;
    }
    let (action, takes) = (Action::Reclaim, Takes::Reclaim { right, gives });
    let attempt = Attempt { action, right, unit, needs, victims: evictable, takes, own, shares, settings };
    let steps = attempt.run(cluster, engine, searches, frontiers)?;
    context.changed(cluster, &steps);
    Ok(steps)
}
