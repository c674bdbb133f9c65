//! The scheduler's answers as JSON: exact figures, units in the names, and fields named as in the gRPC contract.

use aliquot_proto::scheduler::v1::{
    Job, JobSpec, Member, MemberDevice, Mount, Node, NodeDevice, Queue, QueueAmounts, QueueRules, Restart, SecretUse,
    Task, Toleration,
};
use serde_json::{Value, json};

use super::nodes;
use super::state::word;
use crate::priority;

/// A job and its tasks.
pub(crate) fn job(job: &Job) -> Value {
    json!({
        "id": job.id,
        "spec": job.spec.as_ref().map(spec),
        "user": job.user,
        "uid": job.uid,
        "is_remote": job.is_remote,
        "submitted_unix_ms": job.submitted_unix_ms,
        "state": word(job.state()),
        "tasks": job.tasks.iter().map(task).collect::<Vec<_>>(),
        "reason": job.reason,
    })
}

fn spec(spec: &JobSpec) -> Value {
    json!({
        "name": spec.name,
        "queue": spec.queue,
        "command": spec.command,
        "environment": spec.environment,
        "work_dir": spec.work_dir,
        "gpu_core_percent": spec.gpu_core_percent,
        "gpu_core_limit_percent": spec.gpu_core_limit_percent,
        "gpu_memory_bytes": spec.gpu_memory_bytes,
        "gpus": spec.gpus,
        "priority_class": priority::name_of_job(spec.priority_class()),
        "cpu_millis": spec.cpu_millis,
        "memory_bytes": spec.memory_bytes,
        "gang": spec.gang,
        "array": spec.array,
        "priority": spec.priority,
        "non_preemptible": spec.non_preemptible,
        "retries": spec.retries,
        "retry_delay_ms": spec.retry_delay_ms,
        "time_limit_ms": spec.time_limit_ms,
        "grace_ms": spec.grace_ms,
        "restart": match spec.restart() {
            Restart::Unspecified => "always",
            Restart::Never => "never",
        },
        "node_labels": spec.node_labels,
        "nodes": spec.nodes,
        "gpu_models": spec.gpu_models,
        "tolerations": spec.tolerations.iter().map(toleration).collect::<Vec<_>>(),
        "after": spec.after,
        "image": spec.image,
        "mounts": spec.mounts.iter().map(mount).collect::<Vec<_>>(),
        "shm_bytes": spec.shm_bytes,
        "secrets": spec.secrets.iter().map(secret).collect::<Vec<_>>(),
    })
}

fn secret(of: &SecretUse) -> Value {
    json!({ "name": of.name, "variable": of.variable })
}

fn mount(mount: &Mount) -> Value {
    json!({ "source": mount.source, "target": mount.target, "read_only": mount.read_only })
}

fn toleration(toleration: &Toleration) -> Value {
    json!({ "key": toleration.key, "value": toleration.value })
}

fn task(task: &Task) -> Value {
    json!({
        "index": task.index,
        "state": word(task.state()),
        "attempt": task.attempt,
        "failures": task.failures,
        "members": task.members.iter().map(member).collect::<Vec<_>>(),
        "reason": task.reason,
        "ended_unix_ms": task.ended_unix_ms,
        "retry_unix_ms": task.retry_unix_ms,
    })
}

fn member(member: &Member) -> Value {
    json!({
        "rank": member.rank,
        "state": word(member.state()),
        "node": member.node,
        "devices": member.devices.iter().map(member_device).collect::<Vec<_>>(),
        "started_unix_ms": member.started_unix_ms,
        "exit_code": member.exit_code,
        "signal": member.signal,
    })
}

fn member_device(device: &MemberDevice) -> Value {
    json!({ "uuid": device.uuid, "core_millis": device.core_millis, "memory_bytes": device.memory_bytes })
}

/// Of CPU or of memory.
fn queue_amounts(amounts: &QueueAmounts) -> Value {
    json!({
        "quota": amounts.quota,
        "limit": amounts.limit,
        "held": amounts.held,
        "fair_share": amounts.fair_share,
        "pending": amounts.pending,
    })
}

fn queue_rules(rules: &QueueRules) -> Value {
    json!({
        "priority": rules.priority,
        "preempt_min_runtime_ms": rules.preempt_min_runtime_ms,
        "reclaim_min_runtime_ms": rules.reclaim_min_runtime_ms,
    })
}

/// A queue with its quota and its use.
pub(crate) fn queue(queue: &Queue) -> Value {
    json!({
        "name": queue.name,
        "parent": queue.parent,
        "quota_gpu_millis": queue.quota_gpu_millis,
        "limit_gpu_millis": queue.limit_gpu_millis,
        "weight": queue.weight,
        "held_gpu_millis": queue.held_gpu_millis,
        "fair_share_gpu_millis": queue.fair_share_gpu_millis,
        "past_usage_ppm": queue.past_usage_ppm,
        "pending_gpu_millis": queue.pending_gpu_millis,
        "running": queue.running,
        "pending": queue.pending,
        "rules": queue.rules.as_ref().map(queue_rules),
        "cpu_millis": queue.cpu_millis.as_ref().map(queue_amounts),
        "memory_bytes": queue.memory_bytes.as_ref().map(queue_amounts),
    })
}

/// A node of the cluster.
pub(crate) fn node(node: &Node) -> Value {
    json!({
        "name": node.name,
        "state": nodes::state_word(node.state()),
        "version": node.version,
        "address": node.address,
        "devices": node.devices.iter().map(node_device).collect::<Vec<_>>(),
        "labels": node.labels,
        "instances": node.instances,
        "heard_unix_ms": node.heard_unix_ms,
        "lease_unix_ms": node.lease_unix_ms,
        "problem": node.problem,
        "cpu_millis": node.cpu_millis,
        "memory_bytes": node.memory_bytes,
    })
}

fn node_device(device: &NodeDevice) -> Value {
    json!({
        "uuid": device.uuid,
        "model": device.model,
        "memory_bytes": device.memory_bytes,
        "healthy": device.healthy,
        "core_given_millis": device.core_given_millis,
        "memory_given_bytes": device.memory_given_bytes,
    })
}
