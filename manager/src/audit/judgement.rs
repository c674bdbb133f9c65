//! What is to be thought of a process on a device. Pure: all that was seen is told.

use crate::audit::finding::Kind;

/// What one look has shown of a process on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// It is the server of MPS, outside of all slices.
    pub(super) is_mps_server: bool,
    /// Such a server is on the device: what the driver says of pids there means nothing.
    pub(super) behind_mps: bool,
    /// Its slice; `None`: it is in no slice.
    pub(super) slice: Option<SliceFacts>,
    /// Device memory that it uses beyond what its slot holds, as the driver says.
    pub(super) unledgered_bytes: u64,
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
    /// What it may use.
    pub(super) limit_bytes: u64,
    /// Processes of the slice on the device.
    pub(super) processes: u64,
}

/// What is wrong with a process of these facts, each of which may use `overhead_allowance_bytes` beyond its ledger.
pub(super) fn judge(facts: &Facts, overhead_allowance_bytes: u64) -> Option<Kind> {
    if facts.is_mps_server {
        return Some(Kind::MpsServer);
    }
    if facts.behind_mps {
        return None;
    }
    let Some(slice) = &facts.slice else { return Some(Kind::OutsideSlices) };
    if !slice.has_device {
        return Some(Kind::ForeignDevice);
    }
    if !slice.is_registered {
        return Some(Kind::Unregistered);
    }
    // The process alone does not decide: where one serves others, it holds what stands in their slots.
    let unledgered_bytes = slice.used_bytes.saturating_sub(slice.ledger_bytes);
    let is_beyond = slice.used_bytes > slice.limit_bytes
        && unledgered_bytes > overhead_allowance_bytes.saturating_mul(slice.processes)
        && facts.unledgered_bytes > overhead_allowance_bytes;
    if is_beyond {
        return Some(Kind::MemoryBeyondLimit);
    }
    facts.works_unseen.then_some(Kind::TimeWithoutLease)
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
            limit_bytes: 4 * GIB,
            processes: 1,
        }
    }

    fn of(slice: SliceFacts) -> Facts {
        Facts { slice: Some(slice), unledgered_bytes: slice.used_bytes - slice.ledger_bytes, ..Facts::default() }
    }

    #[test]
    fn a_process_that_goes_by_the_rules_is_accused_of_nothing() {
        // Its contexts and modules make the slice's use greater than the limit: that is not the process's doing.
        assert_eq!(judge(&of(honest()), GIB), None);
        // One that loads more than is usual, within its limit.
        let large = SliceFacts { used_bytes: 3 * GIB, ledger_bytes: 0, ..honest() };
        assert_eq!(judge(&of(large), GIB), None);
        // One that holds what others have reserved.
        let server = Facts { unledgered_bytes: 4 * GIB, ..of(honest()) };
        assert_eq!(judge(&server, GIB), None);
        // Many, each with a context.
        let many = SliceFacts { used_bytes: 9 * GIB, ledger_bytes: 4 * GIB, processes: 8, ..honest() };
        assert_eq!(judge(&of(many), GIB), None);
    }

    #[test]
    fn each_way_past_a_slice_has_its_name() {
        let slice = honest();
        let cases = [
            (of(SliceFacts { is_registered: false, ..slice }), Some(Kind::Unregistered)),
            (of(SliceFacts { has_device: false, ..slice }), Some(Kind::ForeignDevice)),
            (of(SliceFacts { has_device: false, is_registered: false, ..slice }), Some(Kind::ForeignDevice)),
            (of(SliceFacts { used_bytes: 6 * GIB, ledger_bytes: 2 * GIB, ..slice }), Some(Kind::MemoryBeyondLimit)),
            (Facts { works_unseen: true, ..of(slice) }, Some(Kind::TimeWithoutLease)),
            (Facts::default(), Some(Kind::OutsideSlices)),
        ];
        for (facts, expected) in cases {
            assert_eq!(judge(&facts, GIB), expected, "{facts:?}");
            // Behind MPS nobody can be told from anybody.
            assert_eq!(judge(&Facts { behind_mps: true, ..facts }, GIB), None, "{facts:?}");
        }
        let server = Facts { is_mps_server: true, behind_mps: true, ..Facts::default() };
        assert_eq!(judge(&server, GIB), Some(Kind::MpsServer));
    }
}
