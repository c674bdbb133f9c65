//! Managers that report to the scheduler: see `deploy/kubernetes/components/reports`.

use aliquot_harness::wait;
use serde_json::{Value, json};

use super::Tests;
use super::holder::HELD_BYTES;

impl Tests<'_> {
    /// The scheduler runs already, and managers report to it from here on.
    pub(crate) fn the_leader_hears_what_pods_use(&self) {
        let _reports = self.have_managers_report();
        self.scheduled("reported", 30, &json!({}));
        self.namespace.wait_for_output("reported", "held");
        let said = wait::until("the leader hears what the pod uses", || self.reported("reported"));
        println!("ok: managers report what pods use\n{said}");
        self.kill_leader();
        wait::until("the next leader hears it", || self.reported("reported"));
        println!("ok: managers report to the next leader");
        self.clear();
    }

    /// The pod's use in the output of `top`, once `top` gets it from the leader.
    fn reported(&self, pod: &str) -> Option<String> {
        let top: Value = serde_json::from_str(&self.plugin(&["top", "--output", "json"])).unwrap();
        let is_reported = |row: &&Value| row["pod"] == pod && !row["report_age_ms"].is_null();
        let row = top["slices"].as_array()?.iter().find(is_reported)?;
        (row["memory_used_bytes"] == HELD_BYTES).then(|| self.plugin(&["top"]))
    }
}
