//! Checks the promises of the demonstration.

use super::protocol::Filled;
use super::stage::{Cast, Sharer, Shown, share_millipercent};
use crate::quantity::{bytes_exact, millipercent_human};

/// Maximum error of a share.
const SHARE_ERROR_MAX_MILLIPERCENT: u64 = 2_000;
/// Programs that always have work keep a device in use for at least this part of the time, unless they get too little
/// processor time to launch.
const DEVICE_USED_MIN_MILLIPERCENT: u64 = 80_000;
/// From this use on the device counts as fully used, and no remark on the rest is needed.
const DEVICE_FULLY_USED_MILLIPERCENT: u64 = 98_000;
/// Real drivers hand out memory in pieces of this size. So up to this much of a limit may stay unused, and the last
/// allocation may take this much more than was requested.
const MEMORY_PIECE_BYTES: u64 = 2 << 20;

/// The answer on which frameworks free what they can and try again.
const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// The subject of a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    Time,
    Books,
    Memory,
    Room,
}

impl Topic {
    /// All topics, in the order of the report.
    pub(super) const ALL: [Topic; 4] = [Topic::Time, Topic::Books, Topic::Memory, Topic::Room];

    /// The statement that is reported if all promises of the topic hold.
    pub(super) fn kept(self) -> &'static str {
        match self {
            Topic::Time => "time: each has the part of the device's time that it asked for, and no more",
            Topic::Books => "books: the manager charges each what was measured",
            Topic::Memory => "memory: each is given its limit, with its context in it, and not a byte more",
            Topic::Room => "room: a slice for which there is none left is refused",
        }
    }
}

/// A promise and whether it held.
#[derive(Debug)]
pub(super) struct Check {
    /// The subject of the promise.
    pub(super) topic: Topic,
    /// The promise, with the observation.
    pub(super) text: String,
    /// Whether the promise held.
    pub(super) holds: bool,
}

/// All promises, checked against the results.
pub(super) fn of(shown: &Shown) -> Vec<Check> {
    let together = Together::of(&shown.sharers);
    let mut checks = vec![device_used(&together)];
    for sharer in &shown.sharers {
        checks.push(share(sharer, &together));
        checks.push(books(sharer, &together));
    }
    for sharer in &shown.sharers {
        checks.push(memory(sharer.cast, &sharer.filled, sharer.usage.memory_used_bytes));
    }
    let third = &shown.third;
    let cast = third.cast;
    checks.push(Check {
        topic: Topic::Memory,
        text: match &third.grab_refusal {
            Some(refusal) => format!("{} asks for {} at once: {refusal}", cast.name, bytes_exact(third.grab_bytes)),
            None => format!("{} asks for {} at once and gets it", cast.name, bytes_exact(third.grab_bytes)),
        },
        holds: third.grab_refusal.as_deref() == Some(OUT_OF_MEMORY),
    });
    checks.push(memory(cast, &third.filled, third.usage.memory_used_bytes));
    checks.push(Check {
        topic: Topic::Memory,
        text: format!("{} sees a device of {}", cast.name, bytes_exact(third.seen_total_bytes)),
        holds: third.seen_total_bytes == cast.memory_bytes,
    });
    checks.push(Check {
        topic: Topic::Room,
        text: match &shown.fourth_refusal {
            Some(refusal) => format!("a slice for which there is no room is refused: {refusal}"),
            None => "a slice for which there is no room was made".to_owned(),
        },
        holds: shown.fourth_refusal.is_some(),
    });
    checks
}

/// The requested, used and charged shares of all sharers together, in thousandths of a percent of the device's time.
///
/// On a machine that is busy with other work, programs cannot always launch, and all of them lose device time. How the
/// device is shared then shows in the parts of the time that was used.
pub(super) struct Together {
    asked: u64,
    used: u64,
    charged: u64,
}

impl Together {
    /// The sums over `sharers`.
    pub(super) fn of(sharers: &[Sharer]) -> Together {
        Together {
            asked: sharers.iter().map(asked_millipercent).sum(),
            used: sharers.iter().map(used_millipercent).sum(),
            charged: sharers.iter().map(charged_millipercent).sum(),
        }
    }

