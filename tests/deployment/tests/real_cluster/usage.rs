//! The use of pods, as users and Prometheus see it.

use aliquot_harness::wait;

use super::Tests;
use super::holder::{HELD_BYTES, Holder};
use super::objects::{MAIN, holds};

impl Tests<'_> {
    /// Checks it by the command line in a manager's pod, which an administrator would ask.
    pub(crate) fn nothing_is_broken_in_a_manager_s_pod(&self) {
        let found = self.manager.doctor();
        assert!(found.contains("shim"), "{found}");
        println!("ok: aliquot doctor finds nothing broken in a manager's pod");
    }

    pub(crate) fn what_pods_use_is_told_with_their_names(&self) {
        let holder = Holder::start(self, "told");
        let (namespace, pod) = (self.namespace.name(), holder.name);
        let line = |text: String, words: &[&str]| {
            text.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        };
        let container = format!("{namespace}/{pod}/{MAIN}");
        let table = line(self.manager.table(), &[&holder.slice, &container, "16"]);
        let labels = format!("namespace=\"{namespace}\",pod=\"{pod}\",container=\"{MAIN}\"");
        let metric = line(self.manager.metrics(), &["aliquot_slice_memory_used_bytes{", &labels]);
        assert!(table.is_some(), "{}", self.manager.table());
        let metric = metric.unwrap_or_else(|| panic!("{}", self.manager.metrics()));
        assert!(metric.ends_with(&format!("}} {HELD_BYTES}")), "{metric}");
        println!("ok: what a pod uses is told: {metric}");
        holder.end(self);
    }

    /// The container's process is killed, and kubelet starts the container again.
    pub(crate) fn a_container_that_is_restarted_is_in_its_slice_again(&self) {
        // The shell is the container's first process, and ends when the other process does.
        let command = ["/bin/sh".into(), "-c".into(), format!("{} & wait", holds(HELD_BYTES).join(" "))];
        let mut objects = self.asks("restarted", &command, 40, 64);
        for object in objects.iter_mut().filter(|object| object["kind"] == "Pod") {
            object["spec"]["restartPolicy"] = "Always".into();
        }
        self.namespace.apply(&objects);
        self.namespace.wait_for_output("restarted", "held");
        let before = self.slice_of("restarted");
        // The shell that kills may itself be killed with the container, before it can say that all is well.
        let said = self.namespace.exec("restarted", MAIN, &["/bin/sh", "-c", "kill -9 -1"]);
        wait::until_true(&format!("kubelet has started it again; the shell that killed it: {said:?}"), || {
            let status = self.namespace.get("pod", "restarted")["status"]["containerStatuses"][0].take();
            status["restartCount"] == 1 && status["state"]["running"].is_object()
        });
        self.namespace.wait_for_output("restarted", "held");
        wait::until_true("another process has the same slice", || {
            let after = self.slice_of("restarted");
            let has_changed = |field: &str| after[field] != before[field];
            after["parts"][0]["memory_used_bytes"] == HELD_BYTES && has_changed("processes") && !has_changed("id")
        });
        println!("ok: a container that was restarted was in its slice again");
        self.remove("restarted");
        let slice = before["name"].as_str().unwrap();
        wait::until_true("its slice is gone", || self.manager.slice(slice).is_none());
    }
}
