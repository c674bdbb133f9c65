//! A placed unit, and the rights of its queue that it is within.

use crate::decisions::shares::{Guarantees, Right};
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::resources::Charge;
use crate::vocabulary::pod_group::GroupId;

/// A unit that is placed, with its charge and verdicts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlacedUnit {
    pub(crate) unit: Unit,
    /// The exact charge of its members.
    pub(crate) charge: Charge,
    /// Whether its group has its minimum. The rest of a gang does no work, so it is entitled to nothing until the gang
    /// is whole.
    pub(super) is_whole: bool,
    /// By [`Right`].
    pub(super) verdicts: [Verdict; 3],
}

/// How a unit relates to one right of its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is within the right.
    Within,
    /// It would be within the right if its queue held less.
    Short,
    /// It is not within the right, however little its queue holds.
    Out,
}

impl PlacedUnit {
    /// The verdicts on a unit that has yet to be judged.
    pub(super) const UNJUDGED: [Verdict; 3] = [Verdict::Out; 3];

    /// The placed units of a group, in the order of rank. Their verdicts are not known yet.
    pub(super) fn of_group(cluster: &Cluster, group: GroupId) -> impl Iterator<Item = Self> {
        let is_whole = cluster.group(group).is_some_and(Group::has_minimum);
        let units = Unit::placed(cluster, group).into_iter();
        units.map(move |unit| Self { charge: unit.charge(cluster), unit, is_whole, verdicts: Self::UNJUDGED })
    }

    /// Its members, each as a unit by itself.
    pub(crate) fn members(&self, cluster: &Cluster) -> impl Iterator<Item = Self> {
        // Most units have one member.
        let several = (self.unit.claims.len() > 1).then_some(&self.unit.claims);
        let only = several.is_none().then(|| self.clone());
        let members = several.into_iter().flatten().filter_map(|claim| Some((*claim, cluster.charge(*claim)?)));
        let members = members.map(|(claim, charge)| Self {
            unit: Unit { claims: vec![claim], ..self.unit },
            charge,
            is_whole: self.is_whole,
            verdicts: self.verdicts,
        });
        only.into_iter().chain(members)
    }

    /// Whether it is within a right of its queue; otherwise it is borrowed.
    pub(crate) fn is(&self, right: Right) -> bool {
        self.verdict(right) == Verdict::Within
    }

    /// The guarantees that it is within.
    pub(crate) fn guarantees(&self) -> Guarantees {
        Guarantees::of(|right| self.is(right))
    }

    pub(super) fn verdict(&self, right: Right) -> Verdict {
        self.verdicts[right as usize]
    }
}
