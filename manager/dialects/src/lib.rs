//! What pods ask for in the resource names and annotations of other systems, translated into one kind of [`Wish`].
//!
//! Pure: from what a pod says, and what the node's configuration says, to a wish or a reason. Each system has one file;
//! what each of them means by its words is written there.
//!
//! | dialect | what asks | who decides on which device |
//! | --- | --- | --- |
//! | `aliquot` | `aliquot.dev/gpu-core`, `/gpu-memory`, `/gpu` | kube-scheduler counts, the node chooses |
//! | `nvidia` | `nvidia.com/gpu`, `/gpu.shared`, `/mig-PROFILE` | as `aliquot` |
//! | `gpu-manager` | `tencent.com/vcuda-core`, `/vcuda-memory` | gpu-admission, if it has; else as `aliquot` |
//! | `gpushare` | `aliyun.com/gpu-mem` | its extender, if it has; else as `aliquot` |
//! | `cgpu` | `aliyun.com/gpu-mem`, `/gpu-core.percentage` | as `aliquot` |
//! | `qgpu` | `tke.cloud.tencent.com/qgpu-core`, `-memory`, `-core-greedy` | as `aliquot` |
//! | `hami` | `nvidia.com/gpu`, `/gpumem`, `/gpumem-percentage`, `/gpucores` | its extender, or see below |
//! | `volcano` | `volcano.sh/vgpu-number` and its kind, `/gpu-memory`, `/gpu-number` | Volcano, or see below |
//! | `kai` | annotations `gpu-fraction`, `gpu-memory` | Aliquot's scheduler: such pods ask kubelet for nothing |
//! | `elastic-gpu` | `gpu-core`, `gpu-memory` in three spellings | its extender, if it has; else as `aliquot` |
//!
//! What HAMi's and Volcano's users ask for is of each device, which kube-scheduler cannot count. Where it decides
//! alone, it counts containers per device; the node chooses the device, and refuses who finds no room. Of the other
//! names it must be told that it is to ignore them (an extender's `managedResources` with `ignoredByScheduler`, as
//! those systems have it): no node offers them, and their pods would wait for ever. How the schedulers of cGPU and qGPU
//! write their decisions is not public, so nothing of them is read.
//!
//! Never more is wished for than was asked for: what must be rounded is rounded down.

#![forbid(unsafe_code)]

mod constraints;
mod decimal;
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
pub use dialect::{Advertised, Dialect, Placement, Unit, UnknownDialect};
pub use environment::Placed;
pub use pod::{Container, NodeFacts, Pod, QgpuPolicy};
pub use refusal::Refusal;
pub use translate::{Clash, Spoken};
pub use wish::{Core, MILLION, Memory, Part, Priority, Share, Wish};
