//! Claims that the pods of a PodGroup share.

use serde_json::{Value, json};

use super::super::{Binding, GangKind, World, Write, show_gang};

impl World {
    /// A PodGroup of which so many pods start together, with a claim for so many percent of a GPU.
    fn group_with_claim(&mut self, name: &str, least: u32, percent: u32) {
        let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
        let policy = if least > 0 { json!({"gang": {"minCount": least}}) } else { json!({"basic": {}}) };
        self.gang(GangKind::Native, name, json!({"schedulingPolicy": policy, "resourceClaims": claims}));
        let uid = self.gangs[&(GangKind::Native, name.to_owned())]["metadata"]["uid"].clone();
        let owner = json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "name": name, "uid": uid, "controller": true,
        });
        let claim = format!("{name}-gpu");
        self.claim(&claim, percent, None, json!({}));
        self.change_claim(&claim, |claim| claim["metadata"]["ownerReferences"] = json!([owner]));
    }

    /// A pod of a PodGroup, with the group's claim. `more` is merged into it.
    fn member(&mut self, name: &str, group: &str, more: Value) {
        let mut pod = json!({
            "spec": {
                "schedulingGroup": {"podGroupName": group},
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
            },
            "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": format!("{group}-gpu")}]},
        });
        json_patch::merge(&mut pod, &more);
        self.pod(name, 0, pod);
    }

    /// A gang g of which so many pods start together, with a claim for so many percent of a GPU, and these pods.
    fn gang_of(&mut self, least: u32, percent: u32, names: &[&str]) {
        self.group_with_claim("g", least, percent);
        self.members(names);
    }

    /// Pods of the PodGroup g, with its claim.
    fn members(&mut self, names: &[&str]) {
        names.iter().for_each(|name| self.member(name, "g", json!({})));
    }

    /// Reserves the claims of the pods that are being bound, and returns the bindings, which are not carried out.
    fn reserve_only(&mut self) -> Vec<Binding> {
        self.wait_for_writes();
        let bindings = std::mem::take(&mut self.writes).into_iter().map(|write| match write {
            Write::Bind(binding) => binding,
            other => panic!("{other:?}"),
        });
        let bindings: Vec<Binding> = bindings.collect();
        bindings.iter().for_each(|binding| assert!(self.reserve(binding)));
        bindings
    }

    /// A node `n` with a device, for up to 500 pods that need no more than so many processors together.
    fn node_for_many_pods(&mut self, cpu: &str) {
        self.node_with_driver("n", 1);
        let mut node = self.nodes["n"].clone();
        node["status"]["allocatable"] = json!({"cpu": cpu, "memory": "64Gi", "pods": "500"});
        self.make_node("n", node);
    }

    /// Tells the engine what is new. Returns how many pods were looked at for that.
    fn looked_at(&mut self) -> usize {
        self.mirror.look_at_device_claims();
        let looks = self.mirror.tell_pods();
        self.hear();
        looks
    }

    fn users(&self, claim: &str) -> Value {
        self.claims[claim]["status"]["reservedFor"].clone()
    }

    /// The PodGroup as the only user of its claim.
    fn only(&self, group: &str) -> Value {
        let uid = &self.gangs[&(GangKind::Native, group.to_owned())]["metadata"]["uid"];
        json!([{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": group, "uid": uid}])
    }

    fn part_of(&self, device: &str) -> u64 {
        self.allocated().get(device).map_or(0, |(core, _)| *core)
    }
}

#[test]
fn a_gang_shares_a_claim_of_its_pod_group() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.node_with_driver("m", 1);
    world.pod_with_part("other", 60, json!({}));
    world.reconcile();
    let full = world.bound()["other"].to_owned();
    world.gang_of(3, 50, &["a", "b", "c"]);
    world.reconcile();
    let free = if full == "n" { "m" } else { "n" };
    assert_eq!(world.names_of_bound(), ["a", "b", "c", "other"], "{:?}", world.log);
    assert!(["a", "b", "c"].iter().all(|name| world.bound()[name] == free), "{:?}", world.bound());
    assert_eq!(world.users("g-gpu"), world.only("g"));
    assert_eq!(world.part_of(&format!("{free}/gpu-0")), 50);
}

#[test]
fn no_pod_of_a_gang_starts_before_its_claim_has_room() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("other", 60, json!({}));
    world.reconcile();
    world.gang_of(2, 50, &["a", "b"]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other"], "{:?}", world.log);
    assert!(world.why_waiting("a").contains("no node has room now"), "{}", world.why_waiting("a"));
    world.delete("other");
    world.remove_claim("other-gpu");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
}

#[test]
fn a_gang_goes_where_all_of_its_pods_have_room_near_the_claim() {
    let mut world = World::new();
    for (name, cpu) in [("n", "1"), ("m", "3"), ("o", "2")] {
        world.node_with_driver(name, 1);
        let mut node = world.nodes[name].clone();
        node["status"]["allocatable"]["cpu"] = cpu.into();
        world.make_node(name, node);
    }
    world.gang_of(3, 50, &["a", "b", "c"]);
    world.reconcile();
    assert_eq!(world.bound().into_values().collect::<Vec<_>>(), ["m", "m", "m"], "{:?}", world.log);
}

#[test]
fn pods_beyond_the_gang_join_the_claim_and_are_no_users() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.node_with_driver("m", 1);
    world.gang_of(2, 100, &["d", "c", "b", "a"]);
    world.reconcile();
    let node = world.bound()["a"].to_owned();
    world.member("e", "g", json!({}));
    world.reconcile();
    assert_eq!(world.bound().into_values().collect::<Vec<_>>(), vec![node.as_str(); 5], "{:?}", world.log);
    assert_eq!(world.users("g-gpu"), world.only("g"));
    // A leader that begins finds the claim as it is.
    world.change_leader();
    world.member("f", "g", json!({}));
    world.pod_with_part("other", 10, json!({}));
    world.reconcile();
    assert_eq!(world.bound()["f"], node);
    assert_ne!(world.bound()["other"], node);
}

