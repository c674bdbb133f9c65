//! `aliquot demo` keeps its promises. This is a file of its own, so that no other test runs beside it.

use std::process::Command;

use aliquot_harness::{artifacts, run};

#[test]
fn the_demonstration_holds() {
    let demonstration = |seconds: &str| {
        let mut command = Command::new(artifacts::cli());
        run(command.args(["demo", "--simulated", "--seconds", seconds, "--json"]))
    };
    for seconds in ["5", "10", "20"] {
        let outcome = demonstration(seconds);
        let value: serde_json::Value =
            serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
        // On a machine that is too busy to keep the device busy, the demonstration proves nothing, and says so.
        if value["kept_device_busy"] != true {
            assert!(outcome.stdout.contains("too busy"), "{outcome:?}");
            return;
        }
        if outcome.status.success() {
            return;
        }
        // If the machine delayed a process for a while, the others got its time; a longer run reduces that error.
        println!("{outcome:?}");
    }
    panic!("it does not hold, however long it is");
}
