//! Several containers in a pod, each of which asks for units. Kubelet gives the units of an init container to the
//! containers that come after it.

use std::collections::BTreeSet;

use aliquot_harness::{MIB, wait};
use serde_json::{Value, json};

use super::Tests;
use super::objects::{MAIN, container, holds, pod_with, takes_exactly};
use super::units::{MEMORY_UNIT_MIB, units};

/// A container's part: the container's name, percent of a device's time, bytes of the device's memory, and bytes that
/// it uses.
type Part = (String, u64, u64, u64);

impl Tests<'_> {
    /// There are as many pods as devices, and each takes all time of one device: first its init container, then its
    /// sidecar and its container together. Without the init container's units there would be none for these two.
    pub(crate) fn containers_of_a_pod_have_each_its_own_slice(&self) {
        let names: Vec<String> = (0..self.devices).map(|number| format!("several-{number}")).collect();
        let bytes = |units: u64| units * MEMORY_UNIT_MIB * MIB;
        for name in &names {
            let init = container("init", self.image, &takes_exactly(bytes(3)), &units(100, 3));
            let mut sidecar = container("sidecar", self.image, &holds(8 * MIB), &units(40, 1));
            sidecar["restartPolicy"] = "Always".into();
            let mut pod = pod_with(name, self.image, &holds(16 * MIB), &units(60, 2));
            pod["spec"]["initContainers"] = json!([init, sidecar]);
            self.namespace.apply(&[pod]);
        }
        for name in &names {
            self.namespace.wait_for_output(name, "held");
            let said = self.namespace.log(name, "init");
            assert!(said.starts_with(&format!("free: {}\none byte more than all: 2\n", bytes(3))), "{said}");
            // The init container's part is gone.
            let expected = [("sidecar", 40, bytes(1), 8 * MIB), (MAIN, 60, bytes(2), 16 * MIB)];
            let expected = expected.map(|(name, core, limit, used)| (name.to_owned(), core, limit, used));
            wait::until_true("each has its own slice", || self.parts_of(name) == BTreeSet::from(expected.clone()));
        }
        println!("ok: init containers, sidecars and containers of {} pods had each its own slice", names.len());
        names.iter().for_each(|name| self.remove(name));
        self.manager.have_no_slices("their slices are gone");

        // Both containers ask for the same, so they have one slice, one after the other.
        let init = container("init", self.image, &takes_exactly(bytes(1)), &units(30, 1));
        let mut pod = pod_with("same", self.image, &takes_exactly(bytes(1)), &units(30, 1));
        pod["spec"]["initContainers"] = json!([init]);
        self.namespace.apply(&[pod]);
        let said = self.namespace.output("same");
        assert!(said.starts_with(&format!("free: {}\n", bytes(1))), "{said}");
        assert_eq!(self.namespace.log("same", "init"), said);
        println!("ok: an init container and the container after it asked for the same, and had it");
        self.remove("same");
    }

    /// The parts of a pod's containers.
    fn parts_of(&self, pod: &str) -> BTreeSet<Part> {
        let slices = self.manager.slices();
        let of_pod = |slice: &&Value| slice["consumers"][0]["pod"] == pod;
        slices.iter().filter(of_pod).map(part).collect()
    }
}

fn part(slice: &Value) -> Part {
    let field = |name: &str| slice["parts"][0][name].as_u64().unwrap_or_default();
    let container = slice["consumers"][0]["container"].as_str().unwrap_or_default();
    (container.to_owned(), field("core_request_percent"), field("memory_limit_bytes"), field("memory_used_bytes"))
}