    /// Whether the unused time is too little for a remark.
    pub(super) fn used_it_fully(&self) -> bool {
        self.used >= DEVICE_FULLY_USED_MILLIPERCENT
    }

    /// Whether the device was in use long enough to judge how it was shared.
    pub(super) fn kept_it_busy(&self) -> bool {
        self.used >= DEVICE_USED_MIN_MILLIPERCENT
    }
}

fn asked_millipercent(sharer: &Sharer) -> u64 {
    u64::from(sharer.cast.core_percent) * 1000
}

fn used_millipercent(sharer: &Sharer) -> u64 {
    share_millipercent(sharer.kernel_ns, sharer.window_ns)
}

fn charged_millipercent(sharer: &Sharer) -> u64 {
    share_millipercent(sharer.charged_ns, sharer.charged_window_ns)
}

fn near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= SHARE_ERROR_MAX_MILLIPERCENT
}

fn device_used(together: &Together) -> Check {
    let used = millipercent_human(together.used);
    let text = match together.used {
        ..DEVICE_USED_MIN_MILLIPERCENT => format!(
            "the two keep the device in use for only {used} % of the time: this machine was too busy with other work to \
             judge the shares; run it again on an idle machine"
        ),
        DEVICE_USED_MIN_MILLIPERCENT..DEVICE_FULLY_USED_MILLIPERCENT => format!(
            "the two keep the device in use for {used} % of the time: this machine was too busy with other work to use the \
             rest; shares are judged as parts of the used time"
        ),
        DEVICE_FULLY_USED_MILLIPERCENT.. => format!("the two keep the device in use for {used} % of the time"),
    };
    Check { topic: Topic::Time, text, holds: together.kept_it_busy() }
}

/// Checks two things: the share is at most the limit, and the sharer got the requested part of the time that was used.
fn share(sharer: &Sharer, together: &Together) -> Check {
    let (asked, got) = (asked_millipercent(sharer), used_millipercent(sharer));
    let of_used = share_millipercent(got, together.used);
    Check {
        topic: Topic::Time,
        text: format!(
            "{} gets {} % of the device's time, which is {} % of the used time; {} % requested",
            sharer.cast.name,
            millipercent_human(got),
            millipercent_human(of_used),
            sharer.cast.core_percent
        ),
        holds: got <= asked + SHARE_ERROR_MAX_MILLIPERCENT && near(of_used, share_millipercent(asked, together.asked)),
    }
}

/// Checks that the manager charges at least the time that was used, and charges each program its part. It may charge
/// more: a lease whose holder launches late keeps the device from others.
fn books(sharer: &Sharer, together: &Together) -> Check {
    let (measured, charged) = (used_millipercent(sharer), charged_millipercent(sharer));
    let of_charged = share_millipercent(charged, together.charged);
    Check {
        topic: Topic::Books,
        text: format!(
            "{}: the manager's books say {} %, which is {} % of the charged time",
            sharer.cast.name,
            millipercent_human(charged),
            millipercent_human(of_charged)
        ),
        holds: charged + SHARE_ERROR_MAX_MILLIPERCENT >= measured
            && charged <= asked_millipercent(sharer) + SHARE_ERROR_MAX_MILLIPERCENT
            && near(of_charged, share_millipercent(measured, together.used)),
    }
}

