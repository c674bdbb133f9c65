//! The names of devices.

use aliquot_scheduler_core::{DeviceRequest, EventError};

use super::*;

#[test]
fn a_node_whose_devices_cannot_be_told_apart_is_refused() {
    let mut kit = Kit::new(0, Vec::new());
    for wrong in ["", "GPU-0"] {
        let mut spec = NodeSpec { name: "other".into(), ..node(2) };
        spec.devices[1].uuid = wrong.into();
        let (session, sequence, handled) = (1, 1, Generation::default());
        let report = NodeReport { spec, session, sequence, handled, running: Vec::new() };
        let told = kit.try_tell(Observation::Node(Box::new(report)));
        assert_eq!(told, Err(EventError::DeviceNames { node: "other".into(), uuid: wrong.into() }));
    }
    kit.pass(100);
    assert_eq!(kit.view.as_ref().map(|view| view.nodes().count()), Some(1), "the other one is not in the books");
}

#[test]
fn a_saved_claim_that_holds_a_device_twice_costs_no_other_claim_its_place() {
    let twice = Amounts { devices: [amounts(0, 100).devices, amounts(0, 100).devices].concat(), ..Amounts::default() };
    let key = |name: &str| ClaimKey { uid: name.into(), stray: None };
    let odd = (key("odd"), record(1, twice));
    let mut kit = Kit::saved(2, vec![odd, (key("sane"), record(2, amounts(1, 100)))]);
    let (uid, of) = claim("sane", 100, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    let (uid, mut of) = claim("odd", 100, 50);
    of.request.devices = DeviceRequest::whole(2);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    let odd = Generation { term: 1, number: 1 };
    assert_eq!(stops(&kit.pass(100)), [("odd", odd)]);
    assert_eq!(kit.phase("sane"), Some(Phase::Running));
}
