//! Judges a process on a device. Pure: the caller passes in every fact.

use crate::audit::finding::Kind;

/// The facts about a process on a device from one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The process runs the program of this machine's MPS server. Judged by its file, because a process can choose its
    /// name but not the host's file.
    pub(super) is_mps_server: bool,
    /// This machine's MPS server, outside of all slices, is on the device: pids that the driver reports there mean
    /// nothing.
    pub(super) behind_mps: bool,
    /// The node's configuration shares the device by MPS, so the machine's MPS server belongs there.
    pub(super) shared_by_mps: bool,
    /// Slices have parts of the device.
    pub(super) is_sliced: bool,
    /// The process computes on the device. A process that only draws needs no CUDA, and so has no shim.
    pub(super) computes: bool,
    /// The slice of the process; `None` if it is in no slice.
    pub(super) slice: Option<SliceFacts>,
    /// Device memory that it uses, as the driver says.
    pub(super) memory_bytes: u64,
    /// The part of it that the process's slot holds.
    pub(super) held_bytes: u64,
    /// The process kept the device busy since the last look without a lease, while its ledger shows no work.
    pub(super) works_unseen: bool,
}

/// The facts about the slice of a process from one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SliceFacts {
    /// The slice has a part of the device.
    pub(super) has_device: bool,
    /// The process has the slice's ledger mapped, as the shim does before there can be a context.
    pub(super) is_registered: bool,
    /// Device memory that all processes of the slice use, as the driver says.
    pub(super) used_bytes: u64,
    /// The part of it that is in the ledger.
    pub(super) ledger_bytes: u64,
    /// The ledger is damaged, so its content is not trusted.
    pub(super) is_damaged: bool,
    /// The slice's memory limit.
    pub(super) limit_bytes: u64,
    /// The highest memory limit that the slice ever had.
    pub(super) limit_max_bytes: u64,
    /// Number of the slice's processes on the device.
    pub(super) processes: u64,
}

/// The judgement about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// How the process contradicts the ledgers.
    pub(super) kind: Kind,
    /// The evidence is enough to stop it, if the policy says so.
    pub(super) may_be_stopped: bool,
}

/// Judges a process by these facts. Each process may use `overhead_allowance_bytes` beyond its ledger.
pub(super) fn judge(facts: &Facts, overhead_allowance_bytes: u64) -> Option<Verdict> {
    let told = |kind| Some(Verdict { kind, may_be_stopped: false });
    let accused = |kind: Kind, is_certain| {
        Some(Verdict { kind, may_be_stopped: kind.may_be_stopped() && facts.computes && is_certain })
    };
    let belongs = facts.shared_by_mps && facts.slice.is_none();
    if facts.is_mps_server && !belongs && (facts.is_sliced || facts.slice.is_some()) {
        return told(Kind::MpsServer);
    }
    if facts.behind_mps {
        return None;
    }
    let Some(slice) = &facts.slice else {
        return if facts.is_sliced { told(Kind::OutsideSlices) } else { None };
    };
    if !slice.has_device {
        // On a device without slices the process takes nothing from another slice.
        return accused(Kind::ForeignDevice, facts.is_sliced);
    }
    if !slice.is_registered {
        return accused(Kind::Unregistered, true);
    }
    match memory_beyond_limit(facts, slice, overhead_allowance_bytes) {
        Some(is_certain) => accused(Kind::MemoryBeyondLimit, is_certain),
        None if facts.works_unseen => told(Kind::TimeWithoutLease),
        None => None,
    }
}

