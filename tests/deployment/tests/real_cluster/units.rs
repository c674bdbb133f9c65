//! The possible requests of pods by units of the device plugin's resources.

use aliquot_harness::{MIB, wait};
use serde_json::json;

use super::Tests;
use super::manager::Mode;
use super::objects::{claim, device_request, pod, pod_with, prints_devices};

/// The device plugin's unit of memory, unless its configuration says otherwise.
pub(crate) const MEMORY_UNIT_MIB: u64 = 256;

/// The resources of a container that asks for so many units.
pub(crate) fn units(core: u64, memory: u64) -> serde_json::Value {
    json!({"limits": {"aliquot.dev/gpu-core": core, "aliquot.dev/gpu-memory": memory}})
}

impl Tests<'_> {
    /// The objects that make the pod `name`. Its container runs `command` with so much of a device. With units it gets
    /// as many as it needs, see [`Tests::limit_mib`].
    pub(crate) fn asks(&self, name: &str, command: &[String], core: u64, memory_mib: u64) -> Vec<serde_json::Value> {
        match self.mode {
            Mode::Claims => {
                let requests = json!([device_request("gpu", core, memory_mib)]);
                let source = json!({"resourceClaimName": name});
                vec![claim(name, &requests, &json!([])), pod(name, self.image, command, &source)]
            }
            Mode::Units => {
                vec![pod_with(name, self.image, command, &units(core, memory_mib.div_ceil(MEMORY_UNIT_MIB)))]
            }
        }
    }

    /// How much memory a container gets that asks for `memory_mib`: with units, whole units.
    pub(crate) fn limit_mib(&self, memory_mib: u64) -> u64 {
        match self.mode {
            Mode::Claims => memory_mib,
            Mode::Units => memory_mib.next_multiple_of(MEMORY_UNIT_MIB),
        }
    }

    /// Removes the pod `name`, and its claim if it has one.
    pub(crate) fn remove(&self, name: &str) {
        self.namespace.delete("pod", name);
        if self.mode == Mode::Claims {
            self.namespace.delete("resourceclaim", name);
        }
    }

    /// Begins to remove the pod and its claim. Whether they go is checked at the end.
    pub(crate) fn begin_to_remove(&self, name: &str) {
        self.namespace.begin_to_delete("pod", name);
        if self.mode == Mode::Claims {
            self.namespace.begin_to_delete("resourceclaim", name);
        }
    }

    pub(crate) fn a_pod_with_units_has_its_part(&self) {
        self.namespace.apply(&self.asks("part", &prints_devices(), 30, 2 * MEMORY_UNIT_MIB));
        let said = self.namespace.output("part");
        assert!(said.starts_with(&format!("device 0: total {}, free {0},", 2 * MEMORY_UNIT_MIB * MIB)), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        println!("ok: a pod with units had its part");
        self.remove("part");
    }

    pub(crate) fn bad_units_are_refused_with_their_reasons(&self) {
        let limits = json!({"aliquot.dev/gpu-core": 130});
        self.namespace.apply(&[pod_with("bad", self.image, &prints_devices(), &json!({"limits": limits}))]);
        let event = wait::until("an event says why", || {
            let events = self.namespace.list("events");
            events.into_iter().find(|event| {
                let text = event["message"].as_str().unwrap_or_default();
                event["involvedObject"]["kind"] == "Pod" && text.contains("aliquot.dev/gpu-core is \"130\"")
            })
        });
        println!("ok: refused: {}", event["message"]);
        self.remove("bad");
    }
}
