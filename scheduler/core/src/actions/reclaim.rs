//! Reclaim: what queues hold beyond their fair share goes back to those who have less than theirs.

use crate::claim::Action;
use crate::cluster::Cluster;
use crate::entitled::PlacedUnit;
use crate::queue::QueueId;
use crate::resource::Charge;
use crate::unit::Unit;

use super::context::{Context, Outcome, Refusal};
use super::evict::Attempt;
use super::protection::delayed_until_ms;
use super::victims::Victims;

/// A queue that has too much of a resource that is needed.
struct Giver {
    queue: QueueId,
    /// The numbers of all such resources.
    resources: Vec<usize>,
}

/// Places a unit that would be entitled by evicting borrowed units of other queues.
pub(crate) fn reclaim(cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> Outcome {
    let least = unit.least_charge(cluster);
    if let Some(resource) = context.shares.exceeded(cluster, unit.queue, &least) {
        return Err(Refusal::above(context.shares, unit.queue, resource));
    }
    let entitled = context.entitled.know(cluster, context.shares, unit.queue);
    if !entitled.would_entitle(unit.rank, &least) {
        return Err(Refusal::above(context.shares, unit.queue, first(&least)));
    }
    if let Some(until_ms) = delayed_until_ms(cluster, unit) {
        return Err(Refusal::Delayed { until_ms });
    }
    let needs: Vec<usize> = least.parts().map(|(resource, _)| resource).collect();
    let givers: Vec<Giver> = leaves(cluster)
        .filter(|queue| *queue != unit.queue)
        .filter_map(|queue| giver(cluster, context, queue, &needs))
        .collect();
    for giver in &givers {
        context.entitled.know(cluster, context.shares, giver.queue);
    }
    let mut victims = Victims::default();
    for giver in &givers {
        let Some(entitled) = context.entitled.get(giver.queue) else { continue };
        let holds = |placed: &PlacedUnit| giver.resources.iter().any(|resource| placed.charge.get(*resource) > 0);
        let wanted = |placed: &PlacedUnit| !placed.entitled && holds(placed);
        victims.add(cluster, Action::Reclaim, giver.queue, entitled, wanted);
    }
    victims.index();
    let own = context.entitled.get(unit.queue);
    let Context { shares, settings, engine, memory, .. } = context;
    let attempt = Attempt { action: Action::Reclaim, unit, victims, shares, settings };
    let done = attempt.run(cluster, engine, memory, |state, _| {
        // Where exactly the members are decides what they take: it may be more than was known before.
        let exact = unit.charge(state);
        let held = |number: usize| state.queue(unit.queue).map_or(0, |queue| queue.allocated().get(number));
        let too_much = exact.parts().find(|(number, _)| held(*number) > shares.fair_share(unit.queue, *number));
        if let Some((resource, _)) = too_much {
            return Err(Refusal::above(shares, unit.queue, resource));
        }
        if !own.is_some_and(|own| own.would_entitle(unit.rank, &exact)) {
            return Err(Refusal::above(shares, unit.queue, first(&exact)));
        }
        Ok(())
    });
    let steps = done?;
    context.entitled.changed(cluster, &steps);
    Ok(steps)
}

fn first(charge: &Charge) -> usize {
    charge.parts().next().map_or(0, |(resource, _)| resource)
}

fn leaves(cluster: &Cluster) -> impl Iterator<Item = QueueId> {
    let order = cluster.queues().parents_first();
    order.into_iter().filter(|queue| cluster.queue(*queue).is_some_and(|queue| queue.children().is_empty()))
}

/// A queue as a giver, if it has too much of something that is needed.
fn giver(cluster: &Cluster, context: &Context<'_>, queue: QueueId, needs: &[usize]) -> Option<Giver> {
    let held = cluster.queue(queue)?.allocated();
    let has_too_much = |number: &usize| held.get(*number) > context.shares.fair_share(queue, *number);
    let resources: Vec<usize> = needs.iter().copied().filter(has_too_much).collect();
    (!resources.is_empty()).then_some(Giver { queue, resources })
}
