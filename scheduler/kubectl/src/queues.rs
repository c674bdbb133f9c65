//! `kubectl aliquot queues`.

use aliquot_api_server::message;
use aliquot_api_server::questions::{Queue, QueueAmounts, Queues};
use aliquot_terminal::human::{percent_human, thousandths_human};
use aliquot_terminal::look::Look;
use aliquot_terminal::queue_resources::{NodeResource, QueueResource, table_of_resources};
use aliquot_terminal::table::{Align, Table};
use serde::Serialize;

use crate::args::Format;
use crate::cluster::Cluster;
use crate::document::document;
use crate::failure::Failure;
use crate::quota::Row;
use crate::{Printed, leader, quota};

pub(crate) async fn queues(cluster: &Cluster, format: Format, look: Look) -> Result<Printed, Failure> {
    let Queues { queues } = leader::ask(cluster, "/v1/queues", None).await?;
    let mut notes = Vec::new();
    let quotas = quota::of_devices(cluster).await.unwrap_or_else(|error| {
        notes.push(format!("the ResourceQuotas cannot be read: {}", message(&error)));
        Vec::new()
    });
    let text = match format {
        Format::Json | Format::Yaml => document(&QueuesAndQuotas { queues, quotas }, format)?,
        _ => table(&queues, format == Format::Wide, look) + &of_nodes(&queues, look) + &table_of_quotas(&quotas, look),
    };
    Ok(Printed { text, notes, exit: 0 })
}

/// The queues, and what ResourceQuotas of namespaces say of devices.
#[derive(Serialize)]
struct QueuesAndQuotas {
    queues: Vec<Queue>,
    quotas: Vec<Row>,
}

fn table_of_quotas(quotas: &[Row], look: Look) -> String {
    if quotas.is_empty() {
        return String::new();
    }
    let left = ["NAMESPACE", "QUEUE", "RESOURCEQUOTA", "RESOURCE"].map(|heading| (heading, Align::Left));
    let mut table = Table::new(left.into_iter().chain([("USED", Align::Right), ("HARD", Align::Right)]));
    for row in quotas {
        let queue = row.queue.as_deref().unwrap_or("-");
        let texts = [&row.namespace, queue, &row.quota, &row.resource, &row.used, &row.hard];
        table.row(texts.map(str::to_owned).to_vec());
    }
    format!("\n{}", table.render_as(look))
}

/// What queues have of the nodes' CPU and memory.
fn of_nodes(queues: &[Queue], look: Look) -> String {
    let rows = queues.iter().flat_map(|queue| {
        let amounts = [(NodeResource::Cpu, queue.cpu_millis), (NodeResource::Memory, queue.memory_bytes)];
        amounts.into_iter().filter_map(|(resource, amounts)| {
            let QueueAmounts { quota, limit, fair_share, held, pending } = amounts?;
            Some(QueueResource { queue: &queue.name, resource, quota, limit, fair_share, held, pending })
        })
    });
    table_of_resources(&rows.collect::<Vec<_>>(), "0", look)
}

fn table(queues: &[Queue], is_wide: bool, look: Look) -> String {
    let columns = ["QUOTA", "LIMIT", "FAIR SHARE", "HELD", "ASKED FOR", "RUNNING", "WAITING"];
    let mut headings = vec![("QUEUE", Align::Left)];
    headings.extend(columns.map(|heading| (heading, Align::Right)));
    if is_wide {
        headings.extend([("USED LATELY", Align::Right), ("FIRST", Align::Left), ("WAITS BECAUSE", Align::Left)]);
    }
    let mut table = Table::new(headings);
    for queue in queues {
        let devices = |millis: Option<u64>, without: &str| millis.map_or(without.to_owned(), thousandths_human);
        let mut row = vec![
            format!("{}{}", "  ".repeat(usize::try_from(queue.depth).unwrap_or(0)), queue.name),
            devices(queue.quota_gpu_millis, "all"),
            devices(queue.limit_gpu_millis, "-"),
            devices(queue.fair_share_gpu_millis, "-"),
            thousandths_human(queue.held_gpu_millis),
            thousandths_human(queue.pending_gpu_millis),
            queue.running.to_string(),
            queue.waiting.to_string(),
        ];
        if is_wide {
            let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            row.extend([percent_human(queue.past_usage_ppm), text(&queue.first), text(&queue.first_waits_because)]);
        }
        table.row(row);
    }
    table.render_as(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_memory_are_shown_where_a_queue_has_some() {
        let memory = QueueAmounts { quota: Some(0), limit: Some(4 << 30), held: 1 << 30, ..QueueAmounts::default() };
        let older = Queue { name: "older".into(), ..Queue::default() };
        let team = Queue { name: "team".into(), memory_bytes: Some(memory), ..Queue::default() };
        assert_eq!(
            of_nodes(&[older, team], Look::PLAIN),
            "\n\
             QUEUE  RESOURCE  QUOTA  LIMIT  FAIR SHARE   HELD  ASKED FOR\n\
             team   memory        0  4 GiB           -  1 GiB        0 B\n"
        );
    }

    #[test]
    fn queues_are_shown_as_a_tree() {
        let parent = Queue { name: "all".into(), fair_share_gpu_millis: Some(8000), ..Queue::default() };
        let child = Queue {
            name: "vision".into(),
            depth: 1,
            quota_gpu_millis: Some(2500),
            limit_gpu_millis: Some(4000),
            past_usage_ppm: 125_900,
            held_gpu_millis: 500,
            waiting: 1,
            first: Some("team/a".into()),
            first_waits_because: Some("no room".into()),
            ..Queue::default()
        };
        let queues = [parent, child];
        assert_eq!(
            table(&queues, false, Look::PLAIN),
            "QUEUE     QUOTA  LIMIT  FAIR SHARE  HELD  ASKED FOR  RUNNING  WAITING\n\
             all         all      -           8     0          0        0        0\n\
             \x20 vision    2.5      4           -   0.5          0        0        1\n"
        );
        assert!(table(&queues, true, Look::PLAIN).contains("  USED LATELY  FIRST   WAITS BECAUSE\n"));
        assert!(table(&queues, true, Look::PLAIN).ends_with("       12.5 %  team/a  no room\n"));
    }
}
