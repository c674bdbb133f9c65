use aliquot_dialects::Dialect::GpuShare;
use aliquot_dialects::{Decided, Memory, NodeFacts, Spoken};

use crate::asking::{
    GIB, MIB, ask, ask_of, assert_gets, assert_refused, container, memory_only, pairs, part, pod, variables,
};

const MEMORY: &str = "aliyun.com/gpu-mem";

#[test]
fn memory_is_counted_in_the_nodes_unit() {
    assert_gets(GpuShare, &[(&[(MEMORY, "3")], 1, memory_only(Memory::Bytes(3 * GIB)))]);
    let node = NodeFacts { gpushare_unit_bytes: MIB, ..NodeFacts::default() };
    let wish = ask_of(GpuShare, &node, &[(MEMORY, "3000")], &[]).unwrap();
    assert_eq!(wish.share.on(16 * GIB), part(18, 100, 3000 * MIB));
}

#[test]
fn programs_read_how_much_of_which_device_they_have() {
    let containers = [container("a", &[(MEMORY, "1")]), container("b", &[(MEMORY, "2")]), container("c", &[])];
    let pod = pod(&containers, &[]);
    let wish = Spoken::new([GpuShare]).unwrap().translate(&pod, 1, &NodeFacts::default()).unwrap().unwrap();
    assert_eq!(
        pairs(&variables(&wish, &[3])),
        [
            ("ALIYUN_COM_GPU_MEM_IDX", "3"),
            ("ALIYUN_COM_GPU_MEM_CONTAINER", "2"),
            ("ALIYUN_COM_GPU_MEM_DEV", "16"),
            ("ALIYUN_COM_GPU_MEM_POD", "3"),
        ]
    );
}

#[test]
fn the_decision_of_its_extender_is_followed() {
    for (index, decided) in [("1", Some(Decided::Indexes(vec![1]))), ("-1", None)] {
        let wish = ask(GpuShare, &[(MEMORY, "3")], &[("ALIYUN_COM_GPU_MEM_IDX", index)]).unwrap();
        assert_eq!(wish.constraints.decided, decided);
    }
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    assert_refused(
        GpuShare,
        &[
            (&[(MEMORY, "-1")], "aliyun.com/gpu-mem is \"-1\"; it must be a whole number"),
            (&[(MEMORY, "NaN")], "a whole number"),
            (&[(MEMORY, "0.5")], "a whole number"),
            (&[(MEMORY, "15E")], "a number of units of 1073741824 bytes"),
            (
                &[(MEMORY, "3"), ("aliyun.com/gpu-core.percentage", "10")],
                "aliyun.com/gpu-core.percentage is a request in the dialect of cGPU",
            ),
        ],
    );
}
