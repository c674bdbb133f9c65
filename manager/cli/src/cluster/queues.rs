//! `aliquot queues`: the queues of the cluster, and their shares.

use std::path::Path;

use aliquot_proto::scheduler::v1::{ListQueuesRequest, Queue, QueueAmounts, QueueRules, RemoveQueueRequest};
use aliquot_terminal::queue_resources::{NodeResource, QueueResource, table_of_resources};
use serde_json::json;

use super::{Client, Priority, connect_to_running, failed, json};
use crate::args::{QueueRemoveArgs, QueueSetArgs, QueuesArgs, QueuesCommand};
use crate::error::{Failure, Result};
use crate::output::{self, Look};
use crate::quantity::{CountLimit, MemoryLimit, MinRuntime, percent_human, span_human, thousandths_human};
use crate::table::{Align, Table, printable};

/// Prints the queues, or changes one.
pub(crate) async fn queues(socket: Option<&Path>, args: &QueuesArgs) -> Result<()> {
    let mut client = connect_to_running(socket).await?;
    match &args.command {
        None => list(&mut client, args.json).await,
        Some(QueuesCommand::Set(args)) => set(&mut client, args).await,
        Some(QueuesCommand::Remove(args)) => remove(&mut client, args).await,
    }
}

async fn known(client: &mut Client) -> Result<Vec<Queue>> {
    Ok(client.list_queues(ListQueuesRequest {}).await.map_err(failed)?.into_inner().queues)
}

async fn list(client: &mut Client, as_json: bool) -> Result<()> {
    let queues = known(client).await?;
    if as_json {
        return output::print_json(&json!({ "queues": queues.iter().map(json::queue).collect::<Vec<_>>() }));
    }
    output::print(&text(&queues, Look::of_stdout()))
}

/// Makes a queue, or changes the settings of one that the options name.
async fn set(client: &mut Client, args: &QueueSetArgs) -> Result<()> {
    let name = args.name.as_str();
    let queues = known(client).await?;
    let is_older = queues.iter().all(|queue| queue.rules.is_none());
    if let Some(option) = newer_option(args).filter(|_| is_older && !queues.is_empty()) {
        return Err(Failure::new(format!("the scheduler is of an older version, which knows no {option} of queues"))
            .hint("update the scheduler, or leave the option out"));
    }
    let before = queues.into_iter().find(|queue| queue.name == name);
    let wanted = changed(before.unwrap_or_else(|| Queue { name: name.to_owned(), ..Queue::default() }), args);
    let queue = client.set_queue(wanted).await.map_err(failed)?.into_inner();
    if args.json {
        return output::print_json(&json::queue(&queue));
    }
    output::print(&format!("{}\n", printable(&queue.name)))
}

/// An option that schedulers of older versions ignore.
fn newer_option(args: &QueueSetArgs) -> Option<&'static str> {
    let options = [
        ("--cpu-quota", args.cpu_quota.is_some()),
        ("--cpu-limit", args.cpu_limit.is_some()),
        ("--memory-quota", args.memory_quota.is_some()),
        ("--memory-limit", args.memory_limit.is_some()),
        ("--priority", args.priority.is_some()),
        ("--preempt-min-runtime", args.preempt_min_runtime.is_some()),
        ("--reclaim-min-runtime", args.reclaim_min_runtime.is_some()),
    ];
    options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
}

fn changed(queue: Queue, args: &QueueSetArgs) -> Queue {
    let limit = |given: Option<CountLimit>, before: Option<u64>| given.map_or(before, CountLimit::millis);
    let memory = |given: Option<MemoryLimit>, before: Option<u64>| given.map_or(before, MemoryLimit::bytes);
    let time = |given: Option<MinRuntime>, before: Option<u64>| given.map_or(before, MinRuntime::millis);
    // What is not set here stays as it is.
    let rules = queue.rules.unwrap_or_default();
    let rules = QueueRules {
        priority: args.priority.map_or(rules.priority, Priority::number),
        preempt_min_runtime_ms: time(args.preempt_min_runtime, rules.preempt_min_runtime_ms),
        reclaim_min_runtime_ms: time(args.reclaim_min_runtime, rules.reclaim_min_runtime_ms),
    };
    let has_rules = args.priority.is_some() || args.preempt_min_runtime.is_some() || args.reclaim_min_runtime.is_some();
    let amounts = |quota, limit| QueueAmounts { quota, limit, ..QueueAmounts::default() };
    let (cpu, bytes) = (queue.cpu_millis.unwrap_or_default(), queue.memory_bytes.unwrap_or_default());
    let cpu = amounts(limit(args.cpu_quota, cpu.quota), limit(args.cpu_limit, cpu.limit));
    let bytes = amounts(memory(args.memory_quota, bytes.quota), memory(args.memory_limit, bytes.limit));
    Queue {
        parent: args.parent.as_ref().map_or(queue.parent, |parent| parent.as_str().to_owned()),
        quota_gpu_millis: limit(args.quota, queue.quota_gpu_millis),
        limit_gpu_millis: limit(args.limit, queue.limit_gpu_millis),
        weight: args.weight.unwrap_or(queue.weight),
        rules: has_rules.then_some(rules),
        cpu_millis: (args.cpu_quota.is_some() || args.cpu_limit.is_some()).then_some(cpu),
        memory_bytes: (args.memory_quota.is_some() || args.memory_limit.is_some()).then_some(bytes),
        name: queue.name,
        ..Queue::default()
    }
}

