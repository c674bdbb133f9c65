//! `aliquot ps`: the slices and their use.

use std::path::Path;

use aliquot_proto::node::v1::{GetUsageRequest, GetUsageResponse, ListFindingsRequest, PartUsage, SliceUsage};

use tonic::Code;

use crate::args::PsArgs;
use crate::client;
use crate::error::Result;
use crate::output::{Colour, Look};
use crate::quantity::{bytes_human, duration_human, millipercent_human};
use crate::table::{Align, Cell, Table, cut};
use crate::{bar, consumers, findings, json, output, past, priority, waits};

/// A share may exceed its request by this much because of measurement errors.
const CORE_TOLERANCE_MILLIPERCENT: u64 = 2_000;

/// Prints the use of the slices.
pub(crate) async fn ps(socket: Option<&Path>, args: &PsArgs) -> Result<()> {
    let mut client = client::connect_to_running(socket).await?;
    if let Some(since) = args.since {
        return past::print(&mut client, args, since).await;
    }
    let usage = client.get_usage(GetUsageRequest { slices: args.names.clone() }).await?.into_inner();
    let found = match client.list_findings(ListFindingsRequest { slices: args.names.clone() }).await {
        Ok(answer) => answer.into_inner().findings,
        // The manager is from before there was an audit.
        Err(status) if status.code() == Code::Unimplemented => Vec::new(),
        Err(status) => return Err(status.into()),
    };
    if args.json {
        let mut document = json::usage(&usage);
        document["outside_slices"] =
            found.iter().filter(|finding| finding.slice.is_empty()).map(json::finding).collect();
        return output::print_json(&document);
    }
    let look = Look::of_stdout();
    let table = if args.wide { wide_table(&usage, look) } else { table(&usage, look) };
    let found = if args.all { findings::lines(&found) } else { findings::summary(&found) };
    output::print(&(table + &problems(&usage) + &found))
}

/// A line for each slice that has a problem.
fn problems(usage: &GetUsageResponse) -> String {
    let ill = usage.slices.iter().filter(|slice| !slice.problem.is_empty());
    ill.map(|slice| format!("! {}: {}\n", slice.name, slice.problem)).collect()
}

/// A line for each slice and device. A line that continues the slice above has no name. A mark follows the name of a
/// slice that has a problem or findings of the audit.
pub(crate) fn table(usage: &GetUsageResponse, look: Look) -> String {
    if usage.slices.is_empty() {
        return "No slices. Make one: aliquot run --gpu-core 30 --gpu-memory 4GiB -- CMD, or aliquot slice create --help\n".to_owned();
    }
    let with_consumers = has_consumers(usage);
    let bar = |of: &'static str| look.bars.then_some((of, Align::Left));
    let columns = [Some(("DEVICE", Align::Left)), Some(("CORE %", Align::Right)), bar("OF LIMIT")].into_iter();
    let columns = columns.chain([
        Some(("REQUEST", Align::Right)),
        Some(("LIMIT", Align::Right)),
        Some(("WAIT P99", Align::Right)),
        Some(("MEMORY", Align::Right)),
        bar("OF LIMIT"),
        Some(("LIMIT", Align::Right)),
        Some(("PROCESSES", Align::Left)),
    ]);
    let mut table = Table::new(heading(with_consumers).chain(columns.flatten()));
    for slice in &usage.slices {
        for (index, part) in slice.parts.iter().enumerate() {
            let of_slice = |text: &dyn Fn() -> String| if index == 0 { text() } else { String::new() };
            let (core, memory) = (core_colour(part), memory_colour(part));
            let bar = |part, whole, colour| look.bars.then(|| Cell::coloured(bar::bar(part, whole), colour));
            let limit_millipercent = u64::from(part.core_limit_percent) * 1000;
            let cells = [
                Some(short_device(part).into()),
                Some(Cell::coloured(millipercent_human(part.core_used_10s_millipercent.into()), core)),
                bar(part.core_used_10s_millipercent.into(), limit_millipercent, core),
                Some(part.core_request_percent.to_string().into()),
                Some(part.core_limit_percent.to_string().into()),
                Some(waits::p99(part).into()),
                Some(Cell::coloured(bytes_human(part.memory_used_bytes), memory)),
                bar(part.memory_used_bytes, part.memory_limit_bytes, memory),
                Some(bytes_human(part.memory_limit_bytes).into()),
                Some(of_slice(&|| processes(slice)).into()),
            ];
            table.row(whose(slice, index, with_consumers).chain(cells.into_iter().flatten()));
        }
    }
    table.render_as(look)
}

/// The colour of a share: green within the request, yellow above it.
fn core_colour(part: &PartUsage) -> Option<Colour> {
    match u64::from(part.core_used_10s_millipercent) {
        0 => None,
        used if used > u64::from(part.core_request_percent) * 1000 + CORE_TOLERANCE_MILLIPERCENT => {
            Some(Colour::Yellow)
        }
        _ => Some(Colour::Green),
    }
}

/// The colour of memory: yellow if little is left, red if none is.
fn memory_colour(part: &PartUsage) -> Option<Colour> {
    let permille = u128::from(part.memory_used_bytes) * 1000 / u128::from(part.memory_limit_bytes.max(1));
    match permille {
        0 => None,
        1..900 => Some(Colour::Green),
        900..990 => Some(Colour::Yellow),
        990.. => Some(Colour::Red),
    }
}

