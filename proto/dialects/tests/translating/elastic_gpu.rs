use aliquot_dialects::Dialect::ElasticGpu;
use aliquot_dialects::{Decided, Memory, Pod, Priority, Refusal, Share};

use crate::asking::{
    GIB, MIB, Pairs, ask, assert_gets, assert_refused, assert_refused_with, both, container, core, memory_only, pod,
};

const COM_CORE: &str = "elasticgpu.com/gpu-core";
const COM_MEMORY: &str = "elasticgpu.com/gpu-memory";
const IO_CORE: &str = "elasticgpu.io/gpu-core";
const IO_MEMORY: &str = "elasticgpu.io/gpu-memory";
const CLAIM_CORE: &str = "gpushare.provisioner.elasticgpu.io/gpu-core";
const CLAIM_MEMORY: &str = "gpushare.provisioner.elasticgpu.io/gpu-memory";

#[test]
fn all_three_spellings_are_understood() {
    assert_gets(
        ElasticGpu,
        &[
            (&[(COM_CORE, "10"), (COM_MEMORY, "4096")], 1, both(core(10, 10), Memory::Bytes(4096 * MIB))),
            (&[(IO_CORE, "10"), (IO_MEMORY, "256")], 1, both(core(10, 10), Memory::Bytes(256_000_000))),
            (&[(CLAIM_CORE, "10"), (CLAIM_MEMORY, "4")], 1, both(core(10, 10), Memory::Bytes(4 * GIB))),
            (&[(IO_CORE, "200")], 2, Share::Whole),
            (&[(IO_CORE, "100"), (IO_MEMORY, "256")], 1, both(core(100, 100), Memory::Bytes(256_000_000))),
            (&[(IO_CORE, "10")], 1, Share::ByCore(core(10, 10))),
            (&[(COM_MEMORY, "1024")], 1, memory_only(Memory::Bytes(GIB))),
        ],
    );
}

#[test]
fn the_decision_of_its_scheduler_is_followed() {
    let decided = |value| ask(ElasticGpu, &[(IO_CORE, "200")], &[("elasticgpu.io/container-main", value)]);
    assert_eq!(decided("0,3").unwrap().constraints.decided, Some(Decided::Indexes(vec![0, 3])));
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    assert_refused(
        ElasticGpu,
        &[
            (&[(IO_CORE, "0"), (IO_MEMORY, "1")], "elasticgpu.io/gpu-core is \"0\"; it must be at least 1"),
            (&[(IO_CORE, "150")], "or a multiple of 100"),
            (&[(IO_CORE, "10"), (COM_MEMORY, "256")], "one container asks in one spelling"),
            (&[(IO_MEMORY, "1"), (COM_MEMORY, "256")], "elasticgpu.com/gpu-memory and elasticgpu.io/gpu-memory cannot"),
            (&[(IO_CORE, "200"), (IO_MEMORY, "256")], "several devices are whole"),
            (&[(IO_MEMORY, "NaN")], "a whole number"),
        ],
    );
    assert_refused_with(
        ElasticGpu,
        &[("elasticgpu.io/container-main", "x")],
        &[(&[(IO_CORE, "10")], "device numbers with commas")],
    );
}

const CLAIMED: Pairs<'_> = &[("aliquot.dev/elastic-gpu", "1")];
const NAMED: (&str, &str) = ("elastic-gpu-claim.aliquot.dev/main", "part");
const BOUND: (&str, &str) = ("aliquot.dev/generation", "1.2");

#[test]
fn a_claim_is_what_the_scheduler_has_decided() {
    let decision = ("aliquot.dev/devices", "main=GPU-1/300/8589934592");
    let wish = ask(ElasticGpu, CLAIMED, &[NAMED, BOUND, decision]).unwrap();
    assert_eq!((wish.devices, wish.share), (1, both(core(30, 30), Memory::Bytes(8 * GIB))));
    assert_eq!(wish.constraints.decided, Some(Decided::Uuids(vec!["GPU-1".into()])));
    let more = [("aliquot.dev/gpu-core-limit", "60"), ("aliquot.dev/priority-class", "batch")];
    let wish = ask(ElasticGpu, CLAIMED, &[&[NAMED, BOUND, decision], &more[..]].concat()).unwrap();
    assert_eq!((wish.share, wish.priority), (both(core(30, 60), Memory::Bytes(8 * GIB)), Some(Priority::Batch)));
}

#[test]
fn a_decision_counts_for_a_claim_only_in_a_bound_pod() {
    let decided = |container| ("aliquot.dev/devices", container);
    for annotations in [
        &[NAMED][..],
        &[NAMED, BOUND],
        // Whoever makes a pod can write this.
        &[NAMED, decided("main=GPU-1/300/1")],
        &[NAMED, BOUND, decided("other=GPU-1/300/1")],
        &[NAMED, BOUND, decided("main=GPU-1/300/1,GPU-2/300/1")],
    ] {
        let refusal = ask(ElasticGpu, CLAIMED, annotations).unwrap_err();
        assert!(matches!(refusal, Refusal::Undecided { .. }), "{annotations:?}: {refusal}");
    }
    for thousandths in ["9", "1010", "4294967295"] {
        let text = format!("main=GPU-1/{thousandths}/1");
        let refusal = ask(ElasticGpu, CLAIMED, &[NAMED, BOUND, ("aliquot.dev/devices", &text)]).unwrap_err();
        assert!(refusal.to_string().contains("10 to 1000 thousandths"), "{refusal}");
    }
}

#[test]
fn a_claim_stands_alone_in_its_container() {
    let refused = |resources: Pairs<'_>, annotations: Pairs<'_>| {
        let pod: Pod = pod(&[container("main", resources)], annotations);
        pod.refused_everywhere(0).map(|refusal| refusal.to_string())
    };
    assert_eq!(refused(CLAIMED, &[NAMED]), None);
    let reason = |resources, annotations| refused(resources, annotations).unwrap();
    assert!(reason(CLAIMED, &[]).contains("has no effect without elastic-gpu-claim.aliquot.dev/"));
    assert!(reason(&[("aliquot.dev/elastic-gpu", "2")], &[NAMED]).contains("a container has one claim"));
    let with_core = [("aliquot.dev/elastic-gpu", "1"), (IO_CORE, "10")];
    assert!(reason(&with_core, &[NAMED]).contains("the claim says how much it is"));
    assert!(reason(&[], &[NAMED]).contains("ask for 1"));
    let left_out = |resources| pod(&[container("main", resources)], &[NAMED]).left_out(0);
    assert_eq!((left_out(&[]), left_out(CLAIMED)), (Some("aliquot.dev/elastic-gpu"), None));
}
