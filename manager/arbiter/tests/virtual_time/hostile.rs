//! Observations come from memory that containers write: the policy must hold for any content.

use aliquot_arbiter::{Arbiter, ContainerId, GateCommand, Observation, Share};

use crate::random::Random;
use crate::world::{MS, SECOND};

const LIAR: ContainerId = ContainerId(0);
const HONEST: ContainerId = ContainerId(1);
const SHARE: Share = Share { request_percent: 50, limit_percent: 100, priority: 0 };

#[test]
fn any_observation_is_handled() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut arbiter = Arbiter::new(0);
        let (mut now_ns, mut open) = (0, None);
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
                    GateCommand::Open { container } | GateCommand::OpenFree { container } => {
                        let before = open.replace(container);
                        let gone = before.is_none_or(|before| arbiter.usage(before).is_none());
                        assert!(gone || before == Some(container), "seed {seed}: two gates are open");
                    }
                    GateCommand::Close { container } if open == Some(container) => open = None,
                    _ => {}
                }
            }
            let charged_ns: u64 =
                arbiter.containers().filter_map(|id| arbiter.usage(id)).map(|usage| usage.charged_ns).sum();
            assert!(charged_ns <= now_ns, "seed {seed}: {charged_ns} charged at {now_ns}");
        }
    }
}

/// Runs two containers. The first one shows what `lie` returns; `lie` is told the time, and whether the gate is open.
/// The second one is busy whenever it may be. Returns the second one's charge after five seconds.
fn charged_beside(lie: impl Fn(u64, bool) -> Observation) -> u64 {
    let mut arbiter = Arbiter::new(0);
    for container in [LIAR, HONEST] {
        arbiter.add(container, SHARE);
        arbiter.set_processes(container, 1);
    }
    let (mut now_ns, mut open, mut liar_open) = (0, false, false);
    while now_ns < 5 * SECOND {
        let honest = Observation {
            container: HONEST,
            waiting: !open,
            in_flight: u32::from(open),
            markers: 1,
            busy_since_ns: 0,
            siblings: None,
        };
        let outcome = arbiter.poll(now_ns, &[lie(now_ns, liar_open), honest]);
        for command in &outcome.commands {
            match command {
                GateCommand::Open { container: HONEST } => open = true,
                GateCommand::Close { container: HONEST } => open = false,
                GateCommand::Open { container: LIAR } => liar_open = true,
                GateCommand::Close { container: LIAR } => liar_open = false,
                _ => {}
            }
        }
        now_ns = outcome.next_poll_ns.unwrap();
    }
    arbiter.usage(HONEST).unwrap().charged_ns
}

#[test]
fn false_observations_do_not_starve_others() {
    let quiet =
        Observation { container: LIAR, waiting: false, in_flight: 0, markers: 0, busy_since_ns: 0, siblings: None };
    let always_waiting = charged_beside(|_, _| Observation { waiting: true, ..quiet });
    let waiting_in_vain = charged_beside(|_, open| Observation { waiting: !open, ..quiet });
    let never_drained = charged_beside(|_, _| Observation { waiting: true, in_flight: 1, ..quiet });
    let never_busy =
        charged_beside(|now_ns, _| Observation { waiting: true, markers: now_ns, busy_since_ns: now_ns, ..quiet });
    for charged_ns in [always_waiting, waiting_in_vain, never_drained, never_busy] {
        // Half of the time, without the switches to the liar and back.
        assert!(charged_ns >= 19 * SECOND / 10, "{always_waiting} {waiting_in_vain} {never_drained} {never_busy}");
    }
}
