//! Claims that cannot be allocated, and why.

use serde_json::json;

use super::super::{World, typed};
use super::NIC;
use crate::pod::PodFacts;

#[test]
fn what_keeps_a_claim_from_being_allocated_is_named() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("colour", 50, None, json!({"selectors": [{"cel": {"expression": "device.colour == 1"}}]}));
    world.claim("class", 50, None, json!({"deviceClassName": "none"}));
    world.claim("foreign", 50, None, json!({}));
    for name in ["colour", "class", "missing"] {
        world.pod_with_claim(name, name, json!({}));
    }
    let template = json!({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]});
    world.pod("unmade", 0, json!({"spec": template}));
    let status = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "foreign"}]});
    world.pod("other", 0, json!({"spec": template, "status": status}));
    let two = json!([{"name": "x", "resourceClaimName": "x"}, {"name": "y", "resourceClaimName": "y"}]);
    world.claim("x", 50, None, json!({}));
    world.claim("y", 50, None, json!({}));
    let both = json!([{"name": "main", "resources": {"claims": [{"name": "x"}, {"name": "y"}]}}]);
    world.pod_with_claim("several", "x", json!({"spec": {"resourceClaims": two, "containers": both}}));
    world.claim_of_several("overlap", &[("a", 10), ("b", 10)], json!([]));
    let some = json!([
        {"name": "main", "resources": {"claims": [{"name": "gpu"}]}},
        {"name": "side", "resources": {"claims": [{"name": "gpu", "request": "b"}]}},
    ]);
    world.pod_with_claim("overlap", "overlap", json!({"spec": {"containers": some}}));
    world.claim("z", 50, None, json!({}));
    world.pod("mixed", 30, json!({"spec": {"resourceClaims": [{"name": "z", "resourceClaimName": "z"}]}}));
    world.reconcile();
    for (name, text) in [
        ("colour", "device.colour == 1"),
        ("class", "there is no DeviceClass \"none\""),
        ("missing", "there is no ResourceClaim \"missing\""),
        ("unmade", "has not been made yet"),
        ("other", "it was not made for this pod"),
        ("several", "container \"main\" has the claims \"x\" and \"y\""),
        ("overlap", "containers \"main\" and \"side\" have some requests of the claim \"gpu\" in common"),
        ("mixed", "in one of these ways"),
    ] {
        assert!(world.why_waiting(name).contains(text), "{name}: {}", world.why_waiting(name));
    }
    assert!(world.bound().is_empty());
}

/// Why the scheduler cannot say where so many pods like this one would be.
fn why_not_imagined(world: &World, pod: &str, count: u32) -> Option<String> {
    let facts = PodFacts::of(typed(&world.pods[pod]), "aliquot").unwrap();
    world.mirror.imagine(&PodFacts { uid: "imagined".into(), ..facts }, count, false, None).err()
}

#[test]
fn what_cannot_be_answered_of_claims_is_said() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.nics("n", 2);
    let template = json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}});
    world.pod("of-template", 0, template);
    world.claim("shared", 50, None, json!({}));
    let gated = json!({"spec": {"schedulingGates": [{"name": "later"}], "schedulerName": "other"}});
    world.pod_with_claim("sharing", "shared", gated.clone());
    world.claim("card", 0, None, json!({"deviceClassName": NIC, "capacity": null}));
    world.pod_with_claim("with-card", "card", gated);
    world.reconcile();
    for (pod, count, why) in [
        ("of-template", 1, "the ResourceClaim for \"gpu\" would be made from a template"),
        ("sharing", 2, "2 pods would share ResourceClaim \"shared\""),
        ("sharing", 1, "create the pod, and have it explained"),
        ("with-card", 1, "create the pod, and have it explained"),
    ] {
        let said = why_not_imagined(&world, pod, count).unwrap_or_default();
        assert!(said.contains(why), "{pod} {count}: {said}");
    }
    // A pod with the claim waits.
    let no_node = json!({"spec": {"nodeSelector": {"no": "node"}}});
    world.pod_with_claim("waits", "shared", no_node);
    world.reconcile();
    let said = why_not_imagined(&world, "sharing", 1).unwrap_or_default();
    assert!(said.contains("it will be allocated with the pod default/waits"), "{said}");
    world.pod_with_part("bound", 30, json!({}));
    world.reconcile();
    world.pods.get_mut("sharing").unwrap()["spec"]["resourceClaims"][0]["resourceClaimName"] = "bound-gpu".into();
    assert_eq!(why_not_imagined(&world, "sharing", 3), None);
}
