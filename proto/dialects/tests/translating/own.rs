use aliquot_dialects::Dialect::Own;
use aliquot_dialects::{Advertised, Memory, NodeFacts, Priority, Share, Unit};

use crate::asking::{GIB, MIB, Pairs, ask, ask_of, assert_gets, assert_refused, assert_refused_with, both, core, part};

#[test]
fn time_alone_has_the_memory_that_the_node_keeps_for_it() {
    let on = |core_memory_percent, resources| {
        let node = NodeFacts { core_memory_percent, ..NodeFacts::default() };
        ask_of(Own, &node, resources, &[])
    };
    let bytes = |core_memory_percent, resources| {
        let wish = on(core_memory_percent, resources).unwrap();
        (wish.devices, wish.share.on(16 * GIB).memory_bytes)
    };
    let half: Pairs<'_> = &[("aliquot.dev/gpu-core", "50")];
    assert_eq!(
        [None, Some(100), Some(50), Some(25)].map(|kept| bytes(kept, half).1),
        [8, 8, 4, 2].map(|gib| gib * GIB)
    );
    let refusal = on(Some(0), half).unwrap_err().to_string();
    assert!(refusal.contains("aliquot.dev/gpu-core has no effect without aliquot.dev/gpu-memory"), "{refusal}");
    // A container that names memory gets that amount, and whole devices come with all their memory.
    assert_eq!(bytes(Some(0), &[("aliquot.dev/gpu-core", "50"), ("aliquot.dev/gpu-memory", "4")]), (1, GIB));
    assert_eq!(bytes(Some(50), &[("aliquot.dev/gpu-core", "200")]), (2, 16 * GIB));
}

#[test]
fn core_and_memory_are_given_as_they_are_asked_for() {
    assert_gets(
        Own,
        &[
            (
                &[("aliquot.dev/gpu-core", "30"), ("aliquot.dev/gpu-memory", "16")],
                1,
                both(core(30, 30), Memory::Bytes(4 * GIB)),
            ),
            (
                &[("aliquot.dev/gpu-core", "100"), ("aliquot.dev/gpu-memory", "1")],
                1,
                both(core(100, 100), Memory::Bytes(256 * MIB)),
            ),
            (&[("aliquot.dev/gpu-core", "30")], 1, Share::ByCore(core(30, 30))),
            (
                &[("aliquot.dev/gpu-memory", "1k")],
                1,
                Share::ByMemory { memory: Memory::Bytes(250 * GIB), core_limit_percent: None },
            ),
            (&[("aliquot.dev/gpu-core", "100")], 1, Share::Whole),
            (&[("aliquot.dev/gpu-core", "300")], 3, Share::Whole),
        ],
    );
}

#[test]
fn whole_devices_are_for_nodes_that_offer_them() {
    let on = |whole_devices| {
        let node = NodeFacts { whole_devices, ..NodeFacts::default() };
        ask_of(Own, &node, &[("aliquot.dev/gpu", "2")], &[]).map(|wish| (wish.devices, wish.share))
    };
    assert_eq!(on(true), Ok((2, Share::Whole)));
    let refusal = on(false).unwrap_err().to_string();
    assert_eq!(
        refusal,
        "aliquot.dev/gpu is not among the resources of this node; set whole_devices = true in its configuration, or ask \
         for 100 aliquot.dev/gpu-core"
    );
}

#[test]
fn memory_alone_brings_the_same_part_of_the_time_and_no_more() {
    let wish = ask(Own, &[("aliquot.dev/gpu-memory", "16")], &[]).unwrap();
    assert_eq!(wish.share.on(16 * GIB), part(25, 25, 4 * GIB));
}

#[test]
fn the_unit_of_memory_is_the_nodes() {
    let node = NodeFacts { memory_unit_bytes: GIB, whole_devices: true, ..NodeFacts::default() };
    let wish = ask_of(Own, &node, &[("aliquot.dev/gpu-memory", "16")], &[]).unwrap();
    assert_eq!(wish.share.on(16 * GIB).memory_bytes, 16 * GIB);
    assert_eq!(
        Own.advertised(&node),
        [
            Advertised { resource: "aliquot.dev/gpu-core", unit: Unit::CorePercent },
            Advertised { resource: "aliquot.dev/gpu-memory", unit: Unit::MemoryBytes(GIB) },
            Advertised { resource: "aliquot.dev/gpu", unit: Unit::Device },
        ]
    );
}

#[test]
fn annotations_set_the_limit_and_the_priority() {
    let annotations = [("aliquot.dev/gpu-core-limit", "80"), ("aliquot.dev/priority-class", "batch")];
    let wish = ask(Own, &[("aliquot.dev/gpu-core", "30")], &annotations).unwrap();
    assert_eq!((wish.share, wish.priority), (Share::ByCore(core(30, 80)), Some(Priority::Batch)));
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    assert_refused(
        Own,
        &[
            (&[("aliquot.dev/gpu-core", "0")], "aliquot.dev/gpu-core is \"0\"; it must be at least 1"),
            (&[("aliquot.dev/gpu-core", "NaN")], "\"NaN\"; it must be a whole number"),
            (&[("aliquot.dev/gpu-core", "1.5")], "it must be a whole number"),
            (&[("aliquot.dev/gpu-core", "-3")], "it must be a whole number"),
            (&[("aliquot.dev/gpu-core", "150")], "or a multiple of 100 for several whole devices"),
            (&[("aliquot.dev/gpu-core", "16E")], "1 to 6553500"),
            (&[("aliquot.dev/gpu-memory", "15E")], "a number of units of 268435456 bytes"),
            (&[("aliquot.dev/gpu-core", "200"), ("aliquot.dev/gpu-memory", "4")], "are for a ResourceClaim"),
            (&[("aliquot.dev/gpu", "1"), ("aliquot.dev/gpu-memory", "4")], "ask for whole devices or for parts"),
            (&[("aliquot.dev/gpu", "0")], "at least 1"),
        ],
    );
    let core: &[_] = &[("aliquot.dev/gpu-core", "30")];
    for (annotation, words) in [
        (("aliquot.dev/gpu-core-limit", "20"), "at least aliquot.dev/gpu-core, which is 30"),
        (("aliquot.dev/gpu-core-limit", "101"), "a whole number from 1 to 100"),
        (("aliquot.dev/priority-class", "high"), "latency-critical, standard or batch"),
    ] {
        assert_refused_with(Own, &[annotation], &[(core, words)]);
    }
}
