//! Observations that happen at the same moment.

use super::*;

/// The claim ends on a full device, another one is seen there in its place, and a third one waits for that room.
fn handed_over(at_once: bool) -> Kit {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("first", 100, 50);
    kit.want("waits", 100, 90);
    let (uid, of) = claim("heir", 100, 50);
    let there = Running {
        claim: "heir".into(),
        instance: Generation { term: 0, number: 1 },
        amounts: amounts(0, 100),
        since_ms: None,
    };
    kit.sequence += 2;
    let gone = Report {
        node: "node".into(),
        session: 1,
        sequence: kit.sequence - 1,
        claim: "first".into(),
        instance,
        generation: instance,
        outcome: StepOutcome::Gone,
    };
    let (sequence, running) = (kit.sequence, vec![there]);
    let report = NodeReport { spec: node(1), session: 1, sequence, handled: instance, running };
    // A claim that no cycle places, because its label is nowhere. It is only seen.
    let mut of = Claim { preemptible: false, ..of };
    of.request.constraints.labels.insert("none".into(), "has it".into());
    let all = vec![
        Observation::Outcome(gone),
        Observation::ClaimEnded("first".into()),
        Observation::Claim(uid, Box::new(of)),
        Observation::Node(Box::new(report)),
    ];
    match at_once {
        true => kit.tell(Observation::Together(all)),
        false => {
            for one in all {
                kit.tell(one);
                kit.pass(100);
            }
        }
    }
    kit.pass(1000);
    kit
}

#[test]
fn nothing_is_decided_between_what_happens_at_once() {
    let kit = handed_over(true);
    assert_eq!((kit.phase("heir"), kit.phase("waits")), (Some(Phase::Running), None));
    // Otherwise the room is given away meanwhile.
    let kit = handed_over(false);
    assert!(kit.phase("waits").is_some());
}

#[test]
fn what_happens_at_once_is_collected_before_the_engine_is_live() {
    let mut kit = Kit::not_live(MemoryStore::default());
    let (uid, of) = claim("claim", 50, 50);
    let spec = node(1);
    let (handled, running) = (Generation::default(), vec![running("claim", 3, 0, 50)]);
    let report = NodeReport { spec, session: 1, sequence: 1, handled, running };
    kit.tell(Observation::Together(vec![Observation::Claim(uid, Box::new(of)), Observation::Node(Box::new(report))]));
    kit.tell(Observation::Synced);
    assert_eq!(kit.pass(100), []);
    assert_eq!(kit.phase("claim"), Some(Phase::Running));
}

#[test]
fn the_first_error_is_the_answer_and_the_rest_is_taken_in() {
    let mut kit = Kit::new(1, Vec::new());
    let (uid, of) = claim("lost", 50, 50);
    let nowhere = Claim { queue: "team".into(), ..of.clone() };
    let (other, _) = claim("claim", 50, 50);
    let told = kit.try_tell(Observation::Together(vec![
        Observation::Claim(uid, Box::new(nowhere)),
        Observation::Claim(other, Box::new(of)),
    ]));
    assert_eq!(told, Err(EventError::Queue(QueueError::Unknown("team".into()))));
    assert_eq!(kit.start().0.as_str(), "claim");
}
