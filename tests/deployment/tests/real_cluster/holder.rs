//! Pods that hold memory while something happens around them, or wait.

use std::cell::Cell;

use aliquot_harness::{MIB, wait};
use serde_json::{Value, json};

use super::Tests;
use super::manager::Mode;
use super::objects::{holds, pod, prints_devices};

/// Bytes of device memory that a holder holds.
pub(crate) const HELD_BYTES: u64 = 16 * MIB;

/// A pod that holds memory.
pub(crate) struct Holder {
    pub(crate) name: &'static str,
    pub(crate) slice: String,
    /// The identity of its container when it began to run, to tell later whether it is still the same.
    container: Value,
    /// How many pods have joined its claim.
    joined: Cell<usize>,
}

impl Holder {
    pub(crate) fn start(tests: &Tests<'_>, name: &'static str) -> Holder {
        tests.namespace.apply(&tests.asks(name, &holds(HELD_BYTES), 40, 64));
        Holder::of(tests, name)
    }

    /// The pod of that name, which holds memory as soon as it runs.
    pub(crate) fn of(tests: &Tests<'_>, name: &'static str) -> Holder {
        tests.namespace.wait_for_output(name, "held");
        let slice = tests.slice_of(name)["name"].as_str().unwrap().to_owned();
        Holder { name, slice, container: container(&tests.namespace.get("pod", name)), joined: Cell::new(0) }
    }

    /// With claims, starts a pod that joins its claim. [`Holder::is_undisturbed`] checks what this pod saw. Meanwhile the
    /// test can do something else.
    pub(crate) fn begin_to_join(&self, tests: &Tests<'_>) {
        if tests.mode == Mode::Claims {
            let claim = json!({"resourceClaimName": self.name});
            self.joined.set(self.joined.get() + 1);
            tests.namespace.apply(&[pod(&self.joining(), tests.image, &prints_devices(), &claim)]);
        }
    }

    /// Checks that its container is the same, that its use is known, and that the pod which joins its claim saw that
    /// use.
    pub(crate) fn is_undisturbed(&self, tests: &Tests<'_>) {
        self.runs_on(tests);
        if tests.mode == Mode::Claims {
            let said = tests.namespace.output(&self.joining());
            assert!(said.starts_with(&format!("device 0: total {}, free {},", 64 * MIB, 48 * MIB)), "{said}");
            tests.namespace.begin_to_delete("pod", &self.joining());
        }
    }

    /// The name of the pod that joins its claim. Each pod has a name of its own, because the last one may still end.
    fn joining(&self) -> String {
        format!("joins-{}-{}", self.name, self.joined.get())
    }

    /// Checks that its container is the same, and that its use is known.
    pub(crate) fn runs_on(&self, tests: &Tests<'_>) {
        wait::until_true("the manager knows the process", || {
            let slices = tests.manager.slices();
            let slice = slices.iter().find(|slice| slice["name"] == self.slice.as_str());
            slice.is_some_and(|slice| slice["parts"][0]["memory_used_bytes"] == HELD_BYTES)
        });
        self.has_the_same_container(tests);
    }

    /// Checks that its container was not started again.
    pub(crate) fn has_the_same_container(&self, tests: &Tests<'_>) {
        assert_eq!(container(&tests.namespace.get("pod", self.name)), self.container);
    }

    pub(crate) fn end(self, tests: &Tests<'_>) {
        end_all(tests, [self]);
    }
}

/// Removes these pods at the same time. Their slices go when kubelet says that the pods have ended.
pub(crate) fn end_all<const COUNT: usize>(tests: &Tests<'_>, holders: [Holder; COUNT]) {
    holders.iter().for_each(|holder| tests.begin_to_remove(holder.name));
    for holder in &holders {
        wait::until_true("its slice is gone", || tests.manager.slice(&holder.slice).is_none());
    }
}

impl Tests<'_> {
    /// The slice of the pod with this name, and its use.
    pub(crate) fn slice_of(&self, pod: &str) -> Value {
        wait::until("kubelet has told who has the slice", || {
            self.manager.slices().into_iter().find(|slice| slice["consumers"][0]["pod"] == pod)
        })
    }

    /// The condition by which the scheduler says why a pod has no room.
    pub(crate) fn why_it_waits(&self, pod: &str) -> Value {
        let words = match self.mode {
            Mode::Claims => "cannot allocate all claims",
            Mode::Units => "Insufficient aliquot.dev/gpu-core",
        };
        wait::until("the scheduler says why a pod waits", || {
            let is_why = |event: &&Value| {
                event["involvedObject"]["name"] == pod
                    && event["reason"] == "FailedScheduling"
                    && event["message"].as_str().is_some_and(|text| text.contains(words))
            };
            self.namespace.list("events").iter().find(is_why).map(|event| event["message"].clone())
        })
    }
}

/// The identity of the pod's container, and since when it runs.
fn container(pod: &Value) -> Value {
    let status = &pod["status"]["containerStatuses"][0];
    json!([status["containerID"], status["restartCount"], status["state"]])
}
