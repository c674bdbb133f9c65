//! `kubectl aliquot slices` and `top`.

use std::collections::BTreeSet;

use aliquot_terminal::human::bytes_human;
use aliquot_terminal::look::{Colour, Look};
use aliquot_terminal::table::{Align, Cell, Table};
use serde::Serialize;

use crate::Printed;
use crate::args::{Format, SlicesArgs};
use crate::cluster::Cluster;
use crate::document::document;
use crate::explain::percent;
use crate::failure::Failure;
use crate::holdings::{self, Holding, Objects};
use crate::usage::{self, Usage, Used};

pub(crate) async fn slices(cluster: &Cluster, args: &SlicesArgs, look: Look) -> Result<Printed, Failure> {
    let objects = holdings::read(cluster, args.all_namespaces).await?;
    show(objects, None, args, look)
}

pub(crate) async fn top(cluster: &Cluster, args: &SlicesArgs, look: Look) -> Result<Printed, Failure> {
    let objects = holdings::read(cluster, args.all_namespaces).await?;
    let nodes: BTreeSet<&String> = objects.holdings.iter().map(|holding| &holding.node).collect();
    let usage = usage::usage(cluster, |node| nodes.iter().any(|of| *of == node)).await;
    show(objects, Some(usage), args, look)
}

/// A part of a device, with its use.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    holding: Holding,
    index: Option<u32>,
    model: Option<String>,
    device_memory_bytes: Option<u64>,
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    core_used_thousandths: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report_age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
}

#[derive(Debug, Serialize)]
struct Document {
    slices: Vec<Row>,
    notes: Vec<String>,
}

fn show(objects: Objects, usage: Option<Usage>, args: &SlicesArgs, look: Look) -> Result<Printed, Failure> {
    let rows = rows(&objects, usage.as_ref(), args.all_namespaces);
    let with_usage = usage.is_some();
    let notes: Vec<String> = objects.notes.into_iter().chain(usage.into_iter().flat_map(|usage| usage.notes)).collect();
    let format = args.output.output;
    if matches!(format, Format::Json | Format::Yaml) {
        let text = document(&Document { slices: rows, notes }, format)?;
        return Ok(Printed { text, ..Printed::default() });
    }
    if rows.is_empty() {
        let where_ = if args.all_namespaces { "" } else { " in this namespace; -A shows all" };
        let text = format!("No pod has a part of a GPU{where_}\n");
        return Ok(Printed { text, notes, exit: 0 });
    }
    let text = table(&rows, args, with_usage, look);
    Ok(Printed { text, notes, exit: 0 })
}

/// The parts, and the devices without any part if `with_idle`.
fn rows(objects: &Objects, usage: Option<&Usage>, with_idle: bool) -> Vec<Row> {
    let row = |holding: &Holding| {
        let known = objects.devices.get(&holding.device);
        let Holding { namespace, pod, container, device, .. } = holding;
        let Used { core_thousandths, memory_bytes } =
            usage.and_then(|usage| usage.of(namespace, pod, container, device)).unwrap_or_default();
        Row {
            holding: holding.clone(),
            index: known.and_then(|known| known.index),
            model: known.map(|known| known.model.clone()),
            device_memory_bytes: known.map(|known| known.memory_bytes),
            problem: known.and_then(|known| known.problem.clone()),
            core_used_thousandths: core_thousandths,
            memory_used_bytes: memory_bytes,
            report_age_ms: usage.and_then(|usage| usage.age_ms(&holding.node)),
            queue: usage.and_then(|usage| usage.queue(namespace, pod)).cloned(),
        }
    };
    let held: BTreeSet<&String> = objects.holdings.iter().map(|holding| &holding.device).collect();
    let idle = objects.devices.iter().filter(|(uuid, _)| with_idle && !held.contains(uuid));
    let idle =
        idle.map(|(uuid, known)| Holding { node: known.node.clone(), device: uuid.clone(), ..Holding::default() });
    let mut all: Vec<Holding> = objects.holdings.iter().cloned().chain(idle).collect();
    all.sort();
    all.iter().map(row).collect()
}

