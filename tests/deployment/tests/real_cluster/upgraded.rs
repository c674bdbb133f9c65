//! A scheduler that is replaced, or whose Lease is deleted, while pods run, wait and arrive.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::manager::NAMESPACE;
use super::objects::gang;
use super::scheduler::DEPLOYMENT;
use super::{PATIENCE, Tests};

/// An `aliquot-scheduler` of an older version, from which the scheduler is upgraded. Otherwise its replicas are replaced
/// by others of the same version.
const OLDER: &str = "ALIQUOT_TEST_OLDER_SCHEDULER";
/// How much of a device a pod has that arrives meanwhile, and how many find room beside a pod that runs.
const ARRIVING_PERCENT: u64 = 5;
const ARRIVING: usize = 10;
/// The time between two that arrive.
const PACE: Duration = Duration::from_secs(2);

impl Tests<'_> {
    pub(crate) fn an_upgrade_of_the_scheduler_loses_nothing(&self) {
        let older = std::env::var_os(OLDER).map(|program| self.manager.import_scheduler(&PathBuf::from(program)));
        if let Some(image) = &older {
            self.set_scheduler(image);
            self.wait_for_scheduler();
        }
        let meanwhile = self.begin_meanwhile();
        let (before, _) = self.leader();
        match older {
            Some(_) => self.set_scheduler(self.manager.image()),
            None => _ = self.cluster.kubectl(&["rollout", "restart", DEPLOYMENT, "--namespace", NAMESPACE], ""),
        }
        let arrived = self.arrive_until(|| {
            let status = ["rollout", "status", DEPLOYMENT, "--namespace", NAMESPACE, "--watch=false"];
            let (now, _) = self.leader();
            let is_replaced = now.is_string() && now != before;
            is_replaced && self.cluster.kubectl(&status, "").contains("successfully rolled out")
        });
        let from = if older.is_some() { "an older version" } else { "the same version" };
        println!("ok: an upgrade of the scheduler from {from}: {}", self.nothing_is_lost(&meanwhile, &arrived));
    }

    /// The leader makes the Lease again, and leads on.
    pub(crate) fn a_lease_that_is_deleted_changes_nothing(&self) {
        let meanwhile = self.begin_meanwhile();
        let leader = self.leader();
        let mut deleted = 0;
        let mut next = Instant::now();
        let arrived = self.arrive_until(|| {
            if deleted < 3 && Instant::now() > next {
                self.cluster.kubectl(&["delete", "lease", "aliquot-scheduler", "--namespace", NAMESPACE], "");
                deleted += 1;
                // Longer than a lease: who has taken it by mistake leads then.
                next = Instant::now() + Duration::from_secs(12);
            }
            deleted == 3 && Instant::now() > next
        });
        assert_eq!(self.leader(), leader);
        println!(
            "ok: the Lease was deleted {deleted} times, and its leader led on: {}",
            self.nothing_is_lost(&meanwhile, &arrived)
        );
    }

    fn set_scheduler(&self, image: &str) {
        let of_all = format!("*={image}");
        self.cluster.kubectl(&["set", "image", DEPLOYMENT, &of_all, "--namespace", NAMESPACE], "");
    }

    /// The holder of the Lease, and the number of its term.
    fn leader(&self) -> (Value, Value) {
        let lease = ["get", "lease", "aliquot-scheduler", "--namespace", NAMESPACE, "--output=json"];
        let mut lease: Value = serde_json::from_str(&self.cluster.kubectl(&lease, "")).unwrap();
        let spec = &mut lease["spec"];
        (spec["holderIdentity"].take(), spec["leaseTransitions"].take())
    }

    /// Starts pods with half of each device, and a gang that waits for whole devices. Returns the pods that run.
    fn begin_meanwhile(&self) -> Vec<Value> {
        let names: Vec<String> = (0..self.devices).map(|number| format!("stays-{number}")).collect();
        names.iter().for_each(|name| self.scheduled(name, 50, &json!({})));
        names.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        self.members().iter().for_each(|name| self.scheduled(name, 100, &gang("waits", self.devices)));
        self.members().iter().for_each(|name| _ = self.waits_with(name, "Unschedulable"));
        names.iter().map(|name| lasting(self.namespace.get("pod", name))).collect()
    }

    fn members(&self) -> Vec<String> {
        (0..self.devices).map(|number| format!("waits-{number}")).collect()
    }

    /// Has pods arrive until it is over, as far as there is room for them.
    fn arrive_until(&self, mut is_over: impl FnMut() -> bool) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        let (mut names, mut next) = (Vec::new(), Instant::now());
        while !is_over() {
            assert!(Instant::now() < end, "not over after {PATIENCE:?}");
            if names.len() < ARRIVING * self.devices && Instant::now() > next {
                next = Instant::now() + PACE;
                let name = format!("arrives-{}", names.len());
                self.scheduled(&name, ARRIVING_PERCENT, &json!({}));
                names.push(name);
            }
        }
        names
    }

    /// Checks that pods run that have arrived, that those which ran are the same, that the gang waits, and starts when it
    /// has room. Says how long pods have waited.
    fn nothing_is_lost(&self, before: &[Value], arrived: &[String]) -> String {
        arrived.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        let longest = arrived.iter().map(|name| waited(&self.namespace.get("pod", name))).max().unwrap_or_default();
        for pod in before {
            let now = lasting(self.namespace.get("pod", pod["name"].as_str().unwrap()));
            assert_eq!(now, *pod);
        }
        let given = self.given();
        assert!(given.values().all(|percent| *percent <= 100), "{given:?}");
        let expected = 50 * self.devices as u64 + ARRIVING_PERCENT * arrived.len() as u64;
        assert_eq!(given.values().sum::<u64>(), expected, "{given:?}");
        for member in self.members() {
            let pod = self.namespace.get("pod", &member);
            assert!(pod["spec"]["nodeName"].is_null(), "{pod:#}");
            self.waits_with(&member, "Unschedulable");
        }
        let before = before.iter().map(|pod| pod["name"].as_str().unwrap());
        before.chain(arrived.iter().map(String::as_str)).for_each(|name| self.begin_to_remove(name));
        self.members().iter().for_each(|member| self.namespace.wait_for_output(member, "held"));
        assert!(self.all_is_given(), "{:?}", self.given());
        self.clear();
        format!("{} pods arrived and waited for at most {longest} s", arrived.len())
    }
}

/// What stays the same of a pod that nobody disturbs.
fn lasting(pod: Value) -> Value {
    let container = &pod["status"]["containerStatuses"][0];
    json!({
        "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
        "decision": pod["metadata"]["annotations"]["aliquot.dev/devices"],
        "generation": pod["metadata"]["annotations"]["aliquot.dev/generation"],
        "node": pod["spec"]["nodeName"],
        "container": [container["containerID"], container["restartCount"]],
    })
}

/// The seconds from a pod's creation until it was bound.
fn waited(pod: &Value) -> i64 {
    let time = |of: &Value| of.as_str().unwrap().parse::<Timestamp>().unwrap().as_second();
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let scheduled = conditions.iter().find(|of| of["type"] == "PodScheduled").unwrap();
    time(&scheduled["lastTransitionTime"]) - time(&pod["metadata"]["creationTimestamp"])
}
