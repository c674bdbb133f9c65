//! Queues, pod groups, namespaces and budgets that change.

use aliquot_scheduler_core::PodGroup;

use super::*;

fn gang() -> PodGroup {
    PodGroup { name: "gang".into(), min_members: 1, ..PodGroup::default() }
}

fn has_gang(kit: &Kit) -> bool {
    kit.view.as_ref().is_some_and(|view| view.cluster().group_named("", "gang").is_some())
}

/// A withdrawn gang of which one member still runs.
fn ending() -> (Kit, Generation) {
    let mut kit = Kit::new(1, Vec::new());
    kit.tell(Observation::Group(gang()));
    let (uid, of) = claim("member", 100, 50);
    kit.tell(Observation::Claim(uid, Box::new(Claim { pod_group: Some("gang".into()), ..of })));
    let (_, instance) = kit.start();
    kit.outcome("member", instance, instance, StepOutcome::Started);
    kit.tell(Observation::ClaimEnded("member".into()));
    let in_use = kit.try_tell(Observation::GroupRemoved(String::new(), "gang".into()));
    assert!(in_use.is_err(), "its member is still there");
    (kit, instance)
}

#[test]
fn a_pod_group_that_is_removed_before_its_members_are_gone_goes_with_them() {
    let (mut kit, instance) = ending();
    kit.pass(100);
    assert!(has_gang(&kit));
    kit.outcome("member", instance, instance, StepOutcome::Gone);
    kit.pass(100);
    assert!(!has_gang(&kit));
}

#[test]
fn a_pod_group_that_is_wanted_again_stays() {
    let (mut kit, instance) = ending();
    kit.tell(Observation::Group(gang()));
    kit.outcome("member", instance, instance, StepOutcome::Gone);
    kit.pass(100);
    assert!(has_gang(&kit));
}

#[test]
fn of_what_is_told_of_a_queue_before_the_start_the_last_word_counts() {
    let mut kit = Kit::not_live(MemoryStore::default());
    let queue = |name: &str, parent: Option<&str>| {
        Observation::Queue(QueueSpec { name: name.into(), parent: parent.map(Into::into), ..QueueSpec::default() })
    };
    // The first observation is impossible until the last queue exists.
    for told in [queue("team", Some("top")), queue("team", None), queue("top", None)] {
        kit.tell(told);
    }
    kit.tell(Observation::Synced);
    kit.pass(100);
    let view = kit.view.clone().expect("readers see something");
    let team = view.cluster().queue_named("team").and_then(|id| view.cluster().queue(id)).expect("it is there");
    assert_eq!(team.spec().parent, None);
}

#[test]
fn a_claims_budget_is_known_before_the_start_and_changes() {
    let budget_of = |kit: &Kit| {
        let view = kit.view.clone().expect("readers see something");
        let claim = view.claim_id(&"a".into()).expect("it is in the books");
        view.cluster().claim(claim).and_then(|claim| claim.disruption_budget.clone())
    };
    let budget = |name: &str| Observation::ClaimBudget("a".into(), Some(name.into()));
    let mut kit = Kit::not_live(MemoryStore::default());
    kit.tell(budget("nobody's"));
    kit.want("a", 50, 50);
    kit.tell(budget("first"));
    kit.tell(Observation::Synced);
    kit.pass(100);
    assert_eq!(budget_of(&kit).as_deref(), Some("first"));
    kit.tell(budget("second"));
    kit.pass(100);
    assert_eq!(budget_of(&kit).as_deref(), Some("second"));
    kit.tell(Observation::ClaimBudget("a".into(), None));
    kit.pass(100);
    assert_eq!(budget_of(&kit), None);
}
