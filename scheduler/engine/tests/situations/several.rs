//! Claims with several requests for devices.

use aliquot_scheduler_core::{FurtherRequest, FurtherRequests};

use super::*;

/// A claim for half of one device and a quarter of each of two others.
fn half_and_quarters() -> (ClaimUid, Claim) {
    let (uid, mut of) = claim("claim", 50, 50);
    let devices = DeviceRequest { count: 2, ..kit::part(25).devices };
    let quarters = FurtherRequest { name: "quarters".into(), devices, ..FurtherRequest::default() };
    of.request.further = Some(Arc::new(FurtherRequests { requests: vec![quarters], ..FurtherRequests::default() }));
    (uid, of)
}

fn parts(of: &[(usize, u32)]) -> Amounts {
    let devices = of.iter().flat_map(|(device, percent)| amounts(*device, *percent).devices).collect();
    Amounts { devices, ..Amounts::default() }
}

#[test]
fn a_node_is_told_the_parts_of_each_request_in_turn() {
    let mut kit = Kit::new(2, Vec::new());
    let (uid, of) = half_and_quarters();
    kit.tell(Observation::Claim(uid, Box::new(of)));
    let commands = kit.pass(100);
    let [Command { order: Order::Start { amounts, .. }, .. }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(*amounts, parts(&[(0, 50), (0, 25), (1, 25)]));
}

#[test]
fn what_holds_all_parts_of_its_claim_in_any_order_is_its_own() {
    for (held, is_its_own) in [
        (parts(&[(1, 25), (0, 25), (1, 50)]), true),
        (parts(&[(0, 25), (1, 25), (0, 50)]), true),
        (parts(&[(0, 50), (1, 25)]), false),
        (parts(&[(0, 50), (1, 25), (1, 25)]), false),
    ] {
        let mut kit = Kit::not_live(MemoryStore::default());
        let (uid, of) = half_and_quarters();
        kit.tell(Observation::Claim(uid, Box::new(of)));
        let running = Running { amounts: held.clone(), ..running("claim", 3, 0, 50) };
        kit.report(node(2), 1, Generation { term: 1, number: 3 }, vec![running]);
        kit.tell(Observation::Synced);
        let is_stop = |command: &Command| matches!(command.order, Order::Stop { .. });
        assert_eq!(kit.pass(100).iter().any(is_stop), !is_its_own, "{held:?}");
    }
}

#[test]
fn a_saved_instance_with_several_parts_of_a_device_is_its_own() {
    let key = ClaimKey { uid: "claim".into(), stray: None };
    let held = parts(&[(0, 25), (1, 25), (1, 50)]);
    let mut kit = Kit::saved(2, vec![(key, record(7, held.clone()))]);
    let (uid, of) = half_and_quarters();
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    let instance = Generation { term: 1, number: 7 };
    kit.report(node(2), 1, instance, vec![Running { amounts: held, ..running("claim", 7, 0, 50) }]);
    kit.want("other", 50, 50);
    let commands = kit.pass(100);
    let [Command { order: Order::Start { amounts, .. }, .. }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(*amounts, parts(&[(0, 50)]), "device 1 has a quarter left");
}
