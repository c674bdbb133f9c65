//! The sums of the units that are within a right of their queue.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::decisions::shares::Right;
use crate::decisions::unit::Rank;
use crate::state::resources::{Amounts, Charge};

use super::placed_unit::{PlacedUnit, Verdict};

/// The bounds of one right, and the sums of the units that are within it. The sums are updated as units come and go, so
/// that a question about one unit does not need to add up all units before it.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub(super) right: Right,
    /// The most that the queue may hold by the right, by the resource's number.
    bounds: Vec<u64>,
    /// The first rank that the right does not reach; `None`: it reaches all units.
    before: Option<Rank>,
    total: Amounts,
    /// The sums by priority, and by whether units are beyond their groups' cores.
    by_level: BTreeMap<Level, Amounts>,
    /// The number of units that are out only because too much is held.
    short: usize,
}

/// Units of one level come together in the order of rank.
type Level = (Reverse<i32>, bool);

fn level(rank: Rank) -> Level {
    (rank.priority, rank.elastic)
}

impl Accepted {
    pub(super) fn new(right: Right, bounds: Vec<u64>, before: Option<Rank>) -> Self {
        Self { right, bounds, before, total: Amounts::default(), by_level: BTreeMap::new(), short: 0 }
    }

    /// The same bounds, without units.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.right, self.bounds.clone(), self.before)
    }

    /// Whether two have the same sums.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        let same = |one: &Amounts, other: &Amounts| (0..self.bounds.len()).all(|at| one.get(at) == other.get(at));
        let nothing = Amounts::default();
        let of_level = |level: &Level| other.by_level.get(level).unwrap_or(&nothing);
        self.short == other.short
            && same(&self.total, &other.total)
            && self.by_level.iter().all(|(level, amounts)| same(amounts, of_level(level)))
    }

    /// The verdict on a unit if the units before it hold `held`.
    pub(super) fn judge(&self, placed: &PlacedUnit, core_is_out: bool, held: &Amounts) -> Verdict {
        if !placed.is_whole || core_is_out || !self.reaches(placed.unit.rank) {
            return Verdict::Out;
        }
        if self.allows(held, &placed.charge) { Verdict::Within } else { Verdict::Short }
    }

    /// Whether units of a rank can be within the right at all.
    pub(super) fn reaches(&self, rank: Rank) -> bool {
        self.before.is_none_or(|before| rank < before)
    }

    /// Whether held + `charge` is within the bounds.
    pub(super) fn allows(&self, held: &Amounts, charge: &Charge) -> bool {
        fits(&self.bounds, held, charge)
    }

    /// The first resource of which held + `charge` is not within the bounds.
    pub(super) fn exceeded(&self, held: &Amounts, charge: &Charge) -> Option<usize> {
        exceeded(&self.bounds, held, charge)
    }

    /// Whether all units within the right stay within it when one of them comes to take this charge, wherever it
    /// stands.
    pub(super) fn stays_within(&self, charge: &Charge) -> bool {
        charge.parts().all(|(number, _)| self.total.get(number) <= bound(&self.bounds, number))
    }

    /// Whether some units are out only because too much is held.
    pub(super) fn any_is_short(&self) -> bool {
        self.short > 0
    }

    /// The sum of all units that are within the right.
    pub(super) fn total(&self) -> &Amounts {
        &self.total
    }

    /// The sum of those of them before a rank. `later` are all units of the rank's level from that rank on.
    pub(super) fn before<'a>(&self, rank: Rank, later: impl Iterator<Item = &'a PlacedUnit>) -> Amounts {
        let mut held = Amounts::default();
        self.by_level.range(..=level(rank)).for_each(|(_, of_level)| held.add_all(of_level));
        later.filter(|placed| placed.is(self.right)).for_each(|placed| held.subtract(&placed.charge));
        held
    }

    /// Enters a unit with its present verdict.
    pub(super) fn enter(&mut self, placed: &PlacedUnit) {
        match placed.verdict(self.right) {
            Verdict::Within => {
                self.total.add(&placed.charge);
                self.by_level.entry(level(placed.unit.rank)).or_default().add(&placed.charge);
            }
            Verdict::Short => self.short += 1,
            Verdict::Out => {}
        }
    }

    /// Takes out a unit, by the verdict with which it was entered.
    pub(super) fn leave(&mut self, placed: &PlacedUnit) {
        match placed.verdict(self.right) {
            Verdict::Within => {
                self.total.subtract(&placed.charge);
                if let Some(of_level) = self.by_level.get_mut(&level(placed.unit.rank)) {
                    of_level.subtract(&placed.charge);
                }
            }
            Verdict::Short => self.short -= 1,
            Verdict::Out => {}
        }
    }
}

/// Whether held + `charge` is within the bounds.
pub(super) fn fits(bounds: &[u64], held: &Amounts, charge: &Charge) -> bool {
    exceeded(bounds, held, charge).is_none()
}

fn exceeded(bounds: &[u64], held: &Amounts, charge: &Charge) -> Option<usize> {
    let exceeds = |(number, amount): (usize, u64)| held.get(number).saturating_add(amount) > bound(bounds, number);
    charge.parts().find(|part| exceeds(*part)).map(|(number, _)| number)
}

fn bound(bounds: &[u64], number: usize) -> u64 {
    bounds.get(number).copied().unwrap_or(0)
}
