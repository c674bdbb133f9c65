//! Running pods continue, and new pods start, while parts of the system are restarted.

use std::process::Command;

use aliquot_harness::{MIB, run, wait};

use super::Tests;
use super::holder::{self, Holder};
use super::manager::{ImageUnderWay, Mode};
use super::objects::prints_devices;

/// The order of restarts, in which each part follows each other part. A pod starts after each restart, so only the last
/// restarts can matter.
const RESTARTS: [&str; 7] = ["manager", "kubelet", "runtime", "manager", "runtime", "kubelet", "manager"];

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
        self.manager.have_no_slices("the slices of both are gone");
        println!("ok: a pod waited for the manager, and one that had ended meanwhile left nothing");
    }

    pub(crate) fn restarts_in_any_order_disturb_nobody(&self) {
        let Ok(restart) = std::env::var("ALIQUOT_TEST_RESTART") else {
            println!("not run: restarts of kubelet and container runtime, because ALIQUOT_TEST_RESTART says not how");
            return;
        };
        let holder = Holder::start(self, "running");
        for (number, part) in RESTARTS.into_iter().enumerate() {
            match part {
                "manager" => self.manager.restart(),
                _ => _ = run(Command::new("sh").args(["-c", &format!("{restart} \"$0\""), part])).success(),
            }
            holder.begin_to_join(self);
            self.starts_in_its_own(&format!("after-{part}-{number}"), part);
            holder.is_undisturbed(self);
            println!("ok: a restart of {part} disturbed nobody");
        }
        holder.end(self);
    }

    /// Starts a new pod after a restart of `part`, and waits for its end. Between its own start and the registration of
    /// a device plugin, kubelet refuses every pod with units of the plugin. Then another pod takes the place of the
    /// refused one, as with a controller.
    fn starts_in_its_own(&self, name: &str, part: &str) {
        let may_refuse = self.mode == Mode::Units && part == "kubelet";
        let said = wait::until("a pod starts", || {
            self.namespace.apply(&self.asks(name, &prints_devices(), 5, 96));
            match self.namespace.outcome(name) {
                Ok(said) => Some(said),
                Err(status) if may_refuse && status["reason"] == "UnexpectedAdmissionError" => {
                    self.remove(name);
                    None
                }
                Err(status) => panic!("the pod {name} failed: {status:#}"),
            }
        });
        assert!(said.starts_with(&format!("device 0: total {}, free {0},", self.limit_mib(96) * MIB)), "{said}");
        self.begin_to_remove(name);
    }

    pub(crate) fn an_upgrade_disturbs_nobody(&self, image: ImageUnderWay) {
        let old = Holder::start(self, "old");
        self.manager.upgrade(image);
        old.begin_to_join(self);
        let new = Holder::start(self, "new");
        old.is_undisturbed(self);
        let shim = |holder: &Holder| self.manager.slice(&holder.slice).unwrap()["shim_path"].clone();
        assert_ne!(shim(&old), shim(&new));
        println!("ok: an upgrade disturbed nobody; pods of before have {}, new ones {}", shim(&old), shim(&new));
        holder::end_all(self, [old, new]);
    }
}
