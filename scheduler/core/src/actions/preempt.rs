//! Preempt: within a queue, what is of lower priority makes way.

use crate::claim::Action;
use crate::cluster::Cluster;
use crate::entitled::PlacedUnit;
use crate::unit::Unit;

use super::context::{Context, Outcome, Refusal};
use super::evict::Attempt;
use super::protection::delayed_until_ms;
use super::victims::Victims;

/// Places a unit by evicting units of strictly lower priority in its queue: any, if it would be entitled, otherwise
/// only borrowed ones.
pub(crate) fn preempt(cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> Outcome {
    let Context { shares, settings, engine, memory, entitled, .. } = context;
    let own = entitled.know(cluster, shares, unit.queue);
    // Who is of the lowest priority has nobody to take from.
    if own.units().last().is_none_or(|last| last.unit.rank.priority <= unit.rank.priority) {
        return Err(Refusal::NothingToTake);
    }
    if let Some(until_ms) = delayed_until_ms(cluster, unit) {
        return Err(Refusal::Delayed { until_ms });
    }
    let is_entitled = own.would_entitle(unit.rank, &unit.least_charge(cluster));
    let wanted =
        |placed: &PlacedUnit| placed.unit.rank.priority > unit.rank.priority && (is_entitled || !placed.entitled);
    let mut victims = Victims::default();
    victims.add(cluster, Action::Preempt, unit.queue, own, wanted);
    victims.index();
    let attempt = Attempt { action: Action::Preempt, unit, victims, shares, settings };
    let done = attempt.run(cluster, engine, memory, |state, taken| {
        // Where exactly the members are decides what they take: it may be more than was known before.
        let exact = unit.charge(state);
        if taken.iter().any(|victim| victim.placed.entitled) && !own.would_entitle(unit.rank, &exact) {
            return Err(Refusal::above(shares, unit.queue, exact.parts().next().map_or(0, |(resource, _)| resource)));
        }
        Ok(())
    });
    let steps = done?;
    entitled.changed(cluster, &steps);
    Ok(steps)
}
