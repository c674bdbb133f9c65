//! Claims with prioritised lists.

use k8s_openapi::api::resource::v1::DeviceClass;
use serde_json::{Value, json};

use super::super::{World, typed};
use crate::dra::DRIVER;
use crate::mirror::Looked;

impl World {
    /// A claim for the first of these percentages of a GPU that can be had.
    pub(in crate::mirror::tests) fn claim_of_list(&mut self, name: &str, list: &[(&str, u32)]) {
        self.claim_of_lists(name, json!([{"name": "gpu", "firstAvailable": listed(list)}]));
    }

    fn claim_of_lists(&mut self, name: &str, requests: Value) {
        self.claim(name, 0, None, json!({}));
        self.change_claim(name, |claim| claim["spec"]["devices"]["requests"] = requests);
    }

    /// A claim's results, each as request, device and percent in one text.
    fn texts(&self, claim: &str) -> Vec<String> {
        self.results(claim).into_iter().map(|(request, device, core)| format!("{request} {device} {core}")).collect()
    }
}

fn listed(list: &[(&str, u32)]) -> Vec<Value> {
    let one = |(name, percent): &(&str, u32)| {
        let capacity = json!({"requests": {"core": percent.to_string(), "memory": "1Gi"}});
        json!({"name": name, "deviceClassName": DRIVER, "capacity": capacity})
    };
    list.iter().map(one).collect()
}

#[test]
fn the_first_of_a_list_that_can_be_had_is_taken() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    for name in ["a", "b", "c", "d"] {
        world.claim_of_list(name, &[("large", 60), ("small", 20)]);
        world.pod_with_claim(name, name, json!({}));
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
    assert_eq!(world.texts("a"), ["gpu/large gpu-0 60"]);
    assert_eq!([world.texts("b"), world.texts("c")], [["gpu/small gpu-0 20"], ["gpu/small gpu-0 20"]]);
    for text in ["60 % gpu-core and 1 GiB of gpu-memory free for request \"gpu/large\"", "\"gpu/small\""] {
        assert!(world.why_waiting("d").contains(text), "{}", world.why_waiting("d"));
    }
    // The next leader knows what each pod holds.
    world.delete("d");
    world.change_leader();
    world.pod_with_part("e", 1, json!({}));
    world.reconcile();
    assert!(!world.bound().contains_key("e") && world.log.iter().all(|line| !line.contains("evicted")));
    world.delete("b");
    world.collect_claims();
    world.reconcile();
    assert!(world.bound().contains_key("e"));
}

#[test]
fn a_node_where_an_earlier_one_of_a_list_can_be_had_goes_first() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("busy", 70, json!({}));
    world.reconcile();
    world.node_with_driver("m", 1);
    world.claim_of_list("c", &[("large", 60), ("small", 20)]);
    world.pod_with_claim("a", "c", json!({}));
    world.reconcile();
    assert_eq!(world.bound()["a"], "m", "although the small part would fit beside the other pod");
    assert_eq!(world.texts("c"), ["gpu/large gpu-0 60"]);
}

#[test]
fn lists_of_several_requests_and_claims_are_combined() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.pod_with_part("busy", 50, json!({}));
    world.reconcile();
    let distinct = json!([{"requests": ["x/half", "y"], "distinctAttribute": "gpu.aliquot.dev/uuid"}]);
    let exactly = json!({"deviceClassName": DRIVER, "capacity": {"requests": {"core": "30", "memory": "1Gi"}}});
    world.claim_of_lists(
        "c",
        json!([
            {"name": "x", "firstAvailable": listed(&[("two", 101), ("half", 50)])},
            {"name": "y", "exactly": exactly},
        ]),
    );
    world.change_claim("c", |claim| claim["spec"]["devices"]["constraints"] = distinct);
    world.claim_of_lists("d", json!([{"name": "z", "firstAvailable": listed(&[("more", 80), ("less", 10)])}]));
    let claims = json!([{"name": "c", "resourceClaimName": "c"}, {"name": "d", "resourceClaimName": "d"}]);
    world.pod("a", 0, json!({"spec": {"resourceClaims": claims}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "busy"], "{}", world.why_waiting("a"));
    let (c, d) = (world.results("c"), world.results("d"));
    assert_eq!([c[0].0.as_str(), c[1].0.as_str(), d[0].0.as_str()], ["x/half", "y", "z/less"]);
    assert_ne!(c[0].1, c[1].1, "the constraint is on the one of the list that was taken");
}

