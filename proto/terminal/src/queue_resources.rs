//! The table of what queues have of the nodes' CPU and memory.

use crate::human::{bytes_human, thousandths_human};
use crate::look::Look;
use crate::table::{Align, Table};

/// A resource of nodes, which is divided among queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeResource {
    /// In thousandths of a core.
    Cpu,
    /// In bytes.
    Memory,
}

/// What a queue has of a resource, in the resource's unit.
#[derive(Clone, Copy, Debug)]
pub struct QueueResource<'a> {
    /// The name of the queue.
    pub queue: &'a str,
    /// Which resource this is about.
    pub resource: NodeResource,
    /// The guaranteed amount; `None`: everything.
    pub quota: Option<u64>,
    /// The amount that is never exceeded; `None`: no limit.
    pub limit: Option<u64>,
    /// The fair share at this time; `None`: the resource is not divided among queues.
    pub fair_share: Option<u64>,
    /// The amount that its tasks hold.
    pub held: u64,
    /// The amount that its waiting tasks ask for.
    pub pending: u64,
}

impl QueueResource<'_> {
    /// A quota of everything alone bounds nothing.
    fn is_bounded(&self) -> bool {
        self.quota.is_some_and(|quota| quota > 0) || self.limit.is_some()
    }

    fn is_worth_a_row(&self) -> bool {
        self.quota != Some(0) || self.limit.is_some() || self.held > 0 || self.pending > 0
    }
}

/// The table, after an empty line. A resource is there if a queue has a quota or a limit of it; without any there is no
/// table. `no_quota` is the text for a quota of 0.
#[must_use]
pub fn table_of_resources(rows: &[QueueResource<'_>], no_quota: &str, look: Look) -> String {
    let is_shown = |resource: NodeResource| rows.iter().any(|other| other.resource == resource && other.is_bounded());
    let columns = ["QUOTA", "LIMIT", "FAIR SHARE", "HELD", "ASKED FOR"].map(|heading| (heading, Align::Right));
    let mut table = Table::new([("QUEUE", Align::Left), ("RESOURCE", Align::Left)].into_iter().chain(columns));
    if !rows.iter().any(QueueResource::is_bounded) {
        return String::new();
    }
    for row in rows.iter().filter(|row| is_shown(row.resource) && row.is_worth_a_row()) {
        let (name, human): (&str, fn(u64) -> String) = match row.resource {
            NodeResource::Cpu => ("cpu", thousandths_human),
            NodeResource::Memory => ("memory", bytes_human),
        };
        let amount = |amount: Option<u64>, without: &str| amount.map_or_else(|| without.to_owned(), human);
        table.row(vec![
            row.queue.to_owned(),
            name.to_owned(),
            if row.quota == Some(0) { no_quota.to_owned() } else { amount(row.quota, "all") },
            amount(row.limit, "-"),
            amount(row.fair_share, "-"),
            human(row.held),
            human(row.pending),
        ]);
    }
    format!("\n{}", table.render_as(look))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_shown_where_a_queue_is_bounded() {
        let row = |queue, resource| QueueResource {
            queue,
            resource,
            quota: Some(0),
            limit: None,
            fair_share: Some(7),
            held: 0,
            pending: 0,
        };
        let cpu = row("plain", NodeResource::Cpu);
        let busy = QueueResource { held: 1500, pending: 500, ..row("busy", NodeResource::Memory) };
        let all = QueueResource { quota: None, ..row("default", NodeResource::Cpu) };
        assert_eq!(table_of_resources(&[cpu, busy, all], "-", Look::PLAIN), "");
        let team =
            QueueResource { quota: None, limit: Some(4 << 30), held: 1 << 30, ..row("team", NodeResource::Memory) };
        assert_eq!(
            table_of_resources(&[cpu, busy, all, team], "-", Look::PLAIN),
            "\n\
             QUEUE  RESOURCE  QUOTA  LIMIT  FAIR SHARE     HELD  ASKED FOR\n\
             busy   memory        -      -         7 B  1.5 KiB      500 B\n\
             team   memory      all  4 GiB         7 B    1 GiB        0 B\n"
        );
    }
}
