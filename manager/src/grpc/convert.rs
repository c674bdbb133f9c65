//! Conversions between the manager's types and the contract's messages.

use aliquot_node::{AuditPolicy, QosClass};
use aliquot_proto::node::v1 as proto;
use tonic::Status;

use crate::audit::{self, Audit, Finding, Kind};
use crate::events::Event;
use crate::inventory::{Device, DeviceUuid, Health, SharingMode};
use crate::manager::{Manager, SliceView};
use crate::procfs;
use crate::slices::{Part, PartRequest, Slices};

pub(super) mod usage;

pub(super) fn part_request(part: proto::Part) -> PartRequest {
    PartRequest {
        device: Some(part.device_uuid).filter(|uuid| !uuid.is_empty()).map(DeviceUuid::new),
        core_request_percent: part.core_request_percent,
        core_limit_percent: part.core_limit_percent,
        memory_limit_bytes: part.memory_limit_bytes,
    }
}

fn part(part: Part) -> proto::Part {
    proto::Part {
        device_uuid: part.device.to_string(),
        core_request_percent: part.core_request_percent,
        core_limit_percent: part.core_limit_percent,
        memory_limit_bytes: part.memory_limit_bytes,
    }
}

/// The class in a request; `None` if it is unspecified.
pub(super) fn qos_class(class: i32) -> Result<Option<QosClass>, Status> {
    match proto::PriorityClass::try_from(class) {
        Ok(proto::PriorityClass::Unspecified) => Ok(None),
        Ok(proto::PriorityClass::LatencyCritical) => Ok(Some(QosClass::LatencyCritical)),
        Ok(proto::PriorityClass::Standard) => Ok(Some(QosClass::Standard)),
        Ok(proto::PriorityClass::Batch) => Ok(Some(QosClass::Batch)),
        Err(_) => Err(Status::invalid_argument(format!(
            "priority class {class} is not known; use latency-critical (1), standard (2) or batch (3)"
        ))),
    }
}

fn told_qos_class(class: QosClass) -> i32 {
    match class {
        QosClass::LatencyCritical => proto::PriorityClass::LatencyCritical,
        QosClass::Standard => proto::PriorityClass::Standard,
        QosClass::Batch => proto::PriorityClass::Batch,
    }
    .into()
}

pub(super) fn slice(view: SliceView) -> proto::Slice {
    proto::Slice {
        id: view.slice.id.to_string(),
        name: view.slice.name,
        parts: view.slice.parts.into_iter().map(part).collect(),
        created: Some(view.slice.created.into()),
        region_path: view.region_path.to_string_lossy().into_owned(),
        shim_path: view.shim_path.to_string_lossy().into_owned(),
        stand_in_path: view.stand_in_path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
        allowed_uids: view.slice.users.into_iter().collect(),
        cdi_device: view.cdi_device.unwrap_or_default(),
        processes: u32::try_from(view.processes).unwrap_or(u32::MAX),
        description: view.slice.description,
        problem: view.problem.unwrap_or_default(),
        host_memory_limit_bytes: view.slice.host_memory_limit_bytes,
        priority_class: told_qos_class(view.slice.qos_class),
        warnings: view.warnings,
        environment: view.environment,
        consumers: usage::consumers(&view.consumers),
    }
}

pub(super) fn node(manager: &Manager) -> proto::Node {
    let ((inventory, slices), findings) = (manager.given(), manager.audit().findings());
    proto::Node {
        name: procfs::host_name(),
        manager_version: env!("CARGO_PKG_VERSION").into(),
        driver_version: inventory.driver_version.clone(),
        cuda_version: inventory.cuda_version.clone(),
        manager_started: Some(manager.started().into()),
        devices: inventory.devices.iter().map(|of| device(of, &slices, &findings)).collect(),
        problem: manager.devices().known().problem.unwrap_or_default(),
        runtime_dir: manager.runtime_dir().to_string_lossy().into_owned(),
        cdi_dir: manager.cdi_dir().map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default(),
        shortcoming: manager.shortcoming().map(|of| proto::Shortcoming { problem: of.problem, remedy: of.remedy }),
    }
}

