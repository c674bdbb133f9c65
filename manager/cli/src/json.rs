//! The manager's answers as JSON: exact figures, units in the names, and fields named as in the gRPC contract.

use aliquot_proto::node::v1::{
    Consumer, Device, DeviceHealth, Event, Finding, GetUsageHistoryResponse, GetUsageResponse, HostMemoryUsage, Node,
    Part, PartHistory, PartUsage, Process, SharingMode, Slice, SliceHistory, SliceUsage, UsagePoint, WaitHistogram,
};
use prost_types::Timestamp;
use serde_json::{Value, json};

use crate::{priority, waits};

/// RFC 3339, or null.
fn time(time: Option<&Timestamp>) -> Value {
    time.map_or(Value::Null, |time| json!(time.to_string()))
}

/// A node and its devices.
pub(crate) fn node(node: &Node) -> Value {
    json!({
        "name": node.name,
        "manager_version": node.manager_version,
        "driver_version": node.driver_version,
        "cuda_version": node.cuda_version,
        "manager_started": time(node.manager_started.as_ref()),
        "runtime_dir": node.runtime_dir,
        "cdi_dir": node.cdi_dir,
        "problem": node.problem,
        "devices": node.devices.iter().map(device).collect::<Vec<_>>(),
    })
}

fn device(device: &Device) -> Value {
    json!({
        "uuid": device.uuid,
        "index": device.index,
        "model": device.model,
        "memory_bytes": device.memory_bytes,
        "pci_bus_id": device.pci_bus_id,
        "numa_node": device.numa_node,
        "nvlink_peers": device.nvlink_peers,
        "compute_capability": device.compute_capability,
        "healthy": device.health() == DeviceHealth::Healthy,
        "health_reason": device.health_reason,
        "mig_enabled": device.mig_enabled,
        "mig_gpu_uuid": device.mig_gpu_uuid,
        "mig_profile": device.mig_profile,
        "sharing": match device.sharing() {
            SharingMode::Mps => "mps",
            SharingMode::Time | SharingMode::Unspecified => "time",
        },
        "has_mps_server": device.has_mps_server,
        "core_requested_percent": device.core_requested_percent,
        "memory_given_bytes": device.memory_given_bytes,
        "slices": device.slices,
    })
}

/// A slice with its parts and settings.
pub(crate) fn slice(slice: &Slice) -> Value {
    json!({
        "name": slice.name,
        "id": slice.id,
        "description": slice.description,
        "created": time(slice.created.as_ref()),
        "region_path": slice.region_path,
        "shim_path": slice.shim_path,
        "stand_in_path": slice.stand_in_path,
        "allowed_uids": slice.allowed_uids,
        "problem": slice.problem,
        "cdi_device": slice.cdi_device,
        "environment": slice.environment,
        "consumers": slice.consumers.iter().map(consumer).collect::<Vec<_>>(),
        "processes": slice.processes,
        "host_memory_limit_bytes": slice.host_memory_limit_bytes,
        "priority_class": priority::name(slice.priority_class()),
        "warnings": slice.warnings,
        "parts": slice.parts.iter().map(part).collect::<Vec<_>>(),
    })
}

fn consumer(consumer: &Consumer) -> Value {
    json!({
        "namespace": consumer.namespace,
        "pod": consumer.pod,
        "container": consumer.container,
    })
}

fn part(part: &Part) -> Value {
    json!({
        "device_uuid": part.device_uuid,
        "core_request_percent": part.core_request_percent,
        "core_limit_percent": part.core_limit_percent,
        "memory_limit_bytes": part.memory_limit_bytes,
    })
}

/// The use of slices.
pub(crate) fn usage(usage: &GetUsageResponse) -> Value {
    json!({
        "time": time(usage.time.as_ref()),
        "slices": usage.slices.iter().map(slice_usage).collect::<Vec<_>>(),
    })
}

