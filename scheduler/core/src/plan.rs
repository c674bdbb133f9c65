//! What a cycle decides.

use crate::actions::Refusal;
use crate::claim::Action;
use crate::gang::Unplaceable;
use crate::group::GroupId;
use crate::statement::Step;

/// What is to be done, and what waits and why.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// In the order in which they were decided; evictions stand before what they make room for.
    pub steps: Vec<PlannedStep>,
    /// The groups of which something waits, in the order in which it was their turn.
    pub pending: Vec<Pending>,
}

/// One step, and what it is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedStep {
    /// The step.
    pub step: Step,
    /// Which action decided it.
    pub action: Action,
    /// The group that it is done for; `None`: for nobody in particular.
    pub for_group: Option<GroupId>,
}

/// A group of which something waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    /// The group.
    pub group: GroupId,
    /// What is in its way.
    pub(crate) obstacle: Obstacle,
    /// Why nobody makes way for it; `None`: nobody was asked to.
    pub(crate) refusal: Option<Refusal>,
}

/// What is in the way of a group's next unit, as a cycle has found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Obstacle {
    /// So many members have yet to be added.
    MembersMissing(u32),
    /// A member could not be started lately, and is not tried again before this.
    RetriedAt(u64),
    /// It cannot be placed.
    Unplaceable(Unplaceable),
}
