//! What is to be thought of a process on a device. Pure: all that was seen is told.

use crate::audit::finding::Kind;

/// What one look has shown of a process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// It runs the program of this machine's MPS server. The program's file decides: a process can choose its name, but
    /// not the host's file.
    pub(super) is_mps_server: bool,
    /// Such a server, of no slice, is on the device: what the driver says of pids there means nothing.
    pub(super) behind_mps: bool,
    /// The node's configuration has MPS share the device: such a server belongs there.
    pub(super) shared_by_mps: bool,
    /// Slices have parts of the device.
    pub(super) is_sliced: bool,
    /// It computes on the device. One that only draws needs no CUDA, and has no shim for it.
    pub(super) computes: bool,
    /// Its slice; `None`: it is in no slice.
    pub(super) slice: Option<SliceFacts>,
    /// Device memory that it uses, as the driver says.
    pub(super) memory_bytes: u64,
    /// What of it its slot holds.
    pub(super) held_bytes: u64,
    /// It has kept the device at work since the last look, without a lease, and its ledger shows no work.
    pub(super) works_unseen: bool,
}

/// What one look has shown of the slice of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SliceFacts {
    /// The slice has a part of the device.
    pub(super) has_device: bool,
    /// The process has the slice's ledger mapped, as the shim does before there can be a context.
    pub(super) is_registered: bool,
    /// Memory of the device that all processes of the slice use, as the driver says.
    pub(super) used_bytes: u64,
    /// What of it the ledger knows.
    pub(super) ledger_bytes: u64,
    /// The ledger is damaged: what it says is not known to be true.
    pub(super) is_damaged: bool,
    /// What it may use.
    pub(super) limit_bytes: u64,
    /// The most that it was ever allowed to use.
    pub(super) limit_max_bytes: u64,
    /// Processes of the slice on the device.
    pub(super) processes: u64,
}

/// What is to be thought of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// What is wrong with it.
    pub(super) kind: Kind,
    /// What was seen suffices to stop it, where the policy says so.
    pub(super) may_be_stopped: bool,
}

/// What is wrong with a process of these facts, each of which may use `overhead_allowance_bytes` beyond its ledger.
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
        // On a device that is nobody's it takes nothing from another slice.
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
/// The ledger is the tenant's to write. No honest one says more than the slice was ever allowed, so nothing beyond that
/// is believed. But what only shows against the bounded numbers is told and no more: how they came about is not known.
fn memory_beyond_limit(facts: &Facts, slice: &SliceFacts, overhead_allowance_bytes: u64) -> Option<bool> {
    // The process alone does not decide: where one serves others, it holds what stands in their slots.
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
    fn a_process_that_goes_by_the_rules_is_accused_of_nothing() {
        // Its contexts and modules make the slice's use greater than the limit: that is not the process's doing.
        assert_eq!(judge(&of(honest()), GIB), None);
        // One that loads more than is usual, within its limit.
        let large = SliceFacts { used_bytes: 3 * GIB, ledger_bytes: 0, ..honest() };
        assert_eq!(judge(&of(large), GIB), None);
        // One that holds what others have reserved.
        let server = Facts { held_bytes: 0, ..of(honest()) };
        assert_eq!(judge(&server, GIB), None);
        // Many, each with a context.
        let many = SliceFacts { used_bytes: 9 * GIB, ledger_bytes: 4 * GIB, processes: 8, ..honest() };
        assert_eq!(judge(&of(many), GIB), None);
        // One whose slice was made smaller holds on to what it has.
        let smaller = SliceFacts { limit_bytes: GIB, ..honest() };
        assert_eq!(judge(&of(smaller), GIB), None);
        // One in a slice whose ledger was damaged.
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
            // What only draws has no shim to be without, and is told of all the same.
            let drawing = expected.map(|verdict| Verdict { may_be_stopped: false, ..verdict });
            assert_eq!(judge(&Facts { computes: false, ..facts }, GIB), drawing, "{facts:?}");
            // Behind MPS nobody can be told from anybody.
            assert_eq!(judge(&Facts { behind_mps: true, ..facts }, GIB), None, "{facts:?}");
        }
    }

    #[test]
    fn an_mps_server_is_told_of_wherever_it_is() {
        let server = Facts { is_mps_server: true, behind_mps: true, ..of_no_slice() };
        assert_eq!(judge(&server, GIB), told(Kind::MpsServer));
        // Where it was asked for there is nothing to tell.
        assert_eq!(judge(&Facts { shared_by_mps: true, ..server }, GIB), None);
        // A tenant's own is not stopped, and silences nothing.
        let tenants = Facts { behind_mps: false, ..server };
        let tenants = Facts { slice: Some(SliceFacts { is_registered: false, ..honest() }), ..tenants };
        assert_eq!(judge(&tenants, GIB), told(Kind::MpsServer));
        assert_eq!(judge(&Facts { shared_by_mps: true, ..tenants }, GIB), told(Kind::MpsServer));
    }

    #[test]
    fn a_device_without_slices_is_nobody_s_business() {
        let elsewhere = Facts { is_sliced: false, ..of_no_slice() };
        assert_eq!(judge(&elsewhere, GIB), None);
        assert_eq!(judge(&Facts { is_mps_server: true, behind_mps: true, ..elsewhere }, GIB), None);
        // But a slice's process should not be there.
        let foreign = Facts { is_sliced: false, ..of(SliceFacts { has_device: false, ..honest() }) };
        assert_eq!(judge(&foreign, GIB), told(Kind::ForeignDevice));
    }

    #[test]
    fn a_ledger_that_says_too_much_hides_nothing_and_stops_nobody() {
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