/// The use of a slice.
pub(crate) fn slice_usage(usage: &SliceUsage) -> Value {
    json!({
        "name": usage.name,
        "id": usage.id,
        "priority_class": priority::name(usage.priority_class()),
        "problem": usage.problem,
        "parts": usage.parts.iter().map(part_usage).collect::<Vec<_>>(),
        "host_memory": usage.host_memory.as_ref().map(host_memory),
        "consumers": usage.consumers.iter().map(consumer).collect::<Vec<_>>(),
        "processes": usage.processes.iter().map(process).collect::<Vec<_>>(),
        "findings": usage.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn part_usage(part: &PartUsage) -> Value {
    json!({
        "device_uuid": part.device_uuid,
        "device_index": part.device_index,
        "core_request_percent": part.core_request_percent,
        "core_limit_percent": part.core_limit_percent,
        "core_used_1s_millipercent": part.core_used_1s_millipercent,
        "core_used_10s_millipercent": part.core_used_10s_millipercent,
        "core_used_60s_millipercent": part.core_used_60s_millipercent,
        "core_used_ns": part.core_used_ns,
        "throttled_ns": part.throttled_ns,
        "leases": part.leases,
        "lease_waits": part.lease_waits.as_ref().map(wait_histogram),
        "overruns": part.overruns,
        "overrun_ns": part.overrun_ns,
        "memory_limit_bytes": part.memory_limit_bytes,
        "memory_used_bytes": part.memory_used_bytes,
        "memory_peak_bytes": part.memory_peak_bytes,
        "memory_overhead_bytes": part.memory_overhead_bytes,
        "memory_refused": part.memory_refused,
        "launches": part.launches,
        "waiting": part.waiting,
        "copies": part.copies,
        "copied_bytes": part.copied_bytes,
        "copy_ns": part.copy_ns,
    })
}

fn wait_histogram(waits: &WaitHistogram) -> Value {
    json!({
        "bounds_ns": waits.bounds_ns,
        "counts": waits.counts,
        "total_ns": waits.total_ns,
        "longest_ns": waits.longest_ns,
        "p50_ns": waits::percentile_ns(waits, 50),
        "p90_ns": waits::percentile_ns(waits, 90),
        "p99_ns": waits::percentile_ns(waits, 99),
    })
}

fn host_memory(usage: &HostMemoryUsage) -> Value {
    json!({
        "limit_bytes": usage.limit_bytes,
        "used_bytes": usage.used_bytes,
        "peak_bytes": usage.peak_bytes,
        "refused": usage.refused,
    })
}

/// A finding of the audit.
pub(crate) fn finding(finding: &Finding) -> Value {
    let kind = finding.kind().as_str_name();
    json!({
        "kind": kind.strip_prefix("FINDING_KIND_").unwrap_or(kind).to_ascii_lowercase(),
        "slice": finding.slice,
        "device_uuid": finding.device_uuid,
        "pid": finding.pid,
        "command": finding.command,
        "memory_bytes": finding.memory_bytes,
        "since": time(finding.since.as_ref()),
        "stopped": time(finding.stopped.as_ref()),
    })
}

/// An event with its kind and its subjects.
pub(crate) fn event(event: &Event) -> Value {
    json!({
        "sequence": event.sequence,
        "time": time(event.time.as_ref()),
        "monotonic_ns": event.monotonic_ns,
        "kind": event_kind(event),
        "slice": event.slice,
        "device_uuid": event.device_uuid,
        "pid": event.pid,
        "message": event.message,
    })
}

/// The kind of an event in one word.
pub(crate) fn event_kind(event: &Event) -> String {
    let kind = event.kind().as_str_name();
    kind.strip_prefix("EVENT_KIND_").unwrap_or(kind).to_ascii_lowercase()
}

/// The use of slices over time.
pub(crate) fn usage_history(history: &GetUsageHistoryResponse) -> Value {
    let point = |point: &UsagePoint| {
        json!({
            "begin": time(point.begin.as_ref()),
            "length_ns": point.length_ns,
            "core_used_ns": point.core_used_ns,
            "throttled_ns": point.throttled_ns,
            "waited_ns": point.waited_ns,
            "memory_peak_bytes": point.memory_peak_bytes,
            "memory_refused": point.memory_refused,
        })
    };
    let part = |part: &PartHistory| {
        json!({
            "device_uuid": part.device_uuid,
            "device_index": part.device_index,
            "core_request_percent": part.core_request_percent,
            "core_limit_percent": part.core_limit_percent,
            "memory_limit_bytes": part.memory_limit_bytes,
            "points": part.points.iter().map(point).collect::<Vec<_>>(),
        })
    };
    let slice = |slice: &SliceHistory| json!({ "name": slice.name, "id": slice.id, "parts": slice.parts.iter().map(part).collect::<Vec<_>>() });
    json!({
        "time": time(history.time.as_ref()),
        "slices": history.slices.iter().map(slice).collect::<Vec<_>>(),
    })
}

fn process(process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "container_pid": process.container_pid,
        "command": process.command,
        "memory_used_bytes": process.memory_used_bytes,
        "host_memory_used_bytes": process.host_memory_used_bytes,
        "attached": time(process.attached.as_ref()),
    })
}
