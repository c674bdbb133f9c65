//! Events that cannot be: what is wrong, with which value, and what to do.

use aliquot_scheduler_core::{DEFAULT_QUEUE, Event, GroupPlacement, NamespaceSpec, PodGroup, QueueSpec, SubGroup};

use crate::kit::{Kit, gang, train, whole};

/// The words with which an event is refused.
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
    assert!(said.contains("\"namespace/team\" is named like a namespace's quota"), "{said}");
    kit.event(Event::NamespaceChanged(namespace));
}