async fn remove(client: &mut Client, args: &QueueRemoveArgs) -> Result<()> {
    client.remove_queue(RemoveQueueRequest { name: args.name.as_str().to_owned() }).await.map_err(failed)?;
    if args.json {
        return output::print_json(&json!({ "removed": args.name.as_str() }));
    }
    Ok(())
}

fn text(queues: &[Queue], look: Look) -> String {
    if queues.is_empty() {
        return "No queues. Make one: aliquot queues set team-a --quota 4\n".to_owned();
    }
    let mut columns = vec![
        ("QUEUE", Align::Left),
        ("QUOTA", Align::Right),
        ("LIMIT", Align::Right),
        ("WEIGHT", Align::Right),
        ("FAIR SHARE", Align::Right),
        ("HELD", Align::Right),
        ("ASKED FOR", Align::Right),
        ("RUNNING", Align::Right),
        ("PENDING", Align::Right),
    ];
    let rules = |queue: &Queue| queue.rules.unwrap_or_default();
    let time = |millis: Option<u64>| millis.map_or_else(|| "-".to_owned(), |millis| span_human(millis / 1000));
    let has_priorities = queues.iter().any(|queue| rules(queue).priority != 0);
    let has_preempt = queues.iter().any(|queue| rules(queue).preempt_min_runtime_ms.is_some());
    let has_reclaim = queues.iter().any(|queue| rules(queue).reclaim_min_runtime_ms.is_some());
    let were_used = queues.iter().any(|queue| queue.past_usage_ppm > 0);
    columns.extend(has_priorities.then_some(("PRIORITY", Align::Right)));
    columns.extend(has_preempt.then_some(("PREEMPT AFTER", Align::Right)));
    columns.extend(has_reclaim.then_some(("RECLAIM AFTER", Align::Right)));
    columns.extend(were_used.then_some(("USED LATELY", Align::Right)));
    let mut table = Table::new(columns);
    let tree = as_tree(queues);
    for (depth, queue) in &tree {
        let devices = |millis: Option<u64>| millis.map_or_else(|| "-".to_owned(), thousandths_human);
        let mut row = vec![
            format!("{}{}", "  ".repeat(*depth), queue.name),
            devices(queue.quota_gpu_millis),
            devices(queue.limit_gpu_millis),
            queue.weight.max(1).to_string(),
            thousandths_human(queue.fair_share_gpu_millis),
            thousandths_human(queue.held_gpu_millis),
            thousandths_human(queue.pending_gpu_millis),
            queue.running.to_string(),
            queue.pending.to_string(),
        ];
        row.extend(has_priorities.then(|| rules(queue).priority.to_string()));
        row.extend(has_preempt.then(|| time(rules(queue).preempt_min_runtime_ms)));
        row.extend(has_reclaim.then(|| time(rules(queue).reclaim_min_runtime_ms)));
        row.extend(were_used.then(|| percent_human(queue.past_usage_ppm)));
        table.row(row);
    }
    table.render_as(look) + &of_nodes(tree.into_iter().map(|(_, queue)| queue), look)
}

