//! What nodes lack for a task, and what keeps a task from nodes.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::mem::discriminant;

use crate::vocabulary::amount::{ByteCount, Cores, Count, Listed, Percent};
use crate::vocabulary::device_request::DeviceMemory;
use crate::vocabulary::node_term::NodeTerm;
use crate::vocabulary::peers::PeerMisfit;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::taint::Taint;

/// A fact about nodes, and the number of nodes for which it is true.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeCount<T> {
    /// The number of nodes.
    pub nodes: u32,
    /// What is true of these nodes.
    pub what: T,
}

/// What a node lacks for one more task. For several nodes: the lack of the node that lacks least.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// Too little CPU is free.
    Cpu {
        /// The amount that the task asks for.
        wanted: MilliCpu,
        /// The amount that is free on the node.
        free: MilliCpu,
    },
    /// Too little memory is free.
    Memory {
        /// The amount that the task asks for.
        wanted: Bytes,
        /// The amount that is free on the node.
        free: Bytes,
    },
    /// Too little of a counted resource is free.
    Counted {
        /// The name of the counted resource.
        name: String,
        /// The amount that the task asks for.
        wanted: u64,
        /// The amount that is free on the node.
        free: u64,
    },
    /// Too few devices have enough free.
    Devices {
        /// The name of the device request; `None`: the task has only one.
        request: Option<String>,
        /// Devices that are asked for.
        wanted: u16,
        /// Devices that have enough free.
        fitting: u16,
        /// Time that is asked for of each.
        core: DeviceCore,
        /// Memory that is asked for of each.
        memory: DeviceMemory,
    },
    /// Enough devices may have enough free, but too few of them are linked as required.
    Alignment {
        /// Devices that are asked for.
        wanted: u16,
        /// Devices that have enough free.
        fitting: u16,
    },
    /// Each of the task's device requests finds devices by itself, but this one finds none beside the requests before
    /// it.
    CrowdedOut {
        /// The name of the device request.
        request: String,
    },
    /// The node is in no domain that the rules about peers allow: affinity, anti-affinity or topology spread.
    Peers(PeerMisfit),
}

/// The node that lacks least for one more task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nearest {
    /// The name of the node.
    pub node: String,
    /// All that it lacks.
    pub lacks: Vec<Shortage>,
}

/// An obstacle that keeps a task from a node, whatever is free there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Exclusion {
    /// The node is cordoned: it takes no new claims.
    Cordoned,
    /// It does not have the label with the value.
    Label {
        /// The label's name.
        key: String,
        /// The value that is asked for.
        value: String,
    },
    /// Its labels match none of these terms; they must match at least one.
    NodeTerms(BTreeSet<NodeTerm>),
    /// It has a taint that is not tolerated.
    Taint(Taint),
    /// It has too few devices of the requested models and with the requested attributes.
    Devices {
        /// The name of the device request; `None`: the task has only one.
        request: Option<String>,
        /// Devices that are asked for.
        wanted: u16,
        /// The accepted models; empty: any model.
        models: Vec<String>,
        /// Attributes that are asked for, with their values.
        attributes: Vec<(String, String)>,
    },
}

impl Shortage {
    /// Whether both are a lack of the same resource, of whatever amount.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Counted { name, .. }, Self::Counted { name: other, .. }) => name == other,
            (Self::Peers(misfit), Self::Peers(other)) => misfit.is_alike(other),
            (Self::Devices { request, .. }, Self::Devices { request: other, .. }) => request == other,
            (Self::CrowdedOut { request }, Self::CrowdedOut { request: other }) => request == other,
            _ => discriminant(self) == discriminant(other),
        }
    }

    /// The lacking part of the wanted amount, in thousandths.
    pub(crate) fn lack(&self) -> u64 {
        let (wanted, free) = match self {
            Self::Cpu { wanted, free } => (wanted.get(), free.get()),
            Self::Memory { wanted, free } => (wanted.get(), free.get()),
            Self::Counted { wanted, free, .. } => (*wanted, *free),
            Self::Devices { wanted, fitting, .. } => ((*wanted).into(), (*fitting).into()),
            // There are enough, but not where they must be.
            Self::Alignment { .. } | Self::CrowdedOut { .. } | Self::Peers(_) => (1, 0),
        };
        let lack = u128::from(wanted.saturating_sub(free)) * 1000 / u128::from(wanted.max(1));
        u64::try_from(lack).unwrap_or(u64::MAX)
    }

    /// What is wanted and what is free, as a sentence about one node.
    pub(crate) fn on_one(&self) -> String {
        match self {
            Self::Cpu { wanted, free } => format!("{} are free and {} wanted", Cores(free.get()), Cores(wanted.get())),
            Self::Memory { wanted, free } => {
                format!("{} of memory are free and {} wanted", ByteCount(free.get()), ByteCount(wanted.get()))
            }
            Self::Counted { name, wanted, free } => format!("{free} {name} are free and {wanted} wanted"),
            Self::Devices { request, wanted, fitting, core, memory } => format!(
                "{fitting} of the {wanted} devices that are wanted{} have {} free",
                ForRequest(request.as_deref()),
                OfEach { core: *core, memory: *memory }
            ),
            Self::CrowdedOut { request } => {
                format!("each request finds its devices, but not request {request:?} beside those before it")
            }
            Self::Alignment { wanted, fitting } => {
                format!("{fitting} devices have enough free, but no {wanted} of them that are linked as is required")
            }
            Self::Peers(misfit) => format!("it {misfit}"),
        }
    }
}

