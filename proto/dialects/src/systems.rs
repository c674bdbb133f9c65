//! The translators, one file for each system.

pub(crate) mod aws_vgpu;
pub(crate) mod cgpu;
pub(crate) mod elastic_gpu;
pub(crate) mod gpu_manager;
pub(crate) mod gpushare;
pub(crate) mod hami;
pub(crate) mod kai;
pub(crate) mod nvidia;
pub(crate) mod own;
mod per_device;
pub(crate) mod qgpu;
pub(crate) mod volcano;