/// The table with all figures on time.
fn wide_table(usage: &GetUsageResponse, look: Look) -> String {
    if usage.slices.is_empty() {
        return table(usage, look);
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
            let cells = [
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
            ];
            table.row(whose(slice, index, with_consumers).chain(cells.map(Cell::from)));
        }
    }
    table.render_as(look)
}

/// Whether any container is known to run in a slice, as on Kubernetes. Otherwise there is no column for containers.
fn has_consumers(usage: &GetUsageResponse) -> bool {
    usage.slices.iter().any(|slice| !slice.consumers.is_empty())
}

/// The headings of the cells from [`whose`].
fn heading(with_consumers: bool) -> impl Iterator<Item = (&'static str, Align)> {
    let consumers = with_consumers.then_some(("CONTAINER", Align::Left));
    [("SLICE", Align::Left)].into_iter().chain(consumers)
}

/// The cells with a slice's name and its containers; blank if the line continues the slice above.
fn whose(slice: &SliceUsage, index: usize, with_consumers: bool) -> impl Iterator<Item = Cell> {
    let of_slice = |text: &dyn Fn() -> String| if index == 0 { text() } else { String::new() };
    let containers = || of_slice(&|| consumers::summary(slice).unwrap_or_else(|| "-".to_owned()));
    let colour = (!slice.findings.is_empty() || !slice.problem.is_empty()).then_some(Colour::Red);
    let name = Cell::coloured(of_slice(&|| marked_name(slice)), colour);
    [name].into_iter().chain(with_consumers.then(containers).map(Cell::from))
}

/// A slice's name, with a mark if it has a problem or findings of the audit.
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

/// A device in few characters: its index, and the beginning of its UUID.
pub(crate) fn short_device(part: &PartUsage) -> String {
    format!("{} {}", part.device_index, short_uuid(&part.device_uuid))
}

/// The beginning of a UUID, enough to distinguish the devices of one node.
pub(crate) fn short_uuid(uuid: &str) -> &str {
    const PREFIX: usize = "GPU-01234567".len();
    // Drivers before R470 name an instance after its GPU, and only the end of the name distinguishes instances.
    if uuid.starts_with("MIG-GPU-") { uuid } else { uuid.get(..PREFIX).unwrap_or(uuid) }
}

/// The program of a command line without its directory, and as many of its arguments as a table has room for.
pub(crate) fn short_command(command: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let program = program.rsplit('/').next().unwrap_or(program);
    let text = format!("{program} {arguments}");
    cut(text.trim_end(), CHARACTERS_MAX)
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
            table(&usage, Look::PLAIN),
            "SLICE   DEVICE          CORE %  REQUEST  LIMIT  WAIT P99   MEMORY  LIMIT  PROCESSES\n\
             train   0 GPU-0110c07a    30.0       30     60    4.9 ms  1.5 GiB  4 GiB  4711 python3 train.py and 1 more\n        \
                     1 GPU-1110c07a     0.0       30     60    4.9 ms  1.5 GiB  4 GiB\n\
             idle !  0 GPU-0110c07a     0.0       30     60    4.9 ms  1.5 GiB  4 GiB  -\n"
        );
        let wide = wide_table(&usage, Look::PLAIN);
        let row: Vec<&str> = wide.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            row.join(" "),
            "train 0 GPU-0110c07a batch 30 60 0.0 30.0 0.0 1.5 s 7 4.9 ms 2 1.5 GiB 4 GiB 4711 python3 train.py and 1 more"
        );
        assert!(wide_table(&GetUsageResponse::default(), Look::PLAIN).contains("aliquot run"));
    }

    #[test]
    fn on_a_terminal_there_are_bars_and_colours() {
        let slice = SliceUsage { name: "train".to_owned(), parts: vec![part(0, 45_000)], ..SliceUsage::default() };
        let usage = GetUsageResponse { slices: vec![slice], ..GetUsageResponse::default() };
        let bars = table(&usage, Look { colours: false, bars: true, width: Some(200) });
        assert!(bars.contains("45.0  ▕███████▌  ▏") && bars.contains("1.5 GiB  ▕███▊      ▏"), "{bars}");
        let colours = table(&usage, Look { colours: true, bars: false, width: Some(200) });
        assert!(colours.contains("\u{1b}[33m45.0\u{1b}[0m") && colours.contains("\u{1b}[32m1.5 GiB"), "{colours}");
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
        let shown = table(&usage, Look::PLAIN);
        assert!(shown.contains("\ntrain !  "), "{shown}");
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
        for text in [table(&usage, Look::PLAIN), wide_table(&usage, Look::PLAIN)] {
            let begins: Vec<&str> = text.lines().map(|line| line.split(" 0 GPU").next().unwrap().trim_end()).collect();
            assert!(begins[0].starts_with("SLICE  CONTAINER   "), "{text}");
            assert_eq!(begins[1..], ["a      default/web-0/main", "b      default/x/main and 2 more", "c      -"]);
        }
    }

    #[test]
    fn an_empty_list_says_how_to_begin() {
        assert!(table(&GetUsageResponse::default(), Look::PLAIN).contains("aliquot run"));
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
