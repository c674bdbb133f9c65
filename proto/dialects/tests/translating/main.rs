//! Translations of requests, one table for each system.

mod anywhere;
mod asking;
mod aws_vgpu;
mod chance;
mod cloud_vendors;
mod elastic_gpu;
mod gpu_manager;
mod gpushare;
mod hami;
mod kai;
mod nvidia;
mod own;
mod spoken;
mod volcano;
