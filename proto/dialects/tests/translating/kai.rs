use aliquot_dialects::Dialect::Kai;
use aliquot_dialects::{Decided, Memory, NodeFacts, Refusal, Spoken};

use crate::asking::{
    GIB, MIB, Pairs, ask, assert_refused_with, both, container, core, memory_only, pairs, part, pod, variables,
};

/// What Aliquot's webhook fills in.
const ONE: Pairs = &[("aliquot.dev/kai-gpu", "1")];

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
        let wish = ask(Kai, ONE, annotations).unwrap();
        assert_eq!((wish.devices, wish.share), (devices, memory_only(memory)), "{annotations:?}");
    }
    // What run:ai would lend is given.
    let dynamic = ask(Kai, ONE, &[("gpu-fraction", "0.25"), ("gpu-fraction-limit", "0.8")]).unwrap();
    assert_eq!(dynamic.share.on(10 * GIB), part(80, 100, 8 * GIB));
    let half = ask(Kai, ONE, &[("gpu-fraction", "0.5")]).unwrap();
    assert_eq!(half.share.on(16 * GIB), part(50, 100, 8 * GIB));
}

#[test]
fn containers_have_annotations_of_their_own() {
    let (request, limit) =
        ("nvidia.com/container.main.gpu-memory.request", "nvidia.com/container.main.gpu-memory.limit");
    let mode = "nvidia.com/container.main.gpu-compute.mode";
    let table: [(Pairs<'_>, u64); 5] = [
        (&[(request, "2048Mi")], 2 * GIB),
        (&[(request, "1.1Gi")], 1_181_116_006),
        (&[(limit, "1024M")], 1_024_000_000),
        (&[(request, "2048Mi"), (limit, "4Gi")], 4 * GIB),
        (&[(limit, "4Gi"), (mode, "time-slicing")], 4 * GIB),
    ];
    for (annotations, bytes) in table {
        let wish = ask(Kai, ONE, annotations).unwrap();
        assert_eq!((wish.devices, wish.share), (1, memory_only(Memory::Bytes(bytes))), "{annotations:?}");
    }
    let refused: [(Pairs<'_>, &str); 7] = [
        (&[(request, "2 GB")], "gpu-memory.request is \"2 GB\"; it must be an amount of memory"),
        (&[(limit, "0")], "gpu-memory.limit is \"0\"; it must be an amount of memory, at least one byte"),
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
        assert_refused_with(Kai, annotations, &[(ONE, words)]);
    }
    // Annotations for another container ask for nothing.
    let pod = pod(&[container("main", &[])], &[("nvidia.com/container.other.gpu-memory.limit", "4Gi")]);
    assert_eq!(Spoken::new([Kai]).unwrap().translate(&pod, 0, &NodeFacts::default()), Ok(None));
}

#[test]
fn programs_read_their_portion() {
    let wish = ask(Kai, ONE, &[("gpu-fraction", "0.50")]).unwrap();
    assert_eq!(pairs(&variables(&wish, &[0])), [("GPU_PORTION", "0.50"), ("RUNAI_NUM_OF_GPUS", "0.50")]);
    let wish = ask(Kai, ONE, &[("gpu-memory", "4096")]).unwrap();
    assert_eq!(pairs(&variables(&wish, &[0])), [("GPU_PORTION", "0.25"), ("RUNAI_NUM_OF_GPUS", "0.25")]);
}

#[test]
fn only_the_named_container_asks() {
    let spoken = Spoken::new([Kai]).unwrap();
    let asked = |resources: [Pairs<'_>; 2], annotations: Pairs<'_>| {
        let pod = pod(&[container("a", resources[0]), container("b", resources[1])], annotations);
        [0, 1].map(|index| match spoken.translate(&pod, index, &NodeFacts::default()) {
            Ok(wish) => Ok(wish.is_some()),
            Err(refusal) => Err(refusal.to_string()),
        })
    };
    let half = ("gpu-fraction", "0.5");
    let of = |name| [half, ("gpu-fraction-container-name", name)];
    assert_eq!(asked([ONE, &[]], &[half]), [Ok(true), Ok(false)]);
    assert_eq!(asked([&[], ONE], &of("b")), [Ok(false), Ok(true)]);
    assert_eq!(asked([&[], &[]], &[]), [Ok(false), Ok(false)]);
    let [first, second] = asked([ONE, &[]], &of("c"));
    assert!(first.unwrap_err().contains("container-name is \"c\"; it must be the name of a container of the pod"));
    assert_eq!(second, Ok(false));
    // The annotations are for the other container.
    let [_, second] = asked([ONE, ONE], &[half]);
    assert!(second.unwrap_err().contains("aliquot.dev/kai-gpu has no effect without gpu-fraction"));
}

#[test]
fn kubelet_must_know_that_the_container_asks() {
    let limit = "nvidia.com/container.main.gpu-memory.limit";
    for (annotation, key) in [(("gpu-fraction", "0.5"), "gpu-fraction"), ((limit, "2Gi"), "nvidia.com/container.main")]
    {
        let words = format!("{key} has no effect without aliquot.dev/kai-gpu; kubelet reads no annotation");
        assert_refused_with(Kai, &[annotation], &[(&[], &words)]);
        let left_out = |resources| pod(&[container("main", resources)], &[annotation]).left_out(0);
        assert_eq!((left_out(&[]), left_out(ONE)), (Some("aliquot.dev/kai-gpu"), None));
        // It is said which two systems these are.
        assert_eq!(left_out(&[("nvidia.com/gpu", "1")]), None);
        assert_refused_with(Kai, &[annotation], &[(&[("aliquot.dev/kai-gpu", "2")], "it must be 1: the annotations")]);
    }
    assert_refused_with(Kai, &[], &[(ONE, "the annotations of the pod say how much")]);
}

#[test]
fn a_bound_pod_has_what_was_decided_whatever_annotations_say() {
    let bound = ("aliquot.dev/generation", "1.2");
    let more = ("gpu-fraction", "0.9");
    let decided = |text| ("aliquot.dev/devices", text);
    let parts = decided("main=GPU-1/250/4294967296,GPU-2/250/4294967296");
    let wish = ask(Kai, ONE, &[more, bound, parts]).unwrap();
    assert_eq!((wish.devices, wish.share), (2, both(core(25, 100), Memory::Bytes(4 * GIB))));
    assert_eq!(wish.constraints.decided, Some(Decided::Uuids(vec!["GPU-1".into(), "GPU-2".into()])));
    // Whoever makes a pod can write a decision about devices, but no amounts.
    let wish = ask(Kai, ONE, &[("gpu-fraction", "0.5"), decided("main=GPU-1/900/1")]).unwrap();
    assert_eq!((wish.devices, wish.share), (1, memory_only(Memory::PartsPerMillion(500_000))));
    for annotations in [&[more, bound][..], &[more, bound, decided("other=GPU-1/300/1")]] {
        let refusal = ask(Kai, ONE, annotations).unwrap_err();
        assert!(matches!(refusal, Refusal::Undecided { .. }), "{annotations:?}: {refusal}");
    }
    assert_refused_with(Kai, &[more, bound, decided("main=GPU-1/9/1")], &[(ONE, "10 to 1000 thousandths")]);
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    for fraction in ["0", "1", "1.0", "1.5", "NaN", "inf", "-0.5", "0.5x", "", "0.009", "0x1p-1", "1e-30", "half"] {
        let words = format!("gpu-fraction is {fraction:?}; it must be a decimal number from 0.01");
        assert_refused_with(Kai, &[("gpu-fraction", fraction)], &[(ONE, &words)]);
    }
    for limit in ["0.4", "1.1", "0", "NaN", "4Gi"] {
        let words = format!("gpu-fraction-limit is {limit:?}; it must be a decimal number from gpu-fraction to 1");
        assert_refused_with(Kai, &[("gpu-fraction", "0.5"), ("gpu-fraction-limit", limit)], &[(ONE, &words)]);
    }
    let table: [(Pairs<'_>, Pairs<'_>, &str); 8] = [
        (&[("gpu-fraction-limit", "0.8")], ONE, "gpu-fraction-limit has no effect without gpu-fraction"),
        (&[("gpu-memory", "1024"), ("gpu-fraction-limit", "0.8")], ONE, "gpu-fraction-limit and gpu-memory cannot"),
        (&[("gpu-memory", "0")], ONE, "gpu-memory is \"0\"; it must be a whole number from 1"),
        (&[("gpu-memory", "4Gi")], ONE, "a whole number from 1"),
        (&[("gpu-fraction", "0.5"), ("gpu-memory", "10")], ONE, "cannot be asked for together"),
        (&[("gpu-fraction-num-devices", "2")], ONE, "has no effect without gpu-fraction"),
        (&[("gpu-fraction", "0.5"), ("gpu-fraction-num-devices", "0")], ONE, "a whole number from 1"),
        (&[("gpu-fraction", "0.5")], &[("nvidia.com/gpu", "1")], "are of two systems"),
    ];
    for (annotations, resources, words) in table {
        assert_refused_with(Kai, annotations, &[(resources, words)]);
    } // Nor does another container ask for whole devices.
    let pod = |annotation| pod(&[container("a", ONE), container("b", &[("nvidia.com/gpu", "1")])], &[annotation]);
    for annotation in [("gpu-fraction", "0.5"), ("gpu-memory", "1024")] {
        let refusal = Spoken::new([Kai]).unwrap().translate(&pod(annotation), 0, &NodeFacts::default()).unwrap_err();
        let words = format!("{} and nvidia.com/gpu cannot be asked for together", annotation.0);
        assert!(refusal.to_string().starts_with(&words), "{refusal}");
    }
}
