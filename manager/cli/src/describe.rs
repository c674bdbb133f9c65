//! `aliquot describe`: everything about a slice.

use std::path::Path;

use aliquot_proto::node::v1::{
    Device, GetNodeRequest, GetSliceRequest, GetUsageRequest, HostMemoryUsage, PartUsage, Process, SharingMode, Slice,
    SliceUsage,
};
use serde_json::json;

use crate::args::DescribeArgs;
use crate::client;
use crate::error::{Failure, Result};
use crate::quantity::{bytes_exact, bytes_human, duration_human, millipercent_human};
use crate::table::{Align, Table, definitions};
use crate::{consumers, findings, json, moment, output, priority, waits};

/// Prints everything about a slice.
pub(crate) async fn describe(socket: Option<&Path>, args: &DescribeArgs) -> Result<()> {
    let mut client = client::connect_to_running(socket).await?;
    let slice = client.get_slice(GetSliceRequest { name: args.name.clone() }).await?.into_inner();
    let usage = client.get_usage(GetUsageRequest { slices: vec![args.name.clone()] }).await?.into_inner();
    let usage = match usage.slices.into_iter().next() {
        Some(usage) => usage,
        // A slice that the manager could not take over is not at work, and has no usage.
        None if !slice.problem.is_empty() => SliceUsage { name: slice.name.clone(), ..SliceUsage::default() },
        None => {
            return Err(Failure::new(format!("the slice {:?} was removed just now", args.name))
                .hint("list the slices: aliquot slice ls"));
        }
    };
    if args.json {
        return output::print_json(&json!({ "slice": json::slice(&slice), "usage": json::slice_usage(&usage) }));
    }
    let node = client.get_node(GetNodeRequest {}).await?.into_inner();
    output::print(&text(&slice, &usage, &node.devices))
}

fn text(slice: &Slice, usage: &SliceUsage, devices: &[Device]) -> String {
    let or_none = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let mut lines = vec![
        ("Name:", slice.name.clone()),
        ("Id:", slice.id.clone()),
        ("Description:", or_none(&slice.description)),
        ("Priority:", priority::name(slice.priority_class()).to_owned()),
        ("Created:", moment::human(slice.created.as_ref())),
        ("Region:", slice.region_path.clone()),
        (
            "CDI device:",
            if slice.cdi_device.is_empty() { "- (publishing is off)".to_owned() } else { slice.cdi_device.clone() },
        ),
    ];
    if !slice.problem.is_empty() {
        lines.push(("Problem:", slice.problem.clone()));
    }
    lines.extend(usage.consumers.iter().map(|consumer| ("Container:", consumers::name(consumer))));
    lines.extend(slice.warnings.iter().map(|warning| ("Warning:", warning.clone())));
    let mut text = definitions(&lines);
    for part in &usage.parts {
        text.push_str(&format!("\nDevice {} {}\n", part.device_index, part.device_uuid));
        let device = devices.iter().find(|device| device.uuid == part.device_uuid);
        if device.is_some_and(|device| device.sharing() == SharingMode::Mps) {
            text.push_str("  Shared by MPS: the core limit holds; nothing is guaranteed, and there are no leases.\n");
        }
        text.push_str(&indented(&definitions(&part_lines(part))));
    }
    if let Some(host_memory) = &usage.host_memory {
        text.push_str("\nHost memory, page-locked\n");
        text.push_str(&indented(&definitions(&host_memory_lines(host_memory))));
    }
    text.push_str("\nProcesses\n");
    text.push_str(&indented(&processes(&usage.processes)));
    if !usage.findings.is_empty() {
        text.push_str("\nFound by the audit\n");
        text.push_str(&indented(&findings::lines(&usage.findings)));
    }
    text.push_str("\nHow to run something in it\n");
    text.push_str(&indented(&ways(slice)));
    text
}

