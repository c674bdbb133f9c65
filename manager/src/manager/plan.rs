//! Plans: the steps by which a change of a slice is carried out, as data. [`execution`](super::execution) does them.

use super::books::Change;
use crate::checkpoint::Phase;
use crate::slices::Slice;

/// A step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The checkpoint says how far the slice is.
    Note(Phase),
    /// The region's files.
    MakeRegion,
    /// MPS's ceiling is as high as the slice may need.
    RaiseCeiling,
    /// The slice's CDI device, as the slice is to be.
    Publish,
    /// The threads know the slice, and processes can attach.
    Start,
    /// The manifest beside the region.
    Describe,
    /// The users who can reach the region.
    Admit,
    /// The limits in the region, and the shares of its devices' time.
    ApplyLimits,
    /// The slice has no CDI device any more.
    Withdraw,
    /// The region is to be missed by no thread.
    Leave,
    /// The region is out of sight. There is no way back from here.
    Retire,
    /// No thread knows the slice any more, and its processes get nothing more.
    Stop,
    /// The region's files are deleted.
    Discard,
    /// The checkpoint does not name the slice any more.
    Forget,
}

/// How a change is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangePlan {
    /// All of these are done, or none: if one fails, those before it are undone, the last one first.
    pub steps: Vec<Step>,
    /// These put the change into force, and cannot fail.
    pub effect: Vec<Step>,
    /// These clear up. If one fails, the next start does it and those after it.
    pub rest: Vec<Step>,
}

/// What a plan depends on besides the change itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Circumstances {
    /// The slice is at work, with a region.
    pub is_live: bool,
    /// MPS's ceiling may have to be raised.
    pub needs_ceiling: bool,
    /// What containers get by MPS is another than before.
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
        let effect = is_live.then_some(Step::Stop);
        ChangePlan {
            steps: steps.into_iter().flatten().collect(),
            effect: effect.into_iter().collect(),
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
            // What is promised is durable before the answer, and then nothing is left that can fail.
            assert_eq!(made.steps.last(), Some(&Step::Note(Phase::Ready)));
            assert_eq!(made.rest, []);
            let removed = ChangePlan::of(&Change::Remove(slice.clone()), circumstances);
            assert_eq!(removed.steps.first(), Some(&Step::Note(Phase::Removing)));
            assert_eq!(removed.steps.last(), Some(&Step::Retire));
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
