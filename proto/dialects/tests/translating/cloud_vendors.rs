//! cGPU and qGPU, which belong to public clouds.

use aliquot_dialects::Dialect::{Cgpu, Qgpu};
use aliquot_dialects::{Memory, NodeFacts, Priority, QgpuPolicy, Share, Spoken};

use crate::asking::{
    GIB, Pairs, ask, ask_of, assert_gets, assert_refused, assert_refused_with, both, container, core, memory_only,
    pairs, pod, variables,
};

const CGPU_MEMORY: &str = "aliyun.com/gpu-mem";
const CGPU_CORE: &str = "aliyun.com/gpu-core.percentage";
const QGPU_CORE: &str = "tke.cloud.tencent.com/qgpu-core";
const QGPU_MEMORY: &str = "tke.cloud.tencent.com/qgpu-memory";
const QGPU_GREEDY: &str = "tke.cloud.tencent.com/qgpu-core-greedy";
const APP_CLASS: &str = "tke.cloud.tencent.com/app-class";

#[test]
fn cgpu_limits_memory_and_time_where_it_is_said() {
    assert_gets(
        Cgpu,
        &[
            (&[(CGPU_MEMORY, "4"), (CGPU_CORE, "30")], 1, both(core(30, 30), Memory::Bytes(4 * GIB))),
            (&[(CGPU_MEMORY, "4"), (CGPU_CORE, "5")], 1, both(core(5, 5), Memory::Bytes(4 * GIB))),
            (&[(CGPU_MEMORY, "4")], 1, memory_only(Memory::Bytes(4 * GIB))),
        ],
    );
}

#[test]
fn cgpu_divides_memory_among_as_many_devices_as_a_label_says() {
    let asked = |label: &str, resources: Pairs<'_>, annotations: Pairs<'_>| {
        let mut pod = pod(&[container("main", resources)], annotations);
        pod.labels.insert("aliyun.com/gpu-count".into(), label.into());
        let wish = Spoken::new([Cgpu]).unwrap().translate(&pod, 0, &NodeFacts::default());
        wish.map(|wish| wish.unwrap()).map_err(|refusal| refusal.to_string())
    };
    let wish = asked("2", &[(CGPU_MEMORY, "8")], &[]).unwrap();
    assert_eq!((wish.devices, wish.share), (2, memory_only(Memory::Bytes(4 * GIB))));
    assert_eq!(pairs(&variables(&wish, &[0, 2]))[0], ("ALIYUN_COM_GPU_MEM_IDX", "0,2"));
    let one = asked("1", &[(CGPU_MEMORY, "4"), (CGPU_CORE, "30")], &[]).unwrap();
    assert_eq!((one.devices, one.share), (1, both(core(30, 30), Memory::Bytes(4 * GIB))));
    // The label can be changed after the scheduler has decided.
    let parts = ("aliquot.dev/devices", "main=GPU-1/250/4294967296,GPU-2/250/4294967296");
    let bound = asked("1", &[(CGPU_MEMORY, "8")], &[parts, ("aliquot.dev/generation", "1.2")]).unwrap();
    assert_eq!((bound.devices, bound.share), (2, memory_only(Memory::Bytes(4 * GIB))));
    for (label, resources, words) in [
        (
            "2",
            &[(CGPU_MEMORY, "7")][..],
            "aliyun.com/gpu-mem is \"7\"; it must be a multiple of 2, the number of devices",
        ),
        (
            "2",
            &[(CGPU_MEMORY, "8"), (CGPU_CORE, "30")],
            "aliyun.com/gpu-count and aliyun.com/gpu-core.percentage cannot",
        ),
        ("0", &[(CGPU_MEMORY, "8")], "aliyun.com/gpu-count is \"0\"; it must be a whole number from 1"),
        ("two", &[(CGPU_MEMORY, "8")], "aliyun.com/gpu-count is \"two\""),
    ] {
        let refusal = asked(label, resources, &[]).unwrap_err();
        assert!(refusal.contains(words), "{label} {resources:?}: {refusal}");
    }
}

#[test]
fn cgpu_programs_read_their_memory() {
    let wish = ask(Cgpu, &[(CGPU_MEMORY, "4"), (CGPU_CORE, "30")], &[]).unwrap();
    assert_eq!(
        pairs(&variables(&wish, &[0])),
        [
            ("ALIYUN_COM_GPU_MEM_IDX", "0"),
            ("ALIYUN_COM_GPU_MEM_CONTAINER", "4"),
            ("ALIYUN_COM_GPU_MEM_DEV", "16"),
            ("ALIYUN_COM_GPU_MEM_UNIT", "GiB"),
        ]
    );
}

