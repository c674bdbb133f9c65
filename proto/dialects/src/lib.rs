//! Translates requests in the resource names and annotations of other systems into one kind of [`Wish`].
//!
//! The translation is pure: a pod and the node's configuration go in, a wish or a reason for refusal comes out. Each
//! system has one file, which explains the meaning of its resources and annotations.
//! The crate uses only values and ordered collections of the standard library, and `thiserror`; `clippy.toml` forbids
//! the rest.
//!
//! | dialect | resources or annotations | what chooses the device |
//! | --- | --- | --- |
//! | `aliquot` | `aliquot.dev/gpu-core`, `/gpu-memory`, `/gpu` | kube-scheduler counts, the node chooses |
//! | `nvidia` | `nvidia.com/gpu`, `/gpu.shared`, `/mig-PROFILE` | as `aliquot` |
//! | `gpu-manager` | `tencent.com/vcuda-core`, `/vcuda-memory` | gpu-admission, if it has decided; else as `aliquot` |
//! | `gpushare` | `aliyun.com/gpu-mem` | its extender, if it has decided; else as `aliquot` |
//! | `cgpu` | `aliyun.com/gpu-mem`, `/gpu-core.percentage`, and the label `/gpu-count` | as `aliquot` |
//! | `qgpu` | `tke.cloud.tencent.com/qgpu-core`, `-memory`, `-core-greedy` | as `aliquot` |
//! | `hami` | `nvidia.com/gpu`, `/gpumem`, `/gpumem-percentage`, `/gpucores` | its extender, or see below |
//! | `volcano` | `volcano.sh/vgpu-number` and its kind, `/gpu-memory`, `/gpu-number` | Volcano, or see below |
//! | `kai` | annotations `gpu-fraction`, `gpu-memory`, and those of NvFractions, with `aliquot.dev/kai-gpu` | Aliquot's scheduler, or see below |
//! | `elastic-gpu` | `gpu-core`, `gpu-memory` in three spellings | its extender, if it has decided; else as `aliquot` |
//! | | `aliquot.dev/elastic-gpu`, for what an `ElasticGPUClaim` says | Aliquot's scheduler alone |
//! | `aws-vgpu` | `k8s.amazonaws.com/vgpu` | as `aliquot` |
//!
//! Requests of HAMi and Volcano are per device, which kube-scheduler cannot count. Where kube-scheduler decides alone,
//! it counts containers per device, and the sums over a node's devices of what else they ask for ([`Counted`]); the node
//! chooses the device, and refuses a container for which it has no room. Where these systems' own extenders tell
//! kube-scheduler to ignore those names, nothing changes.
//! The same holds for KAI's annotations, of which kube-scheduler counts only the containers.
//! How the schedulers of cGPU and qGPU write their decisions is not public, so the node does not read them.
//!
//! A scheduler of Aliquot's can write a [`Decision`] beside a request in any dialect.
//!
//! Before a pod has a node, [`Pod`] tells what is certain already: that no node would accept a request, and what a
//! request leaves out.
//!
//! A wish never exceeds the request: amounts that must be rounded are rounded down.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic, clippy::print_stdout, clippy::print_stderr)]

mod anywhere;
mod constraints;
mod decimal;
mod decision;
mod dialect;
mod environment;
mod pod;
pub mod quantity;
mod refusal;
mod request;
mod systems;
mod translate;
mod wish;

pub use constraints::{Constraints, Decided, DeviceFacts};
pub use decision::{DECISION, DecidedPart, Decision, GANG, GANG_SIZE, GENERATION, NoDecision};
pub use dialect::{Advertised, Count, Counted, Dialect, Placement, Unit, UnknownDialect};
pub use environment::Placed;
pub use pod::{Container, LABELS, NodeFacts, Pod, QgpuPolicy, requesting_annotations};
pub use refusal::Refusal;
pub use systems::elastic_gpu::{ELASTIC_GPU, ELASTIC_GPU_CLAIM};
pub use translate::{Clash, Spoken};
pub use wish::{Core, MILLION, Memory, Part, Priority, Share, Wish};
