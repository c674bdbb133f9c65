//! Events that are refused: what is wrong, with which value, and what to do.

use aliquot_scheduler_core::{
    Claim, ClaimBounds, DEFAULT_QUEUE, DeviceCore, DeviceRequest, Event, GroupPlacement, LimitRange, MilliCpu,
    NamespaceSpec, Outcome, PodGroup, QueueSpec, Request, SubGroup,
};

use crate::kit::{Kit, gang, train, whole};

/// The message with which an event is refused.
fn refused(kit: &mut Kit, event: Event) -> String {
    kit.try_event(event).expect_err("this cannot be").to_string()
}

fn queue(name: &str, parent: Option<&str>) -> Event {
    Event::QueueAdded(QueueSpec { name: name.into(), parent: parent.map(Into::into), ..QueueSpec::default() })
}

fn sub_groups(sub_groups: &[(&str, u32)]) -> PodGroup {
    let sub_group = |(name, min_members): &(&str, u32)| SubGroup {
        name: (*name).into(),
        min_members: *min_members,
        ..SubGroup::default()
    };
    PodGroup { sub_groups: sub_groups.iter().map(sub_group).collect(), ..gang("gang", "default", 1) }
}

#[test]
fn pod_groups_that_could_never_run() {
    let mut kit = Kit::of_nodes(1, 1);
    let cases = [
        (gang("", "default", 1), "has no name"),
        (sub_groups(&[("worker", 1), ("worker", 2)]), "pod group \"gang\" has two sub-groups named \"worker\""),
        (sub_groups(&[("", 1)]), "pod group \"gang\" has a sub-group without a name"),
        (gang("gang", "default", 1_000_001), "pod group \"gang\" needs 1000001 members"),
        (sub_groups(&[("head", u32::MAX), ("worker", u32::MAX)]), "needs 8589934590 members"),
        (
            PodGroup {
                spread: GroupPlacement { max_devices_per_node: Some(0), ..GroupPlacement::default() },
                ..gang("gang", "default", 1)
            },
            "may have 0 devices on a node",
        ),
    ];
    for (group, words) in cases {
        let said = refused(&mut kit, Event::PodGroupAdded(group));
        assert!(said.contains(words), "{said}");
    }
    let members = kit.gang(gang("gang", "default", 1), 1, &whole(1));
    let id = kit.cluster.group_of(members[0]).expect("it is a gang's member");
    let said = refused(&mut kit, Event::PodGroupChanged(id, gang("gang", "default", u32::MAX)));
    assert!(said.contains("lower the minimum"), "{said}");
    kit.converge();
    assert_eq!(kit.running(&members), 1, "it is as it was");
}

#[test]
fn queues_that_nobody_could_use() {
    let mut kit = Kit::of_nodes(1, 1);
    let said = refused(&mut kit, queue("", None));
    assert!(said.contains("has no name"), "{said}");
    let said = refused(&mut kit, queue("team", Some(DEFAULT_QUEUE)));
    assert!(said.contains("takes the claims that name no queue; choose another parent"), "{said}");
    assert!(!said.contains("of its own"), "the default queue is empty: {said}");
    kit.queue("busy", crate::kit::quota(1));
    kit.claim(train("busy", whole(1)));
    let said = refused(&mut kit, queue("team", Some("busy")));
    assert!(said.contains("\"busy\" has claims or pod groups of its own"), "{said}");
}

#[test]
fn queues_that_are_named_like_a_namespaces_quota() {
    let mut kit = Kit::of_nodes(1, 1);
    let namespace = NamespaceSpec { name: "team".into(), ..NamespaceSpec::default() };
    let said = refused(&mut kit, queue(&namespace.queue_name(), None));
    assert!(said.contains("\"namespace/team\" has the prefix of queues for namespaces' quotas"), "{said}");
    kit.event(Event::NamespaceChanged(namespace));
}

/// The kit compares the answer that it gets in advance with what then happens.
#[test]
fn claims_that_their_namespace_does_not_let_in() {
    let mut kit = Kit::of_nodes(1, 2);
    let cpu = ClaimBounds { default: Some(2000), maximum: Some(4000), ..ClaimBounds::default() };
    let limit_range = LimitRange { cpu, ..LimitRange::default() };
    kit.event(Event::NamespaceChanged(NamespaceSpec { name: "team".into(), limit_range, ..NamespaceSpec::default() }));
    let with_cpu = |cpu| Request { cpu: MilliCpu::new(cpu), ..whole(1) };
    let of_team = |queue: &str, request| Claim { namespace: "team".into(), ..train(queue, request) };
    for (asked, given) in [(0, 2000), (1000, 1000), (4000, 4000)] {
        let Outcome::Claim(id) = kit.event(Event::ClaimAdded(of_team("", with_cpu(asked)))) else { panic!("no claim") };
        assert_eq!(kit.cluster.claim(id).map(|claim| claim.request.cpu), Some(MilliCpu::new(given)));
    }
    for (claim, words) in [
        (of_team("", with_cpu(5000)), "namespace \"team\""),
        (of_team("missing", with_cpu(1000)), "\"missing\""),
        (
            train(
                "",
                Request { devices: DeviceRequest { core: DeviceCore::new(1001), ..whole(1).devices }, ..whole(1) },
            ),
            "1001 thousandths",
        ),
    ] {
        let said = refused(&mut kit, Event::ClaimAdded(claim));
        assert!(said.contains(words), "{said}");
    }
}
