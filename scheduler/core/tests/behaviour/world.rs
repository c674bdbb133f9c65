//! Worlds in which anything may happen, at any time: claims and gangs come, grow, change and go, nodes and devices fail
//! and come back, bounds and budgets change, containers take long to stop or fail to start. All laws hold after every
//! event and every cycle. When nothing happens any more, the scheduler comes to rest, and no claim waits for free room.
//!
//! A seed determines each world. When a law is broken, the list of happenings is cut down to those that are needed to
//! break it, and printed.

mod happenings;
mod play;

use happenings::Happening;
use play::{Broken, play};

/// The number of worlds in a test run. `ALIQUOT_WORLDS` sets another number, `ALIQUOT_FIRST_WORLD` the seed of the
/// first world, and `ALIQUOT_WORLD` a single seed.
const WORLDS: u64 = 600;

#[expect(clippy::disallowed_methods, reason = "the caller of the tests chooses the worlds")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn whatever_happens_all_laws_hold_and_the_scheduler_comes_to_rest() {
    let seeds = match number("ALIQUOT_WORLD") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("ALIQUOT_FIRST_WORLD").unwrap_or(0);
            first..first + number("ALIQUOT_WORLDS").unwrap_or(WORLDS)
        }
    };
    for seed in seeds {
        let happenings = happenings::of(seed);
        if let Err(broken) = play(seed, &happenings) {
            let (happenings, broken) = shrink(seed, happenings, broken);
            let lines: Vec<String> = happenings.iter().map(|happening| format!("{happening:?}")).collect();
            panic!("world {seed}: {broken:?}\nafter {} happenings:\n{}", lines.len(), lines.join("\n"));
        }
    }
}

/// Removes happenings that are not needed to break a law, in ever smaller pieces.
fn shrink(seed: u64, mut happenings: Vec<Happening>, mut broken: Broken) -> (Vec<Happening>, Broken) {
    let mut piece = happenings.len() / 2;
    while piece > 0 {
        let mut from = 0;
        while from < happenings.len() {
            let mut fewer = happenings.clone();
            fewer.drain(from..(from + piece).min(happenings.len()));
            match play(seed, &fewer) {
                Err(still) => (happenings, broken) = (fewer, still),
                Ok(()) => from += piece,
            }
        }
        piece /= 2;
    }
    (happenings, broken)
}
