//! `aliquot ps`: who uses what.

use std::path::Path;

use aliquot_proto::node::v1::{GetUsageRequest, GetUsageResponse, ListFindingsRequest, PartUsage, SliceUsage};

use tonic::Code;

use crate::args::PsArgs;
use crate::client;
use crate::error::Result;
use crate::quantity::{bytes_human, duration_human, millipercent_human};
use crate::table::{Align, Table};
use crate::{consumers, findings, json, output, priority, waits};

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
    let table = if args.wide { wide_table(&usage) } else { table(&usage) };
    output::print(&(table + &problems(&usage) + &findings::lines(&found)))
}

/// A line for each slice with which something is wrong.
fn problems(usage: &GetUsageResponse) -> String {
    let ill = usage.slices.iter().filter(|slice| !slice.problem.is_empty());
    ill.map(|slice| format!("! {}: {}\n", slice.name, slice.problem)).collect()
}

/// A line for each slice and device; a line with blanks for what continues the slice above. A mark stands behind the
/// name of a slice in which the audit has found something.
pub(crate) fn table(usage: &GetUsageResponse) -> String {
    if usage.slices.is_empty() {
        return "No slices. Make one: aliquot run --gpu-core 30 --gpu-memory 4GiB -- CMD, or aliquot slice create --help\n".to_owned();
    }
    let with_consumers = has_consumers(usage);
    let mut table = Table::new(heading(with_consumers).chain([
        ("DEVICE", Align::Left),
        ("CORE %", Align::Right),
        ("REQUEST", Align::Right),
        ("LIMIT", Align::Right),
        ("WAIT P99", Align::Right),
        ("MEMORY", Align::Right),
        ("LIMIT", Align::Right),
        ("PROCESSES", Align::Left),
    ]));
    for slice in &usage.slices {
        for (index, part) in slice.parts.iter().enumerate() {
            let of_slice = |text: &dyn Fn() -> String| if index == 0 { text() } else { String::new() };
            let whose = whose(slice, index, with_consumers);
            table.row(whose.chain([
                short_device(part),
                millipercent_human(part.core_used_10s_millipercent.into()),
                part.core_request_percent.to_string(),
                part.core_limit_percent.to_string(),
                waits::p99(part),
                bytes_human(part.memory_used_bytes),
                bytes_human(part.memory_limit_bytes),
                of_slice(&|| processes(slice)),
            ]));
        }
    }
    table.render()
}

/// The same with all that is known of time.
fn wide_table(usage: &GetUsageResponse) -> String {
    if usage.slices.is_empty() {
        return table(usage);
    }
    let with_consumers = has_consumers(usage);
    let mut table = Table::new(heading(with_consumers).chain([
        ("DEVICE", Align::Left),
        ("PRIORITY", Align::Left),
        ("REQUEST", Align::Right),
        ("LIMIT", Align::Right),
        ("CORE % 1 S", Align::Right),
        ("10 S", Align::Right),
        ("60 S", Align::Right),
        ("THROTTLED", Align::Right),
        ("LEASES", Align::Right),
        ("WAIT P99", Align::Right),
        ("OVERRUNS", Align::Right),
        ("MEMORY", Align::Right),
        ("LIMIT", Align::Right),
        ("PROCESSES", Align::Left),
    ]));
    for slice in &usage.slices {
        for (index, part) in slice.parts.iter().enumerate() {
            let of_slice = |text: &dyn Fn() -> String| if index == 0 { text() } else { String::new() };
            let whose = whose(slice, index, with_consumers);
            table.row(whose.chain([
                short_device(part),
                of_slice(&|| priority::name(slice.priority_class()).to_owned()),
                part.core_request_percent.to_string(),
                part.core_limit_percent.to_string(),
                millipercent_human(part.core_used_1s_millipercent.into()),
                millipercent_human(part.core_used_10s_millipercent.into()),
                millipercent_human(part.core_used_60s_millipercent.into()),
                duration_human(part.throttled_ns),
                part.leases.to_string(),
                waits::p99(part),
                part.overruns.to_string(),
                bytes_human(part.memory_used_bytes),
                bytes_human(part.memory_limit_bytes),
                of_slice(&|| processes(slice)),
            ]));
        }
    }
    table.render()
}

/// Whether anybody is known to run in a slice: on Kubernetes. Elsewhere there is no column for it.
fn has_consumers(usage: &GetUsageResponse) -> bool {
    usage.slices.iter().any(|slice| !slice.consumers.is_empty())
}

/// The headings of what [`whose`] tells.
fn heading(with_consumers: bool) -> impl Iterator<Item = (&'static str, Align)> {
    let consumers = with_consumers.then_some(("CONTAINER", Align::Left));
    [("SLICE", Align::Left)].into_iter().chain(consumers)
}

/// A slice's name and the containers in it; blanks for what continues the slice above.
fn whose(slice: &SliceUsage, index: usize, with_consumers: bool) -> impl Iterator<Item = String> {
    let of_slice = |text: &dyn Fn() -> String| if index == 0 { text() } else { String::new() };
    let containers = with_consumers.then(|| of_slice(&|| consumers::summary(slice).unwrap_or_else(|| "-".to_owned())));
    [of_slice(&|| marked_name(slice))].into_iter().chain(containers)
}

