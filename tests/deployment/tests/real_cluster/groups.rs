//! Kubernetes' own PodGroups whose pods share a claim with several requests.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_harness::{MIB, wait};
use serde_json::{Value, json};

use super::Tests;
use super::holder::HELD_BYTES;
use super::objects::{MAIN, claim, claim_template, container, device_request, holds, pod_with};

const API: &str = "scheduling.k8s.io/v1alpha2";
/// The kind, as `kubectl` tells it from the PodGroups of other systems.
const KIND: &str = "podgroups.v1alpha2.scheduling.k8s.io";
const FEATURE: &str = "DRAWorkloadResourceClaims";

/// The name that groups and pods have for the claim.
const GPUS: &str = "gpus";
const TEMPLATE: &str = "several-requests";
const NAMED: &str = "named";

/// The requests of a claim: the name, percent of a device's time, and MiB of its memory. `WHOLE` is for all devices of a
/// node but one, so that the other two are on that one, and a node has room for one group.
const WHOLE: Asked = ("whole", 100, 1024);
const SMALL: Asked = ("small", 20, 64);
const LISTED: Asked = ("listed", 50, 128);

/// The pods of a group, each with its containers and the request that the container names.
const PODS: [&[(&str, Asked)]; 3] = [&[(MAIN, WHOLE), ("side", SMALL)], &[(MAIN, SMALL)], &[(MAIN, LISTED)]];

