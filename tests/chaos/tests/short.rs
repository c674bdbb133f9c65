//! Injects each fault once and checks every invariant: a chaos run of minutes instead of hours.

use std::time::{SystemTime, UNIX_EPOCH};

use aliquot_chaos::{Campaign, Length, fault_names, run};

#[test]
fn no_fault_breaks_a_slice() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed =
        std::env::var("ALIQUOT_CHAOS_SEED").map_or(now.as_nanos() as u64 % 1_000_000, |seed| seed.parse().unwrap());
    println!("seed {seed}: ALIQUOT_CHAOS_SEED={seed} plays the same again");
    // Shares are not judged here: that needs a machine that does nothing else.
    let campaign =
        Campaign { judges_shares: false, processes_at_once: 300, ..Campaign::new(seed, Length::RoundsOfEach(1)) };
    let report = run(&campaign);
    println!("{}\n{}", report.summary(), report.table());
    let found: Vec<String> = report
        .violations
        .iter()
        .map(|found| format!("round {} of seed {seed}, {}: {}", found.round, found.fault, found.what))
        .collect();
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
    assert_eq!(report.faults.len(), fault_names().len(), "not every fault had its round");
    assert!(report.effort.exact_looks > 0 && report.effort.resizes > 0, "nothing was looked at: {:?}", report.effort);
}