/// A claim can be reserved for 256 users at most.
#[test]
fn a_claim_of_a_pod_group_serves_300_pods() {
    let mut world = World::new();
    world.node_for_many_pods("1000");
    world.group_with_claim("g", 200, 50);
    for number in 0..300 {
        world.member(&format!("p{number}"), "g", json!({}));
    }
    world.reconcile();
    assert_eq!(world.bound().len(), 300);
    assert_eq!(world.users("g-gpu"), world.only("g"));
}

#[test]
fn pods_of_a_group_without_a_gang_follow_the_first() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("other", 60, json!({}));
    world.reconcile();
    world.gang_of(0, 50, &["a", "b"]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other"], "{:?}", world.log);
    for name in ["a", "b"] {
        assert!(world.why_waiting(name).contains("50 % gpu-core"), "{}", world.why_waiting(name));
    }
    world.delete("other");
    world.remove_claim("other-gpu");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
}

#[test]
fn another_pod_takes_the_place_of_the_first() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.group_with_claim("g", 2, 50);
    world.member("a", "g", json!({}));
    world.reconcile();
    world.member("b", "g", json!({"spec": {"nodeSelector": {"no": "node"}}}));
    world.member("c", "g", json!({}));
    world.delete("a");
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    world.delete("b");
    world.member("d", "g", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["c", "d"], "{:?}", world.log);
}

#[test]
fn the_claim_outlives_the_pod_that_it_was_allocated_with() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.gang_of(2, 60, &["a", "b"]);
    world.reconcile();
    for first in ["a", "b"] {
        world.pods.get_mut(first).unwrap()["status"]["phase"] = "Succeeded".into();
        world.show(first);
        world.reconcile();
        world.delete(first);
        world.collect_claims();
        world.pod_with_part(&format!("after-{first}"), 50, json!({}));
        world.reconcile();
        assert!(!world.bound().keys().any(|name| name.starts_with("after")), "{:?}", world.log);
        assert_eq!(world.part_of("n/gpu-0"), 60);
    }
    // It is the group's until the group is gone.
    world.gangs.clear();
    world.mirror.gang_gone(GangKind::Native, "default", "g");
    world.collect_claims();
    world.remove_claim("g-gpu");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["after-a", "after-b"], "{:?}", world.log);
}

