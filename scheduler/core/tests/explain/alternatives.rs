//! Why a task with alternatives waits.

use aliquot_scheduler_core::explain::{NodeObstacle, Reason};
use aliquot_scheduler_core::{Constraints, Request};
use aliquot_scheduler_kit::first_of;

use crate::setting::{Setting, part, whole};

fn of_model(model: &str, request: Request) -> Request {
    Request { constraints: Constraints { models: [model.to_owned()].into(), ..Constraints::default() }, ..request }
}

#[test]
fn each_choice_is_named_with_what_it_lacks() {
    let mut setting = Setting::with_nodes(1, 2);
    setting.add("both", part(60, 1));
    setting.add("both", part(60, 1));
    let waiting = setting.add("waiting", first_of(&[whole(2), part(50, 1)]));
    setting.cycle();
    let (reason, text) = setting.reason(waiting);
    assert!(matches!(reason, Reason::NoRoom { .. }), "{reason:?}");
    for of_choice in ["for request \"a\" (2 wanted, at most 0)", "for request \"b\" (1 wanted, at most 0)"] {
        assert!(text.contains(of_choice), "{text}");
    }
    let suggestions = setting.suggestions(waiting);
    let less = suggestions.iter().find(|suggestion| suggestion.contains("40 % gpu-core"));
    assert!(less.is_some_and(|less| less.contains("request \"b\"")), "{suggestions:?}");
}

#[test]
fn a_node_is_excluded_only_if_no_choice_is_possible_there() {
    let mut setting = Setting::with_nodes(1, 2);
    let (id, _) = setting.cluster.nodes().next().expect("a node");
    let possible = first_of(&[of_model("B", whole(1)), whole(1)]);
    assert_eq!(NodeObstacle::of(&setting.cluster, &possible, id), None);
    let impossible = first_of(&[of_model("B", whole(1)), whole(3)]);
    let obstacle = NodeObstacle::of(&setting.cluster, &impossible, id).expect("nothing fits");
    let text = obstacle.to_string();
    assert!(matches!(obstacle, NodeObstacle::Excluded(_)), "{text}");
    assert!(text.contains("of model B for request \"a\"") && text.contains("3 devices for request \"b\""), "{text}");
    let waiting = setting.add("waiting", impossible);
    setting.cycle();
    assert!(matches!(setting.reason(waiting).0, Reason::NoSuchNode { .. }));
}
