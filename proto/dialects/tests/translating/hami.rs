use aliquot_dialects::Dialect::Hami;
use aliquot_dialects::{Decided, Memory, NodeFacts, Priority, Share, Spoken};

use crate::asking::{
    GIB, MIB, ask, assert_gets, assert_refused, assert_refused_with, both, container, core, memory_only, pairs, part,
    pod, variables,
};

const GPU: &str = "nvidia.com/gpu";
const MEMORY: &str = "nvidia.com/gpumem";
const PERCENTAGE: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";

#[test]
fn the_request_is_for_each_device() {
    assert_gets(
        Hami,
        &[
            (&[(GPU, "2"), (MEMORY, "3000"), (CORES, "30")], 2, both(core(30, 30), Memory::Bytes(3000 * MIB))),
            (&[(GPU, "1"), (PERCENTAGE, "50")], 1, memory_only(Memory::PartsPerMillion(500_000))),
            (&[(GPU, "1"), (CORES, "30")], 1, both(core(30, 30), Memory::ALL)),
            (&[(GPU, "1"), (CORES, "0")], 1, Share::Whole),
            (&[(GPU, "1"), (MEMORY, "3000"), (CORES, "0")], 1, memory_only(Memory::Bytes(3000 * MIB))),
            (&[(GPU, "1")], 1, Share::Whole),
            (&[(GPU, "1"), (CORES, "100"), (MEMORY, "1k")], 1, both(core(100, 100), Memory::Bytes(1000 * MIB))),
        ],
    );
    let wish = ask(Hami, &[(GPU, "1"), (PERCENTAGE, "33")], &[]).unwrap();
    assert_eq!(wish.share.on(100 * GIB), part(33, 100, 33 * GIB));
}

#[test]
fn programs_read_their_limits() {
    let wish = ask(Hami, &[(GPU, "2"), (MEMORY, "3000"), (CORES, "30"), ("nvidia.com/priority", "0")], &[]).unwrap();
    assert_eq!(wish.priority, Some(Priority::LatencyCritical));
    assert_eq!(
        pairs(&variables(&wish, &[0, 1])),
        [
            ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "3000m"),
            ("CUDA_DEVICE_SM_LIMIT", "30"),
            ("CUDA_TASK_PRIORITY", "0"),
        ]
    );
    let unlimited = ask(Hami, &[(GPU, "1")], &[]).unwrap();
    assert_eq!(
        pairs(&variables(&unlimited, &[0])),
        [("CUDA_DEVICE_MEMORY_LIMIT_0", "16384m"), ("CUDA_DEVICE_SM_LIMIT", "0")]
    );
}

#[test]
fn annotations_restrict_the_devices() {
    let wish = ask(
        Hami,
        &[(GPU, "1")],
        &[
            ("nvidia.com/use-gputype", "A100, H100,"),
            ("nvidia.com/nouse-gputype", "PCIe"),
            ("nvidia.com/use-gpuuuid", "GPU-1"),
            ("nvidia.com/nouse-gpuuuid", "GPU-2"),
            ("nvidia.com/numa-bind", "true"),
        ],
    )
    .unwrap();
    let found = wish.constraints;
    assert_eq!((found.models, found.not_models), (vec!["A100".into(), "H100".into()], vec!["PCIe".into()]));
    assert_eq!((found.uuids, found.not_uuids), (vec!["GPU-1".into()], vec!["GPU-2".into()]));
    assert!(found.one_numa_node);
}

#[test]
fn the_decision_of_its_extender_is_followed() {
    let decided = "GPU-1,NVIDIA,3000,30:;GPU-2,NVIDIA,3000,30:GPU-3,NVIDIA,3000,30:;";
    let containers = [container("a", &[(GPU, "1")]), container("b", &[(GPU, "2")]), container("c", &[(GPU, "1")])];
    let pod = pod(&containers, &[("hami.io/vgpu-devices-allocated", decided)]);
    let spoken = Spoken::new([Hami]).unwrap();
    let of = |index| spoken.translate(&pod, index, &NodeFacts::default()).unwrap().unwrap().constraints.decided;
    assert_eq!(of(0), Some(Decided::Uuids(vec!["GPU-1".into()])));
    assert_eq!(of(1), Some(Decided::Uuids(vec!["GPU-2".into(), "GPU-3".into()])));
    assert_eq!(of(2), None);
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    assert_refused(
        Hami,
        &[
            (&[(GPU, "0"), (MEMORY, "1")], "nvidia.com/gpu is \"0\"; it must be at least 1"),
            (&[(GPU, "1"), (MEMORY, "0")], "nvidia.com/gpumem is \"0\""),
            (&[(GPU, "1"), (CORES, "101")], "1 to 100"),
            (&[(GPU, "1"), (PERCENTAGE, "101")], "1 to 100"),
            (&[(GPU, "1"), (MEMORY, "1"), (PERCENTAGE, "1")], "say it in MiB or in percent"),
            (&[(GPU, "1"), ("nvidia.com/priority", "2")], "0 for high or 1 for low"),
            (&[(GPU, "NaN")], "a whole number"),
            (&[(MEMORY, "3000")], "nvidia.com/gpumem has no effect without nvidia.com/gpu; add the number of devices"),
            (&[(MEMORY, "3000"), (CORES, "0")], "nvidia.com/gpumem has no effect without nvidia.com/gpu"),
            (&[(GPU, "0"), (MEMORY, "1"), ("nvidia.com/priority", "0")], "nvidia.com/gpu is \"0\""),
        ],
    );
    for (annotation, words) in [
        (("nvidia.com/vgpu-mode", "mig"), "hami-core, or left out"),
        (("nvidia.com/numa-bind", "yes"), "true or false"),
        (("hami.io/vgpu-devices-allocated", "GPU-1"), "as its scheduler writes it"),
        (("hami.io/vgpu-devices-allocated", ",NVIDIA,1,1:;"), "as its scheduler writes it"),
    ] {
        assert_refused_with(Hami, &[annotation], &[(&[(GPU, "1")], words)]);
    }
}
