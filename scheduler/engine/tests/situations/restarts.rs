//! Restarts of the engine: what it remembers, what it repeats, and observations that come before it is live.

use super::*;

fn want_again(kit: &mut Kit, name: &str, percent: u32) {
    let (uid, of) = claim(name, percent, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
}

#[test]
fn what_ran_on_a_node_that_is_gone_does_not_run_on_another_one_of_its_name() {
    let mut kit = Kit::new(1, Vec::new());
    let before = kit.runs("claim", 100, 50);
    let mut kit = kit.restart();
    want_again(&mut kit, "claim", 100);
    kit.tell(Observation::NodeGone("node".into()));
    kit.report(node(1), 1, Generation::default(), Vec::new());
    kit.tell(Observation::Synced);
    let (_, after) = kit.start();
    assert!(after > before);
}

#[test]
fn a_node_that_has_not_reported_since_the_start_is_asked_to() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 100, 50);
    let mut kit = kit.restart();
    want_again(&mut kit, "claim", 100);
    // This is acknowledged, and its sender does not repeat it.
    kit.outcome("claim", instance, instance, StepOutcome::Gone);
    kit.tell(Observation::Synced);
    let is_asked = |kit: &mut Kit| {
        kit.sequence += 1;
        let (node, sequence) = ("node".into(), kit.sequence);
        kit.tell(Observation::Heartbeat(Heartbeat { node, session: 1, sequence }));
        let commands = kit.engine.poll(kit.now_ms).commands;
        commands.iter().any(|command| matches!(command.order, Order::Report { .. }))
    };
    assert!(is_asked(&mut kit));
    kit.report(node(1), 1, instance, Vec::new());
    assert!(!is_asked(&mut kit));
    kit.now_ms += 2000;
    assert!(kit.start().1 > instance);
}

#[test]
fn a_parked_claim_of_which_something_ran_is_saved_without_it() {
    let mut kit = Kit::new(1, Vec::new());
    kit.tell(Observation::Queue(QueueSpec { name: "team".into(), ..QueueSpec::default() }));
    let (uid, of) = claim("claim", 100, 50);
    let wanted = Observation::Claim(uid, Box::new(Claim { queue: "team".into(), ..of }));
    kit.tell(wanted.clone());
    let (_, instance) = kit.start();
    kit.pass(100);
    let mut kit = kit.restart();
    kit.tell(wanted);
    kit.tell(Observation::Synced);
    assert_eq!(stops(&kit.pass(100)), [("claim", instance)]);
    let saved = kit.store.load().expect("it is in memory").claims;
    let holders = saved.iter().filter(|(_, record)| record.instance.is_some()).map(|(key, _)| key.stray);
    assert_eq!(holders.collect::<Vec<_>>(), [Some(instance)], "the stray alone has it");
}

#[test]
fn what_is_still_as_it_was_saved_is_not_saved_again() {
    let mut kit = Kit::new(3, Vec::new());
    for name in ["one", "two", "unwanted"] {
        kit.runs(name, 100, 50);
    }
    kit.want("waits", 100, 50);
    kit.pass(100);
    let mut kit = kit.restart();
    for name in ["one", "two", "waits"] {
        want_again(&mut kit, name, 100);
    }
    want_again(&mut kit, "new", 100);
    kit.tell(Observation::Synced);
    let saved = kit.engine.poll(kit.now_ms).save.expect("something is new").claims;
    let is_there =
        |(key, record): &(ClaimKey, Option<ClaimRecord>)| (key.uid.to_string(), key.stray.is_some(), record.is_some());
    let mut saved: Vec<(String, bool, bool)> = saved.iter().map(is_there).collect();
    saved.sort_unstable();
    let of = |name: &str, is_stray, is_there| (name.to_owned(), is_stray, is_there);
    assert_eq!(saved, [of("new", false, true), of("unwanted", false, false), of("unwanted", true, true)]);
}

