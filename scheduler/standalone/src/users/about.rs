//! The objects of calls, in the words of the audit log.

use aliquot_proto::scheduler::v1 as wire;

pub(super) fn tasks(request: &wire::CancelJobRequest) -> String {
    let wire::CancelJobRequest { id, tasks } = request;
    if tasks.is_empty() { format!("job {id}") } else { format!("job {id}, tasks {tasks:?}") }
}

pub(super) fn queue(queue: &wire::Queue) -> String {
    let wire::Queue { name, parent, quota_gpu_millis, limit_gpu_millis, weight, .. } = queue;
    let amount = |millis: &Option<u64>| millis.map_or_else(|| "none".to_owned(), |millis| millis.to_string());
    let (quota, limit) = (amount(quota_gpu_millis), amount(limit_gpu_millis));
    let mut text =
        format!("queue {name}: parent {parent:?}, quota_gpu_millis {quota}, limit_gpu_millis {limit}, weight {weight}");
    if let Some(wire::QueueRules { priority, preempt_min_runtime_ms, reclaim_min_runtime_ms }) = &queue.rules {
        let (preempt, reclaim) = (amount(preempt_min_runtime_ms), amount(reclaim_min_runtime_ms));
        text += &format!(", priority {priority}, preempt_min_runtime_ms {preempt}, reclaim_min_runtime_ms {reclaim}");
    }
    for (resource, amounts) in [("cpu_millis", &queue.cpu_millis), ("memory_bytes", &queue.memory_bytes)] {
        if let Some(wire::QueueAmounts { quota, limit, .. }) = amounts {
            text += &format!(", {resource}: quota {}, limit {}", amount(quota), amount(limit));
        }
    }
    text
}

pub(super) fn secret(name: &str, queue: &str) -> String {
    let of = if queue.is_empty() { String::new() } else { format!(" of queue {queue}") };
    format!("secret {name}{of}")
}

pub(super) fn user(request: &wire::AddUserRequest) -> String {
    let wire::User { name, role, queues, runs_as, .. } = request.user.clone().unwrap_or_default();
    let role = wire::Role::try_from(role).map_or("of no name", |role| role.as_str_name());
    format!("user {name}: {role}, queues {queues:?}, runs as {runs_as:?}")
}