fn part_lines(part: &PartUsage) -> Vec<(&'static str, String)> {
    let share = |millipercent: u32| format!("{} %", millipercent_human(millipercent.into()));
    let mut lines = vec![
        ("Core guaranteed:", format!("{} %", part.core_request_percent)),
        ("Core limit:", format!("{} %", part.core_limit_percent)),
        (
            "Core used:",
            format!(
                "{} in the last second, {} in 10 s, {} in 60 s",
                share(part.core_used_1s_millipercent),
                share(part.core_used_10s_millipercent),
                share(part.core_used_60s_millipercent)
            ),
        ),
        ("Device time:", format!("{} in all, {} launches", duration_human(part.core_used_ns), part.launches)),
        (
            "Throttled:",
            format!(
                "{} in launches, of all threads together{}",
                duration_human(part.throttled_ns),
                if part.waiting { ", waiting now" } else { "" }
            ),
        ),
    ];
    if let Some(waits) = &part.lease_waits {
        lines.push(("Leases:", format!("{} granted", part.leases)));
        lines.push(("Lease waits:", waits::summary(waits)));
        lines.extend(waits::bars(waits).into_iter().map(|bar| ("", bar)));
    }
    lines.extend([
        ("Overruns:", format!("{}, {} in all", part.overruns, duration_human(part.overrun_ns))),
        ("Memory limit:", bytes_exact(part.memory_limit_bytes)),
        (
            "Memory used:",
            format!(
                "{} (of which contexts and modules {}), at most {}",
                bytes_human(part.memory_used_bytes),
                bytes_human(part.memory_overhead_bytes),
                bytes_human(part.memory_peak_bytes)
            ),
        ),
        ("Memory refused:", format!("{} requests", part.memory_refused)),
        (
            "Copies:",
            format!(
                "{}, {} moved, {} waited for",
                part.copies,
                bytes_human(part.copied_bytes),
                duration_human(part.copy_ns)
            ),
        ),
    ]);
    lines
}

fn host_memory_lines(usage: &HostMemoryUsage) -> [(&'static str, String); 3] {
    let limit = if usage.limit_bytes == 0 { "none".to_owned() } else { bytes_exact(usage.limit_bytes) };
    [
        ("Limit:", limit),
        ("Used:", format!("{}, at most {}", bytes_human(usage.used_bytes), bytes_human(usage.peak_bytes))),
        ("Refused:", format!("{} requests", usage.refused)),
    ]
}

fn processes(processes: &[Process]) -> String {
    if processes.is_empty() {
        return "none attached\n".to_owned();
    }
    let mut table = Table::new([
        ("PID", Align::Right),
        ("IN CONTAINER", Align::Right),
        ("MEMORY", Align::Right),
        ("HOST MEMORY", Align::Right),
        ("ATTACHED", Align::Left),
        ("COMMAND", Align::Left),
    ]);
    for process in processes {
        table.row([
            process.pid.to_string(),
            process.container_pid.to_string(),
            bytes_human(process.memory_used_bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))),
            bytes_human(process.host_memory_used_bytes),
            moment::human(process.attached.as_ref()),
            process.command.clone(),
        ]);
    }
    table.render()
}

