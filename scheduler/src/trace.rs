//! Traces in files: nodes, and tasks in the order of their arrival.
//!
//! The files have comma-separated values (RFC 4180) with a line of column names. Other columns than those named here
//! are ignored.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use aliquot_scheduler_core::{
    Allocation, Bytes, Constraints, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, MilliCpu, NodeSpec, Request,
};
use anyhow::{Context, Result, bail, ensure};
use csv::{Position, StringRecord};

/// A task of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// The name of the task.
    pub name: String,
    /// The request of the task.
    pub request: Request,
}

/// Reads nodes: `sn,cpu_milli,memory_mib,gpu,model`, and optionally `gpu_memory_mib`. Of nodes that are equally good, a
/// policy takes the earlier one in the file.
///
/// # Errors
/// If the file cannot be read or a line is wrong; the error names the line.
pub fn read_nodes(path: &Path) -> Result<Vec<NodeSpec>> {
    read(path, |row| {
        let devices = row.number("gpu")?;
        let device = |index: u64| DeviceSpec {
            uuid: format!("{}/{index}", row.text("sn").unwrap_or_default()),
            model: row.text("model").unwrap_or_default().to_owned(),
            memory: Bytes::from_mib(row.number_or("gpu_memory_mib", 0).unwrap_or_default()),
            ..DeviceSpec::default()
        };
        row.number_or("gpu_memory_mib", 0)?;
        if devices > 1024 {
            bail!("a node has {devices} devices; at most 1024 are possible");
        }
        Ok(NodeSpec {
            name: row.text("sn")?.to_owned(),
            cpu: MilliCpu::new(row.number("cpu_milli")?),
            memory: Bytes::from_mib(row.number("memory_mib")?),
            devices: (0..devices).map(device).collect(),
            ..NodeSpec::default()
        })
    })
}

/// Reads tasks: `name,cpu_milli,memory_mib,num_gpu,gpu_milli`, and optionally `gpu_spec` (models joined by `|`) and
/// `gpu_memory_mib` (of each device).
///
/// # Errors
/// If the file cannot be read or a line is wrong; the error names the line.
pub fn read_tasks(path: &Path) -> Result<Vec<Task>> {
    read(path, |row| {
        let count = row.number("num_gpu")?;
        let count = u16::try_from(count)
            .ok()
            .with_context(|| format!("{count} devices in column num_gpu; at most {} are understood", u16::MAX))?;
        let with_devices = count > 0;
        let milli = if with_devices { row.number("gpu_milli")?.min(1000) } else { 0 };
        let memory = if with_devices { row.number_or("gpu_memory_mib", 0)? } else { 0 };
        let models = row.text_or_empty("gpu_spec").split('|').filter(|model| with_devices && !model.is_empty());
        let request = Request {
            cpu: MilliCpu::new(row.number("cpu_milli")?),
            memory: Bytes::from_mib(row.number("memory_mib")?),
            devices: DeviceRequest {
                count,
                core: DeviceCore::new(u32::try_from(milli)?),
                memory: DeviceMemory::Bytes(Bytes::from_mib(memory)),
            },
            constraints: Constraints {
                models: models.map(str::to_owned).collect::<BTreeSet<_>>(),
                ..Default::default()
            },
            ..Request::default()
        };
        request.validate()?;
        Ok(Task { name: row.text("name")?.to_owned(), request })
    })
}

/// The places of tasks as `pod,node,gpus`. The indexes of the devices are joined by `-`; both fields are empty for a
/// task that was not placed.
///
/// # Errors
/// None in practice: the list is written to memory.
pub fn placements<'a>(
    placed: impl IntoIterator<Item = (&'a Task, Option<(&'a str, &'a Allocation)>)>,
) -> Result<String> {
    let mut list = csv::Writer::from_writer(Vec::new());
    list.write_record(["pod", "node", "gpus"])?;
    for (task, placement) in placed {
        let (node, devices) = placement.map_or_else(Default::default, |(node, allocation)| {
            let indexes: Vec<String> = allocation.devices.iter().map(|part| part.device.to_string()).collect();
            (node, indexes.join("-"))
        });
        list.write_record([task.name.as_str(), node, &devices])?;
    }
    Ok(String::from_utf8(list.into_inner()?)?)
}

/// The fields of a line, by column name.
struct Row<'a> {
    columns: &'a StringRecord,
    fields: &'a StringRecord,
}

impl<'a> Row<'a> {
    fn index(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|name| name == column)
    }

    fn text(&self, column: &str) -> Result<&'a str> {
        let index = self.index(column).with_context(|| {
            let names: Vec<&str> = self.columns.iter().collect();
            format!("there is no column {column:?}; the first line names {}", names.join(","))
        })?;
        let text = self.fields.get(index).unwrap_or_default();
        ensure!(!text.is_empty(), "column {column} is empty");
        Ok(text)
    }

    fn text_or_empty(&self, column: &str) -> &'a str {
        self.index(column).and_then(|index| self.fields.get(index)).unwrap_or_default()
    }

    fn number(&self, column: &str) -> Result<u64> {
        let text = self.text(column)?;
        // Some traces write whole numbers as 1000.0.
        let whole = text.strip_suffix(".0").unwrap_or(text);
        let number = whole.parse().ok();
        number.with_context(|| format!("{text:?} in column {column} is not a whole number that can be counted"))
    }

    fn number_or(&self, column: &str, absent: u64) -> Result<u64> {
        if self.text_or_empty(column).is_empty() { Ok(absent) } else { self.number(column) }
    }
}

fn read<T>(path: &Path, parse: impl Fn(&Row<'_>) -> Result<T>) -> Result<Vec<T>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    // A line may have fewer fields: the missing ones are empty.
    let mut list = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let columns = list.headers().with_context(|| path.display().to_string())?.clone();
    ensure!(!columns.is_empty(), "{} is empty; its first line must name the columns", path.display());
    let rows = list.records().map(|fields| {
        let fields = fields.with_context(|| path.display().to_string())?;
        let line = fields.position().map_or(0, Position::line);
        let row = Row { columns: &columns, fields: &fields };
        parse(&row).with_context(|| format!("{}, line {line}", path.display()))
    });
    rows.collect()
}
