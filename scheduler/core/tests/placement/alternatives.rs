//! Tasks that accept one of several choices of devices.

use std::sync::Arc;

use aliquot_scheduler_core::placement::{BestFit, Engine, Misfit, fits, room};
use aliquot_scheduler_core::{
    Alternative, Alternatives, Cluster, Event, FurtherRequest, FurtherRequests, NodeId, Request, RequestError,
};
use aliquot_scheduler_kit::{Build, first_of, part, whole};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::cases::{add, node, place, request};

fn cluster(nodes: &[(usize, &str)]) -> Cluster {
    let mut cluster = Cluster::new();
    for (number, (devices, model)) in nodes.iter().enumerate() {
        cluster.add_node(node(&format!("n{number}"), 96, *devices, model));
    }
    cluster
}

/// The node and the choice of each of these tasks, which are placed one after the other.
fn placed(cluster: &mut Cluster, tasks: &[Request]) -> Vec<Option<(usize, u16)>> {
    let mut engine = Engine::new(BestFit);
    let placed = tasks.iter().map(|task| place(cluster, &mut engine, task));
    placed.map(|at| at.map(|at| (at.node.index(), at.alternative))).collect()
}

#[test]
fn the_first_choice_that_fits_anywhere_is_taken() {
    let of_b = |percent: u32| request(0, 1, percent * 10, 0, &["B"]);
    let task = first_of(&[whole(2), of_b(100), part(40)]);
    let mut cluster = cluster(&[(2, "A"), (1, "B")]);
    let tasks = vec![task; 5];
    // Best fit would put a part beside another one before it takes a part of a wholly free device.
    assert_eq!(placed(&mut cluster, &tasks), [Some((0, 0)), Some((1, 1)), None, None, None]);
    let smaller = first_of(&[whole(4), part(40)]);
    cluster.add_node(node("more", 96, 1, "A"));
    assert_eq!(placed(&mut cluster, &[smaller.clone(), smaller.clone(), smaller]), [Some((2, 1)), Some((2, 1)), None]);
}

#[test]
fn what_a_choice_takes_is_booked_and_given_back() {
    let mut cluster = cluster(&[(2, "A")]);
    let task = first_of(&[whole(3), request(1, 2, 600, 1000, &[])]);
    let claim = add(&mut cluster, &task);
    let class = cluster.class_of(claim).expect("it was added");
    let at = Engine::new(BestFit).place(&cluster, class).expect("the second choice fits");
    assert_eq!((at.alternative, at.devices.len()), (1, 2));
    let free = |cluster: &Cluster| {
        let devices = cluster.nodes().flat_map(|(_, node)| node.devices()).map(|device| device.core_free().get());
        devices.collect::<Vec<u32>>()
    };
    cluster.event(Event::ClaimPlaced(claim, at.clone()));
    assert_eq!(free(&cluster), [400, 400]);
    let (_, there) = cluster.nodes().next().expect("a node");
    assert_eq!(there.sorts().count(), 1);
    cluster.event(Event::ClaimEvicted(claim));
    assert_eq!(free(&cluster), [1000, 1000]);
    for (alternative, why) in [(0, "2 devices are allocated, 3"), (2, "choice 2")] {
        let wrong = aliquot_scheduler_core::Allocation { alternative, ..at.clone() };
        let refused = cluster.apply(Event::ClaimPlaced(claim, wrong)).expect_err("it is not what was asked for");
        assert!(refused.to_string().contains(why), "{refused}");
    }
}

#[test]
fn room_is_for_any_choice_and_a_misfit_is_about_the_first() {
    let cluster = cluster(&[(2, "A")]);
    let (_, node) = cluster.nodes().next().expect("a node");
    let task = first_of(&[whole(3), request(0, 1, 500, 0, &["B"]), part(50)]);
    assert_eq!((fits(node, &task), room(node, &task)), (Ok(()), 4));
    let too_large = first_of(&[request(0, 1, 500, 0, &["B"]), whole(3)]);
    assert_eq!(fits(node, &too_large), Err(Misfit::Models { request: Some("a"), admitted: 0 }));
    assert_eq!(room(node, &too_large), 0);
}

