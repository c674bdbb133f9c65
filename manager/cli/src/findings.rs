//! What the audit has found, in words.

use aliquot_proto::node::v1::{Finding, FindingKind};

use crate::ps::{short_command, short_uuid};
use crate::quantity::bytes_human;

/// A line for each finding.
pub(crate) fn lines(findings: &[Finding]) -> String {
    // What is wrong with a slice itself is told as its problem.
    findings.iter().filter(|finding| finding.kind() != FindingKind::DamagedRegion).map(line).collect()
}

fn line(finding: &Finding) -> String {
    let whose = if finding.slice.is_empty() { "outside of slices" } else { finding.slice.as_str() };
    let stopped = if finding.stopped.is_some() { "; it was stopped" } else { "" };
    let since = finding.since.as_ref().map_or("-".to_owned(), ToString::to_string);
    let (pid, command, what) = (finding.pid, short_command(&finding.command), what(finding));
    format!("! {whose}: {pid} {command}: {what}{stopped}, since {since}\n")
}

/// What the process does.
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
        FindingKind::MpsServer => format!("is an MPS server on {device}; what its clients use cannot be told apart"),
        FindingKind::OutsideSlices | FindingKind::DamagedRegion | FindingKind::Unspecified => format!("uses {part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_who_does_what() {
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
             1970-01-01T00:00:00Z\n\
             ! outside of slices: 4711 miner --fast: uses GPU-0110c07a, since -\n"
        );
    }
}
