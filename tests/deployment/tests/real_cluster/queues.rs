//! Queues that share the cluster's devices.

use aliquot_harness::wait;
use serde_json::{Value, json};

use super::Tests;

pub(crate) const LENDER: &str = "aliquot-test-lender";
pub(crate) const BORROWER: &str = "aliquot-test-borrower";

pub(crate) fn of_queue(name: &str, grace_seconds: u64) -> Value {
    json!({
        "metadata": {"labels": {"aliquot.dev/queue": name}},
        // The program that holds memory does not end at SIGTERM: it is the first process of its container.
        "spec": {"priorityClassName": "train", "terminationGracePeriodSeconds": grace_seconds},
    })
}

impl Tests<'_> {
    pub(crate) fn a_queue_takes_back_its_quota(&self) {
        if self.devices < 2 {
            println!("not run: queues that lend devices, because there is only one");
            return;
        }
        self.create_queues();
        let borrowed: Vec<String> = (0..2 * self.devices).map(|number| format!("borrowed-{number}")).collect();
        borrowed.iter().for_each(|name| self.scheduled(name, 50, &of_queue(BORROWER, 5)));
        borrowed.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        assert!(self.all_is_given(), "{:?}", self.given());
        self.scheduled("back", 100, &of_queue(LENDER, 1));
        wait::until_true("the queue has its quota back, and no device was given twice", || {
            self.all_is_given() && self.namespace.get("pod", "back")["status"]["phase"] == "Running"
        });
        // An evicted pod is still listed for a moment after its slice is gone.
        let pods = self.namespace.list("pods");
        let left = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count() - 1;
        assert_eq!(left, 2 * self.devices - 2, "two halves were evicted");
        let event = wait::until("an event says for whom pods were evicted", || {
            let events = self.namespace.list("events");
            events.into_iter().find(|event| event["reason"] == "Preempted")
        });
        let message = event["message"].as_str().unwrap();
        assert!(message.contains(LENDER), "{message}");
        println!("ok: a queue has its quota back: {message}");
        let held = |queue: &str| {
            let queue: Value =
                serde_json::from_str(&self.cluster.kubectl(&["get", "queue", queue, "--output=json"], "")).unwrap();
            queue["status"]["gpu"]["held"].as_f64()
        };
        wait::until_true("the queues say what they hold", || {
            (held(LENDER), held(BORROWER)) == (Some(1.0), Some(left as f64 / 2.0))
        });
        let queues = self.plugin(&["queues"]);
        assert!(queues.contains(LENDER) && queues.contains(BORROWER), "{queues}");
        println!("{queues}");
        self.clear();
        self.delete_queues();
    }

    /// A queue that has lent its only device, and one that has all others and borrows.
    pub(crate) fn create_queues(&self) {
        let queue = |name: &str, quota: usize| {
            let gpu = json!({"quota": quota, "limit": -1, "overQuotaWeight": 1});
            json!({
                "apiVersion": "aliquot.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name},
                "spec": {"resources": {"gpu": gpu}},
            })
        };
        self.cluster.apply(&[queue(LENDER, 1), queue(BORROWER, self.devices - 1)]);
    }

    pub(crate) fn delete_queues(&self) {
        for queue in [LENDER, BORROWER] {
            self.cluster.kubectl(&["delete", "queue", queue], "");
        }
    }
}