type Asked = (&'static str, u64, u64);
/// The name of a pod, and that of one of its containers.
type Container = (String, String);

struct Group {
    name: String,
    /// Where its claim comes from.
    source: Value,
}

impl Group {
    fn pod(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    fn pods(&self) -> Vec<String> {
        (0..PODS.len()).map(|number| self.pod(number)).collect()
    }

    fn containers(&self) -> Vec<(Container, Asked)> {
        let of_pod = |(number, containers): (usize, &&[(&str, Asked)])| {
            let pod = self.pod(number);
            containers.iter().map(move |(name, asked)| ((pod.clone(), (*name).to_owned()), *asked)).collect::<Vec<_>>()
        };
        PODS.iter().enumerate().flat_map(of_pod).collect()
    }
}

impl Tests<'_> {
    /// Each node has a group, one more waits, and the first group ends.
    pub(crate) fn pods_of_a_group_have_what_they_name_of_its_claim(&self) {
        let nodes = self.cluster.nodes().len();
        if !self.groups_have_claims() || self.devices / nodes < 2 {
            println!("not run: claims of groups, because {FEATURE} is off, or a node has a single device");
            return;
        }
        let requests = self.several_requests();
        let none = json!([]);
        self.namespace.apply(&[claim_template(TEMPLATE, &requests, &none), claim(NAMED, &requests, &none)]);
        let of_template = json!({"resourceClaimTemplateName": TEMPLATE});
        let of_template = |number| Group { name: format!("group-{number}"), source: of_template.clone() };
        let groups: Vec<Group> = (0..nodes).map(of_template).collect();
        self.a_group_starts_when_it_is_whole(&groups);
        let first = &groups[0];
        self.a_pod_joins_a_group_after_managers_were_replaced(first);
        self.a_pod_that_would_divide_the_claim_otherwise_waits(first);

        let waiting = Group { name: "waiting".into(), source: json!({"resourceClaimName": NAMED}) };
        self.create(&waiting);
        waiting.pods().iter().enumerate().for_each(|(number, _)| self.create_member(&waiting, number));
        for pod in waiting.pods() {
            println!("ok: pod {pod} waits: {}", self.waits_with(&pod, "Unschedulable"));
        }
        self.has_nothing(&waiting);

        let its_claim = self.claim_of(first);
        self.namespace.begin_to_delete("pod", "joins");
        first.pods().iter().for_each(|pod| self.namespace.begin_to_delete("pod", pod));
        wait::until_true("the slices of the group are gone", || self.slices_of(&its_claim).is_empty());
        assert_eq!(self.claim_of(first)["status"]["reservedFor"], self.reservation(first));
        self.has_nothing(&waiting);
        println!("ok: the claim was the group's while the group had no pod");
        self.namespace.delete(KIND, &first.name);
        self.has_its_devices(&waiting);
        let of_first = |claim: &Value| claim["metadata"]["uid"] == its_claim["metadata"]["uid"];
        assert!(!self.namespace.list("resourceclaim").iter().any(of_first));
        println!("ok: the claim of the template went with its group, and the group that had waited runs");

        self.namespace.delete_all("pod");
        self.namespace.delete_all(KIND);
        wait::until_true("the named claim is given back", || {
            let status = self.namespace.get("resourceclaim", NAMED)["status"].take();
            status["allocation"].is_null() && status["reservedFor"].as_array().is_none_or(Vec::is_empty)
        });
        println!("ok: the named claim was given back with its group");
    }

    fn a_group_starts_when_it_is_whole(&self, groups: &[Group]) {
        let last = PODS.len() - 1;
        for group in groups {
            self.create(group);
            (0..last).for_each(|number| self.create_member(group, number));
        }
        for group in groups {
            // Until the scheduler has seen the second pod, the first one says that two more are needed.
            for number in 0..last {
                wait::until_true("the pod waits for the last one", || {
                    self.waits_with(&group.pod(number), "Waiting").contains("needs 1 more")
                });
            }
            self.has_nothing(group);
        }
        groups.iter().for_each(|group| self.create_member(group, last));
        groups.iter().for_each(|group| self.has_its_devices(group));
        println!("ok: {} groups started when they were whole, and each container had what it named", groups.len());
    }

    fn a_pod_joins_a_group_after_managers_were_replaced(&self, group: &Group) {
        self.manager.restart();
        self.namespace.apply(&[self.member("joins", group, &[(MAIN, Some(LISTED))])]);
        self.namespace.wait_for_output("joins", "held");
        let containers: BTreeSet<Container> =
            [group.pod(2), "joins".to_owned()].map(|pod| (pod, MAIN.to_owned())).into();
        wait::until_true("both pods have one slice", || {
            self.slices_of(&self.claim_of(group)).contains_key(&containers)
        });
        self.sees(("joins", MAIN), LISTED, 2);
        println!("ok: a pod joined the group after managers were replaced");
    }

    fn a_pod_that_would_divide_the_claim_otherwise_waits(&self, group: &Group) {
        self.namespace.apply(&[self.member("otherwise", group, &[(MAIN, None)])]);
        let why = self.waits_with("otherwise", "NotSupported");
        assert!(why.contains("have other requests of the claim than those of pod"), "{why}");
        println!("ok: a pod that names all of the claim waits: {why}");
        self.namespace.delete("pod", "otherwise");
    }

    fn groups_have_claims(&self) -> bool {
        let api = self.cluster.try_kubectl(&["get", "--raw", &format!("/apis/{API}")], "");
        api.is_ok_and(|api| api.contains("\"podgroups\"")) && self.cluster.has_feature(FEATURE)
    }

    /// How many devices of a node a request is for.
    fn count(&self, asked: Asked) -> usize {
        if asked == WHOLE { self.devices / self.cluster.nodes().len() - 1 } else { 1 }
    }

    fn several_requests(&self) -> Value {
        let [mut whole, small, listed] =
            [WHOLE, SMALL, LISTED].map(|(name, core, memory_mib)| device_request(name, core, memory_mib));
        whole["exactly"]["count"] = self.count(WHOLE).into();
        let choice = |name: &str, memory_mib: u64| {
            let mut choice = device_request(name, LISTED.1, memory_mib)["exactly"].take();
            choice["name"] = name.into();
            choice
        };
        let choices = json!([choice("more-than-there-is", 1 << 30), choice("fits", LISTED.2)]);
        json!([whole, small, {"name": listed["name"], "firstAvailable": choices}])
    }

    fn create(&self, group: &Group) {
        let mut claim = group.source.clone();
        claim["name"] = GPUS.into();
        self.namespace.apply(&[json!({
            "apiVersion": API, "kind": "PodGroup", "metadata": {"name": group.name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": PODS.len()}}, "resourceClaims": [claim]},
        })]);
    }

    fn create_member(&self, group: &Group, number: usize) {
        let containers: Vec<_> = PODS[number].iter().map(|(name, asked)| (*name, Some(*asked))).collect();
        self.namespace.apply(&[self.member(&group.pod(number), group, &containers)]);
    }

    /// A pod of a group, whose containers name these requests of the group's claim or all of the claim, and hold memory.
    fn member(&self, name: &str, group: &Group, containers: &[(&str, Option<Asked>)]) -> Value {
        let containers = containers.iter().map(|(name, asked)| {
            let request = asked.map(|(request, ..)| request);
            let resources = json!({"claims": [{"name": GPUS, "request": request}]});
            container(name, self.image, &holds(HELD_BYTES), &resources)
        });
        let mut claim = group.source.clone();
        claim["name"] = GPUS.into();
        let mut pod = pod_with(name, self.image, &[], &json!({}));
        pod["spec"]["containers"] = containers.collect();
        pod["spec"]["resourceClaims"] = json!([claim]);
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": group.name});
        pod["spec"]["schedulerName"] = "aliquot".into();
        pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
        pod
    }

    /// The claim that the group's pods share.
    fn claim_of(&self, group: &Group) -> Value {
        let name = match &group.source["resourceClaimName"] {
            Value::String(name) => name.clone(),
            _ => wait::until("Kubernetes has made the group's claim", || {
                let group = self.namespace.get(KIND, &group.name);
                group["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str().map(str::to_owned)
            }),
        };
        self.namespace.get("resourceclaim", &name)
    }

    /// What the claim of a group has in `reservedFor`.
    fn reservation(&self, group: &Group) -> Value {
        let uid = self.namespace.get(KIND, &group.name)["metadata"]["uid"].take();
        json!([{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": group.name, "uid": uid}])
    }

    /// Checks that nothing of a group that waits is bound or allocated.
    fn has_nothing(&self, group: &Group) {
        for pod in group.pods() {
            let is_created = |object: &Value| object["metadata"]["name"] == pod.as_str();
            let pod = self.namespace.list("pods").into_iter().find(is_created).unwrap_or_default();
            assert!(pod["spec"]["nodeName"].is_null(), "{pod:#}");
        }
        let claim = self.claim_of(group);
        assert!(claim["status"]["allocation"].is_null(), "{claim:#}");
    }

    /// Waits until the group's pods run. Checks that each container has the devices that were allocated for the request that
    /// it names, and no others.
    fn has_its_devices(&self, group: &Group) {
        for ((pod, container), _) in group.containers() {
            self.namespace.wait_for_output(&pod, "held");
            wait::until_true("the container holds memory", || self.namespace.log(&pod, &container).contains("held"));
        }
        let claim = self.claim_of(group);
        assert_eq!(claim["status"]["reservedFor"], self.reservation(group));
        let mut having: BTreeMap<Asked, BTreeSet<Container>> = BTreeMap::new();
        for (container, asked) in group.containers() {
            having.entry(asked).or_default().insert(container);
        }
        let expected: BTreeMap<BTreeSet<Container>, BTreeSet<String>> =
            having.iter().map(|(asked, containers)| (containers.clone(), allocated(&claim, asked.0))).collect();
        for (asked, containers) in &having {
            assert_eq!(expected[containers].len(), self.count(*asked), "{claim:#}");
        }
        wait::until_true("each request is a slice of its containers", || self.slices_of(&claim) == expected);
        for (asked, containers) in having {
            containers.iter().for_each(|(pod, name)| self.sees((pod, name), asked, containers.len() as u64));
        }
    }

    /// Checks what a program in a container sees, in a slice that so many containers are in.
    fn sees(&self, (pod, container): (&str, &str), asked: Asked, containers: u64) {
        let (_, _, memory_mib) = asked;
        let total = memory_mib * MIB;
        let first = format!("device 0: total {total}, free {},", total - containers * HELD_BYTES);
        // What an earlier program held is free a moment after that has ended.
        let said = wait::until("the program sees what its container has", || {
            let said = self.namespace.exec(pod, container, &["/bin/devices-linked"]).expect("the program runs");
            said.starts_with(&first).then_some(said)
        });
        assert_eq!(said.lines().count(), self.count(asked), "{said}");
        assert!(said.lines().all(|line| line.contains(&format!("total {total}, "))), "{said}");
    }

    /// The slices of a claim: the containers that are in each, and the names of its devices.
    fn slices_of(&self, claim: &Value) -> BTreeMap<BTreeSet<Container>, BTreeSet<String>> {
        let uid = claim["metadata"]["uid"].as_str().expect("a claim has a UID");
        let is_of_claim = |slice: &Value| slice["name"].as_str().is_some_and(|name| name.contains(uid));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of_slice = |slice: Value| {
            let consumers = slice["consumers"].as_array().into_iter().flatten();
            let parts = slice["parts"].as_array().into_iter().flatten();
            let containers = consumers.map(|consumer| (text(&consumer["pod"]), text(&consumer["container"]))).collect();
            (containers, parts.map(|part| text(&part["device_uuid"]).to_lowercase()).collect())
        };
        self.manager.slices().into_iter().filter(is_of_claim).map(of_slice).collect()
    }
}

/// The names of the devices that are allocated for a request.
fn allocated(claim: &Value, request: &str) -> BTreeSet<String> {
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().into_iter().flatten();
    let of_request = results.filter(|result| {
        let name = result["request"].as_str().unwrap_or_default();
        name.split('/').next() == Some(request)
    });
    of_request.map(|result| result["device"].as_str().unwrap_or_default().to_owned()).collect()
}
