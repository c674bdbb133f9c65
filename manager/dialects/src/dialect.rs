//! The systems whose words are understood.

use std::fmt;
use std::str::FromStr;

use crate::pod::NodeFacts;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::systems::{cgpu, elastic_gpu, gpu_manager, gpushare, hami, kai, nvidia, own, qgpu, volcano};
use crate::wish::Wish;

/// A system in whose words a pod can ask for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// Aliquot's own; every node speaks it.
    Own,
    /// NVIDIA's device plugin.
    Nvidia,
    /// Tencent's gpu-manager with gpu-admission (vCUDA).
    GpuManager,
    /// Alibaba's open `GPUShare`.
    GpuShare,
    /// Alibaba Cloud's cGPU.
    Cgpu,
    /// Tencent Cloud's qGPU.
    Qgpu,
    /// HAMi.
    Hami,
    /// Volcano's vGPU, and its older GPU sharing.
    Volcano,
    /// KAI.
    Kai,
    /// Elastic GPU.
    ElasticGpu,
}

/// Who decides which device a container is placed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// kube-scheduler counts what the node advertises, and the node chooses the device.
    Node,
    /// The system's own scheduler, if it runs: the node keeps to what this annotation says. Without it as
    /// [`Placement::Node`].
    Theirs {
        /// In it, or in what begins so, their scheduler writes its decision.
        annotation: &'static str,
    },
    /// Aliquot's scheduler alone: a pod asks for nothing that kubelet knows.
    Scheduler,
}

/// A resource that a node advertises to kubelet for a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// Its name; what all names begin with for [`Unit::MigInstance`].
    pub resource: &'static str,
    /// What one of it is.
    pub unit: Unit,
}

/// What one unit of an advertised resource is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// One percent of a device's time.
    CorePercent,
    /// So much memory.
    MemoryBytes(u64),
    /// Room for one container, of so many on a device. What the container gets there is said elsewhere.
    Slot {
        /// How many a device has.
        per_device: u32,
    },
    /// A whole device that is no MIG instance.
    Device,
    /// A whole MIG instance; the resource's name ends with its profile.
    MigInstance,
}

/// One system: how it is recognised and translated.
pub(crate) struct System {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) placement: Placement,
    /// Whether a resource is one of its.
    pub(crate) is_resource: fn(&str) -> bool,
    /// The annotation by which this container asks without a resource.
    pub(crate) annotation: fn(&Request<'_>) -> Option<&'static str>,
    pub(crate) translate: fn(&Request<'_>) -> Result<Wish, Refusal>,
    pub(crate) advertised: fn(&NodeFacts) -> Vec<Advertised>,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Dialect; 10] = [
        Dialect::Own,
        Dialect::Nvidia,
        Dialect::GpuManager,
        Dialect::GpuShare,
        Dialect::Cgpu,
        Dialect::Qgpu,
        Dialect::Hami,
        Dialect::Volcano,
        Dialect::Kai,
        Dialect::ElasticGpu,
    ];

    pub(crate) fn system(self) -> &'static System {
        match self {
            Dialect::Own => &own::SYSTEM,
            Dialect::Nvidia => &nvidia::SYSTEM,
            Dialect::GpuManager => &gpu_manager::SYSTEM,
            Dialect::GpuShare => &gpushare::SYSTEM,
            Dialect::Cgpu => &cgpu::SYSTEM,
            Dialect::Qgpu => &qgpu::SYSTEM,
            Dialect::Hami => &hami::SYSTEM,
            Dialect::Volcano => &volcano::SYSTEM,
            Dialect::Kai => &kai::SYSTEM,
            Dialect::ElasticGpu => &elastic_gpu::SYSTEM,
        }
    }

    /// Its name in configurations, for example `gpu-manager`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.system().name
    }

    /// Its name for people.
    #[must_use]
    pub fn title(self) -> &'static str {
        self.system().title
    }

    /// Who decides where its containers go.
    #[must_use]
    pub fn placement(self) -> Placement {
        self.system().placement
    }

    /// What a node that speaks it advertises.
    #[must_use]
    pub fn advertised(self, node: &NodeFacts) -> Vec<Advertised> {
        (self.system().advertised)(node)
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no dialect's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no dialect; there are {}", Dialect::ALL.map(Dialect::name).join(", "))]
pub struct UnknownDialect {
    /// What was written.
    pub found: String,
}

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Dialect, UnknownDialect> {
        let known = Dialect::ALL.into_iter().find(|dialect| dialect.name() == name);
        known.ok_or_else(|| UnknownDialect { found: name.to_owned() })
    }
}
