//! Single changes that would let a pending group be placed.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::explain::sentence::Owner;
use crate::explain::shortage::ForRequest;
use crate::state::cluster::Cluster;
use crate::vocabulary::amount::{Amount, ByteCount, Cores, Count, Percent};
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::device_request::{DeviceMemory, DeviceRequest};
use crate::vocabulary::event::Event;
use crate::vocabulary::namespace::NamespaceSpec;
use crate::vocabulary::peers::Peers;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::resource::Resource;
use crate::vocabulary::spec::NodeSpec;
use crate::vocabulary::taint::Toleration;

/// One change. A change of a request applies to each member with the same request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Ask for less CPU. More than `to` does not fit.
    LessCpu {
        /// The amount in the present request.
        from: MilliCpu,
        /// The most that would fit.
        to: MilliCpu,
    },
    /// Ask for less memory. `to` plus 1 MiB does not fit.
    LessMemory {
        /// The amount in the present request.
        from: Bytes,
        /// The most that would fit.
        to: Bytes,
    },
    /// Ask for less of a counted resource. More than `to` does not fit.
    LessCounted {
        /// The name of the counted resource.
        name: String,
        /// The amount in the present request.
        from: u64,
        /// The most that would fit.
        to: u64,
    },
    /// Ask for less time of each device. More than `to` does not fit.
    LessDeviceCore {
        /// The name of the device request that is changed; `None`: the task has only one.
        request: Option<String>,
        /// The amount in the present request.
        from: DeviceCore,
        /// The most that would fit.
        to: DeviceCore,
    },
    /// Ask for less memory of each device. `to` plus 1 MiB, or plus a thousandth, does not fit.
    LessDeviceMemory {
        /// The name of the device request that is changed; `None`: the task has only one.
        request: Option<String>,
        /// The amount in the present request.
        from: DeviceMemory,
        /// The most that would fit.
        to: DeviceMemory,
    },
    /// Ask for fewer devices. More than `to` do not fit.
    FewerDevices {
        /// The name of the device request that is changed; `None`: the task has only one.
        request: Option<String>,
        /// The amount in the present request.
        from: u16,
        /// The most that would fit.
        to: u16,
    },
    /// Allow devices of one more model.
    AllowModel(String),
    /// No longer ask for an attribute of devices.
    DropAttribute {
        /// The attribute's name.
        key: String,
        /// The value that is asked for.
        value: String,
    },
    /// No longer ask for a label.
    DropLabel {
        /// The label's name.
        key: String,
        /// The value that is asked for.
        value: String,
    },
    /// No longer ask that a node's labels match a term.
    DropNodeTerms,
    /// No longer ask for affinity, anti-affinity or topology spread.
    DropPeerRules,
    /// Tolerate a taint, or taints that differ only in their effect.
    Tolerate(Toleration),
    /// Have fewer members placed together. More than `to` do not fit.
    LowerMinimum {
        /// Members that must be placed together now.
        from: u32,
        /// The most members that can be placed together.
        to: u32,
    },
    /// Raise a queue's limit. Less than `to` is not enough.
    RaiseLimit {
        /// The name of the queue.
        queue: String,
        /// The resource that the limit is of.
        resource: Resource,
        /// The present limit, in the resource's unit.
        from: u64,
        /// The least limit that would be enough, in the resource's unit.
        to: u64,
    },
    /// Raise a queue's quota, which bounds its claims that may not be evicted. Less than `to` is not enough.
    RaiseQuota {
        /// The name of the queue.
        queue: String,
        /// The resource that the quota is of.
        resource: Resource,
        /// The present quota, in the resource's unit.
        from: u64,
        /// The least quota that would be enough, in the resource's unit.
        to: u64,
    },
    /// Let a node take new claims.
    Uncordon {
        /// The name of the node.
        node: String,
    },
    /// Wait for a claim to end.
    WaitFor {
        /// The claim that has to end.
        claim: ClaimId,
        /// The name of that claim.
        name: String,
    },
}

/// Allowing what the request excluded counts like asking for a tenth less.
const EFFORT_OF_CONSTRAINTS: u64 = 100;
/// A change that the owner of the queues must make counts at least like asking for a fifth less, and the more is added,
/// the more it counts.
const EFFORT_OF_BOUNDS: u64 = 200;
/// A change of a node counts more: the node's owner may have had a reason.
const EFFORT_OF_NODES: u64 = 300;
/// Waiting counts most: when another claim ends is not known.
const EFFORT_OF_WAITING: u64 = 500;

