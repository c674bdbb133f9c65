use aliquot_dialects::Dialect::GpuManager;
use aliquot_dialects::{Decided, Memory, Share};

use crate::asking::{GIB, ask, assert_gets, assert_refused, assert_refused_with, both, core};

const CORE: &str = "tencent.com/vcuda-core";
const MEMORY: &str = "tencent.com/vcuda-memory";

#[test]
fn parts_have_memory_and_whole_devices_need_none() {
    assert_gets(
        GpuManager,
        &[
            (&[(CORE, "50"), (MEMORY, "30")], 1, both(core(50, 50), Memory::Bytes(30 * GIB / 4))),
            (&[(CORE, "1"), (MEMORY, "1")], 1, both(core(1, 1), Memory::Bytes(GIB / 4))),
            (&[(CORE, "100")], 1, Share::Whole),
            (&[(CORE, "200")], 2, Share::Whole),
            (&[(CORE, "100"), (MEMORY, "4")], 1, Share::Whole),
        ],
    );
}

#[test]
fn the_soft_limit_bounds_a_part() {
    let wish = ask(GpuManager, &[(CORE, "20"), (MEMORY, "4")], &[("tencent.com/vcuda-core-limit", "60")]).unwrap();
    assert_eq!(wish.share, both(core(20, 60), Memory::Bytes(GIB)));
}

#[test]
fn the_soft_limit_says_nothing_about_whole_devices() {
    for limit in ["200", "50", "x"] {
        let wish = ask(GpuManager, &[(CORE, "200")], &[("tencent.com/vcuda-core-limit", limit)]).unwrap();
        assert_eq!((wish.devices, wish.share), (2, Share::Whole), "{limit}");
    }
}

#[test]
fn the_decision_of_gpu_admission_is_followed() {
    let decided = |index| ask(GpuManager, &[(CORE, "200")], &[(index, "2,3")]).unwrap().constraints.decided;
    assert_eq!(decided("tencent.com/predicate-gpu-idx-0"), Some(Decided::Indexes(vec![2, 3])));
    assert_eq!(decided("tencent.com/predicate-gpu-idx-1"), None);
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    assert_refused(
        GpuManager,
        &[
            (&[(CORE, "0"), (MEMORY, "1")], "at least 1; leave it out where none is needed"),
            (&[(CORE, "20"), (MEMORY, "0")], "tencent.com/vcuda-memory is \"0\""),
            (&[(CORE, "20")], "has no effect without tencent.com/vcuda-memory"),
            (&[(MEMORY, "20")], "has no effect without tencent.com/vcuda-core"),
            (&[(CORE, "120"), (MEMORY, "20")], "at most 100, or a multiple of 100"),
            (&[(CORE, "NaN"), (MEMORY, "20")], "a whole number"),
        ],
    );
    let part: &[_] = &[(CORE, "20"), (MEMORY, "4")];
    for (annotation, words) in [
        (("tencent.com/vcuda-core-limit", "10"), "at least tencent.com/vcuda-core, which is 20"),
        (("tencent.com/vcuda-core-limit", "NaN"), "a whole number from 1 to 100"),
        (("tencent.com/predicate-gpu-idx-0", "-1"), "device numbers with commas"),
    ] {
        assert_refused_with(GpuManager, &[annotation], &[(part, words)]);
    }
}
