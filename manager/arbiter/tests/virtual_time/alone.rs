//! A container that is alone on its device.

use aliquot_arbiter::{Action, Arbiter, ContainerId, Observation, Share};

use crate::world::MS;

const ONLY: ContainerId = ContainerId(0);
const WHOLE: Share = Share { request_percent: 100, limit_percent: 100, priority: 0 };

/// The actions on the gate of an unlimited container that is alone and wants to launch.
fn first_actions(mut arbiter: Arbiter) -> Vec<Action> {
    arbiter.add(ONLY, WHOLE);
    arbiter.set_processes(ONLY, 1);
    let waiting =
        Observation { container: ONLY, waiting: true, in_flight: 0, markers: 0, busy_since_ns: 0, siblings: None };
    let actions = (1..=3).flat_map(|poll| arbiter.poll(poll * MS, &[waiting]).actions);
    actions.filter(|action| !matches!(action, Action::Close { .. } | Action::Tick { .. })).collect()
}

#[test]
fn it_runs_free_unless_only_leases_measure_its_use() {
    assert_eq!(first_actions(Arbiter::new(0)), [Action::OpenFree { container: ONLY }]);
    assert_eq!(first_actions(Arbiter::charging_all(0)), [Action::Open { container: ONLY }]);
}
