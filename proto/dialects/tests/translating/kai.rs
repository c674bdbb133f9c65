use aliquot_dialects::Dialect::Kai;
use aliquot_dialects::{Memory, NodeFacts, Spoken};

use crate::asking::{GIB, MIB, Pairs, ask, assert_refused_with, container, memory_only, pairs, part, pod, variables};

#[test]
fn fractions_and_memory_are_of_each_device() {
    let table: [(Pairs<'_>, u32, Memory); 5] = [
        (&[("gpu-fraction", "0.5")], 1, Memory::PartsPerMillion(500_000)),
        (&[("gpu-fraction", "0.333333333")], 1, Memory::PartsPerMillion(333_333)),
        (&[("gpu-fraction", "5e-2")], 1, Memory::PartsPerMillion(50_000)),
        (&[("gpu-fraction", ".25"), ("gpu-fraction-num-devices", "2")], 2, Memory::PartsPerMillion(250_000)),
        (&[("gpu-memory", "2000")], 1, Memory::Bytes(2000 * MIB)),
    ];
    for (annotations, devices, memory) in table {
        let wish = ask(Kai, &[], annotations).unwrap();
        assert_eq!((wish.devices, wish.share), (devices, memory_only(memory)), "{annotations:?}");
    }
    let half = ask(Kai, &[], &[("gpu-fraction", "0.5")]).unwrap();
    assert_eq!(half.share.on(16 * GIB), part(50, 100, 8 * GIB));
}

#[test]
fn containers_have_annotations_of_their_own() {
    let (request, limit) =
        ("nvidia.com/container.main.gpu-memory.request", "nvidia.com/container.main.gpu-memory.limit");
    let mode = "nvidia.com/container.main.gpu-compute.mode";
    let table: [(Pairs<'_>, u64); 4] = [
        (&[(request, "2048Mi")], 2 * GIB),
        (&[(limit, "1024M")], 1_024_000_000),
        (&[(request, "2048Mi"), (limit, "4Gi")], 4 * GIB),
        (&[(limit, "4Gi"), (mode, "time-slicing")], 4 * GIB),
    ];
    for (annotations, bytes) in table {
        let wish = ask(Kai, &[], annotations).unwrap();
        assert_eq!((wish.devices, wish.share), (1, memory_only(Memory::Bytes(bytes))), "{annotations:?}");
    }
    let refused: [(Pairs<'_>, &str); 7] = [
        (&[(request, "2 GB")], "gpu-memory.request is \"2 GB\"; it must be a whole number"),
        (&[(limit, "0")], "gpu-memory.limit is \"0\"; it must be at least 1"),
        (&[(request, "4Gi"), (limit, "2Gi")], "at least what is requested, which is 4294967296 bytes"),
        (
            &[(limit, "2Gi"), ("gpu-fraction", "0.5")],
            "main.gpu-memory.limit and gpu-fraction cannot be asked for together",
        ),
        (&[(request, "2Gi"), ("gpu-memory", "2048")], "main.gpu-memory.request and gpu-memory cannot be asked for"),
        (&[(limit, "2Gi"), ("gpu-fraction-num-devices", "2")], "annotations of the pod or in those of its containers"),
        (&[(limit, "2Gi"), (mode, "sm-sharing")], "this node shares its devices itself"),
    ];
    for (annotations, words) in refused {
        assert_refused_with(Kai, annotations, &[(&[], words)]);
    }
    // Annotations for another container ask for nothing.
    let pod = pod(&[container("main", &[])], &[("nvidia.com/container.other.gpu-memory.limit", "4Gi")]);
    assert_eq!(Spoken::new([Kai]).unwrap().translate(&pod, 0, &NodeFacts::default()), Ok(None));
}

#[test]
fn programs_read_their_portion() {
    let wish = ask(Kai, &[], &[("gpu-fraction", "0.50")]).unwrap();
    assert_eq!(pairs(&variables(&wish, &[0])), [("GPU_PORTION", "0.50"), ("RUNAI_NUM_OF_GPUS", "0.50")]);
    let wish = ask(Kai, &[], &[("gpu-memory", "4096")]).unwrap();
    assert_eq!(pairs(&variables(&wish, &[0])), [("GPU_PORTION", "0.25"), ("RUNAI_NUM_OF_GPUS", "0.25")]);
}

#[test]
fn only_the_named_container_asks() {
    let containers = [container("a", &[]), container("b", &[])];
    let spoken = Spoken::new([Kai]).unwrap();
    let askers = |annotations: Pairs<'_>| {
        let pod = pod(&containers, annotations);
        [0, 1].map(|index| spoken.translate(&pod, index, &NodeFacts::default()).unwrap().is_some())
    };
    assert_eq!(askers(&[("gpu-fraction", "0.5")]), [true, false]);
    assert_eq!(askers(&[("gpu-fraction", "0.5"), ("gpu-fraction-container-name", "b")]), [false, true]);
    assert_eq!(askers(&[]), [false, false]);
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    for fraction in ["0", "1", "1.0", "1.5", "NaN", "inf", "-0.5", "0.5x", "", "0.009", "0x1p-1", "1e-30", "half"] {
        let words = format!("gpu-fraction is {fraction:?}; it must be a decimal number from 0.01");
        assert_refused_with(Kai, &[("gpu-fraction", fraction)], &[(&[], &words)]);
    }
    let table: [(Pairs<'_>, Pairs<'_>, &str); 6] = [
        (&[("gpu-memory", "0")], &[], "gpu-memory is \"0\"; it must be a whole number from 1"),
        (&[("gpu-memory", "4Gi")], &[], "a whole number from 1"),
        (&[("gpu-fraction", "0.5"), ("gpu-memory", "10")], &[], "cannot be asked for together"),
        (&[("gpu-fraction-num-devices", "2")], &[], "has no effect without gpu-fraction"),
        (&[("gpu-fraction", "0.5"), ("gpu-fraction-num-devices", "0")], &[], "a whole number from 1"),
        (&[("gpu-fraction", "0.5")], &[("nvidia.com/gpu", "1")], "are of two systems"),
    ];
    for (annotations, resources, words) in table {
        assert_refused_with(Kai, annotations, &[(resources, words)]);
    }
}
