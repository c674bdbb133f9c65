//! What one pod of a node can have at a time: ports of the node, and volumes that the pod names itself. In the books
//! these are resources of which each node has one.

use k8s_openapi::api::core::v1::{PodSpec, Volume};

/// The prefix of the resources that stand for ports.
const PORT: &str = "hostPort/";
/// The prefix of the resources that stand for volumes.
const VOLUME: &str = "volume/";

/// Whether a resource is one of which a node has one.
pub(crate) fn is_one_per_node(resource: &str) -> bool {
    resource.starts_with(PORT) || resource.starts_with(VOLUME)
}

/// What a pod asks for of these resources.
pub(crate) fn of_pod(spec: &PodSpec) -> impl Iterator<Item = String> {
    ports(spec).chain(spec.volumes.iter().flatten().flat_map(volumes))
}

/// The ports of its node that a pod asks for. Pods that want the same port of different addresses of a node are not put
/// together. As with kube-scheduler, an init container counts only if it goes on beside the containers.
fn ports(spec: &PodSpec) -> impl Iterator<Item = String> {
    let sidecars = spec.init_containers.iter().flatten().filter(|of| of.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(|port| {
        let number = port.host_port.filter(|port| *port > 0)?;
        Some(format!("{PORT}{}/{number}", port.protocol.as_deref().unwrap_or("TCP")))
    })
}

/// The resources that stand for a volume which two pods of a node cannot both have. Kube-scheduler puts pods together
/// that only read; here they are not put together.
///
/// Source: the plugin `VolumeRestrictions` of kube-scheduler. Images of RBD are the same if they have a monitor in
/// common.
fn volumes(volume: &Volume) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(volume.gce_persistent_disk.as_ref().map(|of| format!("{VOLUME}gcePersistentDisk/{}", of.pd_name)));
    let of_aws = volume.aws_elastic_block_store.as_ref();
    all.extend(of_aws.map(|of| format!("{VOLUME}awsElasticBlockStore/{}", of.volume_id)));
    all.extend(volume.iscsi.as_ref().map(|of| format!("{VOLUME}iscsi/{}", of.iqn)));
    if let Some(of) = &volume.rbd {
        let (pool, image) = (of.pool.as_deref().unwrap_or("rbd"), &of.image);
        all.extend(of.monitors.iter().map(|monitor| format!("{VOLUME}rbd/{monitor}/{pool}/{image}")));
    }
    all
}

/// A volume without what does not matter here; `None`: all of it does not.
pub(crate) fn only_what_counts(volume: &Volume) -> Option<Volume> {
    let Volume { name, gce_persistent_disk, aws_elastic_block_store, iscsi, rbd, .. } = volume.clone();
    let volume = Volume { name, gce_persistent_disk, aws_elastic_block_store, iscsi, rbd, ..Volume::default() };
    (!volumes(&volume).is_empty()).then_some(volume)
}
