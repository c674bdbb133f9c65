//! Places a unit: all of its members, or none.

mod choices;
mod member;
mod near;
mod rules;

use crate::decisions::placement::{Engine, Policy};
use crate::decisions::unit::Unit;
use crate::state::cluster::{Cluster, limits};
use crate::state::statement::Statement;

pub(crate) use member::{FreeRoom, MakeRoom, Unplaceable, demanding_first};
use near::place_near;

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
        None => place_near(statement, engine, unit, preemptible, room),
    };
    // The exact charge of the members is known only now.
    let charge = unit.charge(statement.cluster());
    let within = placed.and_then(|()| {
        limits::check(statement.cluster(), unit.queue, &charge, preemptible, true).map_err(Unplaceable::Limit)
    });
    if within.is_err() {
        statement.rollback(start);
    }
    within
}

/// What is in the way of a unit when it is known that its first member finds no room.
pub(crate) fn without_room(cluster: &Cluster, unit: &Unit) -> Option<Unplaceable> {
    let (least, preemptible) = (unit.least_charge(cluster), unit.is_preemptible(cluster));
    match limits::check(cluster, unit.queue, &least, preemptible, false) {
        Err(exceeded) => Some(Unplaceable::Limit(exceeded)),
        Ok(()) => unit.claims.first().map(|claim| Unplaceable::NoRoom { claim: *claim, placed: 0 }),
    }
}
