//! A container that is alone on its device.

use aliquot_arbiter::{Arbiter, ContainerId, GateCommand, Observation, Share};

use crate::world::MS;

const ONLY: ContainerId = ContainerId(0);
const WHOLE: Share = Share { request_percent: 100, limit_percent: 100, priority: 0 };

#[test]
fn it_runs_free_unless_only_leases_measure_its_use() {
    let mut arbiter = Arbiter::new(0);
    arbiter.add(ONLY, WHOLE);
    arbiter.set_processes(ONLY, 1);
    let waiting =
        Observation { container: ONLY, waiting: true, in_flight: 0, markers: 0, busy_since_ns: 0, siblings: None };
    let mut now_ns = 0;
    // The driver can begin and cease to report its use while the container runs.
    for charges_all in [true, false, true] {
        arbiter.set_charges_all(charges_all);
        let mut commands = Vec::new();
        for _ in 0..3 {
            now_ns += MS;
            commands.extend(arbiter.poll(now_ns, &[waiting]).commands);
        }
        commands.retain(|command| !matches!(command, GateCommand::Close { .. } | GateCommand::Tick { .. }));
        let open = GateCommand::Open { container: ONLY };
        let expected = if charges_all { open } else { GateCommand::OpenFree { container: ONLY } };
        assert_eq!(commands, [expected], "charges all: {charges_all}");
    }
}