/// Whether the process takes memory past its slice's limit: `None` if it does not, else whether that is certain.
///
/// The tenant can write the ledger. An honest ledger never shows more than the slice's highest limit, so a higher
/// number is replaced by that limit. Evidence that rests on a replaced number is only reported, because it is not known
/// how the number came about.
fn memory_beyond_limit(facts: &Facts, slice: &SliceFacts, overhead_allowance_bytes: u64) -> Option<bool> {
    // The figures of the process alone do not decide: an MPS server holds memory that stands in the slots of its
    // clients.
    let is_beyond = |ledger_bytes: u64, held_bytes: u64| {
        let unledgered_bytes = slice.used_bytes.saturating_sub(ledger_bytes);
        slice.used_bytes > slice.limit_bytes
            && unledgered_bytes > overhead_allowance_bytes.saturating_mul(slice.processes)
            && facts.memory_bytes.saturating_sub(held_bytes) > overhead_allowance_bytes
    };
    if slice.is_damaged {
        return is_beyond(slice.limit_max_bytes, 0).then_some(false);
    }
    if is_beyond(slice.ledger_bytes, facts.held_bytes) {
        return Some(true);
    }
    let bounded = |bytes: u64| bytes.min(slice.limit_max_bytes);
    is_beyond(bounded(slice.ledger_bytes), bounded(facts.held_bytes)).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn honest() -> SliceFacts {
        SliceFacts {
            has_device: true,
            is_registered: true,
            used_bytes: 4 * GIB + GIB / 2,
            ledger_bytes: 4 * GIB,
            is_damaged: false,
            limit_bytes: 4 * GIB,
            limit_max_bytes: 4 * GIB,
            processes: 1,
        }
    }

    /// A process that is alone in its slice.
    fn of(slice: SliceFacts) -> Facts {
        Facts { slice: Some(slice), memory_bytes: slice.used_bytes, held_bytes: slice.ledger_bytes, ..of_no_slice() }
    }

    fn of_no_slice() -> Facts {
        Facts {
            is_mps_server: false,
            behind_mps: false,
            shared_by_mps: false,
            is_sliced: true,
            computes: true,
            slice: None,
            memory_bytes: GIB,
            held_bytes: 0,
            works_unseen: false,
        }
    }

    fn told(kind: Kind) -> Option<Verdict> {
        Some(Verdict { kind, may_be_stopped: false })
    }

    fn accused(kind: Kind) -> Option<Verdict> {
        Some(Verdict { kind, may_be_stopped: true })
    }

    #[test]
    fn a_process_that_keeps_the_rules_has_no_finding() {
        // The slice's contexts and modules lift its use above the limit, which is no fault of the process.
        assert_eq!(judge(&of(honest()), GIB), None);
        // Loads more modules than usual, within its limit.
        let large = SliceFacts { used_bytes: 3 * GIB, ledger_bytes: 0, ..honest() };
        assert_eq!(judge(&of(large), GIB), None);
        // Holds memory that others have reserved.
        let server = Facts { held_bytes: 0, ..of(honest()) };
        assert_eq!(judge(&server, GIB), None);
        // Many processes, each with a context.
        let many = SliceFacts { used_bytes: 9 * GIB, ledger_bytes: 4 * GIB, processes: 8, ..honest() };
        assert_eq!(judge(&of(many), GIB), None);
        // The slice was made smaller, and the process keeps what it has.
        let smaller = SliceFacts { limit_bytes: GIB, ..honest() };
        assert_eq!(judge(&of(smaller), GIB), None);
        // The slice's ledger was damaged.
        let damaged = SliceFacts { is_damaged: true, ledger_bytes: 0, ..honest() };
        assert_eq!(judge(&of(damaged), GIB), None);
    }

    #[test]
    fn each_way_past_a_slice_has_its_name() {
        let slice = honest();
        let cases = [
            (of(SliceFacts { is_registered: false, ..slice }), accused(Kind::Unregistered)),
            (of(SliceFacts { has_device: false, ..slice }), accused(Kind::ForeignDevice)),
            (of(SliceFacts { has_device: false, is_registered: false, ..slice }), accused(Kind::ForeignDevice)),
            (of(SliceFacts { used_bytes: 6 * GIB, ledger_bytes: 2 * GIB, ..slice }), accused(Kind::MemoryBeyondLimit)),
            (Facts { works_unseen: true, ..of(slice) }, told(Kind::TimeWithoutLease)),
            (of_no_slice(), told(Kind::OutsideSlices)),
        ];
        for (facts, expected) in cases {
            assert_eq!(judge(&facts, GIB), expected, "{facts:?}");
            // A process that only draws has no shim to miss, but is reported all the same.
            let drawing = expected.map(|verdict| Verdict { may_be_stopped: false, ..verdict });
            assert_eq!(judge(&Facts { computes: false, ..facts }, GIB), drawing, "{facts:?}");
            // Behind MPS the processes cannot be told apart.
            assert_eq!(judge(&Facts { behind_mps: true, ..facts }, GIB), None, "{facts:?}");
        }
    }

    #[test]
    fn an_mps_server_is_reported_everywhere() {
        let server = Facts { is_mps_server: true, behind_mps: true, ..of_no_slice() };
        assert_eq!(judge(&server, GIB), told(Kind::MpsServer));
        // Where the configuration wants MPS there is no finding.
        assert_eq!(judge(&Facts { shared_by_mps: true, ..server }, GIB), None);
        // A tenant's own server is not stopped, and does not suppress other findings.
        let tenants = Facts { behind_mps: false, ..server };
        let tenants = Facts { slice: Some(SliceFacts { is_registered: false, ..honest() }), ..tenants };
        assert_eq!(judge(&tenants, GIB), told(Kind::MpsServer));
        assert_eq!(judge(&Facts { shared_by_mps: true, ..tenants }, GIB), told(Kind::MpsServer));
    }

    #[test]
    fn other_processes_on_a_device_without_slices_are_ignored() {
        let elsewhere = Facts { is_sliced: false, ..of_no_slice() };
        assert_eq!(judge(&elsewhere, GIB), None);
        assert_eq!(judge(&Facts { is_mps_server: true, behind_mps: true, ..elsewhere }, GIB), None);
        // But a process of a slice should not be there.
        let foreign = Facts { is_sliced: false, ..of(SliceFacts { has_device: false, ..honest() }) };
        assert_eq!(judge(&foreign, GIB), told(Kind::ForeignDevice));
    }

    #[test]
    fn a_forged_ledger_hides_nothing_and_stops_no_process() {
        let forged = SliceFacts { used_bytes: 16 * GIB, ledger_bytes: 16 * GIB, ..honest() };
        assert_eq!(judge(&of(forged), GIB), told(Kind::MemoryBeyondLimit));
        let slot_forged = Facts { held_bytes: u64::MAX, ..of(SliceFacts { ledger_bytes: 0, ..forged }) };
        assert_eq!(judge(&slot_forged, GIB), told(Kind::MemoryBeyondLimit));
        for ledger_bytes in [0, u64::MAX] {
            let truncated = SliceFacts { is_damaged: true, ledger_bytes, ..forged };
            assert_eq!(judge(&of(truncated), GIB), told(Kind::MemoryBeyondLimit));
        }
    }
}
