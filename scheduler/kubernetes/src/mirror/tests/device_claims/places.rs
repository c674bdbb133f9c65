//! When the places with devices of other drivers are counted.

use std::collections::BTreeSet;

use serde_json::json;

use super::super::World;
use super::NIC;

/// Three nodes. Each reaches one card of its own, and two of them reach one more. A pod waits for more cards than there
/// are.
fn with_cards_of_one_pool() -> World {
    let mut world = World::new();
    for node in ["n", "m", "o"] {
        world.node(node, 0);
    }
    for node in ["m", "o"] {
        world.nodes.get_mut(node).unwrap()["metadata"]["labels"] = json!({"zone": "a"});
        let object = world.nodes[node].clone();
        world.make_node(node, object);
    }
    let zone = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
    let devices = json!([
        {"name": "of-n", "nodeName": "n"}, {"name": "of-m", "nodeName": "m"}, {"name": "of-o", "nodeName": "o"},
        {"name": "of-zone", "nodeSelector": {"nodeSelectorTerms": zone}},
    ]);
    world.pool_of_nics("cards", json!({"perDeviceNodeSelection": true}), devices);
    world.pod_with_nic("a", json!({"count": 5}));
    world.reconcile();
    world
}

impl World {
    /// Keeps a card for a pod, or ends that. Returns the nodes that are to be told.
    fn keep_card(&mut self, pod: &str, card: Option<&str>) -> Vec<String> {
        match card {
            Some(card) => {
                let card = ((NIC.to_owned(), "cards".to_owned()), card.to_owned());
                self.mirror.promise(pod, BTreeSet::from([card]));
            }
            None => self.mirror.end_promise(pod),
        }
        std::mem::take(&mut self.mirror.changed_nodes).into_iter().collect()
    }
}

#[test]
fn only_nodes_that_reach_a_card_hear_of_its_use() {
    let mut world = with_cards_of_one_pool();
    assert_eq!(world.keep_card("x", Some("of-n")), ["n"]);
    assert_eq!(world.keep_card("y", Some("of-zone")), ["m", "o"]);
    // It is taken all the time.
    assert!(world.keep_card("z", Some("of-n")).is_empty());
    assert!(world.keep_card("x", None).is_empty());
    assert_eq!(world.keep_card("z", None), ["n"]);
}
