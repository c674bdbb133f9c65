//! What runs goes on, and what starts starts, whatever is restarted meanwhile.

use std::process::Command;

use aliquot_harness::{MIB, run, wait};
use serde_json::{Value, json};

use super::Tests;
use super::manager::Mode;
use super::objects::{holds, pod, prints_devices};

/// In any order.
const ORDERS: [[&str; 3]; 6] = [
    ["manager", "kubelet", "runtime"],
    ["manager", "runtime", "kubelet"],
    ["kubelet", "manager", "runtime"],
    ["kubelet", "runtime", "manager"],
    ["runtime", "manager", "kubelet"],
    ["runtime", "kubelet", "manager"],
];

impl Tests<'_> {
    pub(crate) fn pods_wait_for_a_manager_that_is_away(&self) {
        let holder = Holder::start(self, "ends-meanwhile");
        self.manager.take_away();
        self.namespace.apply(&self.asks("meanwhile", &prints_devices(), 10, 80));
        self.namespace.delete("pod", holder.name);
        self.manager.bring_back();
        let said = self.namespace.output("meanwhile");
        assert!(said.starts_with(&format!("device 0: total {}, free {0}", 80 * MIB)), "{said}");
        self.namespace.delete("pod", "meanwhile");
        self.namespace.delete_all("resourceclaim");
        wait::until_true("the slices of both are gone", || self.manager.slices().is_empty());
        println!("ok: a pod waited for the manager, and one that had ended meanwhile left nothing");
    }

    pub(crate) fn restarts_in_any_order_disturb_nobody(&self) {
        let Ok(restart) = std::env::var("ALIQUOT_TEST_RESTART") else {
            println!("not run: restarts of kubelet and container runtime, because ALIQUOT_TEST_RESTART says not how");
            return;
        };
        let holder = Holder::start(self, "running");
        for (number, order) in ORDERS.into_iter().enumerate() {
            for part in order {
                match part {
                    "manager" => self.manager.restart(),
                    _ => _ = run(Command::new("sh").args(["-c", &format!("{restart} \"$0\""), part])).success(),
                }
                let name = format!("after-{part}-{number}");
                self.starts_in_its_own(&name);
            }
            holder.is_undisturbed(self);
            println!("ok: restarts of {} disturbed nobody", order.join(", "));
        }
        holder.end(self);
    }

    /// A new pod, which ends. Kubelet refuses who has units, of whatever plugin, between its own start and the plugin's
    /// registration; another pod takes its place then, as a controller sees to it.
    fn starts_in_its_own(&self, name: &str) {
        let said = wait::until("a pod starts", || {
            self.namespace.apply(&self.asks(name, &prints_devices(), 5, 96));
            match self.namespace.outcome(name) {
                Ok(said) => Some(said),
                Err(status) if self.mode == Mode::Units && status["reason"] == "UnexpectedAdmissionError" => {
                    self.remove(name);
                    None
                }
                Err(status) => panic!("the pod {name} failed: {status:#}"),
            }
        });
        assert!(said.starts_with(&format!("device 0: total {}, free {0},", self.limit_mib(96) * MIB)), "{said}");
        self.remove(name);
    }

    pub(crate) fn an_upgrade_disturbs_nobody(&self) {
        let old = Holder::start(self, "old");
        self.manager.upgrade();
        old.is_undisturbed(self);
        let new = Holder::start(self, "new");
        let shim = |holder: &Holder| self.manager.slice(&holder.slice).unwrap()["shim_path"].clone();
        assert_ne!(shim(&old), shim(&new));
        println!("ok: an upgrade disturbed nobody; pods of before have {}, new ones {}", shim(&old), shim(&new));
        old.end(self);
        new.end(self);
    }
}

/// A pod that holds memory.
struct Holder {
    name: &'static str,
    slice: String,
    /// What says that its container is the same, from when it ran.
    container: Value,
}

impl Holder {
    fn start(tests: &Tests<'_>, name: &'static str) -> Holder {
        let namespace = tests.namespace;
        namespace.apply(&tests.asks(name, &holds(16 * MIB), 40, 64));
        namespace.wait_for_output(name, "held");
        let slice = wait::until("kubelet has told who has the slice", || {
            let slices = tests.manager.slices();
            let slice = slices.iter().find(|slice| slice["consumers"][0]["pod"] == name)?;
            slice["name"].as_str().map(str::to_owned)
        });
        Holder { name, slice, container: container(&namespace.get("pod", name)) }
    }

    /// Its container is the same, what it holds is known, and who joins it sees that.
    fn is_undisturbed(&self, tests: &Tests<'_>) {
        wait::until_true("the manager knows the process", || {
            let slices = tests.manager.slices();
            let slice = slices.iter().find(|slice| slice["name"] == self.slice.as_str());
            slice.is_some_and(|slice| slice["parts"][0]["memory_used_bytes"] == 16 * MIB)
        });
        assert_eq!(container(&tests.namespace.get("pod", self.name)), self.container);
        if tests.mode == Mode::Claims {
            self.is_joined(tests);
        }
    }

    fn is_joined(&self, tests: &Tests<'_>) {
        let namespace = tests.namespace;
        let joins = format!("joins-{}", self.name);
        namespace.apply(&[pod(&joins, tests.image, &prints_devices(), &json!({"resourceClaimName": self.name}))]);
        let said = namespace.output(&joins);
        assert!(said.starts_with(&format!("device 0: total {}, free {},", 64 * MIB, 48 * MIB)), "{said}");
        namespace.delete("pod", &joins);
    }

    fn end(self, tests: &Tests<'_>) {
        tests.remove(self.name);
        wait::until_true("its slice is gone", || tests.manager.slice(&self.slice).is_none());
    }
}

/// Which container the pod has, and since when it runs.
fn container(pod: &Value) -> Value {
    let status = &pod["status"]["containerStatuses"][0];
    json!([status["containerID"], status["restartCount"], status["state"]])
}
