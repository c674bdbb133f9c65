//! Nodes, requests and clusters for the tests.

use std::collections::BTreeSet;

use aliquot_scheduler_core::placement::{Engine, Policy};
use aliquot_scheduler_core::{
    Allocation, Bytes, Claim, ClaimId, Cluster, Constraints, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec,
    Event, MilliCpu, NodeSpec, Request,
};
use aliquot_scheduler_kit::Build;

pub(crate) fn node(name: &str, cpu_cores: u64, devices: usize, model: &str) -> NodeSpec {
    let device = |index| DeviceSpec {
        uuid: format!("{name}/{index}"),
        model: model.into(),
        memory: Bytes::from_mib(16_000),
        ..DeviceSpec::default()
    };
    NodeSpec {
        name: name.into(),
        cpu: MilliCpu::new(cpu_cores * 1000),
        memory: Bytes::from_mib(cpu_cores * 4096),
        devices: (0..devices).map(device).collect(),
        ..NodeSpec::default()
    }
}

pub(crate) fn request(cpu_cores: u64, count: u16, core: u32, memory_mib: u64, models: &[&str]) -> Request {
    Request {
        cpu: MilliCpu::new(cpu_cores * 1000),
        memory: Bytes::from_mib(cpu_cores * 2048),
        devices: DeviceRequest {
            count,
            core: DeviceCore::new(core),
            memory: DeviceMemory::Bytes(Bytes::from_mib(memory_mib)),
        },
        constraints: Constraints {
            models: models.iter().map(|model| (*model).to_owned()).collect::<BTreeSet<_>>(),
            ..Constraints::default()
        },
        ..Request::default()
    }
}

pub(crate) fn add(cluster: &mut Cluster, request: &Request) -> ClaimId {
    cluster.add_claim(Claim { request: request.clone(), ..Claim::default() })
}

/// Places one task with this request, if it fits.
pub(crate) fn place<P: Policy>(cluster: &mut Cluster, engine: &mut Engine<P>, request: &Request) -> Option<Allocation> {
    let claim = add(cluster, request);
    let class = cluster.class_of(claim).expect("the claim was added");
    let Some(allocation) = engine.place(cluster, class) else {
        cluster.apply(Event::ClaimRemoved(claim)).expect("the claim is there");
        return None;
    };
    cluster.apply(Event::ClaimPlaced(claim, allocation.clone())).expect("the engine places only what fits");
    Some(allocation)
}

/// The device indexes of a placement.
pub(crate) fn devices(allocation: &Allocation) -> Vec<u16> {
    allocation.devices.iter().map(|part| part.device).collect()
}
