//! A unit that is placed, and by which rights it is where it is.

use crate::decisions::shares::Right;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::resources::Charge;
use crate::vocabulary::pod_group::GroupId;

/// A unit that is placed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlacedUnit {
    pub(crate) unit: Unit,
    /// What it takes.
    pub(crate) charge: Charge,
    /// Whether its group has all it needs. What is left of a gang does no work, and is entitled to nothing until it is
    /// whole.
    pub(super) is_whole: bool,
    /// By [`Right`].
    pub(super) verdicts: [Verdict; 2],
}

/// How a unit stands to what its queue has a right to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is within that.
    Within,
    /// It would be within that if its queue held less.
    Short,
    /// It is not within that, however much its queue holds.
    Out,
}

impl PlacedUnit {
    /// The units of a group that are placed, in the order of rank. How they stand is still to be found out.
    pub(super) fn of_group(cluster: &Cluster, group: GroupId) -> impl Iterator<Item = Self> {
        let is_whole = cluster.group(group).is_some_and(Group::has_minimum);
        let units = Unit::placed(cluster, group).into_iter();
        units.map(move |unit| Self { charge: unit.charge(cluster), unit, is_whole, verdicts: [Verdict::Out; 2] })
    }

    /// Its members, each by itself.
    pub(crate) fn members(&self, cluster: &Cluster) -> impl Iterator<Item = Self> {
        let members = self.unit.claims.iter().filter_map(|claim| Some((*claim, cluster.charge(*claim)?)));
        members.map(|(claim, charge)| Self {
            unit: Unit { claims: vec![claim], ..self.unit.clone() },
            charge,
            ..self.clone()
        })
    }

    /// Whether it is within what its queue has a right to; otherwise it is borrowed.
    pub(crate) fn is(&self, right: Right) -> bool {
        self.verdict(right) == Verdict::Within
    }

    pub(super) fn verdict(&self, right: Right) -> Verdict {
        self.verdicts[right as usize]
    }
}
