//! A cluster of one node, for tests: an API server, controllers and a scheduler, and a kubelet. They use the real
//! protocols, refuse what the real ones refuse, and start real containers. The API server is a separate crate that does
//! not know kubelets: a test that needs no more uses only that crate.
//!
//! | | |
//! | --- | --- |
//! | [`Cluster`] | all of it together |
//! | [`World`] | a cluster, and the node manager on its node's simulated GPUs |
//! | [`ApiServer`], [`Store`] | lists, watches, writes, applies by HTTP; [what it serves](RESOURCES) |
//! | [`Kubelet`] | registers plugins, prepares claims, gives out devices, serves PodResources, runs pods |
//! | [`Podman`], [`Paper`] | containers that really run, and containers that are only recorded |

mod allocator;
mod cluster;
mod controllers;
mod kubelet;
mod pod;
mod runtime;
mod socket;
mod world;

pub use aliquot_test_api_server::{
    ApiServer, CLAIM_TEMPLATES, CLAIMS, CONFIG_MAPS, CORE_EVENTS, Call, DEVICE_CLASSES, EVENTS, Failure, NODES,
    POD_GROUPS, PODS, RESOURCES, Resource, SLICES, Store,
};
pub use cluster::{Cluster, NAMESPACE, NODE_NAME};
pub use kubelet::{DriverCall, Kubelet, Settings, Timing};
pub use runtime::{ContainerRuntime, ContainerSpec, ContainerState, Paper, Podman};
pub use world::{DRIVER, Share, World, request, share};
