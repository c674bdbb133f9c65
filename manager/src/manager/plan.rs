//! Plans: the steps by which a change of a slice is carried out, as data. [`execution`](super::execution) does them.

use super::books::Change;
use crate::checkpoint::Phase;
use crate::slices::Slice;

/// A step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Write to the checkpoint how far the slice is.
    Note(Phase),
    /// Make the region's files.
    MakeRegion,
    /// Raise MPS's ceiling to what the slice may need.
    RaiseCeiling,
    /// Publish the slice, as it will be, as a CDI device.
    Publish,
    /// Make the slice known to the threads, so that processes can attach.
    Start,
    /// Write the manifest beside the region.
    Describe,
    /// Let the slice's users reach the region.
    Admit,
    /// Write the limits into the region, and apply the shares of its devices' time.
    ApplyLimits,
    /// Remove the slice's CDI device.
    Withdraw,
    /// Announce that the region is about to go, so that no thread reports it as missing.
    Leave,
    /// Move the region out of sight. After this step there is no way back.
    Retire,
    /// Make all threads forget the slice. Its processes get nothing more.
    Stop,
    /// Delete the region's files.
    Discard,
    /// Remove the slice from the checkpoint.
    Forget,
}

/// The steps of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangePlan {
    /// Steps of which all are done, or none: if one fails, those before it are undone, the last one first.
    pub steps: Vec<Step>,
    /// Steps that put the change into force, and cannot fail.
    pub effect: Vec<Step>,
    /// Steps that clear up. If one fails, the next start does it and those after it.
    pub rest: Vec<Step>,
}

/// The facts that a plan depends on besides the change itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Circumstances {
    /// The slice is at work, with a region.
    pub is_live: bool,
    /// MPS's ceiling may have to be raised.
    pub needs_ceiling: bool,
    /// The variables and mounts that containers get for MPS change.
    pub has_new_client: bool,
}

impl ChangePlan {
    /// The plan for `change`.
    #[must_use]
    pub(super) fn of(change: &Change, circumstances: Circumstances) -> ChangePlan {
        match change {
            Change::Make(_) => ChangePlan::to_make(circumstances),
            Change::Resize { before, after } => ChangePlan::to_resize(before, after, circumstances),
            Change::Remove(_) => ChangePlan::to_remove(circumstances),
        }
    }

    fn to_make(Circumstances { needs_ceiling, .. }: Circumstances) -> ChangePlan {
        let steps = [
            Some(Step::Note(Phase::Making)),
            Some(Step::MakeRegion),
            needs_ceiling.then_some(Step::RaiseCeiling),
            Some(Step::Publish),
            Some(Step::Start),
            Some(Step::Note(Phase::Ready)),
        ];
        ChangePlan { steps: steps.into_iter().flatten().collect(), effect: vec![], rest: vec![] }
    }

    fn to_resize(before: &Slice, after: &Slice, circumstances: Circumstances) -> ChangePlan {
        let Circumstances { is_live, needs_ceiling, has_new_client } = circumstances;
        let steps = [
            needs_ceiling.then_some(Step::RaiseCeiling),
            Some(Step::Note(Phase::Ready)),
            is_live.then_some(Step::Describe),
            (is_live && before.users != after.users).then_some(Step::Admit),
            (is_live && has_new_client).then_some(Step::Publish),
        ];
        let effect = is_live.then_some(Step::ApplyLimits);
        ChangePlan { steps: steps.into_iter().flatten().collect(), effect: effect.into_iter().collect(), rest: vec![] }
    }

    fn to_remove(Circumstances { is_live, .. }: Circumstances) -> ChangePlan {
        let steps = [
            Some(Step::Note(Phase::Removing)),
            Some(Step::Withdraw),
            is_live.then_some(Step::Leave),
            Some(Step::Retire),
        ];
        ChangePlan {
            steps: steps.into_iter().flatten().collect(),
            effect: vec![Step::Stop],
            rest: vec![Step::Discard, Step::Forget],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tests::slice;

    #[test]
    fn the_checkpoint_names_a_slice_before_anything_of_it_is_made_and_until_all_is_removed() {
        let slice = slice(1);
        for circumstances in
            [Circumstances::default(), Circumstances { is_live: true, needs_ceiling: true, has_new_client: true }]
        {
            let made = ChangePlan::of(&Change::Make(slice.clone()), circumstances);
            assert_eq!(made.steps.first(), Some(&Step::Note(Phase::Making)));
            // A promise is durable before the answer, and after that no step is left that can fail.
            assert_eq!(made.steps.last(), Some(&Step::Note(Phase::Ready)));
            assert_eq!(made.rest, []);
            let removed = ChangePlan::of(&Change::Remove(slice.clone()), circumstances);
            assert_eq!(removed.steps.first(), Some(&Step::Note(Phase::Removing)));
            assert_eq!(removed.steps.last(), Some(&Step::Retire));
            // Whether the slice is at work or not: its share is free afterwards.
            assert_eq!(removed.effect, [Step::Stop]);
            assert_eq!(removed.rest, [Step::Discard, Step::Forget]);
        }
    }

    #[test]
    fn a_resize_does_what_its_change_needs_and_no_more() {
        let before = slice(1);
        let steps = |after: &Slice, circumstances| {
            ChangePlan::of(&Change::Resize { before: before.clone(), after: after.clone() }, circumstances).steps
        };
        let live = Circumstances { is_live: true, ..Circumstances::default() };
        assert_eq!(steps(&before, Circumstances::default()), [Step::Note(Phase::Ready)]);
        assert_eq!(steps(&before, live), [Step::Note(Phase::Ready), Step::Describe]);
        let other_users = Slice { users: [7, 8].into(), ..before.clone() };
        assert_eq!(steps(&other_users, live), [Step::Note(Phase::Ready), Step::Describe, Step::Admit]);
        let by_mps = Circumstances { needs_ceiling: true, has_new_client: true, ..live };
        assert_eq!(
            steps(&before, by_mps),
            [Step::RaiseCeiling, Step::Note(Phase::Ready), Step::Describe, Step::Publish]
        );
    }
}
