//! Nodes and the GPUs on them.

use aliquot_scheduler_core::{Bytes, DeviceSpec, Health, MilliCpu, NodeSpec};
use anyhow::{Context, Result, ensure};

use crate::snapshot::amount::memory;
use crate::snapshot::format::{GpuEntry, NodeEntry, PeersEntry, TaintEntry};

/// The most GPUs of one node.
const GPUS_MAX: u16 = 1024;

impl NodeEntry {
    pub(super) fn to_spec(&self) -> Result<NodeSpec> {
        let mut devices = Vec::new();
        for (number, gpu) in self.gpus.iter().enumerate() {
            let device = gpu.to_spec().with_context(|| format!("gpus[{number}]"))?;
            let count = usize::from(gpu.count);
            ensure!(devices.len() + count <= usize::from(GPUS_MAX), "a node has {GPUS_MAX} GPUs at most");
            ensure!(
                count == 1 || gpu.uuid.is_empty(),
                "gpus[{number}]: a \"uuid\" names one GPU, and \"count\" is {count}"
            );
            devices.extend(std::iter::repeat_n(device, count));
        }
        Ok(NodeSpec {
            name: self.name.clone(),
            labels: self.labels.clone().into(),
            taints: self.taints.iter().map(TaintEntry::to_taint).collect(),
            cpu: MilliCpu::new(self.cpu_milli),
            memory: memory(self.memory_bytes, self.memory_gib)?,
            devices,
            cordoned: self.cordoned,
            counted: self.counted.clone(),
            foreign: self.foreign.iter().map(PeersEntry::to_peers).collect::<Result<_>>().context("foreign")?,
        })
    }
}

impl GpuEntry {
    fn to_spec(&self) -> Result<DeviceSpec> {
        Ok(DeviceSpec {
            uuid: self.uuid.clone(),
            model: self.model.clone(),
            memory: memory(self.memory_bytes, self.memory_gib)?,
            memory_outside: Bytes::new(self.memory_outside_bytes),
            health: if self.unhealthy { Health::Unhealthy } else { Health::Healthy },
            nvlink_group: self.nvlink_group,
            switch: self.switch,
            numa: self.numa,
            attributes: self.attributes.clone().into(),
        })
    }
}
