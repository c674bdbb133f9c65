//! Two hundred pods at once: each gets its own slice.

use aliquot_test_cluster::{NAMESPACE, PODS, Share, World, share};

const PODS_AT_ONCE: u64 = 200;
const DEVICES: usize = 4;

/// The pods' names and shares. No two shares are alike.
fn shares() -> Vec<(String, Share)> {
    (0..PODS_AT_ONCE).map(|index| (format!("pod-{index}"), share(1 + (index % 2) as u32, 16 + index))).collect()
}

#[test]
fn two_hundred_pods_that_start_and_end_at_once_get_each_its_own_slice() {
    let world = World::on_paper("dra", DEVICES);
    world.wait_for_driver(DEVICES);
    let all = shares();
    for (name, share) in &all {
        world.claim(name, *share);
    }
    for (name, _) in &all {
        world.pod(name, &[name], &[]);
    }
    assert_eq!(world.wrong_identities(&all), Vec::<String>::new());
    assert_eq!(world.slices().len(), all.len());
    // Half of them are deleted while as many new ones are created.
    let store = world.cluster.store();
    for (name, _) in all.iter().step_by(2) {
        store.delete(&PODS, NAMESPACE, name, false).unwrap();
    }
    let second: Vec<(String, Share)> =
        all.iter().step_by(2).map(|(name, share)| (format!("{name}-b"), *share)).collect();
    for (name, share) in &second {
        world.claim(name, *share);
        world.pod(name, &[name], &[]);
    }
    let stayed = all.iter().skip(1).step_by(2);
    let now: Vec<(String, Share)> = second.iter().chain(stayed).cloned().collect();
    assert_eq!(world.wrong_identities(&now), Vec::<String>::new());
    world.assert_no_complaints();
    world.delete_everything();
    world.wait_until_empty();
}
