use aliquot_dialects::Dialect::ElasticGpu;
use aliquot_dialects::{Decided, Memory, Share};

use crate::asking::{GIB, MIB, ask, assert_gets, assert_refused, assert_refused_with, both, core, memory_only};

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
            (&[(IO_CORE, "0")], "elasticgpu.io/gpu-core is \"0\"; it must be at least 1"),
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
