//! Devices that become unhealthy while pods have their units, and recover.

use aliquot_harness::wait;
use aliquot_test_cluster::World;

use crate::stage::{CORE, create, on_paper, part, slice_of, wait_for_plugin, wait_for_units, wrong};

/// Waits until the pod runs in its slice. Returns the slice's device.
fn runs_on(world: &World, name: &str, core: u32) -> String {
    let pod = world.cluster.wait_for_phase(name, "Running");
    assert_eq!(wrong(world, &pod, "main", core, 8), None);
    slice_of(world, name, "main").expect("it has a slice").parts.remove(0).device_uuid
}

fn wait_for_event(world: &World, reason: &str, device: &str) {
    wait::until_true(&format!("an event {reason}"), || {
        world.cluster.events().iter().any(|event| event.starts_with(reason) && event.contains(device))
    });
}

#[test]
fn units_of_a_device_that_goes_bad_are_unhealthy_until_it_is_well() {
    let world = on_paper(2);
    create(&world, "before", &part(30, 8));
    let device = runs_on(&world, "before", 30);
    let before = slice_of(&world, "before", "main").unwrap();
    let ill = (0..2).find(|index| world.gpu.uuid(*index) == device).expect("it is one of the two");
    world.gpu.machine().set_lost(ill, true);
    // Only the units of the other device are on offer.
    wait_for_units(&world, CORE, 100);
    assert_eq!(world.cluster.kubelet().capacity(CORE), Some((200, 100)));
    wait_for_event(&world, "DeviceUnhealthy: ", &device);

    create(&world, "beside", &part(60, 8));
    assert_ne!(runs_on(&world, "beside", 60), device);
    create(&world, "waits", &part(60, 8));
    world.cluster.wait_for_error("waits", "Insufficient aliquot.dev/gpu-core");
    assert!(world.is_running("before"));

    world.gpu.machine().set_lost(ill, false);
    wait_for_plugin(&world, 2);
    assert_eq!(runs_on(&world, "waits", 60), device);
    wait_for_event(&world, "DeviceRecovered: ", &device);
    assert_eq!(slice_of(&world, "before", "main").unwrap(), before);
    world.assert_no_complaints();
}
