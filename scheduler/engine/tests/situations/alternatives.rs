//! Claims with alternative requests for devices.

use aliquot_scheduler_core::{Alternative, Alternatives};

use super::*;

/// A claim for a whole device, or for half of one.
fn whole_or_half() -> (ClaimUid, Claim) {
    let (uid, mut of) = claim("claim", 100, 50);
    let half = Alternative { rank: 1, devices: kit::part(50).devices, ..Alternative::default() };
    of.request.alternatives = Some(Arc::new(Alternatives { others: vec![half], ..Alternatives::default() }));
    (uid, of)
}

fn half() -> Amounts {
    Amounts { alternative: 1, ..amounts(0, 50) }
}

fn running_half() -> Running {
    Running { amounts: half(), ..running("claim", 7, 0, 50) }
}

#[test]
fn a_node_is_told_which_choice_was_taken() {
    let mut kit = Kit::new(1, Vec::new());
    kit.runs("other", 50, 50);
    let (uid, of) = whole_or_half();
    kit.tell(Observation::Claim(uid, Box::new(of)));
    let commands = kit.pass(100);
    let [Command { order: Order::Start { amounts, .. }, .. }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(*amounts, half());
}

#[test]
fn what_runs_as_another_choice_than_it_says_is_a_stray() {
    let says = |alternative, percent| Running {
        amounts: Amounts { alternative, ..amounts(0, percent) },
        ..running("claim", 3, 0, 50)
    };
    for (there, is_its_own) in
        [(says(1, 50), true), (says(0, 100), true), (says(0, 50), false), (says(1, 100), false), (says(2, 50), false)]
    {
        let mut kit = Kit::not_live(MemoryStore::default());
        let (uid, of) = whole_or_half();
        kit.tell(Observation::Claim(uid, Box::new(of)));
        kit.report(node(1), 1, Generation { term: 1, number: 3 }, vec![there.clone()]);
        kit.tell(Observation::Synced);
        let is_stop = |command: &Command| matches!(command.order, Order::Stop { .. });
        assert_eq!(kit.pass(100).iter().any(is_stop), !is_its_own, "{there:?}");
    }
}

#[test]
fn the_choice_of_a_saved_instance_is_known_after_a_restart() {
    let key = ClaimKey { uid: "claim".into(), stray: None };
    let mut kit = Kit::saved(1, vec![(key, record(7, half()))]);
    let (uid, of) = whole_or_half();
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    kit.report(node(1), 1, Generation { term: 1, number: 7 }, vec![running_half()]);
    kit.want("other", 50, 50);
    let commands = kit.pass(100);
    let [Command { order: Order::Start { claim, .. }, .. }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(*claim, "other".into(), "the other half is free");
    let view = kit.view.clone().expect("readers see something");
    let at = view.claim_id(&"claim".into()).and_then(|id| view.cluster().allocation(id));
    assert_eq!(at.map(|at| at.alternative), Some(1));
}
