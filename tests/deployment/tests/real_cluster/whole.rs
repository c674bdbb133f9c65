//! Claims where Kubernetes gives out whole devices only, because its consumable capacity is off.

use super::Tests;
use super::holder::HELD_BYTES;
use super::objects::holds;

impl Tests<'_> {
    /// Whether a claim can have a part of a device.
    pub(crate) fn claims_are_for_parts(&self) -> bool {
        self.cluster.has_feature("DRAConsumableCapacity")
    }

    /// Each claim has a device of its own, whatever it asks for, and one more waits. The manager and `aliquot doctor` say
    /// why.
    pub(crate) fn claims_get_whole_devices(&self, scheduler: Option<&str>) {
        let names: Vec<String> = (0..=self.devices).map(|number| format!("whole-{number}")).collect();
        for name in &names {
            let mut objects = self.asks(name, &holds(HELD_BYTES), 30, 64);
            for pod in objects.iter_mut().filter(|object| object["kind"] == "Pod") {
                if let Some(scheduler) = scheduler {
                    pod["spec"]["schedulerName"] = scheduler.into();
                }
            }
            self.namespace.apply(&objects);
        }
        let waiting = self.all_but_one_run(&names);
        assert!(self.all_is_given(), "{:?}", self.given());
        let why = match scheduler {
            Some(_) => self.waits_with(waiting, "Unschedulable").into(),
            None => self.why_it_waits(waiting),
        };
        let logs = self.manager.logs();
        assert!(logs.contains("DRAConsumableCapacity"), "{logs}");
        let doctor = self.manager.doctor();
        assert!(doctor.contains("DRAConsumableCapacity"), "{doctor}");
        let first = names.iter().find(|name| *name != waiting).expect("a pod that runs");
        self.remove(first);
        self.namespace.wait_for_output(waiting, "held");
        println!("ok: without consumable capacity each claim had a whole device, and one more waited: {why}");
        names.iter().filter(|name| *name != first).for_each(|name| self.remove(name));
        self.manager.have_no_slices("their slices are gone");
    }
}
