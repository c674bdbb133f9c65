//! What is known of a pod and of the node when a request is translated.

use std::collections::BTreeMap;

/// A pod, as far as requests for devices are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its containers in their order, without init containers.
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its limits, as quantities: an extended resource is requested exactly to its limit.
    pub resources: BTreeMap<String, String>,
}

/// What the node's configuration says of the dialects that it speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// How much memory one `aliquot.dev/gpu-memory` is.
    pub memory_unit_bytes: u64,
    /// Whether devices are given out as a whole, too, as `aliquot.dev/gpu`.
    pub whole_devices: bool,
    /// How much memory one `aliyun.com/gpu-mem` is for `GPUShare`: a GiB or a MiB. For cGPU it is a GiB.
    pub gpushare_unit_bytes: u64,
    /// The node's label `tke.cloud.tencent.com/qgpu-schedule-policy`.
    pub qgpu_policy: QgpuPolicy,
    /// How many containers may be on one device for HAMi and Volcano, 1 to 100.
    pub slots_per_device: u32,
    /// How many `nvidia.com/gpu.shared` one device is, 1 to 100; 1: devices are whole, and there is no such resource.
    pub nvidia_replicas: u32,
}

impl Default for NodeFacts {
    fn default() -> NodeFacts {
        NodeFacts {
            memory_unit_bytes: 256 << 20,
            whole_devices: false,
            gpushare_unit_bytes: 1 << 30,
            qgpu_policy: QgpuPolicy::default(),
            slots_per_device: 10,
            nvidia_replicas: 1,
        }
    }
}

/// How qGPU shares the time of a node's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QgpuPolicy {
    /// `best-effort`: nobody is limited. What is asked for is guaranteed all the same, which there it is not.
    #[default]
    BestEffort,
    /// `fixed-share`: what is asked for, and never more.
    FixedShare,
    /// `burst-share`: what is asked for, and what others leave.
    BurstShare,
}

impl QgpuPolicy {
    /// The policy that a label's value names, long or short.
    #[must_use]
    pub fn parse(label: &str) -> Option<QgpuPolicy> {
        Some(match label {
            "best-effort" | "be" => QgpuPolicy::BestEffort,
            "fixed-share" | "fs" => QgpuPolicy::FixedShare,
            "burst-share" | "bs" => QgpuPolicy::BurstShare,
            _ => return None,
        })
    }
}
