//! Pods that the scheduler places: their parts, waiting pods, and the death of the leader.

use aliquot_harness::wait;
use serde_json::json;

use super::Tests;
use super::manager::Mode;
use super::objects::gang;

impl Tests<'_> {
    /// All that the scheduler does for pods, by claims or by units.
    pub(crate) fn pods_are_placed(&self) {
        self.halves_fill_all_devices_and_one_more_waits();
        self.a_gang_starts_when_all_of_it_has_room();
        self.a_gang_is_whole_though_the_leader_is_killed();
        self.another_replica_goes_on_when_the_leader_is_killed();
        self.the_urgent_gets_the_room_of_others();
        self.a_queue_takes_back_its_quota();
    }

    fn halves_fill_all_devices_and_one_more_waits(&self) {
        let names: Vec<String> = (0..2 * self.devices).map(|number| format!("half-{number}")).collect();
        names.iter().for_each(|name| self.scheduled(name, 50, &json!({})));
        names.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        assert!(self.all_is_given(), "{:?}", self.given());
        // With claims, the driver prepares the allocated devices. A unit can be of any device, so an annotation names
        // the device.
        let by_annotation = if self.mode == Mode::Units { names.as_slice() } else { &[] };
        for name in by_annotation {
            let pod = self.namespace.get("pod", name);
            let decision = pod["metadata"]["annotations"]["aliquot.dev/devices"].as_str().unwrap().to_owned();
            let slice = self.slice_of(name);
            let device = slice["parts"][0]["device_uuid"].as_str().unwrap();
            assert!(decision.contains(device), "decided {decision}, and has {device}");
        }
        self.scheduled("one-more", 50, &json!({}));
        let why = self.waits_with("one-more", "Unschedulable");
        println!("ok: one more waits: {why}");
        let explained = self.plugin(&["explain", "one-more"]);
        println!("{explained}");
        assert!(explained.contains("50 %"), "{explained}");
        self.remove(&names[0]);
        self.namespace.wait_for_output("one-more", "held");
        println!("ok: halves fill all devices, each on the one that was decided");
        self.clear();
    }

    fn a_gang_starts_when_all_of_it_has_room(&self) {
        self.scheduled("in-the-way", 10, &json!({}));
        self.namespace.wait_for_output("in-the-way", "held");
        let gang = gang("g", self.devices);
        let names: Vec<String> = (0..self.devices).map(|number| format!("member-{number}")).collect();
        names.iter().for_each(|name| self.scheduled(name, 100, &gang));
        names.iter().for_each(|name| _ = self.waits_with(name, "Unschedulable"));
        self.remove("in-the-way");
        names.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        println!("ok: a gang of {} started when all of it had room", self.devices);
        self.clear();
    }

    fn another_replica_goes_on_when_the_leader_is_killed(&self) {
        let names: Vec<String> = (0..4 * self.devices).map(|number| format!("quarter-{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            self.scheduled(name, 25, &json!({}));
            if number == names.len() / 2 {
                self.kill_leader();
            }
        }
        names.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        assert!(self.all_is_given(), "{:?}", self.given());
        println!("ok: the leader was killed among {} pods, and each has its part", names.len());
        self.clear();
    }

    fn a_gang_is_whole_though_the_leader_is_killed(&self) {
        // Three pods of 30 percent fit on a device. One gang has room, but of a second one only some members have room.
        let size = 3 * self.devices - 1;
        let members = |of: &str| -> Vec<String> { (0..size).map(|number| format!("{of}-{number}")).collect() };
        let [first, second] = ["first", "second"].map(|name| {
            let members = members(name);
            members.iter().for_each(|member| self.scheduled(member, 30, &gang(name, size)));
            if name == "first" {
                self.kill_leader();
                members.iter().for_each(|member| self.namespace.wait_for_output(member, "held"));
            }
            members
        });
        println!("ok: the leader was killed when the last of {size} members came, and all of them run");
        second.iter().for_each(|member| _ = self.waits_with(member, "Unschedulable"));
        let bound = |member: &&String| !self.namespace.get("pod", member)["spec"]["nodeName"].is_null();
        assert_eq!(second.iter().find(bound), None);
        first.iter().for_each(|member| self.begin_to_remove(member));
        second.iter().for_each(|member| self.namespace.wait_for_output(member, "held"));
        println!("ok: a second gang waited, though some of its members had room, and started as a whole");
        self.clear();
    }

    fn the_urgent_gets_the_room_of_others(&self) {
        let names: Vec<String> = (0..self.devices).map(|number| format!("train-{number}")).collect();
        let class = |name: &str| json!({"spec": {"priorityClassName": name}});
        names.iter().for_each(|name| self.scheduled(name, 100, &class("train")));
        names.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        self.scheduled("urgent", 100, &class("inference"));
        self.namespace.wait_for_output("urgent", "held");
        // The containers of an evicted pod have ended before its object is gone.
        wait::until_true("one was evicted", || self.namespace.list("pods").len() == self.devices);
        println!("ok: an urgent pod had the room of another one");
        self.clear();
    }
}