/// A slice's name, with a mark if something is wrong with it, or the audit has found something in it.
fn marked_name(slice: &SliceUsage) -> String {
    let mark = if slice.findings.is_empty() && slice.problem.is_empty() { "" } else { " !" };
    format!("{}{mark}", slice.name)
}

fn processes(slice: &SliceUsage) -> String {
    match slice.processes.as_slice() {
        [] => "-".to_owned(),
        [process] => format!("{} {}", process.pid, short_command(&process.command)),
        [process, others @ ..] => {
            format!("{} {} and {} more", process.pid, short_command(&process.command), others.len())
        }
    }
}

/// A device in few characters: its index to find it, the beginning of its UUID to name it.
pub(crate) fn short_device(part: &PartUsage) -> String {
    format!("{} {}", part.device_index, short_uuid(&part.device_uuid))
}

/// The beginning of a UUID: enough to name a device of one node.
pub(crate) fn short_uuid(uuid: &str) -> &str {
    const PREFIX: usize = "GPU-01234567".len();
    // Drivers before R470 name an instance after its GPU, and tell instances apart at the end of the name only.
    if uuid.starts_with("MIG-GPU-") { uuid } else { uuid.get(..PREFIX).unwrap_or(uuid) }
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
    use aliquot_proto::node::v1::{Consumer, Finding, PriorityClass, Process, WaitHistogram};

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
            throttled_ns: 1_500_000_000,
            overruns: 2,
            leases: 7,
            lease_waits: Some(WaitHistogram {
                bounds_ns: vec![5_000_000],
                counts: vec![10, 0],
                total_ns: 30_000_000,
                longest_ns: 4_900_000,
            }),
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
                    priority_class: PriorityClass::Batch.into(),
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
            "SLICE   DEVICE          CORE %  REQUEST  LIMIT  WAIT P99   MEMORY  LIMIT  PROCESSES\n\
             train   0 GPU-0110c07a    30.0       30     60    4.9 ms  1.5 GiB  4 GiB  4711 python3 train.py and 1 more\n        \
                     1 GPU-1110c07a     0.0       30     60    4.9 ms  1.5 GiB  4 GiB\n\
             idle !  0 GPU-0110c07a     0.0       30     60    4.9 ms  1.5 GiB  4 GiB  -\n"
        );
        let wide = wide_table(&usage);
        let row: Vec<&str> = wide.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            row.join(" "),
            "train 0 GPU-0110c07a batch 30 60 0.0 30.0 0.0 1.5 s 7 4.9 ms 2 1.5 GiB 4 GiB 4711 python3 train.py and 1 more"
        );
        assert!(wide_table(&GetUsageResponse::default()).contains("aliquot run"));
    }

    #[test]
    fn a_slice_with_a_problem_is_marked_and_says_it() {
        let ill = SliceUsage {
            name: "train".to_owned(),
            parts: vec![part(0, 0)],
            problem: "its region is damaged".to_owned(),
            ..SliceUsage::default()
        };
        let usage = GetUsageResponse { slices: vec![ill], ..GetUsageResponse::default() };
        assert!(table(&usage).contains("\ntrain !  "), "{}", table(&usage));
        assert_eq!(problems(&usage), "! train: its region is damaged\n");
    }

    #[test]
    fn on_kubernetes_containers_are_named() {
        let consumer =
            |pod: &str| Consumer { namespace: "default".to_owned(), pod: pod.to_owned(), container: "main".to_owned() };
        let slice = |name: &str, pods: &[&str]| SliceUsage {
            name: name.to_owned(),
            parts: vec![part(0, 0)],
            consumers: pods.iter().map(|pod| consumer(pod)).collect(),
            ..SliceUsage::default()
        };
        let slices = vec![slice("a", &["web-0"]), slice("b", &["x", "y", "z"]), slice("c", &[])];
        let usage = GetUsageResponse { slices, ..GetUsageResponse::default() };
        for text in [table(&usage), wide_table(&usage)] {
            let begins: Vec<&str> = text.lines().map(|line| line.split(" 0 GPU").next().unwrap().trim_end()).collect();
            assert!(begins[0].starts_with("SLICE  CONTAINER   "), "{text}");
            assert_eq!(begins[1..], ["a      default/web-0/main", "b      default/x/main and 2 more", "c      -"]);
        }
    }

    #[test]
    fn nothing_to_show_says_how_to_begin() {
        assert!(table(&GetUsageResponse::default()).contains("aliquot run"));
    }

    #[test]
    fn a_short_uuid_still_tells_devices_apart() {
        assert_eq!(short_uuid("GPU-0110c07a-5130-4a7e-8000-000000000000"), "GPU-0110c07a");
        assert_eq!(short_uuid("MIG-9210c07a-5130-4a7e-8000-000000000003"), "MIG-9210c07a");
        assert_eq!(short_uuid("MIG-GPU-0110c07a-5130-4a7e-8000-000000000000/3/0").len(), 48);
    }

    #[test]
    fn long_commands_are_cut() {
        let short = short_command(&format!("/bin/x {}", "ä".repeat(100)));
        assert_eq!(short.chars().count(), 40);
        assert!(short.starts_with("x ä") && short.ends_with('…'));
        assert_eq!(short_command("[kthread]"), "[kthread]");
    }
}
