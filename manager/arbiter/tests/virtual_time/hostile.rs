//! Observations come from memory that containers write: the policy must hold for any content.

use std::collections::BTreeSet;

use aliquot_arbiter::{Arbiter, ContainerId, GateCommand, Observation, Share};

use crate::random::Random;
use crate::world::{MS, SECOND};

const LIAR: ContainerId = ContainerId(0);

#[test]
fn any_observation_is_handled() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut arbiter = Arbiter::new(0);
        let (mut now_ns, mut open) = (0, BTreeSet::new());
        for _ in 0..200 {
            let container = ContainerId(random.between(0, 3));
            match random.between(0, 40) {
                0 => drop(arbiter.remove(container)),
                1..=3 => {
                    let any = |random: &mut Random| *random.pick(&[0, 1, 30, 100, 101, u32::MAX]);
                    let share = Share {
                        request_percent: any(&mut random),
                        limit_percent: any(&mut random),
                        priority: *random.pick(&[i32::MIN, 0, 0, i32::MAX]),
                    };
                    if !arbiter.resize(container, share) {
                        arbiter.add(container, share);
                    }
                }
                4..=8 => drop(arbiter.set_processes(container, *random.pick(&[0, 1, 5, u32::MAX]))),
                _ => {}
            }
            let observed: Vec<Observation> = (0..5)
                .map(|number| Observation {
                    container: ContainerId(number % 4),
                    waiting: random.one_in(2),
                    in_flight: *random.pick(&[0, 0, 1, u32::MAX]),
                    markers: *random.pick(&[0, 1, u64::MAX]),
                    busy_since_ns: *random.pick(&[0, now_ns, u64::MAX]),
                    siblings: None,
                })
                .collect();
            now_ns += *random.pick(&[0, 1, MS, 10 * MS, 3600 * SECOND]);
            let outcome = arbiter.poll(now_ns, &observed);
            assert!(outcome.next_poll_ns.is_none_or(|next_ns| next_ns > now_ns), "seed {seed}");
            for command in outcome.commands {
                match command {
                    GateCommand::OpenFree { container } => {
                        open.retain(|&other| other == container || arbiter.usage(other).is_some());
                        open.insert(container);
                        assert_eq!(open.len(), 1, "seed {seed}: other gates are open beside a free one");
                    }
                    GateCommand::Open { container } => drop(open.insert(container)),
                    GateCommand::Close { container } => drop(open.remove(&container)),
                    GateCommand::Tick { container } => {
                        assert!(open.contains(&container), "seed {seed}: a tick of a closed gate");
                    }
                }
            }
            let charged_ns: u64 =
                arbiter.containers().filter_map(|id| arbiter.usage(id)).map(|usage| usage.charged_ns).sum();
            assert!(charged_ns <= now_ns, "seed {seed}: {charged_ns} charged at {now_ns}");
        }
    }
}

/// What a container that is busy whenever it may be has got.
#[derive(Clone, Copy, Default, Debug)]
struct Got {
    charged_ns: u64,
    /// For how long its gate was open.
    open_ns: u64,
}

/// Runs the liar beside honest containers, for five seconds. The liar shows what `lie` returns, which is told the time
/// and whether its gate is open. The honest ones are busy whenever they may be. Returns what each of those has got.
fn got_beside<const HONEST: usize>(lie: impl Fn(u64, bool) -> Observation) -> [Got; HONEST] {
    let honest: [ContainerId; HONEST] = std::array::from_fn(|number| ContainerId(number as u64 + 1));
    let share = Share { request_percent: 100 / (HONEST as u32 + 1), limit_percent: 100, priority: 0 };
    let mut arbiter = Arbiter::new(0);
    for container in [LIAR].into_iter().chain(honest) {
        arbiter.add(container, share);
        arbiter.set_processes(container, 1);
    }
    let (mut now_ns, mut open) = (0, None);
    let mut got = [Got::default(); HONEST];
    while now_ns < 5 * SECOND {
        let mut observed = vec![lie(now_ns, open == Some(LIAR))];
        observed.extend(honest.map(|container| Observation {
            container,
            waiting: open != Some(container),
            in_flight: u32::from(open == Some(container)),
            markers: 1,
            busy_since_ns: 0,
            siblings: None,
        }));
        let outcome = arbiter.poll(now_ns, &observed);
        for command in &outcome.commands {
            match *command {
                GateCommand::Open { container } => open = Some(container),
                GateCommand::Close { container } if open == Some(container) => open = None,
                _ => {}
            }
        }
        let next_ns = outcome.next_poll_ns.unwrap();
        if let Some(holder) = honest.iter().position(|&container| open == Some(container)) {
            got[holder].open_ns += next_ns - now_ns;
        }
        now_ns = next_ns;
    }
    for (got, container) in got.iter_mut().zip(honest) {
        got.charged_ns = arbiter.usage(container).unwrap().charged_ns;
    }
    got
}

/// Runs the liar beside one honest container, and returns what that was charged.
fn charged_beside(lie: impl Fn(u64, bool) -> Observation) -> u64 {
    let [got] = got_beside(lie);
    got.charged_ns
}

const QUIET: Observation =
    Observation { container: LIAR, waiting: false, in_flight: 0, markers: 0, busy_since_ns: 0, siblings: None };

/// The rule for overdue work looks at its length, so a liar shows work that ends just before, and then new work.
#[test]
fn work_that_comes_and_goes_at_a_closed_gate_keeps_nobody_out() {
    for (shown_ms, hidden_ms) in [(95, 3), (1, 1), (299, 2)] {
        let got: [Got; 2] = got_beside(|now_ns, _| Observation {
            in_flight: u32::from(now_ns % ((shown_ms + hidden_ms) * MS) < shown_ms * MS),
            markers: now_ns,
            ..QUIET
        });
        for honest in got {
            assert!(honest.open_ns >= 22 * SECOND / 10, "{shown_ms} ms of every {}: {got:?}", shown_ms + hidden_ms);
        }
    }
}

#[test]
fn false_observations_do_not_starve_others() {
    let always_waiting = charged_beside(|_, _| Observation { waiting: true, ..QUIET });
    let waiting_in_vain = charged_beside(|_, open| Observation { waiting: !open, ..QUIET });
    let never_drained = charged_beside(|_, _| Observation { waiting: true, in_flight: 1, ..QUIET });
    let never_busy =
        charged_beside(|now_ns, _| Observation { waiting: true, markers: now_ns, busy_since_ns: now_ns, ..QUIET });
    for charged_ns in [always_waiting, waiting_in_vain, never_drained, never_busy] {
        // Half of the time, without the switches to the liar and back.
        assert!(charged_ns >= 19 * SECOND / 10, "{always_waiting} {waiting_in_vain} {never_drained} {never_busy}");
    }
}
