//! Claims that cannot be allocated, and why.

use serde_json::json;

use super::super::World;

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
