//! The systems whose requests the node understands.

use std::fmt;
use std::str::FromStr;

use crate::pod::NodeFacts;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::systems::{aws_vgpu, cgpu, elastic_gpu, gpu_manager, gpushare, hami, kai, nvidia, own, qgpu, volcano};
use crate::wish::Wish;

/// A system whose resource names and annotations a pod can use to ask for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// Aliquot's own; every node speaks it.
    Own,
    /// The device plugin of NVIDIA.
    Nvidia,
    /// Tencent's gpu-manager with gpu-admission (vCUDA).
    GpuManager,
    /// The open `GPUShare` of Alibaba.
    GpuShare,
    /// The cGPU of Alibaba Cloud.
    Cgpu,
    /// The qGPU of Tencent Cloud.
    Qgpu,
    /// HAMi, with requests that hold for each device.
    Hami,
    /// Volcano's vGPU, and its older GPU sharing.
    Volcano,
    /// The KAI scheduler, with its NvFractions.
    Kai,
    /// Elastic GPU, with its three spellings.
    ElasticGpu,
    /// AWS's virtual GPU device plugin.
    AwsVgpu,
}

/// Which component chooses the device of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// kube-scheduler counts what the node advertises, and the node chooses the device.
    Node,
    /// The system's own scheduler, if it runs: the node uses the devices that it wrote into this annotation. Without
    /// the annotation as [`Placement::Node`].
    Theirs {
        /// The annotation's name, or its prefix.
        annotation: &'static str,
    },
}

/// A resource that a node advertises to kubelet for a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// Its name; for [`Unit::MigInstance`] the prefix of all names.
    pub resource: &'static str,
    /// The amount that one unit of the resource stands for.
    pub unit: Unit,
}

/// The amount that one unit of an advertised resource stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// One percent of a device's time.
    CorePercent,
    /// This number of bytes of memory.
    MemoryBytes(u64),
    /// Room for one container on a device. Other resources or annotations say how much of the device it gets.
    Slot {
        /// The number of slots of a device.
        per_device: u32,
    },
    /// An equal part of a device's time and memory.
    Part {
        /// The number of parts of a device, 1 to 100.
        per_device: u32,
    },
    /// A whole device that is not a MIG instance.
    Device,
    /// A whole MIG instance; the resource's name ends with its profile.
    MigInstance,
}

/// A resource that kube-scheduler must see on a node, and that kubelet does not hand out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The name of the resource.
    pub resource: &'static str,
    /// How much of it a device is.
    pub count: Count,
}

/// How much of a counted resource a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Its memory in MiB.
    MemoryMib,
    /// The percent of its memory: 100.
    MemoryPercent,
    /// The percent of its time: 100.
    CorePercent,
    /// One for each container that it has room for.
    Containers {
        /// How many these are.
        per_device: u32,
    },
}

/// One system: how its requests are recognised and translated.
pub(crate) struct System {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) placement: Placement,
    /// Whether the resource of this name belongs to the system.
    pub(crate) is_resource: fn(&str) -> bool,
    /// The annotation with which this container asks for devices.
    pub(crate) annotation: fn(&Request<'_>) -> Option<&'static str>,
    pub(crate) translate: fn(&Request<'_>) -> Result<Wish, Refusal>,
    pub(crate) advertised: fn(&NodeFacts) -> Vec<Advertised>,
    pub(crate) counted: fn(&NodeFacts) -> Vec<Counted>,
}

impl Dialect {
    /// All dialects, with Aliquot's own first.
    pub const ALL: [Dialect; 11] = [
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
        Dialect::AwsVgpu,
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
            Dialect::AwsVgpu => &aws_vgpu::SYSTEM,
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

    /// Whether the resource of this name is a request for devices in this dialect.
    #[must_use]
    pub fn has_resource(self, name: &str) -> bool {
        (self.system().is_resource)(name)
    }

    /// Which component chooses the devices of its containers.
    #[must_use]
    pub fn placement(self) -> Placement {
        self.system().placement
    }

    /// The resources that a node which speaks this dialect advertises.
    #[must_use]
    pub fn advertised(self, node: &NodeFacts) -> Vec<Advertised> {
        (self.system().advertised)(node)
    }

    /// The resources that a container can ask for in this dialect and that are not among those: the node's status must
    /// have them, or kube-scheduler lets the container wait for ever.
    #[must_use]
    pub fn counted(self, node: &NodeFacts) -> Vec<Counted> {
        (self.system().counted)(node)
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is not the name of a dialect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a dialect; the dialects are {}", Dialect::ALL.map(Dialect::name).join(", "))]
pub struct UnknownDialect {
    /// The name that was given.
    pub found: String,
}

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Dialect, UnknownDialect> {
        let known = Dialect::ALL.into_iter().find(|dialect| dialect.name() == name);
        known.ok_or_else(|| UnknownDialect { found: name.to_owned() })
    }
}
