//! Parts of devices that pods claim in the way in which they claim volumes.
//!
//! An administrator makes an `ElasticGPUClass`. A user makes an `ElasticGPUClaim` and names it in a pod. When such a
//! pod is bound, an `ElasticGPU` is made that says which part of which device it has. Claim and part are bound to each
//! other until the claim is deleted: later pods of the claim get the same part.
//!
//! The `ElasticGPU` decides: its `claimRef` binds the part. Statuses only report that.

mod definitions;
mod keeper;
mod known;
mod plan;

pub use definitions::{
    ElasticGpu, ElasticGpuAmounts, ElasticGpuCapacity, ElasticGpuClaim, ElasticGpuClaimDefinition,
    ElasticGpuClaimPhase, ElasticGpuClaimReference, ElasticGpuClaimResources, ElasticGpuClaimStatus, ElasticGpuClass,
    ElasticGpuClassDefinition, ElasticGpuDefinition, ElasticGpuPhase, ElasticGpuStatus, ReclaimPolicy,
};
pub(crate) use keeper::run;
pub(crate) use known::{Asked, Known, Name};
pub(crate) use plan::{Given, Step, Use, plan};
