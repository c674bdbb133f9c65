use aliquot_dialects::Dialect::Volcano;
use aliquot_dialects::{Decided, Memory, Share};

use crate::asking::{
    MIB, ask, assert_gets, assert_refused, assert_refused_with, both, core, memory_only, pairs, variables,
};

const NUMBER: &str = "volcano.sh/vgpu-number";
const MEMORY: &str = "volcano.sh/vgpu-memory";
const PERCENTAGE: &str = "volcano.sh/vgpu-memory-percentage";
const CORES: &str = "volcano.sh/vgpu-cores";
const OLD_MEMORY: &str = "volcano.sh/gpu-memory";
const OLD_NUMBER: &str = "volcano.sh/gpu-number";

#[test]
fn the_request_is_for_each_device() {
    assert_gets(
        Volcano,
        &[
            (&[(NUMBER, "2"), (MEMORY, "1024"), (CORES, "25")], 2, both(core(25, 25), Memory::Bytes(1024 * MIB))),
            (&[(NUMBER, "1"), (PERCENTAGE, "10")], 1, memory_only(Memory::PartsPerMillion(100_000))),
            (&[(NUMBER, "1")], 1, Share::Whole),
            (&[(NUMBER, "1"), (CORES, "0")], 1, Share::Whole),
            (&[(OLD_MEMORY, "1024")], 1, memory_only(Memory::Bytes(1024 * MIB))),
            (&[(OLD_NUMBER, "2")], 2, Share::Whole),
        ],
    );
}

#[test]
fn programs_read_their_limits() {
    let wish = ask(Volcano, &[(NUMBER, "1"), (MEMORY, "1024"), (CORES, "25")], &[]).unwrap();
    assert_eq!(
        pairs(&variables(&wish, &[0])),
        [("CUDA_DEVICE_MEMORY_LIMIT_0", "1024m"), ("CUDA_DEVICE_SM_LIMIT", "25")]
    );
    let older = ask(Volcano, &[(OLD_MEMORY, "1024")], &[]).unwrap();
    assert_eq!(
        pairs(&variables(&older, &[0])),
        [("VOLCANO_GPU_MEMORY_TOTAL", "16384"), ("VOLCANO_GPU_ALLOCATED", "1024")]
    );
    let whole = ask(Volcano, &[(OLD_NUMBER, "2")], &[]).unwrap();
    assert_eq!(pairs(&variables(&whole, &[0, 1])), [("VOLCANO_GPU_ALLOCATED", "2")]);
}

#[test]
fn the_decision_of_volcano_is_followed() {
    let decided = |resource, key, value| ask(Volcano, &[(resource, "1")], &[(key, value)]).unwrap().constraints.decided;
    let uuids = decided(NUMBER, "volcano.sh/vgpu-ids-new", "GPU-1,NVIDIA,1126,0:;");
    assert_eq!(uuids, Some(Decided::Uuids(vec!["GPU-1".into()])));
    assert_eq!(decided(OLD_NUMBER, "volcano.sh/gpu-index", "1"), Some(Decided::Indexes(vec![1])));
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    assert_refused(
        Volcano,
        &[
            (&[(NUMBER, "0"), (MEMORY, "10")], "volcano.sh/vgpu-number is \"0\"; it must be at least 1"),
            (&[(MEMORY, "10")], "volcano.sh/vgpu-memory has no effect without volcano.sh/vgpu-number"),
            (&[(CORES, "10")], "volcano.sh/vgpu-cores has no effect without volcano.sh/vgpu-number"),
            (&[(NUMBER, "1"), (MEMORY, "0")], "volcano.sh/vgpu-memory is \"0\""),
            (&[(NUMBER, "1"), (CORES, "200")], "1 to 100"),
            (&[(NUMBER, "1"), (MEMORY, "1"), (PERCENTAGE, "1")], "say it in MiB or in percent"),
            (&[(NUMBER, "1"), (OLD_MEMORY, "1")], "or in the older ones"),
            (&[(OLD_NUMBER, "1"), (OLD_MEMORY, "1")], "a part of a device or for whole ones"),
            (&[(OLD_MEMORY, "NaN")], "a whole number"),
        ],
    );
    assert_refused_with(Volcano, &[("volcano.sh/vgpu-mode", "mps")], &[(&[(NUMBER, "1")], "hami-core, or left out")]);
}