fn table(rows: &[Row], args: &SlicesArgs, with_usage: bool, look: Look) -> String {
    let is_wide = args.output.output == Format::Wide;
    let mut columns = vec![("NODE", Align::Left), ("DEVICE", Align::Left)];
    let more = |columns: &mut Vec<_>, is_shown: bool, more: &[(&'static str, Align)]| {
        if is_shown {
            columns.extend(more.iter().copied());
        }
    };
    more(&mut columns, is_wide, &[("MODEL", Align::Left)]);
    more(&mut columns, args.all_namespaces, &[("NAMESPACE", Align::Left)]);
    more(&mut columns, true, &[("POD", Align::Left), ("CONTAINER", Align::Left)]);
    more(&mut columns, with_usage, &[("QUEUE", Align::Left)]);
    more(&mut columns, true, &[("CORE", Align::Right)]);
    more(&mut columns, with_usage, &[("USED", Align::Right)]);
    more(&mut columns, true, &[("MEMORY", Align::Right)]);
    more(&mut columns, with_usage, &[("USED", Align::Right), ("AGE", Align::Right)]);
    more(&mut columns, is_wide, &[("UUID", Align::Left), ("PROBLEM", Align::Left)]);
    let mut table = Table::new(columns);
    for row in rows {
        table.row(cells(row, args, with_usage, is_wide));
    }
    table.render_as(look)
}

fn cells(row: &Row, args: &SlicesArgs, with_usage: bool, is_wide: bool) -> Vec<Cell> {
    let or_dash = |text: Option<String>| Cell::from(text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".into()));
    let Holding { node, device, namespace, pod, container, claim, core_thousandths, memory_bytes } = &row.holding;
    let container = match claim {
        Some(claim) => format!("claim {claim}"),
        None => container.clone(),
    };
    let name = row.index.map_or_else(|| device.clone(), |index| format!("gpu {index}"));
    let mut cells = vec![Cell::from(node.clone()), Cell::from(name)];
    if is_wide {
        cells.push(or_dash(row.model.clone()));
    }
    if args.all_namespaces {
        cells.push(or_dash(Some(namespace.clone())));
    }
    cells.extend([or_dash(Some(pod.clone())), or_dash(Some(container))]);
    if with_usage {
        cells.push(or_dash(row.queue.clone()));
    }
    cells.push(or_dash(core_thousandths.map(percent)));
    if with_usage {
        cells.push(or_dash(row.core_used_thousandths.map(percent)));
    }
    cells.push(or_dash(memory_bytes.map(bytes_human)));
    if with_usage {
        // A part with little memory left is coloured.
        let is_full = row.memory_used_bytes.zip(*memory_bytes).is_some_and(|(used, of)| used > of / 10 * 9);
        let text = row.memory_used_bytes.map_or_else(|| "-".to_owned(), bytes_human);
        cells.push(Cell::coloured(text, is_full.then_some(Colour::Yellow)));
        cells.push(or_dash(row.report_age_ms.map(|age_ms| format!("{} s", age_ms / 1000))));
    }
    if is_wide {
        cells.push(Cell::from(device.clone()));
        cells.push(Cell::coloured(
            row.problem.clone().unwrap_or_else(|| "-".into()),
            row.problem.as_ref().map(|_| Colour::Red),
        ));
    }
    cells
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::args::OutputArgs;
    use crate::holdings::Known;

    fn objects() -> Objects {
        let known = |index| Known {
            node: "n".into(),
            index: Some(index),
            model: "H100".into(),
            memory_bytes: 80 << 30,
            problem: None,
        };
        let holding = Holding {
            node: "n".into(),
            device: "GPU-1".into(),
            namespace: "team".into(),
            pod: "a".into(),
            container: "main".into(),
            claim: None,
            core_thousandths: Some(300),
            memory_bytes: Some(8 << 30),
        };
        let devices = BTreeMap::from([("GPU-1".to_owned(), known(0)), ("GPU-2".to_owned(), known(1))]);
        Objects { holdings: vec![holding], devices, ..Objects::default() }
    }

    #[test]
    fn a_table_says_who_has_what() {
        let args = |all_namespaces, output| SlicesArgs { all_namespaces, output: OutputArgs { output } };
        let text = |args: &SlicesArgs, usage| show(objects(), usage, args, Look::PLAIN).unwrap().text;
        assert_eq!(
            text(&args(false, Format::Table), None),
            "NODE  DEVICE  POD  CONTAINER  CORE  MEMORY\nn     gpu 0   a    main       30 %   8 GiB\n"
        );
        assert_eq!(
            text(&args(true, Format::Table), Some(Usage::default())),
            "NODE  DEVICE  NAMESPACE  POD  CONTAINER  QUEUE  CORE  USED  MEMORY  USED  AGE\n\
             n     gpu 0   team       a    main       -      30 %     -   8 GiB     -    -\n\
             n     gpu 1   -          -    -          -         -     -       -     -    -\n"
        );
        let wide = text(&args(false, Format::Wide), None);
        assert!(wide.contains("MODEL") && wide.contains("GPU-1  -\n"), "{wide}");
        let json: serde_json::Value = serde_json::from_str(&text(&args(false, Format::Json), None)).unwrap();
        assert_eq!(json["slices"][0]["memory_bytes"], 8_u64 << 30);
    }
}
