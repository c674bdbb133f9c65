//! Units with members that have several choices, when not all members can have their first choice.

use std::collections::BTreeSet;

use super::member::{Spent, demanding_first, place_besides, place_within_bounds};
use crate::decisions::placement::{Engine, Policy};
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::statement::{Savepoint, Statement};
use crate::vocabulary::claim::ClaimId;

/// The most looks at nodes for one unit. One turn back is counted as a look at each node for each member.
const LOOKS_MAX: usize = 1 << 16;

/// Whether a member of a unit could take another choice to leave room for other members.
pub(super) fn has_choices(cluster: &Cluster, unit: &Unit) -> bool {
    unit.claims.len() > 1 && unit.claims.iter().any(|claim| choice_count(cluster, *claim) > 1)
}

fn choice_count(cluster: &Cluster, claim: ClaimId) -> usize {
    cluster.claim(claim).map_or(1, |claim| usize::from(claim.request.choice_count()))
}

/// Places a unit's members in free room. Returns whether all found room; if not, nothing is placed.
///
/// If a member finds no room, an earlier member goes on to its next choice, together with the members of its class
/// behind it. At first this is the last member that has a further choice, then the second last, the fourth last, and so
/// on, so that a large unit needs few turns. Not every combination is tried. Of equal members, the first ones have the
/// better choices.
pub(super) fn place_by_choices(
    statement: &mut Statement<'_>,
    engine: &mut Engine<Box<dyn Policy>>,
    unit: &Unit,
    preemptible: bool,
) -> bool {
    let order = demanding_first(statement.cluster(), engine, &unit.claims);
    let begin = statement.savepoint();
    let mut ways = Ways { order: &order, begun: Vec::new(), back: 1 };
    let mut looks_left = LOOKS_MAX;
    let mut left_out = BTreeSet::new();
    while let Some(claim) = order.get(ways.begun.len()).copied() {
        let start = statement.savepoint();
        if place_one(statement, engine, unit, claim, preemptible, &left_out) {
            ways.begun.push((start, left_out));
            left_out = ways.left_out_of_next(statement.cluster());
            continue;
        }
        let nodes = statement.cluster().nodes().count().saturating_mul(order.len());
        let next = ways.turn_back(statement).filter(|_| looks_left >= nodes);
        let Some(next) = next else {
            statement.rollback(begin);
            return false;
        };
        looks_left -= nodes;
        left_out = next;
    }
    true
}

/// The combination that is tried now, and how far the next turn goes back.
struct Ways<'a> {
    order: &'a [ClaimId],
    /// For each placed member: the savepoint before it, and the choices that it may not have.
    begun: Vec<(Savepoint, BTreeSet<u16>)>,
    /// How many members with a further choice the next turn goes back.
    back: usize,
}

impl Ways<'_> {
    /// The choices that the next member may not have: those of the last member before it that is of its class.
    fn left_out_of_next(&self, cluster: &Cluster) -> BTreeSet<u16> {
        let class = self.order.get(self.begun.len()).and_then(|claim| cluster.class_of(*claim));
        let mut before = self.begun.iter().zip(self.order).rev();
        let like = before.find(|(_, claim)| cluster.class_of(**claim) == class);
        like.map(|((_, left_out), _)| left_out.clone()).unwrap_or_default()
    }

    /// Takes members back, down to one that has a further choice. Returns the choices that this one may not have.
    fn turn_back(&mut self, statement: &mut Statement<'_>) -> Option<BTreeSet<u16>> {
        let has_another = |(place, (_, left_out)): &(usize, &(Savepoint, BTreeSet<u16>))| {
            let count = self.order.get(*place).map(|claim| choice_count(statement.cluster(), *claim));
            count.is_some_and(|count| left_out.len() + 1 < count)
        };
        let open = self.begun.iter().enumerate().filter(has_another).map(|(place, _)| place);
        let open: Vec<usize> = open.collect();
        let place = *open.get(open.len().saturating_sub(self.back))?;
        self.back = self.back.saturating_mul(2);
        let (start, mut left_out) = self.begun.drain(place..).next()?;
        let had = statement.cluster().allocation(*self.order.get(place)?)?.alternative;
        statement.rollback(start);
        left_out.insert(had);
        Some(left_out)
    }
}

fn place_one(
    statement: &mut Statement<'_>,
    engine: &mut Engine<Box<dyn Policy>>,
    unit: &Unit,
    claim: ClaimId,
    preemptible: bool,
    left_out: &BTreeSet<u16>,
) -> bool {
    let cluster = statement.cluster();
    let Some(class) = cluster.class_of(claim) else { return false };
    let found = place_within_bounds(cluster, unit.queue, claim, preemptible, |spent| {
        let choices = spent.choices.union(left_out).copied().collect();
        let spent = Spent { models: spent.models.clone(), choices };
        match spent.is_nothing() {
            true => engine.place(cluster, class),
            false => place_besides(cluster, engine, class, &spent, |_| true),
        }
    });
    found.is_ok_and(|allocation| allocation.is_some_and(|allocation| statement.place(claim, allocation).is_ok()))
}
