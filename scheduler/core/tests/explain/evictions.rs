//! Chains of causes of evictions.

use aliquot_scheduler_core::explain::Share;
use aliquot_scheduler_core::{Action, ClaimId, Displacement, Event, Resource, Statement};

use crate::setting::{Setting, whole};

/// Lets one claim be evicted for another one.
fn evict(setting: &mut Setting, victim: ClaimId, by: ClaimId, action: Action, shares: Vec<Share>) {
    let group = setting.cluster.group_of(by).expect("a claim");
    let cause = Displacement {
        action,
        by: Some(group),
        by_name: setting.cluster.group_name(group),
        at_ms: setting.cluster.now_ms(),
        shares,
    };
    let room = setting.cluster.allocation(victim).cloned().expect("it is placed");
    let mut statement = Statement::new(&mut setting.cluster);
    statement.evict(victim).expect("it is placed");
    statement.place(by, room).expect("there is room");
    let _ = statement.commit(&cause);
    setting.cluster.apply(Event::ClaimGone(victim)).expect("it was leaving");
    let later = setting.cluster.now_ms() + 60_000;
    setting.cluster.apply(Event::TimeAdvanced(later)).expect("time goes on");
}

#[test]
fn an_eviction_is_followed_back_to_its_first_cause() {
    let mut setting = Setting::with_nodes(1, 1);
    let [a, b, c] = ["a", "b", "c"].map(|name| setting.add(name, whole(1)));
    // c runs first, a takes its place, and b takes the place of a.
    setting.cluster.apply(Event::TimeAdvanced(1000)).expect("time goes on");
    let share = |queue: &str, held: u64| Share {
        queue: queue.into(),
        resource: Resource::DeviceCore,
        held,
        asked: 0,
        fair_share: 1000,
    };
    let room = {
        setting.cycle();
        assert!(setting.cluster.allocation(a).is_some());
        setting.cluster.allocation(a).cloned().expect("the first is placed")
    };
    setting.cluster.apply(Event::ClaimEvicted(a)).expect("it is placed");
    setting.cluster.apply(Event::ClaimPlaced(c, room)).expect("there is room");
    evict(&mut setting, c, a, Action::Preempt, Vec::new());
    evict(&mut setting, a, b, Action::Reclaim, vec![share("mine", 0), share("yours", 2000)]);
    let evictions = setting.explain(a).evictions;
    let told: Vec<String> = evictions.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        ["\"a\" was evicted 1 min ago for \"b\", whose queue took back its fair share: queue \"mine\" held 0 % \
             gpu-core of its fair share of 100 % gpu-core, queue \"yours\" held 200 % gpu-core of its fair share of \
             100 % gpu-core"]
    );
    assert_eq!((evictions[0].at_ms, evictions[0].ago_ms), (61_000, 60_000));
    // The claim that was evicted first was evicted for a, and a had not been evicted before that.
    let of_c = setting.explain(c).evictions;
    assert_eq!(of_c.len(), 1);
    assert_eq!((of_c[0].action, of_c[0].by.as_str()), (Action::Preempt, "a"));
}

#[test]
fn causes_that_go_round_in_a_circle_end() {
    let mut setting = Setting::with_nodes(1, 1);
    let [a, b] = ["a", "b"].map(|name| setting.add(name, whole(1)));
    setting.cycle();
    for _ in 0..20 {
        evict(&mut setting, a, b, Action::Preempt, Vec::new());
        evict(&mut setting, b, a, Action::Preempt, Vec::new());
    }
    let told: Vec<(String, String)> =
        setting.explain(b).evictions.into_iter().map(|eviction| (eviction.name, eviction.by)).collect();
    assert_eq!(told, [("b".into(), "a".into()), ("a".into(), "b".into())]);
    let text = setting.explain(b).to_string();
    assert!(text.contains("\nBefore that, \"a\" was evicted 2 min ago for \"b\""), "{text}");
}
