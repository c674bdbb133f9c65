//! The node's description, in its status and its inventory.

use super::*;

#[tokio::test]
async fn counted_resources_are_told_although_refused_at_first() {
    let world = World::new(2, &[Dialect::Hami], LONG);
    world.cluster.refuses_counts.store(true, Ordering::Relaxed);
    let memory_mib = |count| world.cluster.counted.lock().unwrap().get("nvidia.com/gpumem") == Some(&count);
    while !memory_mib(32 * 1024) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.cluster.refuses_counts.store(true, Ordering::Relaxed);
    world.node.change(0, |device| device.problem = Some("ill".into()));
    while !memory_mib(16 * 1024) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The inventory of these devices on a node that speaks no other dialect.
fn of(devices: &node::Devices) -> Inventory {
    inventory::inventory(&Spoken::new([]).unwrap(), &NodeFacts::default(), devices)
}

/// The amount of `nvidia.com/gpumem` in the node's status.
fn counted_memory(cluster: &TestCluster) -> Option<u64> {
    cluster.counted.lock().unwrap().get("nvidia.com/gpumem").copied()
}

#[tokio::test]
async fn nothing_is_said_in_the_node_s_status_until_a_device_was_seen() {
    let cluster = Arc::new(TestCluster::default());
    let mut publisher = Publisher::new(cluster.clone());
    let [none, one] = [vec![], vec![device(0, 16)]].map(|devices| node::Devices { devices, ..Default::default() });
    let amounts = |count| BTreeMap::from([("nvidia.com/gpumem", count)]);
    let uuids = || -> Option<Vec<String>> {
        let described = cluster.described.lock().unwrap().clone()?;
        Some(described.devices.into_iter().map(|device| device.uuid).collect())
    };
    publisher.publish(&none, amounts(0), of(&none)).await;
    assert_eq!((counted_memory(&cluster), uuids()), (None, None));
    publisher.publish(&one, amounts(16), of(&one)).await;
    assert_eq!((counted_memory(&cluster), uuids()), (Some(16), Some(vec![device(0, 16).uuid])));
    // All devices are gone.
    publisher.publish(&none, amounts(0), of(&none)).await;
    assert_eq!((counted_memory(&cluster), uuids()), (Some(0), Some(vec![])));
}

#[tokio::test(start_paused = true)]
async fn a_failed_status_is_written_again_after_a_pause_only() {
    let cluster = Arc::new(TestCluster::default());
    let mut publisher = Publisher::new(cluster.clone());
    let devices = node::Devices { devices: vec![device(0, 16)], ..Default::default() };
    let amounts = |count| BTreeMap::from([("nvidia.com/gpumem", count)]);
    // Each pause is longer than the one before. Nothing else waits for it.
    for pause in [2, 4] {
        cluster.refuses_counts.store(true, Ordering::Relaxed);
        publisher.publish(&devices, amounts(16), of(&devices)).await;
        assert_eq!(*cluster.described.lock().unwrap(), Some(of(&devices)));
        tokio::time::advance(Duration::from_secs(pause) - Duration::from_millis(1)).await;
        publisher.publish(&devices, amounts(17), of(&devices)).await;
        assert_eq!(counted_memory(&cluster), None);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    publisher.publish(&devices, amounts(18), of(&devices)).await;
    assert_eq!(counted_memory(&cluster), Some(18));
    // New content is written at once.
    publisher.publish(&devices, amounts(19), of(&devices)).await;
    assert_eq!(counted_memory(&cluster), Some(19));
}

#[tokio::test(start_paused = true)]
async fn an_inventory_that_somebody_removed_is_written_again() {
    let cluster = Arc::new(TestCluster::default());
    let mut publisher = Publisher::new(cluster.clone());
    let devices = node::Devices { devices: vec![device(0, 16)], ..Default::default() };
    publisher.publish(&devices, BTreeMap::new(), of(&devices)).await;
    *cluster.described.lock().unwrap() = None;
    for (seconds, is_there) in [(59, false), (1, true)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        publisher.publish(&devices, BTreeMap::new(), of(&devices)).await;
        assert_eq!(cluster.described.lock().unwrap().is_some(), is_there);
    }
}

#[tokio::test]
async fn an_ill_device_is_told_also_if_that_is_refused_at_first() {
    let world = World::new(2, &[Dialect::Hami], LONG);
    let problems = || -> Option<Vec<Option<String>>> {
        let described = world.cluster.described.lock().unwrap().clone()?;
        assert_eq!(described.dialects, ["aliquot", "hami"].map(String::from).into());
        Some(described.devices.into_iter().map(|device: InventoryDevice| device.problem).collect())
    };
    let told = async |expected: [Option<&str>; 2]| {
        while problems() != Some(expected.map(|problem| problem.map(str::to_owned)).to_vec()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    told([None, None]).await;
    world.cluster.refuses_descriptions.store(true, Ordering::Relaxed);
    world.node.change(0, |device| device.problem = Some("ill".into()));
    told([Some("ill"), None]).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_told_of_a_node_is_taken_back_although_refused() {
    let cluster = Arc::new(TestCluster::default());
    *cluster.described.lock().unwrap() = Some(Inventory::default());
    cluster.refuses_descriptions.store(true, Ordering::Relaxed);
    withdraw_inventory(&*cluster).await;
    assert_eq!(*cluster.described.lock().unwrap(), None);
}