/// Checks that the whole limit is given, that one byte more is refused in the way that frameworks expect, and that the
/// program sees these figures.
fn memory(cast: Cast, filled: &Filled, used_bytes: u64) -> Check {
    let exact = used_bytes.abs_diff(cast.memory_bytes) < MEMORY_PIECE_BYTES && filled.allocated_bytes <= used_bytes;
    let context_bytes = used_bytes.saturating_sub(filled.allocated_bytes);
    let seen = filled.total_bytes == cast.memory_bytes && filled.free_bytes < MEMORY_PIECE_BYTES;
    let mut text = format!("{} is given {}", cast.name, bytes_exact(filled.allocated_bytes));
    if context_bytes > 0 {
        text.push_str(&format!(" beside the {} of its context", bytes_exact(context_bytes)));
    }
    text.push_str(&format!(
        ", its limit is {}; then {}, and it sees {} free of {}",
        bytes_exact(cast.memory_bytes),
        filled.refusal,
        bytes_exact(filled.free_bytes),
        bytes_exact(filled.total_bytes)
    ));
    Check { topic: Topic::Memory, text, holds: exact && seen && filled.refusal == OUT_OF_MEMORY }
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
        assert!(memory(CAST, &full(GIB), GIB).holds);
        assert!(memory(CAST, &full(GIB - (300 << 20)), GIB).holds);
        assert!(memory(CAST, &full(GIB - 1), GIB - 1).holds);
        assert!(memory(CAST, &full(GIB - 1), GIB - 1 + (1 << 20)).holds);
        assert!(!memory(CAST, &full(GIB + 1), GIB).holds);
        assert!(!memory(CAST, &full(GIB), GIB + MEMORY_PIECE_BYTES).holds);
        assert!(!memory(CAST, &full(GIB - MEMORY_PIECE_BYTES), GIB - MEMORY_PIECE_BYTES).holds);
        assert!(!memory(CAST, &Filled { refusal: "CUDA_ERROR_UNKNOWN".to_owned(), ..full(GIB) }, GIB).holds);
        assert!(!memory(CAST, &Filled { free_bytes: 4 << 20, ..full(GIB) }, GIB).holds);
        assert!(!memory(CAST, &Filled { total_bytes: 80 << 30, ..full(GIB) }, GIB).holds);
    }

    /// Two sharers that requested 30 % and 70 %, with thousandths of a percent that each used and was charged.
    fn sharers(used: [u64; 2], charged: [u64; 2]) -> [Sharer; 2] {
        [0, 1].map(|index| Sharer {
            cast: Cast { name: "x", core_percent: [30, 70][index], memory_bytes: 0 },
            kernel_ns: used[index],
            window_ns: 100_000,
            charged_ns: charged[index],
            charged_window_ns: 100_000,
            filled: Filled { allocated_bytes: 0, refusal: String::new(), free_bytes: 0, total_bytes: 0 },
            usage: PartUsage::default(),
        })
    }

    fn shares_hold(used: [u64; 2]) -> [bool; 2] {
        let sharers = sharers(used, used);
        let together = Together::of(&sharers);
        [0, 1].map(|index| share(&sharers[index], &together).holds)
    }

    fn books_hold(used: [u64; 2], charged: [u64; 2]) -> [bool; 2] {
        let sharers = sharers(used, charged);
        let together = Together::of(&sharers);
        [0, 1].map(|index| books(&sharers[index], &together).holds)
    }

    #[test]
    fn a_share_is_within_two_points_of_what_was_asked_for() {
        assert_eq!(shares_hold([28_000, 72_000]), [true, true]);
        assert_eq!(shares_hold([32_000, 68_000]), [true, true]);
        assert_eq!(shares_hold([27_900, 72_100]), [false, false]);
    }

    #[test]
    fn unused_time_counts_against_no_slice() {
        assert_eq!(shares_hold([27_600, 67_400]), [true, true]);
        assert_eq!(shares_hold([24_000, 56_000]), [true, true]);
        assert_eq!(shares_hold([30_000, 60_000]), [false, false]);
    }

    #[test]
    fn the_limit_is_never_exceeded_whatever_the_other_gets() {
        // Together they use more than the device has: the proportion is right, but the sum is too much.
        assert_eq!(shares_hold([32_500, 75_000]), [false, false]);
    }

    #[test]
    fn books_charge_no_less_than_the_use_and_in_proportion() {
        assert_eq!(books_hold([27_600, 67_400], [29_800, 70_100]), [true, true]);
        assert_eq!(books_hold([30_000, 70_000], [27_900, 65_000]), [false, false]);
        assert_eq!(books_hold([30_000, 70_000], [32_100, 70_000]), [false, true]);
        assert_eq!(books_hold([30_000, 60_000], [30_000, 70_000]), [false, false]);
    }

    #[test]
    fn an_idle_device_fails_the_check_and_a_partly_used_one_not() {
        let check = |used| device_used(&Together::of(&sharers(used, used)));
        assert!(check([30_000, 69_000]).holds && !check([30_000, 69_000]).text.contains("busy"));
        assert!(check([27_000, 63_000]).holds && check([27_000, 63_000]).text.contains("in use for 90.0 %"));
        assert!(!check([23_900, 55_900]).holds && check([23_900, 55_900]).text.contains("too busy with other work"));
    }
}
