//! Formats findings of the audit.

use std::collections::BTreeSet;

use aliquot_proto::node::v1::{Finding, FindingKind};

use crate::moment;
use crate::ps::{short_command, short_uuid};
use crate::quantity::bytes_human;

/// A line for each finding.
pub(crate) fn lines(findings: &[Finding]) -> String {
    // A damaged region is shown as the slice's problem.
    findings.iter().filter(|finding| finding.kind() != FindingKind::DamagedRegion).map(line).collect()
}

/// Formats findings, with all processes outside of slices in one line: on a machine with other users there may be many.
pub(crate) fn summary(findings: &[Finding]) -> String {
    let is_outside = |finding: &&Finding| finding.kind() == FindingKind::OutsideSlices;
    let outside: Vec<&Finding> = findings.iter().filter(is_outside).collect();
    if outside.len() < 2 {
        return lines(findings);
    }
    let pids: BTreeSet<u32> = outside.iter().map(|finding| finding.pid).collect();
    let devices: BTreeSet<&str> = outside.iter().map(|finding| finding.device_uuid.as_str()).collect();
    let memory_bytes = outside.iter().fold(0u64, |sum, finding| sum.saturating_add(finding.memory_bytes));
    let devices = match (devices.len(), devices.first()) {
        (1, Some(device)) => short_uuid(device).to_owned(),
        (count, _) => format!("{count} devices"),
    };
    let others: String = findings.iter().filter(|finding| !is_outside(finding)).map(line).collect();
    others
        + &format!(
            "! outside of slices: {} processes use {} of {devices}; aliquot ps --all names them\n",
            pids.len(),
            bytes_human(memory_bytes)
        )
}

fn line(finding: &Finding) -> String {
    let whose = if finding.slice.is_empty() { "outside of slices" } else { finding.slice.as_str() };
    let stopped = if finding.stopped.is_some() { "; it was stopped" } else { "" };
    let since = moment::human(finding.since.as_ref());
    let (pid, command, what) = (finding.pid, short_command(&finding.command), what(finding));
    format!("! {whose}: {pid} {command}: {what}{stopped}, since {since}\n")
}

/// The behaviour of the process, as a clause.
fn what(finding: &Finding) -> String {
    let device = short_uuid(&finding.device_uuid);
    let part = match finding.memory_bytes {
        0 => device.to_owned(),
        bytes => format!("{} of {device}", bytes_human(bytes)),
    };
    match finding.kind() {
        FindingKind::Unregistered => format!("uses {part} without the shim"),
        FindingKind::ForeignDevice => format!("uses {part}, of which the slice has no part"),
        FindingKind::MemoryBeyondLimit => format!("uses {part}, past the slice's memory limit"),
        FindingKind::TimeWithoutLease => format!("keeps {device} at work without a lease"),
        FindingKind::MpsServer => {
            format!("is an MPS server on {device}; the use of its clients cannot be distinguished")
        }
        FindingKind::OutsideSlices | FindingKind::DamagedRegion | FindingKind::Unspecified => format!("uses {part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_processes_outside_of_slices_are_one_line() {
        let outside = |pid, device: &str| Finding {
            kind: FindingKind::OutsideSlices.into(),
            device_uuid: device.to_owned(),
            pid,
            memory_bytes: 1 << 30,
            ..Finding::default()
        };
        let inside =
            Finding { kind: FindingKind::Unregistered.into(), slice: "train".to_owned(), ..Finding::default() };
        assert_eq!(
            summary(&[outside(1, "GPU-a"), inside, outside(2, "GPU-a"), outside(3, "GPU-a")]),
            "! train: 0 : uses  without the shim, since -\n\
             ! outside of slices: 3 processes use 3 GiB of GPU-a; aliquot ps --all names them\n"
        );
        assert!(summary(&[outside(1, "GPU-a"), outside(1, "GPU-b")]).contains("1 processes use 2 GiB of 2 devices"));
        assert_eq!(summary(&[outside(7, "GPU-a")]), lines(&[outside(7, "GPU-a")]));
    }

    #[test]
    fn a_finding_names_the_process_and_its_action() {
        let finding = |kind: FindingKind, slice: &str, memory_bytes| Finding {
            kind: kind.into(),
            slice: slice.to_owned(),
            device_uuid: "GPU-0110c07a-5130-4a7e-8000-000000000000".to_owned(),
            pid: 4711,
            command: "/usr/bin/miner --fast".to_owned(),
            memory_bytes,
            ..Finding::default()
        };
        let stopped = Finding {
            stopped: Some(prost_types::Timestamp::default()),
            since: Some(prost_types::Timestamp::default()),
            ..finding(FindingKind::Unregistered, "train", 3 << 29)
        };
        assert_eq!(
            lines(&[
                stopped,
                finding(FindingKind::DamagedRegion, "train", 0),
                finding(FindingKind::OutsideSlices, "", 0)
            ]),
            "! train: 4711 miner --fast: uses 1.5 GiB of GPU-0110c07a without the shim; it was stopped, since \
             1970-01-01 00:00:00Z\n\
             ! outside of slices: 4711 miner --fast: uses GPU-0110c07a, since -\n"
        );
    }
}
