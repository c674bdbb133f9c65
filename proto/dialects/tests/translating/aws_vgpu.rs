use aliquot_dialects::Dialect::AwsVgpu;
use aliquot_dialects::{Advertised, NodeFacts, Unit};

use crate::asking::{GIB, ask, ask_of, assert_refused, part};

const VGPU: &str = "k8s.amazonaws.com/vgpu";

#[test]
fn a_virtual_gpu_is_an_equal_part_that_may_use_idle_time() {
    let share_of = |vgpus| ask(AwsVgpu, &[(VGPU, vgpus)], &[]).unwrap().share.on(40 * GIB);
    assert_eq!(share_of("1"), part(10, 100, 4 * GIB));
    assert_eq!(share_of("5"), part(50, 100, 20 * GIB));
    assert_eq!(share_of("10"), part(100, 100, 40 * GIB));
    assert_eq!(ask(AwsVgpu, &[(VGPU, "5")], &[]).unwrap().devices, 1);
}

#[test]
fn the_virtual_gpus_of_a_device_fit_on_it() {
    // A memory size that no number of parts divides.
    let device_memory_bytes = 15_109_999_999;
    for vgpus in 1..=48 {
        let node = NodeFacts { aws_vgpus: vgpus, ..NodeFacts::default() };
        let each = ask_of(AwsVgpu, &node, &[(VGPU, "1")], &[]).unwrap().share.on(device_memory_bytes);
        assert_eq!(each.core_request_percent, 100 / vgpus);
        assert!(each.memory_bytes * u64::from(vgpus) <= device_memory_bytes, "{vgpus}");
        let unit = Unit::Part { per_device: vgpus };
        assert_eq!(AwsVgpu.advertised(&node), [Advertised { resource: VGPU, unit }]);
    }
}

#[test]
fn requests_beyond_one_device_are_refused() {
    assert_refused(
        AwsVgpu,
        &[
            (&[(VGPU, "11")], "k8s.amazonaws.com/vgpu is \"11\"; it must be 1 to 10"),
            (&[(VGPU, "-1")], "a whole number"),
            (&[(VGPU, "1"), ("nvidia.com/gpu", "1")], "are of two systems"),
        ],
    );
}
