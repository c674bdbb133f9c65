//! Usage as messages.

use std::collections::BTreeSet;
use std::time::SystemTime;

use aliquot_node::{
    Consumer, MemoryUsage, PartHistory, PartUsage, ProcessUsage, SliceHistory, SliceUsage, UsagePoint, WaitHistogram,
};
use aliquot_proto::node::v1 as proto;

use crate::audit::Finding;

/// The use of slices at `time`, each with the audit's findings in it.
pub(in crate::grpc) fn usage(
    time: SystemTime,
    slices: Vec<SliceUsage>,
    findings: &[Finding],
) -> proto::GetUsageResponse {
    let slices = slices.into_iter().map(|usage| slice_usage(usage, findings)).collect();
    proto::GetUsageResponse { time: Some(time.into()), slices }
}

/// The use of slices until `time`.
pub(in crate::grpc) fn history(time: SystemTime, slices: Vec<SliceHistory>) -> proto::GetUsageHistoryResponse {
    proto::GetUsageHistoryResponse { time: Some(time.into()), slices: slices.into_iter().map(slice_history).collect() }
}

/// The containers of pods that run in a slice.
pub(in crate::grpc) fn consumers(consumers: &BTreeSet<Consumer>) -> Vec<proto::Consumer> {
    let told = |Consumer { namespace, pod, container }: &Consumer| proto::Consumer {
        namespace: namespace.clone(),
        pod: pod.clone(),
        container: container.clone(),
    };
    consumers.iter().map(told).collect()
}

fn slice_usage(usage: SliceUsage, findings: &[Finding]) -> proto::SliceUsage {
    let of_slice = |finding: &&Finding| finding.slice.as_deref() == Some(usage.name.as_str());
    let MemoryUsage { limit_bytes, used_bytes, peak_bytes, refused } = usage.host_memory;
    proto::SliceUsage {
        findings: findings.iter().filter(of_slice).cloned().map(Into::into).collect(),
        name: usage.name,
        id: usage.id,
        parts: usage.parts.into_iter().map(part_usage).collect(),
        processes: usage.processes.into_iter().map(process).collect(),
        problem: usage.problem.unwrap_or_default(),
        host_memory: Some(proto::HostMemoryUsage { limit_bytes, used_bytes, peak_bytes, refused }),
        priority_class: super::told_qos_class(usage.qos_class),
        consumers: consumers(&usage.consumers),
    }
}

fn part_usage(usage: PartUsage) -> proto::PartUsage {
    let WaitHistogram { bounds_ns, counts, total_ns, longest_ns } = usage.lease_waits;
    proto::PartUsage {
        device_uuid: usage.device_uuid,
        device_index: usage.device_index,
        core_request_percent: usage.core_request_percent,
        core_limit_percent: usage.core_limit_percent,
        core_used_1s_millipercent: usage.core_used_1s_millipercent,
        core_used_10s_millipercent: usage.core_used_10s_millipercent,
        core_used_60s_millipercent: usage.core_used_60s_millipercent,
        core_used_ns: usage.core_used_ns,
        throttled_ns: usage.throttled_ns,
        overruns: usage.overruns,
        overrun_ns: usage.overrun_ns,
        memory_limit_bytes: usage.memory.limit_bytes,
        memory_used_bytes: usage.memory.used_bytes,
        memory_peak_bytes: usage.memory.peak_bytes,
        memory_overhead_bytes: usage.memory_overhead_bytes,
        memory_refused: usage.memory.refused,
        launches: usage.launches,
        waiting: usage.waiting,
        copies: usage.copies,
        copied_bytes: usage.copied_bytes,
        copy_ns: usage.copy_ns,
        leases: usage.leases,
        lease_waits: Some(proto::WaitHistogram { bounds_ns: bounds_ns.to_vec(), counts, total_ns, longest_ns }),
    }
}

fn process(process: ProcessUsage) -> proto::Process {
    proto::Process {
        pid: process.pid,
        container_pid: process.own_pid,
        command: process.command,
        memory_used_bytes: process.memory_used_bytes,
        attached: Some(process.attached.into()),
        host_memory_used_bytes: process.host_memory_used_bytes,
    }
}

fn slice_history(history: SliceHistory) -> proto::SliceHistory {
    let SliceHistory { name, id, parts } = history;
    proto::SliceHistory { name, id, parts: parts.into_iter().map(part_history).collect() }
}

fn part_history(history: PartHistory) -> proto::PartHistory {
    proto::PartHistory {
        device_uuid: history.device_uuid,
        device_index: history.device_index,
        core_request_percent: history.core_request_percent,
        core_limit_percent: history.core_limit_percent,
        memory_limit_bytes: history.memory_limit_bytes,
        points: history.points.into_iter().map(point).collect(),
    }
}

fn point(point: UsagePoint) -> proto::UsagePoint {
    proto::UsagePoint {
        begin: point.begin.map(Into::into),
        length_ns: point.length_ns,
        core_used_ns: point.core_used_ns,
        throttled_ns: point.throttled_ns,
        waited_ns: point.waited_ns,
        memory_peak_bytes: point.memory_peak_bytes,
        memory_refused: point.memory_refused,
    }
}
