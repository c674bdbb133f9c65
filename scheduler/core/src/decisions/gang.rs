//! Placing a unit: all of its members, or none.

mod member;
mod rules;

use crate::decisions::placement::{Engine, Policy};
use crate::decisions::unit::Unit;
use crate::state::cluster::{Cluster, limits};
use crate::state::statement::Statement;

pub(crate) use member::{FreeRoom, MakeRoom, Unplaceable, demanding_first};
use member::{place_besides, place_within_bounds};

/// Places the members of a unit in a statement: all of them, or none.
pub(crate) fn place_unit(
    statement: &mut Statement<'_>,
    engine: &mut Engine<Box<dyn Policy>>,
    unit: &Unit,
    room: &mut dyn MakeRoom,
) -> Result<(), Unplaceable> {
    let preemptible = unit.is_preemptible(statement.cluster());
    let least = unit.least_charge(statement.cluster());
    limits::check(statement.cluster(), unit.queue, &least, preemptible, false).map_err(Unplaceable::Limit)?;
    let start = statement.savepoint();
    let placed = match rules::Rules::of(statement.cluster(), unit) {
        Some(rules) => rules.place(statement, engine, unit, room),
        None => place_anywhere(statement, engine, unit, preemptible, room),
    };
    // Only now is it known what exactly the members take.
    let charge = unit.charge(statement.cluster());
    let within = placed.and_then(|()| {
        limits::check(statement.cluster(), unit.queue, &charge, preemptible, true).map_err(Unplaceable::Limit)
    });
    if within.is_err() {
        statement.rollback(start);
    }
    within
}

/// What is in the way of a unit if it is known that there is no room for its first member.
pub(crate) fn without_room(cluster: &Cluster, unit: &Unit) -> Option<Unplaceable> {
    let (least, preemptible) = (unit.least_charge(cluster), unit.is_preemptible(cluster));
    match limits::check(cluster, unit.queue, &least, preemptible, false) {
        Err(exceeded) => Some(Unplaceable::Limit(exceeded)),
        Ok(()) => unit.claims.first().map(|claim| Unplaceable::NoRoom { claim: *claim, placed: 0 }),
    }
}

fn place_anywhere(
    statement: &mut Statement<'_>,
    engine: &mut Engine<Box<dyn Policy>>,
    unit: &Unit,
    preemptible: bool,
    room: &mut dyn MakeRoom,
) -> Result<(), Unplaceable> {
    for (placed, claim) in demanding_first(statement.cluster(), engine, &unit.claims).into_iter().enumerate() {
        let cluster = statement.cluster();
        let Some(class) = cluster.class_of(claim) else { return Err(Unplaceable::NoRoom { claim, placed }) };
        let free = place_within_bounds(cluster, unit.queue, claim, preemptible, |spent| match spent {
            [] => engine.place(cluster, class),
            spent => place_besides(cluster, engine, class, spent),
        });
        let allocation = match free {
            Ok(Some(allocation)) => Some(allocation),
            // What is free may be of a model of which the queue may have no more; others can make room elsewhere.
            none => room.make_room(statement, engine, claim, None).map_or_else(|| none, |found| Ok(Some(found)))?,
        };
        let taken = allocation.is_some_and(|allocation| statement.place(claim, allocation).is_ok());
        if !taken {
            return Err(Unplaceable::NoRoom { claim, placed });
        }
    }
    Ok(())
}
