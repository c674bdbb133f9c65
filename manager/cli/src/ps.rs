//! `aliquot ps`: who uses what.

use std::path::Path;

use aliquot_proto::node::v1::{GetUsageRequest, GetUsageResponse, ListFindingsRequest, PartUsage};

use tonic::Code;

use crate::args::PsArgs;
use crate::client;
use crate::error::Result;
use crate::quantity::{bytes_human, millipercent_human};
use crate::table::{Align, Table};
use crate::{findings, json, output};

/// Prints what the slices use.
pub(crate) async fn ps(socket: Option<&Path>, args: &PsArgs) -> Result<()> {
    let mut client = client::connect_to_running(socket).await?;
    let usage = client.get_usage(GetUsageRequest { slices: args.names.clone() }).await?.into_inner();
    let found = match client.list_findings(ListFindingsRequest { slices: args.names.clone() }).await {
        Ok(answer) => answer.into_inner().findings,
        // A manager of before there was an audit.
        Err(status) if status.code() == Code::Unimplemented => Vec::new(),
        Err(status) => return Err(status.into()),
    };
    if args.json {
        let mut document = json::usage(&usage);
        document["outside_slices"] =
            found.iter().filter(|finding| finding.slice.is_empty()).map(json::finding).collect();
        return output::print_json(&document);
    }
    output::print(&(table(&usage) + &findings::lines(&found)))
}

/// A line for each slice and device; a line with blanks for what continues the slice above. A mark stands behind the name of a
/// slice in which the audit has found something.
pub(crate) fn table(usage: &GetUsageResponse) -> String {
    if usage.slices.is_empty() {
        return "No slices. Make one: aliquot run --gpu-core 30 --gpu-memory 4GiB -- CMD, or aliquot slice create --help\n".to_owned();
    }
    let mut table = Table::new([
        ("SLICE", Align::Left),
        ("DEVICE", Align::Left),
        ("CORE %", Align::Right),
        ("REQUEST", Align::Right),
        ("LIMIT", Align::Right),
        ("MEMORY", Align::Right),
        ("LIMIT", Align::Right),
        ("PROCESSES", Align::Left),
    ]);
    for slice in &usage.slices {
        for (index, part) in slice.parts.iter().enumerate() {
            let first = index == 0;
            let mark = if slice.findings.is_empty() { "" } else { " !" };
            let processes = || match slice.processes.as_slice() {
                [] => "-".to_owned(),
                [process] => format!("{} {}", process.pid, short_command(&process.command)),
                [process, others @ ..] => {
                    format!("{} {} and {} more", process.pid, short_command(&process.command), others.len())
                }
            };
            table.row([
                if first { format!("{}{mark}", slice.name) } else { String::new() },
                short_device(part),
                millipercent_human(part.core_used_10s_millipercent.into()),
                part.core_request_percent.to_string(),
                part.core_limit_percent.to_string(),
                bytes_human(part.memory_used_bytes),
                bytes_human(part.memory_limit_bytes),
                if first { processes() } else { String::new() },
            ]);
        }
    }
    table.render()
}

/// A device in few characters: its index to find it, the beginning of its UUID to name it.
pub(crate) fn short_device(part: &PartUsage) -> String {
    format!("{} {}", part.device_index, short_uuid(&part.device_uuid))
}

/// The beginning of a UUID: enough to name a device of one node.
pub(crate) fn short_uuid(uuid: &str) -> &str {
    const PREFIX: usize = "GPU-01234567".len();
    match uuid.strip_prefix("MIG-") {
        Some(_) => uuid,
        None => uuid.get(..PREFIX).unwrap_or(uuid),
    }
}

/// The program of a command line without its directory, and as much of its arguments as a table has room for.
pub(crate) fn short_command(command: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let program = program.rsplit('/').next().unwrap_or(program);
    let text = format!("{program} {arguments}");
    let text = text.trim_end();
    if text.chars().count() <= CHARACTERS_MAX {
        return text.to_owned();
    }
    text.chars().take(CHARACTERS_MAX - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::{Finding, Process, SliceUsage};

    use super::*;

    fn part(index: u32, used: u32) -> PartUsage {
        PartUsage {
            device_uuid: format!("GPU-{index}110c07a-5130-4a7e-8000-000000000000"),
            device_index: index,
            core_request_percent: 30,
            core_limit_percent: 60,
            core_used_10s_millipercent: used,
            memory_limit_bytes: 4 << 30,
            memory_used_bytes: 3 << 29,
            ..PartUsage::default()
        }
    }

    #[test]
    fn a_line_for_each_part() {
        let process = |pid, command: &str| Process { pid, command: command.to_owned(), ..Process::default() };
        let usage = GetUsageResponse {
            slices: vec![
                SliceUsage {
                    name: "train".to_owned(),
                    parts: vec![part(0, 29_960), part(1, 0)],
                    processes: vec![process(4711, "/usr/bin/python3 train.py"), process(4712, "python3")],
                    ..SliceUsage::default()
                },
                SliceUsage {
                    name: "idle".to_owned(),
                    parts: vec![part(0, 0)],
                    findings: vec![Finding::default()],
                    ..SliceUsage::default()
                },
            ],
            ..GetUsageResponse::default()
        };
        assert_eq!(
            table(&usage),
            "SLICE   DEVICE          CORE %  REQUEST  LIMIT   MEMORY  LIMIT  PROCESSES\n\
             train   0 GPU-0110c07a    30.0       30     60  1.5 GiB  4 GiB  4711 python3 train.py and 1 more\n        \
                    1 GPU-1110c07a     0.0       30     60  1.5 GiB  4 GiB\n\
             idle !  0 GPU-0110c07a     0.0       30     60  1.5 GiB  4 GiB  -\n"
        );
    }

    #[test]
    fn nothing_to_show_says_how_to_begin() {
        assert!(table(&GetUsageResponse::default()).contains("aliquot run"));
    }

    #[test]
    fn long_commands_are_cut() {
        let short = short_command(&format!("/bin/x {}", "ä".repeat(100)));
        assert_eq!(short.chars().count(), 40);
        assert!(short.starts_with("x ä") && short.ends_with('…'));
        assert_eq!(short_command("[kthread]"), "[kthread]");
    }
}