impl Change {
    /// The size of the change, to compare changes: the part of the request that is given up, in thousandths, or an
    /// equivalent for changes that give up none.
    #[must_use]
    pub fn effort(&self) -> u64 {
        let given_up = |from: u64, to: u64| per_mille(from.saturating_sub(to), from);
        match self {
            Self::LessCpu { from, to } => given_up(from.get(), to.get()),
            Self::LessMemory { from, to } => given_up(from.get(), to.get()),
            Self::LessCounted { from, to, .. } => given_up(*from, *to),
            Self::LessDeviceCore { from, to, .. } => given_up(from.get().into(), to.get().into()),
            Self::LessDeviceMemory { from, to, .. } => given_up(amount(*from), amount(*to)),
            Self::FewerDevices { from, to, .. } => given_up((*from).into(), (*to).into()),
            Self::LowerMinimum { from, to } => given_up((*from).into(), (*to).into()),
            Self::AllowModel(_)
            | Self::DropAttribute { .. }
            | Self::DropLabel { .. }
            | Self::DropNodeTerms
            | Self::DropPeerRules
            | Self::Tolerate(_) => EFFORT_OF_CONSTRAINTS,
            Self::RaiseLimit { from, to, .. } | Self::RaiseQuota { from, to, .. } => {
                EFFORT_OF_BOUNDS.saturating_add(per_mille(to.saturating_sub(*from), *from))
            }
            Self::Uncordon { .. } => EFFORT_OF_NODES,
            Self::WaitFor { .. } => EFFORT_OF_WAITING,
        }
    }

    /// The events that make the change: for `members` if the request changes, for `group` if its minimum changes. Empty
    /// if the object of the change is gone.
    #[must_use]
    pub fn events(&self, cluster: &Cluster, group: GroupId, members: &[ClaimId]) -> Vec<Event> {
        match self {
            Self::LowerMinimum { to, .. } => {
                let spec = cluster.group(group).map(|group| group.spec().clone());
                let lowered = spec.map(|mut spec| {
                    spec.min_members = *to;
                    Event::PodGroupChanged(group, spec)
                });
                lowered.into_iter().collect()
            }
            Self::RaiseLimit { queue, .. } | Self::RaiseQuota { queue, .. } => {
                self.raised(cluster, queue).into_iter().collect()
            }
            Self::Uncordon { node } => {
                let id = cluster.node_named(node);
                let node = id.and_then(|id| Some((id, NodeSpec::from(cluster.node(id)?.spec()))));
                let opened = node.map(|(id, mut spec)| {
                    spec.cordoned = false;
                    Event::NodeRelabelled(id, spec)
                });
                opened.into_iter().collect()
            }
            Self::WaitFor { claim, .. } => vec![Event::ClaimRemoved(*claim)],
            _ => {
                let requests = members.iter().filter_map(|member| Some((*member, &cluster.claim(*member)?.request)));
                requests.map(|(member, request)| Event::ClaimResized(member, self.changed(request))).collect()
            }
        }
    }

    /// The event that raises a bound of a queue, or of the namespace whose quota the queue is.
    fn raised(&self, cluster: &Cluster, queue: &str) -> Option<Event> {
        if let Some(mut spec) = NamespaceSpec::of_queue(queue).and_then(|name| cluster.namespace(name)).cloned() {
            match self {
                Self::RaiseLimit { resource, to, .. } => spec.limit.insert(resource.clone(), *to),
                Self::RaiseQuota { resource, to, .. } => spec.guaranteed.insert(resource.clone(), *to),
                _ => None,
            };
            return Some(Event::NamespaceChanged(spec));
        }
        let mut spec = cluster.queue(cluster.queue_named(queue)?)?.spec().clone();
        match self {
            Self::RaiseLimit { resource, to, .. } => spec.allowances.get_mut(resource)?.limit = Some(*to),
            Self::RaiseQuota { resource, to, .. } => spec.allowances.get_mut(resource)?.quota = Some(*to),
            _ => {}
        }
        Some(Event::QueueChanged(spec))
    }

