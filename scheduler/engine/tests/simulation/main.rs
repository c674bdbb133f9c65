//! The whole engine in virtual time, in thousands of worlds. A seed determines each world.

#![expect(clippy::disallowed_methods, reason = "who runs the tests says which worlds")]

mod direct;
mod node;
mod random;
mod rig;
mod world;

use aliquot_scheduler_engine::{MemoryStore, Store};
use direct::Direct;
use world::{Kind, Wire, World};

/// Worlds of each kind in a test run; `ALIQUOT_WORLDS` sets another number, `ALIQUOT_FIRST_WORLD` the seed of the
/// first.
const WORLDS: u64 = 500;

/// Where the engine of a world saves. Tests of other stores include these modules, and define a function of their own.
fn new_store() -> Box<dyn Store> {
    Box::new(MemoryStore::default())
}

/// The wire of a world. Tests of other wires define a function of their own.
fn new_wire() -> Box<dyn Wire> {
    Box::new(Direct)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn play_all(kind: Kind) {
    let first = number("ALIQUOT_FIRST_WORLD").unwrap_or(0);
    let (mut starts, mut stops, mut resizes, mut crashes, mut lapses) = (0, 0, 0, 0, 0);
    for seed in first..first + number("ALIQUOT_WORLDS").unwrap_or(WORLDS) {
        let mut world = World::new(seed, kind);
        if let Err(broken) = world.play() {
            panic!("world {seed} ({kind:?}): {broken}");
        }
        (starts, stops, resizes) = (starts + world.starts, stops + world.stops, resizes + world.resizes);
        (crashes, lapses) = (crashes + world.crashes, lapses + world.lapses);
    }
    println!("{kind:?}: {starts} starts, {stops} stops, {resizes} resizes, {crashes} crashes, {lapses} lapses");
    assert!(starts > 0 && stops > 0 && resizes > 0 && crashes > 0, "worlds in which nothing happens prove nothing");
    assert!(kind != Kind::Leases || lapses > 0, "worlds in which no lease lapses prove nothing of leases");
}

#[test]
fn nodes_that_hold_leases_never_run_anything_twice_and_everything_comes_to_rest() {
    play_all(Kind::Leases);
}

#[test]
fn nodes_without_leases_never_run_anything_twice_and_everything_comes_to_rest() {
    play_all(Kind::Witness);
}