#[test]
fn choices_that_contradict_themselves_are_refused() {
    let with = |others: Vec<Alternative>| {
        let alternatives = Some(Arc::new(Alternatives { first_name: "a".into(), others }));
        Request { alternatives, ..whole(1) }.validate()
    };
    let good = Alternative { devices: whole(1).devices, ..Alternative::default() };
    assert_eq!(with(vec![good.clone(); 63]), Ok(()));
    assert_eq!(with(Vec::new()), Err(RequestError::Choices { choices: 1 }));
    assert_eq!(with(vec![good.clone(); 64]), Err(RequestError::Choices { choices: 65 }));
    let empty = Alternative::default();
    assert_eq!(with(vec![good.clone(), empty]), Err(RequestError::EmptyChoice { choice: 2 }));
    let twice = FurtherRequest { devices: whole(1).devices, ..FurtherRequest::default() };
    let further = FurtherRequests { requests: vec![twice], ..FurtherRequests::default() };
    let twice = Alternative { further: Some(Arc::new(further)), ..good };
    assert_eq!(with(vec![twice]), Err(RequestError::SameName { number: 1 }));
    let nothing = first_of(&[Request::default(), whole(1)]);
    assert_eq!(nothing.validate(), Err(RequestError::EmptyChoice { choice: 0 }));
}

proptest! {
    /// On each node, the first choice that fits there counts. The task goes where that choice has the least rank.
    #[test]
    fn the_choice_is_the_one_that_trying_all_finds(
        nodes in vec((0usize..4, prop::sample::select(vec!["A", "B"])), 1..4),
        held in vec((any::<usize>(), 1u32..10), 0..8),
        wanted in vec((1u16..4, 1u32..5, prop::sample::select(vec![None, Some("A"), Some("B")])), 2..5),
        ranks in vec(0u16..4, 4),
    ) {
        let mut cluster = cluster(&nodes);
        let mut engine = Engine::new(BestFit);
        for (number, percent) in held {
            let models = [["A"], ["B"]];
            let holder = request(0, 1, percent * 100, 0, &models[number % 2]);
            place(&mut cluster, &mut engine, &holder);
        }
        let choices: Vec<Request> = wanted.iter().map(|(count, quarters, model)| {
            let models: Vec<&str> = model.iter().copied().collect();
            request(0, *count, quarters * 250, 0, &models)
        }).collect();
        let mut task = first_of(&choices);
        let alternatives = Arc::make_mut(task.alternatives.as_mut().expect("it has some"));
        alternatives.others.iter_mut().zip(&ranks).for_each(|(other, rank)| other.rank = *rank);
        let rank = |choice: usize| choice.checked_sub(1).map_or(0, |other| ranks[other]);
        let first_on = |id: NodeId| {
            let node = cluster.node(id).expect("it is there");
            choices.iter().position(|choice| fits(node, choice).is_ok())
        };
        let best = cluster.nodes().filter_map(|(id, _)| first_on(id)).map(rank).min();
        let class = { let claim = add(&mut cluster, &task); cluster.class_of(claim).expect("it was added") };
        let found = engine.place(&cluster, class);
        prop_assert_eq!(found.as_ref().map(|at| rank(usize::from(at.alternative))), best);
        prop_assert_eq!(engine.choices(&cluster, class) > 0, found.is_some());
        if let Some(at) = found {
            let node = cluster.node(at.node).expect("it is there");
            let first = choices.iter().position(|choice| fits(node, choice).is_ok());
            prop_assert_eq!(first, Some(usize::from(at.alternative)), "the first on its node");
            prop_assert!(room(node, &task) > 0 && fits(node, &task).is_ok());
            let among = engine.place_among(&cluster, class, [at.node]);
            prop_assert_eq!(among.map(|again| again.alternative), Some(at.alternative));
        }
    }
}
