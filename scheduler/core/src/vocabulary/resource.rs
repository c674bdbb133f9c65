//! The resources that queues share.

/// A resource that is shared between queues. Amounts are integers in the unit that each resource names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Resource {
    /// CPU, in thousandths of a core.
    Cpu,
    /// Memory of nodes, in bytes.
    Memory,
    /// Time of devices of any model, in thousandths of one device's.
    DeviceCore,
    /// Memory of devices of any model, in bytes.
    DeviceMemory,
    /// Time of devices of this model, in thousandths of one device's.
    ModelCore(String),
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Memory => write!(f, "memory"),
            Self::DeviceCore => write!(f, "gpu-core"),
            Self::DeviceMemory => write!(f, "gpu-memory"),
            Self::ModelCore(model) => write!(f, "gpu-core of {model}"),
        }
    }
}