#[test]
fn cgpu_refuses_bad_steps() {
    assert_refused(
        Cgpu,
        &[
            (
                &[(CGPU_MEMORY, "4"), (CGPU_CORE, "7")],
                "aliyun.com/gpu-core.percentage is \"7\"; it must be a multiple of 5",
            ),
            (&[(CGPU_MEMORY, "4"), (CGPU_CORE, "0")], "at least 1; leave it out where none is needed"),
            (&[(CGPU_MEMORY, "4"), (CGPU_CORE, "3")], "5 to 100"),
            (&[(CGPU_MEMORY, "4"), (CGPU_CORE, "105")], "5 to 100"),
            (&[(CGPU_CORE, "10")], "has no effect without aliyun.com/gpu-mem"),
            (&[(CGPU_MEMORY, "NaN")], "a whole number"),
        ],
    );
}

#[test]
fn qgpu_limits_time_as_the_nodes_policy_says() {
    for (policy, limit) in [(QgpuPolicy::BestEffort, 100), (QgpuPolicy::FixedShare, 30), (QgpuPolicy::BurstShare, 100)]
    {
        let node = NodeFacts { qgpu_policy: policy, ..NodeFacts::default() };
        let wish = ask_of(Qgpu, &node, &[(QGPU_CORE, "30"), (QGPU_MEMORY, "4")], &[]).unwrap();
        assert_eq!(wish.share, both(core(30, limit), Memory::Bytes(4 * GIB)), "{policy:?}");
    }
    for (label, policy) in
        [("fs", Some(QgpuPolicy::FixedShare)), ("burst-share", Some(QgpuPolicy::BurstShare)), ("x", None)]
    {
        assert_eq!(QgpuPolicy::parse(label), policy);
    }
}

#[test]
fn qgpu_gives_whole_devices_by_the_hundred() {
    assert_gets(
        Qgpu,
        &[
            (&[(QGPU_CORE, "100")], 1, Share::Whole),
            (&[(QGPU_CORE, "400")], 4, Share::Whole),
            (&[(QGPU_CORE, "100"), (QGPU_MEMORY, "4")], 1, both(core(100, 100), Memory::Bytes(4 * GIB))),
        ],
    );
}

#[test]
fn qgpu_lets_online_work_go_before_offline_work() {
    let online = ask(Qgpu, &[(QGPU_MEMORY, "4")], &[(APP_CLASS, "online")]).unwrap();
    assert_eq!((online.share, online.priority), (memory_only(Memory::Bytes(4 * GIB)), Some(Priority::LatencyCritical)));
    let offline = ask(Qgpu, &[(QGPU_GREEDY, "60"), (QGPU_MEMORY, "4")], &[]).unwrap();
    assert_eq!((offline.share, offline.priority), (both(core(1, 60), Memory::Bytes(4 * GIB)), Some(Priority::Batch)));
}

#[test]
fn qgpu_refuses_bad_steps() {
    assert_refused(
        Qgpu,
        &[
            (&[(QGPU_CORE, "32"), (QGPU_MEMORY, "4")], "a multiple of 5 up to 100"),
            (&[(QGPU_CORE, "150"), (QGPU_MEMORY, "4")], "or a multiple of 100"),
            (&[(QGPU_CORE, "0"), (QGPU_MEMORY, "4")], "at least 1"),
            (&[(QGPU_CORE, "200"), (QGPU_MEMORY, "4")], "several devices are whole"),
            (&[(QGPU_CORE, "30")], "has no effect without tke.cloud.tencent.com/qgpu-memory"),
            (&[(QGPU_MEMORY, "4")], "has no effect without tke.cloud.tencent.com/qgpu-core"),
            (&[(QGPU_GREEDY, "30")], "has no effect without tke.cloud.tencent.com/qgpu-memory"),
            (&[(QGPU_CORE, "30"), (QGPU_GREEDY, "30"), (QGPU_MEMORY, "4")], "cannot be asked for together"),
        ],
    );
    assert_refused_with(Qgpu, &[(APP_CLASS, "x")], &[(&[(QGPU_MEMORY, "4")], "online or offline")]);
}