/// What queues have of the nodes' CPU and memory.
fn of_nodes<'a>(queues: impl Iterator<Item = &'a Queue>, look: Look) -> String {
    let rows = |queue: &'a Queue| {
        let amounts = [(NodeResource::Cpu, queue.cpu_millis), (NodeResource::Memory, queue.memory_bytes)];
        amounts.into_iter().filter_map(|(resource, amounts)| {
            let QueueAmounts { quota, limit, held, fair_share, pending } = amounts?;
            let quota = Some(quota.unwrap_or(0));
            Some(QueueResource { queue: &queue.name, resource, quota, limit, fair_share, held, pending })
        })
    };
    table_of_resources(&queues.flat_map(rows).collect::<Vec<_>>(), "-", look)
}

/// Each queue below its parent, by name, with its depth. A queue whose parent is not listed stands at the top.
fn as_tree(queues: &[Queue]) -> Vec<(usize, &Queue)> {
    let mut sorted: Vec<&Queue> = queues.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let is_known = |name: &str| queues.iter().any(|queue| queue.name == name);
    let mut tree: Vec<(usize, &Queue)> = Vec::new();
    let mut ahead: Vec<(usize, &Queue)> =
        sorted.iter().rev().filter(|queue| !is_known(&queue.parent)).map(|&queue| (0, queue)).collect();
    while let Some((depth, queue)) = ahead.pop() {
        tree.push((depth, queue));
        ahead.extend(sorted.iter().rev().filter(|child| child.parent == queue.name).map(|&child| (depth + 1, child)));
    }
    // Queues that are each other's parents are below no top queue. They are shown all the same.
    let missing = sorted.iter().filter(|queue| !tree.iter().any(|(_, shown)| shown.name == queue.name));
    let missing: Vec<_> = missing.map(|&queue| (0, queue)).collect();
    tree.extend(missing);
    tree
}

