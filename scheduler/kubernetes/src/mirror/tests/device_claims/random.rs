//! Claims among random changes: no device is given out twice, and everything comes to rest.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::random::Dice;
use super::super::{World, Write};
use super::BYTES;
use super::both_drivers::of_root;

impl World {
    /// A pod goes with its claims, another leader begins, or a pod comes that asks for a card by `request`.
    pub(super) fn step_at_random(&mut self, dice: &mut Dice, step: u32, request: impl FnOnce(&mut Dice) -> Value) {
        match dice.below(4) {
            0 => {
                let names: Vec<String> = self.pods.keys().cloned().collect();
                if let Some(name) = names.get(dice.below(names.len().max(1) as u64) as usize) {
                    self.delete(name);
                    self.collect_claims();
                }
            }
            1 if step.is_multiple_of(7) => self.change_leader(),
            _ => self.pod_with_nic(&format!("a{step}"), request(dice)),
        }
        self.reconcile();
    }
}

/// Whatever happens, in any order, no device is given out twice, and no allocation is left over.
#[test]
fn random_changes_never_give_a_device_out_twice() {
    for seed in 0..24_u64 {
        let mut dice = Dice::of(seed);
        let mut random = |below: u64| dice.below(below);
        let mut world = World::new();
        for node in ["n", "m"] {
            let roots = [of_root("a"), of_root("b")];
            world.node_of_both(node, &roots, &roots);
        }
        world.claim("shared", 30, None, json!({}));
        for step in 0..60 {
            match random(14) {
                13 => world.pod_with_all(&format!("a{step}"), [30, 100][random(2) as usize], json!({})),
                12 => {
                    let part = [30, 60, 100][random(3) as usize];
                    world.pod_with_near_card(&format!("b{step}"), part);
                }
                11 => world.pod_with_nic(&format!("n{step}"), json!({"count": 1 + random(2)})),
                10 => {
                    let (name, claim) = (format!("l{step}"), format!("l{step}-gpus"));
                    world.claim_of_list(&claim, &[("whole", 100), ("half", 50), ("tenth", 10)]);
                    world.pod_with_claim(&name, &claim, json!({}));
                }
                9 => {
                    let (name, claim) = (format!("m{step}"), format!("m{step}-gpus"));
                    world.claim_of_several(&claim, &[("a", 40), ("b", 70)], json!([]));
                    world.pod_with_claim(&name, &claim, json!({}));
                }
                0..=2 => {
                    let name = format!("p{step}");
                    world.pod_with_part(&name, [20, 50, 100][random(3) as usize], json!({}));
                }
                3 => world.pod_with_claim(&format!("s{step}"), "shared", json!({})),
                4 => {
                    let names: Vec<String> = world.pods.keys().cloned().collect();
                    if let Some(name) = names.get(random(names.len().max(1) as u64) as usize) {
                        world.delete(name);
                    }
                }
                5 => world.collect_claims(),
                6 => world.change_leader(),
                7 => {
                    // A leader dies with a claim allocated, and its pod not bound.
                    world.hear();
                    world.poll();
                    if let Some(Write::Bind(binding)) = world.writes.pop() {
                        world.reserve(&binding);
                    }
                    world.change_leader();
                }
                _ => world.reconcile(),
            }
            assert!(world.mirror.knows_right_places(), "seed {seed}, step {step}");
            for (device, (core, memory)) in world.allocated() {
                assert!(core <= 100 && memory <= BYTES, "seed {seed}, step {step}: {device} {core} {memory}");
            }
            let cards = world.cards_given_out();
            let different: BTreeSet<&String> = cards.iter().collect();
            assert_eq!(cards.len(), different.len(), "seed {seed}, step {step}: {cards:?}");
            for claim in world.claims.keys().filter(|claim| claim.starts_with('a')) {
                assert!([0, 2].contains(&world.results(claim).len()), "seed {seed}: all of a node, or none");
            }
            for claim in world.claims.keys().filter(|claim| claim.starts_with('b')) {
                let devices: Vec<String> = world.results(claim).into_iter().map(|(_, device, _)| device).collect();
                let numbers: BTreeSet<&str> = devices.iter().filter_map(|of| of.split('-').nth(1)).collect();
                assert!(devices.is_empty() || (devices.len(), numbers.len()) == (2, 1), "seed {seed}: {devices:?}");
            }
        }
        let errors: Vec<&String> = world.log.iter().filter(|line| line.starts_with("error")).collect();
        assert!(errors.is_empty(), "seed {seed}: {errors:?}");
        for name in world.pods.keys().cloned().collect::<Vec<String>>() {
            world.delete(&name);
        }
        world.collect_claims();
        world.reconcile();
        // All is free again.
        for number in 0..4 {
            world.pod_with_part(&format!("whole{number}"), 100, json!({}));
            world.pod_with_nic(&format!("card{number}"), json!({}));
        }
        world.reconcile();
        assert_eq!(world.bound().len(), 8, "seed {seed}: {:?}", world.log);
    }
}
