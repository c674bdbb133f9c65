//! `aliquot queues`: the queues of the cluster, and their shares.

use std::path::Path;

use aliquot_proto::scheduler::v1::{ListQueuesRequest, Queue, RemoveQueueRequest};
use serde_json::json;

use super::{Client, connect_to_running, failed, json};
use crate::args::{QueueRemoveArgs, QueueSetArgs, QueuesArgs, QueuesCommand};
use crate::error::Result;
use crate::output::{self, Look};
use crate::quantity::{DeviceLimit, percent_human, thousandths_human};
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
    let before = known(client).await?.into_iter().find(|queue| queue.name == name);
    let wanted = changed(before.unwrap_or_else(|| Queue { name: name.to_owned(), ..Queue::default() }), args);
    let queue = client.set_queue(wanted).await.map_err(failed)?.into_inner();
    if args.json {
        return output::print_json(&json::queue(&queue));
    }
    output::print(&format!("{}\n", printable(&queue.name)))
}

fn changed(queue: Queue, args: &QueueSetArgs) -> Queue {
    let limit = |given: Option<DeviceLimit>, before: Option<u64>| given.map_or(before, DeviceLimit::millis);
    Queue {
        parent: args.parent.as_ref().map_or(queue.parent, |parent| parent.as_str().to_owned()),
        quota_gpu_millis: limit(args.quota, queue.quota_gpu_millis),
        limit_gpu_millis: limit(args.limit, queue.limit_gpu_millis),
        weight: args.weight.unwrap_or(queue.weight),
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
    let were_used = queues.iter().any(|queue| queue.past_usage_ppm > 0);
    columns.extend(were_used.then_some(("USED LATELY", Align::Right)));
    let mut table = Table::new(columns);
    for (depth, queue) in as_tree(queues) {
        let devices = |millis: Option<u64>| millis.map_or_else(|| "-".to_owned(), thousandths_human);
        let mut row = vec![
            format!("{}{}", "  ".repeat(depth), queue.name),
            devices(queue.quota_gpu_millis),
            devices(queue.limit_gpu_millis),
            queue.weight.max(1).to_string(),
            thousandths_human(queue.fair_share_gpu_millis),
            thousandths_human(queue.held_gpu_millis),
            thousandths_human(queue.pending_gpu_millis),
            queue.running.to_string(),
            queue.pending.to_string(),
        ];
        row.extend(were_used.then(|| percent_human(queue.past_usage_ppm)));
        table.row(row);
    }
    table.render_as(look)
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
        QueueSetArgs { name, quota: None, limit: None, weight: None, parent: None, json: false }
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
}
