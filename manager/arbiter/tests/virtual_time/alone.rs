//! A container that is alone on its device.

use aliquot_arbiter::{Arbiter, ContainerId, GateCommand, Observation, Share};

use crate::world::MS;

const ONLY: ContainerId = ContainerId(0);
const WHOLE: Share = Share { request_percent: 100, limit_percent: 100, priority: 0 };

/// The commands to the gate of an unlimited container that is alone and wants to launch.
fn first_commands(mut arbiter: Arbiter) -> Vec<GateCommand> {
    arbiter.add(ONLY, WHOLE);
    arbiter.set_processes(ONLY, 1);
    let waiting =
        Observation { container: ONLY, waiting: true, in_flight: 0, markers: 0, busy_since_ns: 0, siblings: None };
    let commands = (1..=3).flat_map(|poll| arbiter.poll(poll * MS, &[waiting]).commands);
    commands.filter(|command| !matches!(command, GateCommand::Close { .. } | GateCommand::Tick { .. })).collect()
}

#[test]
fn it_runs_free_unless_only_leases_measure_its_use() {
    assert_eq!(first_commands(Arbiter::new(0)), [GateCommand::OpenFree { container: ONLY }]);
    assert_eq!(first_commands(Arbiter::charging_all(0)), [GateCommand::Open { container: ONLY }]);
}
