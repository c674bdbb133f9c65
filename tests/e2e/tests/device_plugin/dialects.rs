//! Pods that use the resource names of other systems, on a node configured for that dialect: their slices, and the
//! variables that their programs read.

use aliquot_harness::MIB;
use serde_json::{Value, json};

use crate::stage::{create, share_of, variables, wait_for_units, with_machine};

const GIB: u64 = 1 << 30;
/// Small enough to be offered in units of 1 MiB, as elastic-gpu does.
const MACHINE: &str = "[[device]]\nmemory = '40GiB'\n";

/// One pod's request, and the part that its only container must get.
struct Case {
    dialect: &'static str,
    limits: Value,
    core_percent: u32,
    memory_bytes: u64,
    variables: &'static [(&'static str, &'static str)],
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            dialect: "nvidia",
            limits: json!({"nvidia.com/gpu": "1"}),
            core_percent: 100,
            memory_bytes: 40 * GIB,
            variables: &[],
        },
        Case {
            dialect: "gpu-manager",
            limits: json!({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"}),
            core_percent: 30,
            memory_bytes: 2 * GIB,
            variables: &[],
        },
        Case {
            dialect: "gpushare",
            limits: json!({"aliyun.com/gpu-mem": "20"}),
            core_percent: 50,
            memory_bytes: 20 * GIB,
            variables: &[("ALIYUN_COM_GPU_MEM_CONTAINER", "20"), ("ALIYUN_COM_GPU_MEM_DEV", "40")],
        },
        Case {
            dialect: "cgpu",
            limits: json!({"aliyun.com/gpu-mem": "20", "aliyun.com/gpu-core.percentage": "30"}),
            core_percent: 30,
            memory_bytes: 20 * GIB,
            variables: &[],
        },
        Case {
            dialect: "qgpu",
            limits: json!({"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "10"}),
            core_percent: 30,
            memory_bytes: 10 * GIB,
            variables: &[],
        },
        Case {
            dialect: "hami",
            limits: json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}),
            core_percent: 30,
            memory_bytes: 3000 * MIB,
            variables: &[("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"), ("CUDA_DEVICE_SM_LIMIT", "30")],
        },
        Case {
            dialect: "volcano",
            limits: json!({
                "volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000", "volcano.sh/vgpu-cores": "30",
            }),
            core_percent: 30,
            memory_bytes: 3000 * MIB,
            variables: &[("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"), ("CUDA_DEVICE_SM_LIMIT", "30")],
        },
        Case {
            dialect: "hami",
            limits: json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50", "nvidia.com/priority": "1"}),
            core_percent: 50,
            memory_bytes: 20 * GIB,
            variables: &[("CUDA_TASK_PRIORITY", "1")],
        },
        Case {
            dialect: "elastic-gpu",
            limits: json!({"elasticgpu.io/gpu-core": "30", "elasticgpu.io/gpu-memory": "1024"}),
            core_percent: 30,
            memory_bytes: 1_024_000_000,
            variables: &[],
        },
        Case {
            dialect: "aws-vgpu",
            limits: json!({"k8s.amazonaws.com/vgpu": "3"}),
            core_percent: 30,
            memory_bytes: 12 * GIB,
            variables: &[],
        },
    ]
}

#[test]
fn pods_of_each_dialect_get_their_share_and_their_variables() {
    for case in cases() {
        let world = with_machine(MACHINE, &format!("dialects = [{:?}]", case.dialect));
        wait_for_units(&world, "aliquot.dev/gpu-core", 100);
        // No other scheduler runs here, only Kubernetes' own: it sees all that the pod asks for.
        create(&world, "pod", &case.limits);
        let pod = world.cluster.wait_for_phase("pod", "Running");
        let expected = Some((case.core_percent, case.memory_bytes));
        assert_eq!(share_of(&world, "pod", "main"), expected, "{}", case.dialect);
        let got = variables(&world, &pod, "main");
        for (name, value) in case.variables {
            assert_eq!(got.get(*name).map(String::as_str), Some(*value), "{}: {name} in {got:?}", case.dialect);
        }
        world.assert_no_complaints();
    }
}