/// The command lines that start a program in the slice.
fn ways(slice: &Slice) -> String {
    let uuids: Vec<_> = slice.parts.iter().map(|part| part.device_uuid.as_str()).collect();
    let more: String = slice.environment.iter().map(|entry| format!("{entry} ")).collect();
    let preload: Vec<_> =
        [&slice.shim_path, &slice.stand_in_path].into_iter().filter(|path| !path.is_empty()).collect();
    let preload = preload.into_iter().map(String::as_str).collect::<Vec<_>>().join(":");
    let here = format!("LD_PRELOAD={preload} CUDA_VISIBLE_DEVICES={} {more}CMD", uuids.join(","));
    if slice.cdi_device.is_empty() {
        return definitions(&[
            ("here:", here),
            (
                "containers:",
                "set cdi_dir in the manager's configuration to publish slices to container runtimes".to_owned(),
            ),
        ]);
    }
    let device = &slice.cdi_device;
    definitions(&[
        ("podman:", format!("podman run --device {device} IMAGE")),
        (
            "docker:",
            format!(
                "docker run --device {device} IMAGE (Docker 28.3 or later; from 25, with the feature \"cdi\" switched on)"
            ),
        ),
        ("nerdctl:", format!("nerdctl run --device {device} IMAGE")),
        ("containerd:", format!("ctr run --device {device} IMAGE ID (containerd 1.7 or later)")),
        ("here:", here),
    ])
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::{Consumer, Part, PriorityClass, WaitHistogram};

    use super::*;

    #[test]
    fn a_slice_with_a_problem_says_why() {
        let slice = Slice { name: "train".to_owned(), problem: "its region is gone".to_owned(), ..Slice::default() };
        let text = text(&slice, &SliceUsage::default(), &[]);
        assert!(text.contains("Problem:      its region is gone\n"), "{text}");
    }

    #[test]
    fn everything_is_said() {
        let part = Part { device_uuid: "GPU-a".to_owned(), ..Part::default() };
        let slice = Slice {
            name: "train".to_owned(),
            id: "0123".to_owned(),
            parts: vec![part],
            shim_path: "/run/x/lib.so".to_owned(),
            stand_in_path: "/run/lib.so".to_owned(),
            cdi_device: "aliquot.dev/slice=train".to_owned(),
            priority_class: PriorityClass::Batch.into(),
            warnings: vec!["much".to_owned()],
            ..Slice::default()
        };
        let consumer = Consumer { namespace: "team".to_owned(), pod: "web-0".to_owned(), container: "main".to_owned() };
        let usage = SliceUsage {
            consumers: vec![consumer],
            parts: vec![PartUsage {
                device_uuid: "GPU-a".to_owned(),
                core_request_percent: 30,
                core_limit_percent: 60,
                core_used_10s_millipercent: 29_900,
                throttled_ns: 1_500_000_000,
                overruns: 3,
                leases: 4,
                lease_waits: Some(WaitHistogram {
                    bounds_ns: vec![500_000],
                    counts: vec![2, 1],
                    total_ns: 2_400_000,
                    longest_ns: 1_800_000,
                }),
                memory_limit_bytes: 4 << 30,
                memory_refused: 2,
                copies: 12,
                copied_bytes: 3 << 30,
                copy_ns: 250_000_000,
                waiting: true,
                ..PartUsage::default()
            }],
            host_memory: Some(HostMemoryUsage {
                limit_bytes: 2 << 30,
                used_bytes: 1 << 30,
                peak_bytes: 1 << 30,
                refused: 1,
            }),
            processes: vec![Process {
                pid: 4711,
                container_pid: 7,
                memory_used_bytes: vec![1 << 30],
                command: "python".to_owned(),
                ..Process::default()
            }],
            ..SliceUsage::default()
        };
        let device = Device { uuid: "GPU-a".to_owned(), sharing: SharingMode::Mps.into(), ..Device::default() };
        let text = text(&slice, &usage, &[device]);
        for expected in [
            "Name:         train\n",
            "29.9 % in 10 s",
            "  Shared by MPS: the core limit holds;",
            "Priority:     batch\n",
            "Warning:      much\n",
            "Container:    team/web-0/main\n",
            "Throttled:        1.5 s in launches, of all threads together, waiting now\n",
            "Leases:           4 granted\n",
            "Lease waits:      3; p50 500.0 µs, p90 1.8 ms, p99 1.8 ms, longest 1.8 ms\n",
            "                    ≤ 500 µs  2  ████████████████████████████████\n",
            "                    > 500 µs  1  ████████████████\n",
            "Memory limit:     4 GiB\n",
            "Memory refused:   2 requests\n",
            "Copies:           12, 3 GiB moved, 250.0 ms waited for\n",
            "Limit:    2 GiB\n",
            "Used:     1 GiB, at most 1 GiB\n",
            "Refused:  1 requests\n",
            "4711             7   1 GiB          0 B  -         python\n",
            "podman run --device aliquot.dev/slice=train IMAGE\n",
            "ctr run --device aliquot.dev/slice=train IMAGE ID",
            "LD_PRELOAD=/run/x/lib.so:/run/lib.so CUDA_VISIBLE_DEVICES=GPU-a CMD\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }
}