impl QueueSetArgs {
    /// A queue with only a name, for tests.
    #[cfg(test)]
    fn of(name: &str) -> QueueSetArgs {
        let name: super::Text = name.parse().unwrap();
        QueueSetArgs {
            name,
            quota: None,
            limit: None,
            cpu_quota: None,
            cpu_limit: None,
            memory_quota: None,
            memory_limit: None,
            weight: None,
            priority: None,
            preempt_min_runtime: None,
            reclaim_min_runtime: None,
            parent: None,
            json: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, parent: &str) -> Queue {
        Queue { name: name.to_owned(), parent: parent.to_owned(), ..Queue::default() }
    }

    #[test]
    fn queues_are_a_tree() {
        let research = Queue {
            quota_gpu_millis: Some(4000),
            limit_gpu_millis: Some(8500),
            weight: 2,
            held_gpu_millis: 3300,
            fair_share_gpu_millis: 5000,
            pending_gpu_millis: 500,
            running: 3,
            pending: 1,
            ..queue("research", "")
        };
        assert_eq!(
            text(&[queue("vision", "research"), queue("default", ""), research.clone()], Look::PLAIN),
            "QUEUE     QUOTA  LIMIT  WEIGHT  FAIR SHARE  HELD  ASKED FOR  RUNNING  PENDING\n\
             default       -      -       1           0     0          0        0        0\n\
             research      4    8.5       2           5   3.3        0.5        3        1\n  \
               vision      -      -       1           0     0          0        0        0\n"
        );
        assert!(text(&[], Look::PLAIN).contains("aliquot queues set"));
        let used = Queue { past_usage_ppm: 125_900, ..research };
        assert_eq!(
            text(&[used, queue("default", "")], Look::PLAIN),
            "QUEUE     QUOTA  LIMIT  WEIGHT  FAIR SHARE  HELD  ASKED FOR  RUNNING  PENDING  USED LATELY\n\
             default       -      -       1           0     0          0        0        0          0 %\n\
             research      4    8.5       2           5   3.3        0.5        3        1       12.5 %\n"
        );
    }

    #[test]
    fn cpu_and_memory_are_shown_where_a_queue_has_some() {
        let amounts = |quota, limit, held| {
            Some(QueueAmounts { quota, limit, held, fair_share: Some(16_000), ..QueueAmounts::default() })
        };
        let none = amounts(None, None, 0);
        let team =
            Queue { cpu_millis: amounts(Some(8000), Some(32_500), 4000), memory_bytes: none, ..queue("team", "") };
        let busy = Queue { cpu_millis: amounts(None, None, 500), memory_bytes: none, ..queue("busy", "team") };
        let idle = Queue { cpu_millis: none, memory_bytes: none, ..queue("idle", "") };
        let shown = text(&[busy.clone(), idle.clone(), team], Look::PLAIN);
        let second = shown.split_once("\n\n").map(|(_, second)| second);
        assert_eq!(
            second,
            Some(
                "QUEUE  RESOURCE  QUOTA  LIMIT  FAIR SHARE  HELD  ASKED FOR\n\
                 team   cpu           8   32.5          16     4          0\n\
                 busy   cpu           -      -          16   0.5          0\n"
            )
        );
        assert!(!text(&[busy, idle], Look::PLAIN).contains("cpu"));
    }

    #[test]
    fn the_rules_of_queues_are_shown_where_a_queue_has_some() {
        let rules = QueueRules { priority: -3, preempt_min_runtime_ms: Some(0), reclaim_min_runtime_ms: Some(600_000) };
        let shown = text(&[Queue { rules: Some(rules), ..queue("a", "") }, queue("b", "")], Look::PLAIN);
        let ends: Vec<&str> = shown.lines().filter_map(|line| line.get(75..)).map(str::trim).collect();
        assert_eq!(
            ends,
            [
                "PRIORITY  PREEMPT AFTER  RECLAIM AFTER",
                "-3             0s            10m",
                "0              -              -"
            ]
        );
    }

    #[test]
    fn every_queue_is_shown_once_whatever_the_parents_are() {
        let queues = [queue("a", "b"), queue("b", "a"), queue("c", "gone"), queue("d", "d")];
        let shown: Vec<_> = as_tree(&queues).iter().map(|(depth, queue)| (*depth, queue.name.as_str())).collect();
        assert_eq!(shown, [(0, "c"), (0, "a"), (0, "b"), (0, "d")]);
    }

    #[test]
    fn only_what_is_said_changes() {
        let before = Queue {
            quota_gpu_millis: Some(4000),
            limit_gpu_millis: Some(8000),
            weight: 2,
            held_gpu_millis: 7,
            ..queue("team-a", "research")
        };
        let set = |args: QueueSetArgs| changed(before.clone(), &args);
        let unchanged = Queue { held_gpu_millis: 0, ..before.clone() };
        assert_eq!(set(QueueSetArgs::of("team-a")), unchanged);
        let args = QueueSetArgs {
            limit: Some("none".parse().unwrap()),
            quota: Some("0.5".parse().unwrap()),
            ..QueueSetArgs::of("team-a")
        };
        let expected = Queue { quota_gpu_millis: Some(500), limit_gpu_millis: None, ..unchanged.clone() };
        assert_eq!(set(args), expected);
        let args =
            QueueSetArgs { weight: Some(5), parent: Some("other".parse().unwrap()), ..QueueSetArgs::of("team-a") };
        assert_eq!(set(args), Queue { weight: 5, parent: "other".to_owned(), ..unchanged });
    }

    #[test]
    fn only_the_rules_and_amounts_that_are_given_are_sent() {
        let amounts = |quota, limit, held| QueueAmounts { quota, limit, held, ..QueueAmounts::default() };
        let before = Queue {
            rules: Some(QueueRules { priority: 1, reclaim_min_runtime_ms: Some(5), ..QueueRules::default() }),
            cpu_millis: Some(amounts(Some(1000), Some(2000), 7)),
            memory_bytes: Some(amounts(None, Some(9), 7)),
            ..queue("team-a", "")
        };
        let set = |args: QueueSetArgs| {
            let Queue { rules, cpu_millis, memory_bytes, .. } = changed(before.clone(), &args);
            (rules, cpu_millis, memory_bytes)
        };
        assert_eq!(set(QueueSetArgs::of("team-a")), (None, None, None));
        let args = QueueSetArgs {
            priority: Some("-3".parse().unwrap()),
            cpu_limit: Some("none".parse().unwrap()),
            ..QueueSetArgs::of("team-a")
        };
        let rules = QueueRules { priority: -3, preempt_min_runtime_ms: None, reclaim_min_runtime_ms: Some(5) };
        assert_eq!(set(args), (Some(rules), Some(amounts(Some(1000), None, 0)), None));
        let args = QueueSetArgs {
            preempt_min_runtime: Some("10m".parse().unwrap()),
            reclaim_min_runtime: Some("none".parse().unwrap()),
            memory_quota: Some("1GiB".parse().unwrap()),
            ..QueueSetArgs::of("team-a")
        };
        let rules = QueueRules { priority: 1, preempt_min_runtime_ms: Some(600_000), reclaim_min_runtime_ms: None };
        assert_eq!(set(args), (Some(rules), None, Some(amounts(Some(1 << 30), Some(9), 0))));
    }
}
