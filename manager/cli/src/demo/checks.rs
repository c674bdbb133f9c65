//! What the demonstration promises, and whether it held.

use super::protocol::Filled;
use super::stage::{Cast, Sharer, Shown, share_millipercent};
use crate::quantity::{bytes_exact, millipercent_human};

/// A share may be off by so much.
const SHARE_ERROR_MAX_MILLIPERCENT: u64 = 2_000;
/// Real drivers hand memory out in pieces of this size: so much of a limit may stay unused, and not a byte more than the limit
/// is ever given.
const MEMORY_PIECE_BYTES: u64 = 2 << 20;

/// The answer that makes frameworks free what they can and try again.
const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// A promise.
#[derive(Debug)]
pub(super) struct Check {
    /// What is promised, with what was seen.
    pub(super) text: String,
    /// Whether it held.
    pub(super) holds: bool,
}

/// All promises.
pub(super) fn of(shown: &Shown) -> Vec<Check> {
    let mut checks = Vec::new();
    for sharer in &shown.sharers {
        checks.push(share(sharer));
        checks.push(books(sharer));
    }
    for sharer in &shown.sharers {
        checks.push(memory(sharer.cast, &sharer.filled, sharer.usage.memory_overhead_bytes));
    }
    let third = &shown.third;
    let cast = third.cast;
    checks.push(Check {
        text: match &third.grab_refusal {
            Some(refusal) => format!("{} asks for {} at once: {refusal}", cast.name, bytes_exact(third.grab_bytes)),
            None => format!("{} asks for {} at once and gets it", cast.name, bytes_exact(third.grab_bytes)),
        },
        holds: third.grab_refusal.as_deref() == Some(OUT_OF_MEMORY),
    });
    checks.push(memory(cast, &third.filled, third.usage.memory_overhead_bytes));
    checks.push(Check {
        text: format!("{} sees a device of {}", cast.name, bytes_exact(third.seen_total_bytes)),
        holds: third.seen_total_bytes == cast.memory_bytes,
    });
    checks.push(Check {
        text: match &shown.fourth_refusal {
            Some(refusal) => format!("a slice for which there is no room is refused: {refusal}"),
            None => "a slice for which there is no room was made".to_owned(),
        },
        holds: shown.fourth_refusal.is_some(),
    });
    checks
}

fn share(sharer: &Sharer) -> Check {
    let wanted = u64::from(sharer.cast.core_percent) * 1000;
    let got = share_millipercent(sharer.kernel_ns, sharer.window_ns);
    Check {
        text: format!(
            "{} gets {} % of the device's time, {} % asked for",
            sharer.cast.name,
            millipercent_human(got),
            sharer.cast.core_percent
        ),
        holds: wanted.abs_diff(got) <= SHARE_ERROR_MAX_MILLIPERCENT,
    }
}

fn books(sharer: &Sharer) -> Check {
    let measured = share_millipercent(sharer.kernel_ns, sharer.window_ns);
    let charged = share_millipercent(sharer.charged_ns, sharer.charged_window_ns);
    Check {
        text: format!("{}: the manager's books say {} %", sharer.cast.name, millipercent_human(charged)),
        holds: measured.abs_diff(charged) <= SHARE_ERROR_MAX_MILLIPERCENT,
    }
}

/// The whole limit is given, a byte more is refused as frameworks expect it, and the program sees it so.
fn memory(cast: Cast, filled: &Filled, overhead_bytes: u64) -> Check {
    let used_bytes = filled.allocated_bytes.saturating_add(overhead_bytes);
    let exact = used_bytes <= cast.memory_bytes && cast.memory_bytes - used_bytes < MEMORY_PIECE_BYTES;
    let seen = filled.total_bytes == cast.memory_bytes && filled.free_bytes < MEMORY_PIECE_BYTES;
    let mut text = format!("{} is given {}", cast.name, bytes_exact(filled.allocated_bytes));
    if overhead_bytes > 0 {
        text.push_str(&format!(" beside the {} of its context", bytes_exact(overhead_bytes)));
    }
    text.push_str(&format!(
        ", its limit is {}; then {}, and it sees {} free of {}",
        bytes_exact(cast.memory_bytes),
        filled.refusal,
        bytes_exact(filled.free_bytes),
        bytes_exact(filled.total_bytes)
    ));
    Check { text, holds: exact && seen && filled.refusal == OUT_OF_MEMORY }
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::PartUsage;

    use super::*;

    #[test]
    fn memory_must_be_exact() {
        const GIB: u64 = 1 << 30;
        const CAST: Cast = Cast { name: "x", core_percent: 30, memory_bytes: GIB };
        let full = |allocated_bytes| Filled {
            allocated_bytes,
            refusal: OUT_OF_MEMORY.to_owned(),
            free_bytes: 0,
            total_bytes: GIB,
        };
        assert!(memory(CAST, &full(GIB), 0).holds);
        assert!(memory(CAST, &full(GIB - (300 << 20)), 300 << 20).holds);
        assert!(memory(CAST, &full(GIB - 1), 0).holds);
        assert!(!memory(CAST, &full(GIB + 1), 0).holds);
        assert!(!memory(CAST, &full(GIB), 1).holds);
        assert!(!memory(CAST, &full(GIB - MEMORY_PIECE_BYTES), 0).holds);
        assert!(!memory(CAST, &Filled { refusal: "CUDA_ERROR_UNKNOWN".to_owned(), ..full(GIB) }, 0).holds);
        assert!(!memory(CAST, &Filled { free_bytes: 4 << 20, ..full(GIB) }, 0).holds);
        assert!(!memory(CAST, &Filled { total_bytes: 80 << 30, ..full(GIB) }, 0).holds);
    }

    #[test]
    fn two_points_are_the_bound() {
        let sharer = |kernel_ns, charged_ns| Sharer {
            cast: Cast { name: "x", core_percent: 30, memory_bytes: 0 },
            kernel_ns,
            window_ns: 100_000,
            charged_ns,
            charged_window_ns: 100_000,
            filled: Filled { allocated_bytes: 0, refusal: String::new(), free_bytes: 0, total_bytes: 0 },
            usage: PartUsage::default(),
        };
        assert!(share(&sharer(28_000, 0)).holds && share(&sharer(32_000, 0)).holds);
        assert!(!share(&sharer(27_999, 0)).holds && !share(&sharer(32_001, 0)).holds);
        assert!(books(&sharer(30_000, 31_000)).holds && !books(&sharer(30_000, 33_000)).holds);
    }
}