    fn changed(&self, request: &Request) -> Request {
        let mut request = request.clone();
        let mut change_devices = |name: &Option<String>, change: &dyn Fn(&mut DeviceRequest)| {
            request.change_devices(name.as_deref(), change);
        };
        match self {
            Self::LessCpu { to, .. } => request.cpu = *to,
            Self::LessMemory { to, .. } => request.memory = *to,
            Self::LessCounted { name, to, .. } => _ = request.counted.insert(name.clone(), *to),
            Self::LessDeviceCore { request, to, .. } => change_devices(request, &|devices| devices.core = *to),
            Self::LessDeviceMemory { request, to, .. } => change_devices(request, &|devices| devices.memory = *to),
            Self::FewerDevices { request, to, .. } => change_devices(request, &|devices| devices.count = *to),
            Self::AllowModel(model) => request.change_device_constraints(|models, _| {
                // A request without models allows any model.
                if !models.is_empty() {
                    models.insert(model.clone());
                }
            }),
            Self::DropAttribute { key, .. } => {
                request.change_device_constraints(|_, attributes| _ = attributes.remove(key));
            }
            Self::DropLabel { key, .. } => {
                request.constraints.labels.remove(key);
            }
            Self::DropNodeTerms => request.constraints.node_terms.clear(),
            Self::DropPeerRules => {
                let member_of = request.peers.take().map(|peers| peers.member_of.clone()).unwrap_or_default();
                let peers = Peers { member_of, ..Peers::default() };
                request.peers = (!peers.is_empty()).then(|| Arc::new(peers));
            }
            Self::Tolerate(toleration) => {
                request.constraints.tolerations.insert(toleration.clone());
            }
            Self::LowerMinimum { .. }
            | Self::RaiseLimit { .. }
            | Self::RaiseQuota { .. }
            | Self::Uncordon { .. }
            | Self::WaitFor { .. } => {}
        }
        request
    }
}

fn per_mille(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 1000 / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

/// The number in a request for device memory, whatever its unit.
fn amount(memory: DeviceMemory) -> u64 {
    match memory {
        DeviceMemory::Bytes(bytes) => bytes.get(),
        DeviceMemory::Thousandths(part) => part.into(),
    }
}

impl Display for Change {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::LessCpu { from, to } => {
                write!(f, "ask for {} instead of {}", Cores(to.get()), Cores(from.get()))
            }
            Self::LessMemory { from, to } => {
                write!(f, "ask for {} of memory instead of {}", ByteCount(to.get()), ByteCount(from.get()))
            }
            Self::LessCounted { name, from, to } => write!(f, "ask for {to} {name} instead of {from}"),
            Self::LessDeviceCore { request, from, to } => {
                let (from, to) = (Percent(from.get().into()), Percent(to.get().into()));
                write!(f, "ask for {to} gpu-core of each device instead of {from}{}", ForRequest(request.as_deref()))
            }
            Self::LessDeviceMemory { request, from, to } => {
                write!(f, "ask for {} of each device's gpu-memory instead of {}", OfMemory(*to), OfMemory(*from))?;
                ForRequest(request.as_deref()).fmt(f)
            }
            Self::FewerDevices { request, from, to } => {
                write!(f, "ask for {} instead of {from}", Count((*to).into(), "device"))?;
                ForRequest(request.as_deref()).fmt(f)
            }
            Self::AllowModel(model) => write!(f, "allow devices of model {model} too"),
            Self::DropAttribute { key, value } => write!(f, "do not ask for devices with {key}={value}"),
            Self::DropLabel { key, value } => write!(f, "do not ask for nodes with the label {key}={value}"),
            Self::DropNodeTerms => write!(f, "do not ask for nodes by a node affinity"),
            Self::DropPeerRules => write!(f, "do not ask for affinity, anti-affinity or topology spread"),
            Self::Tolerate(toleration) => write!(f, "tolerate the taint {toleration}"),
            Self::LowerMinimum { from, to } => {
                write!(f, "let {} of the pod group start together instead of {from}", Count((*to).into(), "member"))
            }
            Self::RaiseLimit { queue, resource, from, to } => {
                write!(
                    f,
                    "raise the limit of {} to {} (now {})",
                    Owner(queue),
                    Amount(resource, *to),
                    Amount(resource, *from)
                )
            }
            Self::RaiseQuota { queue, resource, from, to } => {
                write!(
                    f,
                    "raise the quota of {} to {} (now {})",
                    Owner(queue),
                    Amount(resource, *to),
                    Amount(resource, *from)
                )
            }
            Self::Uncordon { node } => write!(f, "uncordon node {node:?}"),
            Self::WaitFor { name, .. } => write!(f, "wait until {name:?} ends"),
        }
    }
}

/// Memory of a device, as it was requested.
struct OfMemory(DeviceMemory);

impl Display for OfMemory {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            DeviceMemory::Bytes(bytes) => ByteCount(bytes.get()).fmt(f),
            DeviceMemory::Thousandths(part) => Percent(part.into()).fmt(f),
        }
    }
}