#[test]
fn a_claim_of_a_gang_that_was_not_bound_is_given_back() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.gang_of(2, 60, &["a", "b"]);
    world.reserve_only();
    assert_eq!(world.users("g-gpu"), world.only("g"));
    // The leader dies before the first binding, and the node has gone.
    world.remove_node("n");
    world.node_with_driver("m", 1);
    world.change_leader();
    world.reconcile();
    assert_eq!(world.log[0], "g-gpu given back");
    assert_eq!(world.bound().into_values().collect::<Vec<_>>(), ["m", "m"], "{:?}", world.log);
    assert_eq!(world.users("g-gpu"), world.only("g"));
}

#[test]
fn a_claim_stays_if_a_pod_of_half_a_gang_has_it() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.node_with_driver("m", 1);
    world.gang_of(2, 60, &["a", "b"]);
    let last = world.reserve_only().remove(1);
    let node = last.node.clone();
    world.pods.get_mut(&last.name).unwrap()["spec"]["nodeName"] = node.as_str().into();
    world.pods.get_mut(&last.name).unwrap()["metadata"]["annotations"]["aliquot.dev/generation"] =
        last.generation.to_string().into();
    world.change_leader();
    world.reconcile();
    assert_eq!(world.bound().into_values().collect::<Vec<_>>(), [node.as_str(), node.as_str()], "{:?}", world.log);
    assert_eq!(world.log.len(), 1, "{:?}", world.log);
}

#[test]
fn a_gang_gives_up_with_the_first_pod_of_its_claim() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.gang_of(2, 60, &["a", "b"]);
    world.wait_for_writes();
    // Another one has changed the claim meanwhile.
    world.change_claim("g-gpu", |claim| claim["metadata"]["labels"] = json!({"some": "label"}));
    let mut writes = std::mem::take(&mut world.writes);
    writes.reverse();
    for write in writes {
        world.carry_out(write);
    }
    assert!(world.bound().is_empty(), "{:?}", world.log);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
}

#[test]
fn a_gang_of_which_one_claim_cannot_be_allocated_begins_anew() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.group_with_claim("g", 2, 50);
    let owners = world.claims["g-gpu"]["metadata"]["ownerReferences"].clone();
    world.claim("g-more", 60, None, json!({}));
    world.change_claim("g-more", |claim| claim["metadata"]["ownerReferences"] = owners);
    let group = world.gangs.get_mut(&(GangKind::Native, "g".to_owned())).unwrap();
    let more = json!({"name": "more", "resourceClaimTemplateName": "u"});
    group["spec"]["resourceClaims"].as_array_mut().unwrap().push(more.clone());
    show_gang(&mut world.mirror, GangKind::Native, "g", group);
    for name in ["a", "b"] {
        let made = |of: &str| json!({"name": of, "resourceClaimName": format!("g-{of}")});
        world.member(
            name,
            "g",
            json!({
                "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}, more]},
                "status": {"resourceClaimStatuses": [made("gpu"), made("more")]},
            }),
        );
    }
    world.wait_for_writes();
    // Another one has changed the second claim meanwhile.
    world.change_claim("g-more", |claim| claim["metadata"]["labels"] = json!({"some": "label"}));
    for write in std::mem::take(&mut world.writes) {
        world.carry_out(write);
    }
    assert!(world.bound().is_empty() && world.users("g-gpu") == world.only("g"), "{:?}", world.log);
    world.reconcile();
    assert!(world.log.contains(&"g-gpu given back".to_owned()), "{:?}", world.log);
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
    assert_eq!((world.users("g-gpu"), world.users("g-more")), (world.only("g"), world.only("g")));
    assert_eq!(world.part_of("n/gpu-0") + world.part_of("n/gpu-1"), 110);
}

#[test]
fn a_pod_outside_the_group_cannot_use_what_was_made_for_it() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.group_with_claim("g", 0, 50);
    world.gang(GangKind::Native, "other", json!({"schedulingPolicy": {"basic": {}}}));
    world.member("outside", "g", json!({"spec": {"schedulingGroup": null}}));
    world.member("elsewhere", "g", json!({"spec": {"schedulingGroup": {"podGroupName": "other"}}}));
    world.reconcile();
    for name in ["outside", "elsewhere"] {
        let why = world.why_waiting(name);
        assert!(why.contains("\"g-gpu\": it was not made for this pod or its PodGroup"), "{why}");
    }
}