impl From<Finding> for proto::Finding {
    fn from(finding: Finding) -> proto::Finding {
        proto::Finding {
            kind: match finding.kind {
                Kind::Unregistered => proto::FindingKind::Unregistered,
                Kind::ForeignDevice => proto::FindingKind::ForeignDevice,
                Kind::MemoryBeyondLimit => proto::FindingKind::MemoryBeyondLimit,
                Kind::TimeWithoutLease => proto::FindingKind::TimeWithoutLease,
                Kind::OutsideSlices => proto::FindingKind::OutsideSlices,
                Kind::MpsServer => proto::FindingKind::MpsServer,
                Kind::DamagedRegion => proto::FindingKind::DamagedRegion,
            }
            .into(),
            slice: finding.slice.unwrap_or_default(),
            device_uuid: finding.device.to_string(),
            pid: finding.pid,
            command: finding.command,
            memory_bytes: finding.memory_bytes.unwrap_or(0),
            since: Some(finding.since.into()),
            stopped: finding.stopped.map(Into::into),
        }
    }
}

/// The audit's findings in the slices `names`; all findings if `names` is empty.
pub(super) fn findings(audit: &Audit, names: &[String]) -> proto::ListFindingsResponse {
    let wanted =
        |finding: &Finding| names.is_empty() || finding.slice.as_ref().is_some_and(|name| names.contains(name));
    proto::ListFindingsResponse {
        policy: match audit.policy() {
            AuditPolicy::Report => proto::AuditPolicy::Report,
            AuditPolicy::Stop => proto::AuditPolicy::Stop,
        }
        .into(),
        stopped: audit.stopped(),
        findings: audit.findings().into_iter().filter(wanted).map(Into::into).collect(),
    }
}

impl From<Event> for proto::Event {
    fn from(event: Event) -> proto::Event {
        proto::Event {
            sequence: event.sequence,
            time: Some(event.time.into()),
            monotonic_ns: event.monotonic_ns,
            kind: event.kind.into(),
            slice: event.slice.unwrap_or_default(),
            device_uuid: event.device.map(|device| device.to_string()).unwrap_or_default(),
            pid: event.pid.unwrap_or(0),
            message: event.text,
        }
    }
}

fn device(device: &Device, slices: &Slices, findings: &[Finding]) -> proto::Device {
    let given = slices.given(&device.uuid, None);
    let (health, health_reason) = match &device.health {
        Health::Healthy => (proto::DeviceHealth::Healthy, String::new()),
        Health::Unhealthy { reason } => (proto::DeviceHealth::Unhealthy, reason.clone()),
    };
    let uses = |slice: &&crate::slices::Slice| slice.parts.iter().any(|part| part.device == device.uuid);
    proto::Device {
        uuid: device.uuid.to_string(),
        index: device.index,
        model: device.model.clone(),
        memory_bytes: device.memory_bytes,
        pci_bus_id: device.pci_bus_id.clone(),
        numa_node: device.numa_node.unwrap_or(-1),
        nvlink_peers: device.nvlink_peers.iter().map(ToString::to_string).collect(),
        compute_capability: device
            .compute_capability
            .map(|(major, minor)| format!("{major}.{minor}"))
            .unwrap_or_default(),
        health: health.into(),
        health_reason,
        mig_enabled: device.mig_enabled,
        mig_gpu_uuid: device.mig_instance.as_ref().map(|instance| instance.gpu.to_string()).unwrap_or_default(),
        mig_profile: device.mig_instance.as_ref().map(|instance| instance.profile.clone()).unwrap_or_default(),
        sharing: match device.sharing {
            SharingMode::Time => proto::SharingMode::Time,
            SharingMode::Mps => proto::SharingMode::Mps,
        }
        .into(),
        has_mps_server: audit::has_mps_server(findings, &device.uuid),
        core_requested_percent: given.core_request_percent,
        memory_given_bytes: given.memory_bytes,
        slices: slices.iter().filter(uses).map(|slice| slice.name.clone()).collect(),
    }
}