impl Display for NodeCount<Shortage> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Shortage::Peers(misfit) = &self.what {
            let (is, one) = if self.nodes == 1 { ("is", "it") } else { ("are", "one of them") };
            return write!(f, "{} {is} closed by a rule: {one} {misfit}", Count(self.nodes.into(), "node"));
        }
        let has = if self.nodes == 1 { "has" } else { "have" };
        write!(f, "{} {has} ", Count(self.nodes.into(), "node"))?;
        match &self.what {
            Shortage::Cpu { wanted, free } => {
                write!(f, "too little CPU free ({} wanted, at most {})", Cores(wanted.get()), Cores(free.get()))
            }
            Shortage::Memory { wanted, free } => {
                write!(
                    f,
                    "too little memory free ({} wanted, at most {})",
                    ByteCount(wanted.get()),
                    ByteCount(free.get())
                )
            }
            Shortage::Counted { name, wanted, free } => {
                write!(f, "not enough {name} free ({wanted} wanted, at most {free})")
            }
            Shortage::Devices { request, wanted, fitting, core, memory } => write!(
                f,
                "too few devices with {} free{} ({wanted} wanted, at most {fitting})",
                OfEach { core: *core, memory: *memory },
                ForRequest(request.as_deref()),
            ),
            Shortage::CrowdedOut { request } => {
                write!(f, "devices for each request, but not for request {request:?} beside those before it")
            }
            Shortage::Alignment { wanted, .. } => {
                write!(f, "enough devices with enough free, but not {wanted} that are linked as is required")
            }
            Shortage::Peers(_) => Ok(()),
        }
    }
}

impl Exclusion {
    /// The obstacle, as a sentence about one node.
    pub(crate) fn on_one(&self) -> String {
        OfNodes { nodes: "the node", is_one: true, exclusion: self }.to_string()
    }
}

impl Display for NodeCount<Exclusion> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let nodes = Count(self.nodes.into(), "node").to_string();
        OfNodes { nodes: &nodes, is_one: self.nodes == 1, exclusion: &self.what }.fmt(f)
    }
}

/// The obstacle, as a sentence about several nodes.
struct OfNodes<'a> {
    nodes: &'a str,
    is_one: bool,
    exclusion: &'a Exclusion,
}

impl Display for OfNodes<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (nodes, one) = (self.nodes, self.is_one);
        let (has, lacks, is) = if one { ("has", "lacks", "is") } else { ("have", "lack", "are") };
        let matches = if one { "matches" } else { "match" };
        match self.exclusion {
            Exclusion::Cordoned => write!(f, "{nodes} {is} cordoned"),
            Exclusion::Label { key, value } => write!(f, "{nodes} {lacks} the label {key}={value}"),
            Exclusion::NodeTerms(terms) => {
                let terms: Vec<String> = terms.iter().map(NodeTerm::to_string).collect();
                write!(f, "{nodes} {matches} no term of the node affinity ({})", terms.join(" or "))
            }
            Exclusion::Taint(taint) => write!(f, "{nodes} {has} the taint {taint}, which is not tolerated"),
            Exclusion::Devices { request, wanted, models, attributes } => {
                write!(f, "{nodes} {has} fewer than {}", Count((*wanted).into(), "device"))?;
                if !models.is_empty() {
                    write!(f, " of model {}", models.join(" or "))?;
                }
                let attributes: Vec<String> = attributes.iter().map(|(key, value)| format!("{key}={value}")).collect();
                match attributes.is_empty() {
                    true => Ok(()),
                    false => write!(f, " with {}", Listed(&attributes)),
                }?;
                ForRequest(request.as_deref()).fmt(f)
            }
        }
    }
}

/// Names one of a task's device requests, if it has several.
pub(crate) struct ForRequest<'a>(pub(crate) Option<&'a str>);

impl Display for ForRequest<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |request| write!(f, " for request {request:?}"))
    }
}

/// What is asked for of each device.
pub(crate) struct OfEach {
    pub(crate) core: DeviceCore,
    pub(crate) memory: DeviceMemory,
}

impl Display for OfEach {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.core > DeviceCore::ZERO {
            write!(f, "{} gpu-core", Percent(self.core.get().into()))?;
        }
        let and = if self.core > DeviceCore::ZERO { " and " } else { "" };
        match self.memory {
            DeviceMemory::Bytes(Bytes::ZERO) | DeviceMemory::Thousandths(0) => Ok(()),
            DeviceMemory::Bytes(bytes) => write!(f, "{and}{} of gpu-memory", ByteCount(bytes.get())),
            DeviceMemory::Thousandths(part) => write!(f, "{and}{} of the gpu-memory", Percent(part.into())),
        }
    }
}