#[test]
fn a_claim_that_the_group_does_not_list_is_the_pod_s() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.gang(GangKind::Native, "g", json!({"schedulingPolicy": {"basic": {}}}));
    world.claim("shared", 50, None, json!({}));
    world.pod_with_claim("a", "shared", json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    let uid = &world.pods["a"]["metadata"]["uid"];
    assert_eq!(world.users("shared"), json!([{"resource": "pods", "name": "a", "uid": uid}]));
}

/// A container with these requests of the group's claim.
fn having(name: &str, requests: &[&str]) -> Value {
    let claims: Vec<Value> = requests.iter().map(|request| json!({"name": "gpu", "request": request})).collect();
    json!({"name": name, "resources": {"claims": claims}})
}

#[test]
fn pods_of_a_group_divide_a_claim_of_several_requests_alike() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.group_with_claim("g", 0, 50);
    world.change_claim("g-gpu", |claim| {
        let requests = &mut claim["spec"]["devices"]["requests"];
        for name in ["second", "third"] {
            let mut further = requests[0].clone();
            further["name"] = name.into();
            requests.as_array_mut().unwrap().push(further);
        }
    });
    let mut member =
        |name: &str, containers: Value| world.member(name, "g", json!({"spec": {"containers": containers}}));
    let both = || json!([having("main", &["gpu"]), having("side", &["second"])]);
    member("a", both());
    member("b", json!([having("main", &["gpu", "second"])]));
    member("c", both());
    member("d", json!([having("main", &["third"])]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c", "d"], "{:?}", world.log);
    let why = world.why_waiting("b");
    assert!(why.contains("have other requests of the claim than those of pod"), "{why}");
    // The claim is allocated now.
    world.member("e", "g", json!({"spec": {"containers": [having("main", &["gpu", "third"])]}}));
    world.member("f", "g", json!({"spec": {"containers": both()}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c", "d", "f"], "{:?}", world.log);
}

/// A node makes one slice of a claim if no container of the first pod has a part of it.
#[test]
fn who_has_nothing_of_a_group_s_claim_leaves_it_undivided() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.group_with_claim("g", 0, 50);
    world.change_claim("g-gpu", |claim| {
        let requests = &mut claim["spec"]["devices"]["requests"];
        let mut second = requests[0].clone();
        second["name"] = "second".into();
        requests.as_array_mut().unwrap().push(second);
    });
    let nothing = || json!([{"name": "main"}]);
    let all = json!([{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]);
    for (name, containers) in
        [("a", nothing()), ("b", json!([having("main", &["second"])])), ("c", all), ("d", nothing())]
    {
        world.member(name, "g", json!({"spec": {"containers": containers}}));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c", "d"], "{:?}", world.log);
    let why = world.why_waiting("b");
    assert!(why.contains("have other requests of the claim than those of pod"), "{why}");
}

/// What happens to one pod of a group is a matter of that pod, and not of the others.
#[test]
fn a_change_of_one_pod_of_a_group_has_only_that_pod_looked_at() {
    let mut world = World::new();
    world.node_for_many_pods("40");
    world.pod_with_part("other", 60, json!({}));
    world.reconcile();
    world.group_with_claim("g", 0, 50);
    for number in 0..100 {
        world.member(&format!("p{number:02}"), "g", json!({}));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other"]);
    world.pods.get_mut("p50").unwrap()["metadata"]["labels"] = json!({"some": "label"});
    world.show("p50");
    assert_eq!(world.looked_at(), 1);
    world.delete("p60");
    assert_eq!(world.looked_at(), 0);
    // The claim is allocated, and 39 pods have room beside it.
    world.delete("other");
    world.remove_claim("other-gpu");
    let mut looked_at = 0;
    while world.names_of_bound().len() < 39 {
        looked_at += world.looked_at();
        world.poll();
        for write in std::mem::take(&mut world.writes)
            .into_iter()
            .chain(world.unready.drain(..).map(Write::Bind).collect::<Vec<_>>())
        {
            world.carry_out(write);
            looked_at += world.looked_at();
        }
        world.now_ms += 50;
    }
    assert!(looked_at < 10 * 99, "{looked_at} looks at 99 pods");
}

#[test]
fn a_pod_that_no_node_may_take_does_not_hold_its_group_back() {
    for least in [0, 2] {
        let mut world = World::new();
        world.node_with_driver("n", 1);
        world.group_with_claim("g", least, 50);
        world.member("hopeless", "g", json!({"spec": {"nodeSelector": {"no": "node"}}}));
        world.reconcile();
        world.members(&["c", "d"]);
        world.reconcile();
        assert_eq!(world.names_of_bound(), ["c", "d"], "{least}: {:?}", world.log);
        let why = world.why_waiting("hopeless");
        assert!(why.contains("no=node"), "{why}");
        // It joins the others when it can.
        let mut node = world.nodes["n"].clone();
        node["metadata"]["labels"] = json!({"no": "node"});
        world.make_node("n", node);
        world.reconcile();
        assert_eq!(world.names_of_bound(), ["c", "d", "hopeless"], "{least}: {:?}", world.log);
    }
}

#[test]
fn a_hopeless_pod_does_not_hold_a_shared_claim_back() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("shared", 50, None, json!({}));
    world.pod_with_claim("hopeless", "shared", json!({"spec": {"nodeSelector": {"no": "node"}}}));
    world.reconcile();
    world.pod_with_claim("b", "shared", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"], "{:?}", world.log);
}

#[test]
fn a_pod_that_follows_another_one_says_which() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("other", 60, json!({}));
    world.reconcile();
    world.gang_of(0, 50, &["a", "b"]);
    world.reconcile();
    let follows = |name: &str| world.mirror.pod_named("default", name).unwrap().follows;
    let expected =
        "ResourceClaim \"g-gpu\" of its PodGroup is allocated with the pod default/a, and it is placed beside that pod";
    assert_eq!((follows("a"), follows("b").as_deref()), (None, Some(expected)));
}

#[test]
fn a_claim_of_an_earlier_group_of_the_same_name_is_not_used() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.group_with_claim("g", 2, 50);
    let of_before = world.claims["g-gpu"].clone();
    world.group_with_claim("g", 2, 50);
    let of_now = std::mem::replace(world.claims.get_mut("g-gpu").unwrap(), of_before);
    world.mirror.resource_claim_gone("default", "g-gpu");
    world.change_claim("g-gpu", |_| ());
    world.members(&["a", "b"]);
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    let why = world.why_waiting("a");
    assert!(why.contains("it was not made for this pod or its PodGroup"), "{why}");
    world.remove_claim("g-gpu");
    world.claims.insert("g-gpu".into(), of_now);
    world.change_claim("g-gpu", |_| ());
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
    assert_eq!(world.users("g-gpu"), world.only("g"));
}

/// Pods by themselves and pods of groups can have a claim in common.
#[test]
fn what_was_allocated_for_several_users_is_given_back() {
    let named = json!([{"name": "gpu", "resourceClaimName": "shared"}]);
    let in_group = |group: &str| json!({"spec": {"schedulingGroup": {"podGroupName": group}}});
    for pods in [[json!({}), json!({})], [in_group("g"), json!({})], [in_group("g"), in_group("h")]] {
        let mut world = World::new();
        world.node_with_driver("n", 1);
        world.claim("shared", 50, None, json!({}));
        for group in ["g", "h"] {
            let spec = json!({"schedulingPolicy": {"basic": {}}, "resourceClaims": named});
            world.gang(GangKind::Native, group, spec);
        }
        world.pod_with_claim("a", "shared", pods[0].clone());
        world.reserve_only();
        world.pod_with_claim("b", "shared", pods[1].clone());
        world.reserve_only();
        assert_eq!(world.users("shared").as_array().unwrap().len(), 2);
        // The leader dies before the first binding, and the node has gone.
        world.remove_node("n");
        world.node_with_driver("m", 1);
        world.change_leader();
        world.reconcile();
        assert_eq!(
            world.bound().into_iter().collect::<Vec<_>>(),
            [("a", "m"), ("b", "m")],
            "{pods:?}: {:?}",
            world.log
        );
    }
}
