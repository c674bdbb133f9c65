//! Claims that several pods share, and those of other schedulers.

use serde_json::json;

use super::super::{World, Write};
use super::BYTES;
use crate::mirror::Looked;

#[test]
fn a_shared_claim_is_taken_once_and_keeps_its_users_together() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.node_with_driver("m", 1);
    world.claim("shared", 60, None, json!({}));
    for name in ["a", "b", "c"] {
        world.pod_with_claim(name, "shared", json!({}));
    }
    world.reconcile();
    let nodes: Vec<&str> = world.bound().into_values().collect();
    assert!(nodes.len() == 3 && nodes.iter().all(|node| *node == nodes[0]), "{nodes:?}");
    assert_eq!(world.allocated().into_values().collect::<Vec<_>>(), [(60, 1 << 30)]);
    // The same holds when the first of the pods is gone, and for the next leader.
    for _ in 0..2 {
        world.delete("a");
        world.collect_claims();
        world.pod_with_part("x", 60, json!({}));
        world.pod_with_part("y", 60, json!({}));
        world.reconcile();
        assert_eq!(world.bound().len(), 3, "{:?}", world.bound());
        world.delete("x");
        world.delete("y");
        world.collect_claims();
        world.change_leader();
    }
}

#[test]
fn who_shares_a_claim_is_not_evicted_by_a_fast_watch() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("shared", 60, None, json!({}));
    world.pod_with_claim("a", "shared", json!({}));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    assert!(world.reserve(&binding));
    let pod = world.pods.get_mut("a").unwrap();
    pod["spec"]["nodeName"] = "n".into();
    pod["metadata"]["annotations"]["aliquot.dev/generation"] = binding.generation.to_string().into();
    // The watch shows that it is bound, and then the answer to the binding arrives.
    world.show("a");
    world.hear();
    world.poll();
    world.mirror.bound(&binding, Ok(()));
    world.pod_with_claim("b", "shared", json!({}));
    world.reconcile();
    assert_eq!((world.names_of_bound(), world.log.clone()), (vec!["a", "b"], vec!["b to n".to_owned()]));
}

#[test]
fn what_others_have_allocated_is_taken_off_exactly() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("theirs", 1, None, json!({}));
    world.allocate_by_hand("theirs", "n", "gpu-0", 41, BYTES - (2 << 30));
    world.pod_with_part("a", 60, json!({}));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.pod_with_part("b", 59, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.pod_with_part("c", 1, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.change_claim("theirs", |claim| claim["status"] = json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c"]);
}

#[test]
fn a_device_that_was_given_out_twice_is_seen() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("a", 60, json!({}));
    world.reconcile();
    // Another scheduler allocates more than there is, because it did not know of the first claim.
    world.claim("theirs", 1, None, json!({}));
    world.allocate_by_hand("theirs", "n", "gpu-0", 60, 1 << 30);
    world.hear();
    assert!(world.mirror.has_too_much("default", "a-gpu").is_some());
    // Only the pod of this scheduler can be evicted.
    world.reconcile();
    assert_eq!(world.log, ["a to n", "a evicted"]);
    world.collect_claims();
    world.hear();
    assert!(world.mirror.has_too_much("default", "theirs").is_none());
}

#[test]
fn what_other_schedulers_claims_lack_is_told() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.node_with_driver("m", 2);
    let theirs = || json!({"spec": {"schedulerName": "default-scheduler"}});
    let mut looked = Looked::default();
    let mut told = |world: &mut World| {
        world.reconcile();
        world.mirror.shortages(&mut looked).into_iter().map(|of| (of.name, of.text)).collect::<Vec<_>>()
    };
    world.claim("small", 25, None, json!({"capacity": {"requests": {"core": "25", "memory": "70Gi"}}}));
    world.allocate_by_hand("small", "n", "gpu-0", 25, 70 << 30);
    for (claim, device) in [("x", "gpu-0"), ("y", "gpu-1")] {
        world.claim(claim, 60, None, json!({}));
        world.allocate_by_hand(claim, "m", device, 60, 1 << 30);
    }
    world.claim("c", 50, None, json!({"capacity": {"requests": {"core": "50", "memory": "20Gi"}}}));
    assert_eq!(told(&mut world), [], "nobody waits for it");
    world.pod_with_claim("a", "c", theirs());
    let asks = "the claim asks for core 50 and memory 20Gi of a device of DeviceClass \"gpu.aliquot.dev\", and no node has \
                that free; nearest: ";
    let free = "m/gpu-0 has core 40 and memory 79Gi free, m/gpu-1 has core 40 and memory 79Gi free, n/gpu-0 has core 75 \
                and memory 10Gi free";
    assert_eq!(told(&mut world), [("c".to_owned(), format!("{asks}{free}"))]);
    // The claim asks for two devices of one node, and no node has more than one that is free enough.
    world.change_claim("x", |claim| claim["status"] = json!({}));
    assert_eq!(told(&mut world), []);
    world.change_claim("c", |claim| claim["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2.into());
    let [(_, text)] = told(&mut world).try_into().expect("one claim");
    assert!(text.ends_with("and no node has that free; nearest is m, where 1 of the 2 are free"), "{text}");
    // The claim asks for more than any device has.
    let much = json!({"requests": {"core": "100", "memory": "900Gi"}});
    world.change_claim("c", |claim| claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = much);
    let [(_, text)] = told(&mut world).try_into().expect("one claim");
    assert!(text.starts_with("no node has a device of DeviceClass \"gpu.aliquot.dev\""), "{text}");
    world.node_with_driver("new", 2);
    assert_eq!(told(&mut world).len(), 1, "a device has come that is as small");
    let less = json!({"requests": {"core": "100", "memory": "80Gi"}});
    world.change_claim("c", |claim| claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = less);
    assert_eq!(told(&mut world), [], "what has come fits");
    world.change_claim("c", |claim| claim["spec"]["devices"]["requests"][0]["exactly"]["count"] = 3.into());
    assert_eq!(told(&mut world).len(), 1);
    // Nothing is reported for pods of this scheduler, which have conditions of their own, for pods with gates, and for
    // other drivers' devices.
    world.delete("a");
    world.pod_with_claim("ours", "c", json!({}));
    let gate = json!({"spec": {"schedulerName": "default-scheduler", "schedulingGates": [{"name": "later"}]}});
    world.pod_with_claim("gated", "c", gate);
    assert_eq!(told(&mut world), []);
}
