//! Whose turn it is that something is said of them. Pure: the time is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::words::{GANG_INCOMPLETE, NOT_SUPPORTED};

/// Time between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How long something that mostly passes by itself must last before it is said.
const LASTS: Duration = Duration::from_millis(500);
/// Time until a pod is looked at again that has nothing in its way, or whose gang is not complete yet, and between two
/// looks at pods of which something is said already. In one look, many of these are explained together.
const SOON: Duration = Duration::from_secs(1);
/// Time between two changes of what is said of one pod, at least, if both are of one tier.
const PAUSE: Duration = Duration::from_secs(10);
/// Pods of which something is said already, in one look at most.
const AGAIN_AT_A_LOOK: usize = 100;

/// The pods that wait, with the time at which each is looked at next.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pods: BTreeMap<String, Turn>,
    /// The pods of which nothing is said yet, in their order. All of them that are due are looked at.
    first: BTreeSet<(Instant, String)>,
    /// The others, in their order.
    again: BTreeSet<(Instant, String)>,
    /// When some of these are looked at next.
    again_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    is_said: bool,
    at: Instant,
    /// Since when something may be to be said of it.
    since: Instant,
    /// The tier of what this leader has said last, and when.
    last: Option<(&'static str, Instant)>,
}

/// A look at a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) uid: String,
    /// Something is said of it already.
    pub(super) is_said: bool,
    /// What mostly passes by itself has had the time to do so.
    pub(super) has_lasted: bool,
    /// The tier of which nothing else is said now, because something was just said.
    pub(super) just_said: Option<&'static str>,
}

