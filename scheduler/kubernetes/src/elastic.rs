//! Parts of devices that pods claim in the way in which they claim volumes.
//!
//! An administrator makes an `ElasticGPUClass`. A user makes an `ElasticGPUClaim` and names it in a pod. When such a
//! pod is bound, an `ElasticGPU` is made that says which part of which device it has. Or an administrator has made an
//! `ElasticGPU` before, and the claim is bound to that. Claim and part are bound to each other until the claim is
//! deleted: later pods of the claim get the same part, whose room is kept meanwhile.
//!
//! The `ElasticGPU` decides: its `claimRef` binds the part, and `reserved` in its status says that the room is the
//! part's. The rest of the statuses only reports.

mod definitions;
mod keeper;
mod known;
mod matching;
mod plan;

pub use definitions::{
    ElasticGpu, ElasticGpuAmounts, ElasticGpuCapacity, ElasticGpuClaim, ElasticGpuClaimDefinition,
    ElasticGpuClaimPhase, ElasticGpuClaimReference, ElasticGpuClaimResources, ElasticGpuClaimStatus, ElasticGpuClass,
    ElasticGpuClassDefinition, ElasticGpuDefinition, ElasticGpuPhase, ElasticGpuStatus, ReclaimPolicy,
};
pub(crate) use keeper::run;
pub(crate) use known::{Asked, BoundPart, Known, Name, Room, bound_to, subject_of};
pub(crate) use plan::{Given, Step, Use, plan};