#[test]
fn what_is_said_of_the_rest_of_a_list_is_left_out() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    let parameters = |limit: u32| {
        let parameters = json!({
            "apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig", "coreLimitPercent": limit,
        });
        json!({"driver": DRIVER, "parameters": parameters})
    };
    let config = json!([{"opaque": parameters(90)}]);
    world
        .mirror
        .device_class(typed::<DeviceClass>(&json!({"metadata": {"name": "batch"}, "spec": {"config": config}})));
    world.claim_of_list("c", &[("never", 101), ("half", 50)]);
    world.change_claim("c", |claim| {
        let devices = &mut claim["spec"]["devices"];
        devices["requests"][0]["firstAvailable"][1]["deviceClassName"] = "batch".into();
        let of = |requests: Value, limit| json!({"requests": requests, "opaque": parameters(limit)});
        devices["config"] = json!([
            of(json!(["gpu/never"]), 100), of(json!(["gpu/half"]), 60), of(json!(["gpu"]), 70), {"opaque": parameters(80)},
        ]);
    });
    world.pod_with_claim("a", "c", json!({}));
    world.reconcile();
    let config = world.claims["c"]["status"]["allocation"]["devices"]["config"].as_array().unwrap();
    let said = config.iter().map(|of| {
        let limit = of["opaque"]["parameters"]["coreLimitPercent"].clone();
        format!("{} {} {limit}", of["source"].as_str().unwrap(), of["requests"])
    });
    assert_eq!(
        said.collect::<Vec<_>>(),
        ["FromClass [\"gpu/half\"] 90", "FromClaim [\"gpu/half\"] 60", "FromClaim [\"gpu\"] 70", "FromClaim null 80",]
    );
}

#[test]
fn which_of_a_list_is_wrong_is_named() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim_of_list("class", &[("good", 50), ("bad", 50)]);
    world.change_claim("class", |claim| {
        claim["spec"]["devices"]["requests"][0]["firstAvailable"][1]["deviceClassName"] = "none".into();
    });
    world.pod_with_claim("a", "class", json!({}));
    let list: Vec<(String, u32)> = (0..8).map(|number| (format!("x{number}"), 1)).collect();
    let list: Vec<(&str, u32)> = list.iter().map(|(name, percent)| (name.as_str(), *percent)).collect();
    let requests = ["x", "y", "z"].map(|name| json!({"name": name, "firstAvailable": listed(&list)}));
    world.claim_of_lists("long", json!(requests));
    world.pod_with_claim("b", "long", json!({}));
    world.reconcile();
    for (name, text) in [("a", "request \"gpu/bad\": there is no DeviceClass \"none\""), ("b", "have 512 combinations")]
    {
        assert!(world.why_waiting(name).contains(text), "{name}: {}", world.why_waiting(name));
    }
}

#[test]
fn other_schedulers_claims_lack_each_of_their_list() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("busy", 70, json!({}));
    world.reconcile();
    let theirs = json!({"spec": {"schedulerName": "default-scheduler"}});
    world.claim_of_list("c", &[("large", 60), ("small", 20)]);
    world.pod_with_claim("a", "c", theirs.clone());
    world.claim_of_list("d", &[("large", 60), ("small", 40)]);
    world.pod_with_claim("b", "d", theirs);
    world.reconcile();
    let shortages = world.mirror.shortages(&mut Looked::default());
    let [of] = &shortages[..] else { panic!("{shortages:?}") };
    assert_eq!(of.name, "d");
    assert!(
        of.text.starts_with("request \"gpu/large\": ") && of.text.contains("; request \"gpu/small\": "),
        "{}",
        of.text
    );
}