/// What has come of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The pod does not wait any more.
    Gone,
    /// What is to be said will be known in a moment.
    NotYet,
    /// Nothing is in its way.
    Nothing,
    /// There was no time for it.
    PutOff,
    /// Something of this tier was said.
    Said(&'static str),
    /// Something of this tier is said already, and that is enough for now.
    IsSaid(&'static str),
    /// The pod has changed since it was looked at.
    Changed,
    /// The API server has not taken what was to be said.
    Failed,
}

impl Turns {
    /// A pod waits. `is_said`: its condition says why already. `is_claim`: it is scheduled as it is.
    pub(super) fn waits(&mut self, uid: String, is_said: bool, is_claim: bool, now: Instant) {
        let is_said = match self.pods.get(&uid) {
            None => is_said,
            // What was said of it is over, and nothing is said yet of what it waits for.
            Some(turn) if is_claim && turn.last.is_some_and(|(tier, _)| tier == NOT_SUPPORTED) => false,
            Some(_) => return,
        };
        self.set(uid, Turn { is_said, at: now, since: now, last: None });
    }

    /// A pod does not wait any more.
    pub(super) fn forget(&mut self, uid: &str) {
        if let Some(turn) = self.pods.remove(uid) {
            self.order(turn.is_said).remove(&(turn.at, uid.to_owned()));
        }
    }

    /// Takes the pods whose turn it is. None of them is looked at again before it is told what has come of this look.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Look> {
        let Turns { pods, first, again, again_at } = self;
        let of = |order: &mut BTreeSet<(Instant, String)>, at_most: usize| {
            let mut due = Vec::new();
            while due.len() < at_most && order.first().is_some_and(|(at, _)| *at <= now) {
                due.extend(order.pop_first().map(|(_, uid)| uid));
            }
            due
        };
        let look = |uid: String| {
            let turn = pods.get(&uid)?;
            let just_said = turn.last.filter(|(_, at)| now < *at + PAUSE).map(|(tier, _)| tier);
            let has_lasted = turn.is_said || turn.since + LASTS <= now;
            Some(Look { uid, is_said: turn.is_said, has_lasted, just_said })
        };
        let mut due = of(first, usize::MAX);
        if again_at.is_none_or(|at| at <= now) {
            let others = of(again, AGAIN_AT_A_LOOK);
            *again_at = (!others.is_empty()).then(|| now + SOON);
            due.extend(others);
        }
        due.into_iter().filter_map(look).collect()
    }

    /// Notes what has come of a look.
    pub(super) fn looked(&mut self, uid: &str, outcome: Outcome, now: Instant) {
        let Some(turn) = self.pods.get(uid).copied() else { return };
        let pause = |tier: &str| if tier == GANG_INCOMPLETE { SOON } else { PAUSE };
        let turn = match outcome {
            Outcome::Gone => return self.forget(uid),
            Outcome::NotYet | Outcome::Changed => Turn { at: now + LOOK, ..turn },
            Outcome::PutOff => turn,
            Outcome::Nothing => Turn { at: now + SOON, ..turn },
            Outcome::Said(tier) => Turn { is_said: true, at: now + pause(tier), last: Some((tier, now)), ..turn },
            Outcome::IsSaid(tier) => Turn { is_said: true, at: now + pause(tier), ..turn },
            Outcome::Failed => Turn { at: now + PAUSE, ..turn },
        };
        self.set(uid.to_owned(), turn);
    }

    fn set(&mut self, uid: String, turn: Turn) {
        self.forget(&uid);
        self.order(turn.is_said).insert((turn.at, uid.clone()));
        self.pods.insert(uid, turn);
    }

    fn order(&mut self, is_said: bool) -> &mut BTreeSet<(Instant, String)> {
        if is_said { &mut self.again } else { &mut self.first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_ROOM: &str = "no-room";

    /// The UIDs of the pods whose turn it is.
    fn due(turns: &mut Turns, now: Instant) -> Vec<String> {
        turns.take_due(now).into_iter().map(|look| look.uid).collect()
    }

    #[test]
    fn first_words_have_no_limit_and_others_have_one() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        for pod in 0..50_000 {
            turns.waits(format!("old-{pod:05}"), true, true, now);
        }
        for pod in 0..1_000 {
            turns.waits(format!("new-{pod:04}"), false, true, now);
        }
        let all = due(&mut turns, now);
        assert_eq!(all.len(), 1_000 + AGAIN_AT_A_LOOK);
        assert!(all[..1_000].iter().all(|uid| uid.starts_with("new-")));
        // Looks for a minute: what was said is gone through in its order.
        let mut seen: BTreeSet<String> = all.iter().cloned().collect();
        all.iter().for_each(|uid| turns.looked(uid, Outcome::Said(NO_ROOM), now));
        for look in 1..600 {
            let now = now + LOOK * look;
            for uid in due(&mut turns, now) {
                turns.looked(&uid, Outcome::Said(NO_ROOM), now);
                seen.insert(uid);
            }
        }
        assert_eq!(seen.len(), 1_000 + 60 * AGAIN_AT_A_LOOK);
        assert!(seen.contains("old-05999") && !seen.contains("old-06000"));
    }

    #[test]
    fn another_tier_is_said_soon_after_an_incomplete_gang() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.waits("a".into(), false, true, now);
        let look = |is_said, has_lasted, just_said| Look { uid: "a".into(), is_said, has_lasted, just_said };
        assert_eq!(turns.take_due(now), [look(false, false, None)]);
        assert_eq!(turns.take_due(now + PAUSE), [], "one look at a time");
        turns.looked("a", Outcome::NotYet, now);
        assert_eq!(turns.take_due(now), []);
        let now = now + LASTS;
        assert_eq!(turns.take_due(now), [look(false, true, None)]);
        turns.looked("a", Outcome::Said(GANG_INCOMPLETE), now);
        // The words come back from the API server, or an older version of the pod does.
        turns.waits("a".into(), true, true, now);
        turns.waits("a".into(), false, true, now);
        assert_eq!(turns.take_due(now + SOON - LOOK), []);
        let now = now + SOON;
        assert_eq!(turns.take_due(now), [look(true, true, Some(GANG_INCOMPLETE))]);
        turns.looked("a", Outcome::Said(NO_ROOM), now);
        assert_eq!(turns.take_due(now + PAUSE - LOOK), []);
        assert_eq!(turns.take_due(now + PAUSE), [look(true, true, None)]);
        turns.looked("a", Outcome::Gone, now);
        assert_eq!(turns.take_due(now + PAUSE * 2), []);
    }

    #[test]
    fn a_pod_that_became_a_claim_has_its_first_words_to_come() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.waits("a".into(), false, false, now);
        turns.looked("a", Outcome::Said(NOT_SUPPORTED), now);
        turns.waits("a".into(), true, false, now);
        assert_eq!(turns.take_due(now + SOON), []);
        turns.waits("a".into(), true, true, now + SOON);
        assert_eq!(due(&mut turns, now + SOON), ["a"]);
    }
}
