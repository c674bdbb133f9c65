//! Kernels that wait for a peer on another device, whose lease somebody else holds.

use aliquot_arbiter::ContainerId;

use crate::shares::burstable;
use crate::world::{MS, SECOND, World};

#[test]
fn two_containers_on_two_devices_make_progress() {
    for seed in 0..10 {
        let mut world = World::new(seed, 2);
        // Each device meets them in another order, so that each container gets one device first.
        for (device, order) in [[0, 1], [1, 0]].iter().enumerate() {
            for &number in order {
                world.add_container(device, ContainerId(number), burstable(50));
            }
        }
        for number in 0..2 {
            world.start_pair(ContainerId(number), [0, 1], 2 * MS);
        }
        let mut before = vec![0; world.processes.len()];
        for second in 1..=4 {
            world.run_until(second * SECOND);
            let done: Vec<u64> = world.processes.iter().flatten().map(|process| process.kernels_done).collect();
            assert!(
                done.iter().zip(&before).all(|(now, before)| now > before),
                "seed {seed}, second {second}: {done:?}"
            );
            before = done;
        }
    }
}