/// How long after a restart of the engine the claim counts as running while its node stays silent.
fn held_ms(kit: Kit, settings: Settings) -> u64 {
    let mut kit = kit.restart_with(settings);
    let (uid, of) = claim("claim", 100, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    let began_ms = kit.now_ms;
    kit.pass(100);
    while kit.phase("claim") == Some(Phase::Running) {
        kit.pass(500);
    }
    kit.now_ms - began_ms
}

#[test]
fn a_lease_from_before_a_restart_may_be_longer() {
    let long = settings();
    let short = Lease { lease_ms: 6000, ..long.lease.expect("there are leases") };
    let short = Settings { lease: Some(short), ..long };
    let runs = || {
        let mut kit = Kit::new(1, Vec::new());
        let instance = kit.runs("claim", 100, 50);
        (kit, instance)
    };
    assert!(held_ms(runs().0, short) >= 10_000);
    assert!(held_ms(runs().0.restart_with(short), short) >= 10_000, "also after a second restart");
    // Short leases replace the long one when that has ended.
    let (kit, instance) = runs();
    let mut kit = kit.restart_with(short);
    let (uid, of) = claim("claim", 100, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    for _ in 0..12 {
        let there = Running { claim: "claim".into(), instance, amounts: amounts(0, 100), since_ms: None };
        kit.report(node(1), 1, instance, vec![there]);
        kit.pass(1000);
    }
    let held_ms = held_ms(kit, short);
    assert!((6000..9000).contains(&held_ms), "{held_ms}");
}

#[test]
fn a_start_that_was_saved_and_never_sent_is_repeated() {
    let mut kit = Kit::new(1, Vec::new());
    kit.want("claim", 100, 50);
    let (_, instance) = kit.start();
    let mut kit = kit.restart();
    let (uid, of) = claim("claim", 100, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    kit.report(node(1), 1, Generation::default(), Vec::new());
    assert_eq!(kit.start(), ("claim".into(), instance), "it is the same instance");
    kit.report(node(1), 1, Generation::default(), Vec::new());
    assert_eq!(kit.pass(100), [], "it is on its way");
    assert_eq!(kit.phase("claim"), Some(Phase::Starting));
    kit.report(node(1), 1, instance, Vec::new());
    let retried = kit.pass(5000);
    let [Command { order: Order::Start { generation, .. }, .. }] = &retried[..] else {
        panic!("not one start: {retried:?}")
    };
    assert!(generation.term > instance.term, "the node has handled the first one, and does not run it");
}

#[test]
fn starts_that_a_node_did_not_hear_are_repeated_in_order() {
    let mut kit = Kit::new(1, Vec::new());
    for name in ["a", "b", "c"] {
        kit.want(name, 20, 50);
    }
    let starts = |commands: &[Command]| -> Vec<(ClaimUid, Generation, u64)> {
        let start = |command: &Command| match &command.order {
            Order::Start { claim, generation, deadline_ms, .. } => (claim.clone(), *generation, *deadline_ms),
            other => panic!("no start: {other:?}"),
        };
        commands.iter().map(start).collect()
    };
    let told = starts(&kit.pass(100));
    kit.tell(Observation::NodeLost("node".into()));
    kit.want("d", 20, 50);
    kit.pass(3000);
    let (claim, handled, _) = told[0].clone();
    kit.report(
        node(1),
        1,
        handled,
        vec![Running { claim, instance: handled, amounts: amounts(0, 20), since_ms: None }],
    );
    let again = starts(&kit.pass(100));
    let names: Vec<_> = again.iter().map(|(claim, generation, _)| (claim.as_str(), *generation)).collect();
    assert_eq!(names[..2], [("b", told[1].1), ("c", told[2].1)], "the node has handled the first one");
    assert_eq!(names[2..].iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["d"], "what is new comes later");
    assert!(again[0].2 > told[1].2, "it has its whole time once more");
}

#[test]
fn failures_and_evictions_are_known_after_a_restart() {
    let mut kit = Kit::new(1, Vec::new());
    let low = kit.runs("low", 100, 10);
    kit.want("high", 100, 90);
    assert_eq!(stops(&kit.pass(100)), [("low", low)]);
    kit.outcome("low", low, low, StepOutcome::Gone);
    let (_, high) = kit.start();
    kit.outcome("high", high, high, StepOutcome::Failed("no image".into()));
    kit.pass(10);
    let known = |kit: &Kit| {
        let view = kit.view.clone().expect("readers see something");
        let id = view.claim_id(&"low".into()).expect("it waits");
        let why = view.cluster().displaced(id).map(|why| (why.action, why.by_name.clone(), why.by.is_some()));
        (why, view.claim(&"high".into()).map(|claim| claim.failures))
    };
    let before = known(&kit);
    assert_eq!(before.0, Some((Action::Preempt, "high".to_owned(), true)));
    let mut kit = kit.restart();
    for (name, priority) in [("low", 10), ("high", 90)] {
        let (uid, of) = claim(name, 100, priority);
        kit.tell(Observation::Claim(uid, Box::new(of)));
    }
    kit.tell(Observation::Synced);
    kit.pass(10);
    assert_eq!(known(&kit), before);
}

#[test]
fn usage_is_remembered_over_a_restart() {
    let mut kit = Kit::new(1, Vec::new());
    kit.runs("claim", 100, 50);
    // The memory is saved as a whole once in a while.
    kit.pass(2 * settings().memory_every_ms);
    let used = |engine: &mut MemoryStore| engine.load().expect("it is in memory").memory.usage;
    let before = used(&mut kit.store);
    assert!(before.iter().any(|(queue, usage)| queue == "default" && !usage.integrals.is_empty()), "{before:?}");
    let mut kit = kit.restart();
    kit.tell(Observation::Synced);
    kit.pass(1);
    let amount = |usage: &[(String, aliquot_scheduler_core::DumpedUsage)]| {
        usage.iter().flat_map(|(_, usage)| &usage.integrals).map(|(_, integral)| *integral).max().unwrap_or(0)
    };
    let after = used(&mut kit.store);
    assert!(amount(&after) * 2 > amount(&before), "{after:?} after {before:?}");
}

#[test]
fn usage_is_remembered_by_a_clock_that_is_behind() {
    let mut kit = Kit::new(1, Vec::new());
    kit.runs("claim", 100, 50);
    kit.pass(2 * settings().memory_every_ms);
    let used = |engine: &mut MemoryStore| engine.load().expect("it is in memory").memory;
    let before = used(&mut kit.store);
    // Another machine goes on, whose clock is a minute behind.
    let now_ms = kit.now_ms - 60_000;
    let mut kit = Kit { now_ms, ..kit.restart() };
    kit.tell(Observation::Synced);
    kit.pass(1);
    let after = used(&mut kit.store);
    let queue = before.usage.iter().find(|(_, usage)| !usage.integrals.is_empty()).expect("one was used");
    let same = after.usage.iter().find(|(name, _)| *name == queue.0).expect("it is there");
    assert_eq!(same.1.integrals, queue.1.integrals);
    assert_eq!(after.capacity.integrals, before.capacity.integrals);
}

/// A queue with a limit of half a device, of which a claim holds 40 %.
fn tell_small_queue(kit: &mut Kit) {
    let limit = Allowance { limit: Some(500), ..Allowance::default() };
    let allowances = [(Resource::DeviceCore, limit)].into();
    kit.tell(Observation::Queue(QueueSpec { name: "small".into(), allowances, ..QueueSpec::default() }));
}

fn in_small_queue(name: &str, percent: u32) -> Observation {
    let (uid, of) = claim(name, percent, 50);
    Observation::Claim(uid, Box::new(Claim { queue: "small".into(), ..of }))
}

#[test]
fn what_is_kept_of_a_limit_is_kept_over_a_restart() {
    let mut kit = Kit::not_live(MemoryStore::default());
    tell_small_queue(&mut kit);
    kit.tell(Observation::Synced);
    kit.report(node(1), 1, Generation { term: 1, number: 0 }, Vec::new());
    kit.tell(in_small_queue("first", 40));
    let (_, first) = kit.start();
    kit.outcome("first", first, first, StepOutcome::Started);
    // There are 10 % left in the queue, and this one waits long for more.
    kit.tell(in_small_queue("large", 50));
    let lives = |kit: &mut Kit, ms: u64| {
        for _ in 0..ms / 2000 {
            kit.sequence += 1;
            let sequence = kit.sequence;
            let session = u64::from(kit.engine.term() > 1) + 1;
            kit.tell(Observation::Heartbeat(Heartbeat { node: "node".into(), session, sequence }));
            kit.pass(2000);
        }
    };
    let after_ms = aliquot_scheduler_core::Settings::default().hold_after_ms.expect("something is kept");
    lives(&mut kit, after_ms + 2 * settings().memory_every_ms);
    kit.tell(in_small_queue("small", 10));
    assert_eq!(kit.pass(1000), [], "the rest is kept");
    let memory = kit.store.load().expect("it is in memory").memory;
    assert!(memory.bounds.iter().any(|bound| bound.keeping.is_some()), "{memory:?}");
    let mut kit = kit.restart();
    tell_small_queue(&mut kit);
    for (name, percent) in [("first", 40), ("large", 50), ("small", 10)] {
        kit.tell(in_small_queue(name, percent));
    }
    kit.tell(Observation::Synced);
    let running = Running { claim: "first".into(), instance: first, amounts: amounts(0, 40), since_ms: None };
    kit.report(node(1), 2, first, vec![running]);
    lives(&mut kit, 10_000);
    assert_eq!(kit.phase("first"), Some(Phase::Running));
    assert_eq!(kit.phase("small"), None, "the rest is kept");
}

#[test]
fn what_ended_claims_have_taught_is_known_after_a_restart() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 100, 50);
    kit.tell(Observation::ClaimEnded("claim".into()));
    let [Command { order: Order::Stop { generation, .. }, .. }] = kit.pass(100)[..] else { panic!("not one stop") };
    kit.outcome("claim", instance, generation, StepOutcome::Gone);
    kit.pass(2 * settings().memory_every_ms);
    let learned = |engine: &mut MemoryStore| engine.load().expect("it is in memory").memory.turnover;
    let before = learned(&mut kit.store);
    assert_eq!(before.ended, 1000 << 10, "a whole device");
    let mut kit = kit.restart();
    kit.tell(Observation::Synced);
    // The node's lease has lapsed meanwhile.
    kit.report(node(1), 2, generation, Vec::new());
    kit.runs("next", 10, 50);
    kit.pass(2 * settings().memory_every_ms);
    let after = learned(&mut kit.store);
    assert!(after.ended < before.ended && after.ended > before.ended / 2, "{after:?} after {before:?}");
}

#[test]
fn a_clock_set_back_makes_no_failed_claim_wait_longer() {
    let mut kit = Kit::new(1, Vec::new());
    let right_ms = kit.now_ms;
    // The clock is a day ahead.
    kit.now_ms += 86_400_000;
    kit.report(node(1), 1, Generation::default(), Vec::new());
    kit.want("claim", 100, 50);
    let (_, generation) = kit.start();
    kit.outcome("claim", generation, generation, StepOutcome::Failed("no image".into()));
    kit.pass(1);
    let mut kit = Kit { now_ms: right_ms, ..kit.restart() };
    kit.want("claim", 100, 50);
    kit.tell(Observation::Synced);
    kit.report(node(1), 2, generation, Vec::new());
    let is_start = |command: &Command| matches!(command.order, Order::Start { .. });
    let mut waited_ms = 0;
    while !kit.pass(1000).iter().any(is_start) {
        waited_ms += 1000;
        assert!(waited_ms <= aliquot_scheduler_core::RETRY_MAX_MS, "it waits still");
        let heartbeat = Heartbeat { node: "node".into(), session: 2, sequence: kit.sequence + 1 };
        kit.sequence += 1;
        kit.tell(Observation::Heartbeat(heartbeat));
    }
}

#[test]
fn of_two_engines_that_load_together_only_the_last_can_save() {
    let mut store = MemoryStore::default();
    let mut load = || engine(store.load().expect("it is in memory")).term();
    let (first, second) = (load(), load());
    assert!(first < second, "{first}, {second}");
    let mut save = |term| store.save(&Batch { term, ..Batch::default() }).is_ok();
    assert_eq!((save(first), save(second), save(second + 1)), (false, true, false));
}
