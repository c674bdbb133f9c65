//! Settings at their limits.

use super::*;

fn with(settings: Settings) -> Kit {
    let mut kit = Kit::not_live(MemoryStore::default());
    let saved = kit.store.load().expect("it is in memory");
    kit.engine = Engine::new(decisions(), settings, saved);
    kit.tell(Observation::Synced);
    kit
}

#[test]
fn a_stop_deadline_of_no_time_lets_time_pass() {
    let mut kit = with(Settings { stop_deadline_ms: 0, stop_deadline_max_ms: 0, ..settings() });
    kit.report(node(1), 1, Generation { term: 2, number: 0 }, vec![running("stranger", 7, 0, 100)]);
    let commands = kit.pass(5);
    assert!(commands.len() <= 6, "once in a millisecond at most: {commands:?}");
}

#[test]
fn settings_of_the_longest_time_are_no_error() {
    let most = u64::MAX;
    let lease = Lease { lease_ms: most, margin_ms: most, silence_ms: most };
    let longest = Settings {
        start_deadline_ms: most,
        stop_deadline_ms: most,
        stop_deadline_max_ms: most,
        cycle_gap_ms: most,
        idle_cycle_ms: most,
        publish_gap_ms: most,
        memory_every_ms: most,
        lease: Some(lease),
        ..settings()
    };
    let mut kit = with(longest);
    kit.report(node(1), 1, Generation::default(), Vec::new());
    kit.want("claim", 100, 50);
    assert_eq!(kit.start().0.as_str(), "claim");
    let mut slow = with(Settings { cycle_delay_ms: most, ..longest });
    slow.report(node(1), 1, Generation::default(), Vec::new());
    slow.want("claim", 100, 50);
    assert_eq!(slow.pass(100), [], "no cycle has come yet");
    // Nodes that are known from before get leases of the same length.
    let saved = slow.store.load().expect("it is in memory");
    slow.engine = Engine::new(decisions(), longest, saved);
    slow.tell(Observation::Synced);
    slow.pass(100);
}
