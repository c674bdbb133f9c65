//! When slices of ended containers are removed.

use super::*;

#[tokio::test]
async fn units_that_are_given_anew_take_the_old_slice_away() {
    let world = World::new(1, &[], LONG);
    let all = [(CORE, "100"), (MEMORY, "64")];
    world.admit("a", &all, &[]).await;
    world.start("a").await.unwrap();
    let units = world.kubelet.units("a");
    world.kubelet.forget("a");
    // Kubelet does not know yet that there is no room for these units.
    world.cluster.pods.lock().unwrap().insert("b".into(), pod("main", &all, &[]));
    for (resource, ids) in &units {
        world.allocate("b", resource, ids).await;
    }
    // Kubelet need not wait while the old slice is removed.
    assert!(world.slice("a").is_some());
    world.start("b").await.unwrap();
    assert!(world.slice("a").is_none() && world.slice("b").is_some());
}

#[tokio::test]
async fn remains_of_an_old_plugin_go_when_nobody_has_them() {
    let mut world = World::new(1, &[], LONG);
    for pod in ["goes", "stays"] {
        world.admit(pod, &THIRD, &[]).await;
        world.start(pod).await.unwrap();
    }
    world.plugin.shutdown().await;
    world.kubelet.forget("goes");
    assert!(world.cluster.described.lock().unwrap().is_some());
    let pod_resources = Arc::new(PodResources::new(world.dir.path()));
    let mut left_over = JoinSet::new();
    left_over.spawn(clear_up(world.node.clone(), world.cluster.clone(), pod_resources, Duration::ZERO));
    until_true("nothing is left of the old plugin", || {
        world.slice("goes").is_none() && world.cluster.described.lock().unwrap().is_none()
    })
    .await;
    assert!(world.slice("stays").is_some());
}

#[tokio::test]
async fn a_pod_that_comes_again_meanwhile_keeps_its_slice() {
    let mut world = World::new(1, &[], LONG);
    // The slice that stays is looked at first.
    for pod in ["comes-again", "goes"] {
        world.admit(pod, &THIRD, &[]).await;
        world.start(pod).await.unwrap();
    }
    world.plugin.shutdown().await;
    let (kubelet, units) = (world.kubelet.known(), world.kubelet.units("comes-again"));
    ["comes-again", "goes"].iter().for_each(|pod| world.kubelet.forget(pod));
    world
        .kubelet
        .meanwhile(move || units.iter().for_each(|(resource, ids)| kubelet.give("comes-again", resource, ids)));
    let pod_resources = Arc::new(PodResources::new(world.dir.path()));
    let mut left_over = JoinSet::new();
    left_over.spawn(clear_up(world.node.clone(), world.cluster.clone(), pod_resources, Duration::ZERO));
    until_true("its slice is removed", || world.slice("goes").is_none()).await;
    assert!(world.slice("comes-again").is_some());
}

#[tokio::test]
async fn a_pod_that_comes_again_gets_what_it_asks_for_now() {
    let world = World::new(1, &[], LONG);
    for limit in ["40", "50"] {
        world.admit("web-0", &THIRD, &[("aliquot.dev/gpu-core-limit", limit)]).await;
        world.start("web-0").await.unwrap();
        let slice = world.slice("web-0").unwrap();
        assert_eq!(slice.content.parts[0].core_limit_percent.to_string(), limit);
        world.kubelet.forget("web-0");
    }
}

#[tokio::test]
async fn slices_of_gone_containers_give_way_to_others() {
    let world = World::new(1, &[], LONG);
    world.admit("a", &[(CORE, "30"), (MEMORY, "60")], &[]).await;
    world.start("a").await.unwrap();
    // Kubelet gives b other units than a had.
    world.admit("b", &[(CORE, "70"), (MEMORY, "4")], &[]).await;
    world.kubelet.give("b", MEMORY, &(0..32).map(|n| unit_id::unit_id(&device(0, 16).uuid, n)).collect::<Vec<_>>());
    world.cluster.pods.lock().unwrap().insert("b".into(), pod("main", &[(CORE, "70"), (MEMORY, "32")], &[]));
    let refusal = world.start("b").await.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert!(refusal.message().starts_with("no device found that will do"), "{refusal}");
    world.kubelet.forget("a");
    world.node.set_processes("pod.default.a.main", 1);
    assert!(world.start("b").await.is_err());
    world.node.set_processes("pod.default.a.main", 0);
    world.start("b").await.unwrap();
    assert!(world.slice("a").is_none());
}

#[tokio::test]
async fn slices_of_gone_containers_do_not_block_kubelet_s_choice() {
    let world = World::new(2, &[], LONG);
    world.admit("a", &THIRD, &[]).await;
    world.start("a").await.unwrap();
    let meant = world.slice("a").unwrap().content.parts[0].device_uuid.clone();
    world.kubelet.forget("a");
    let whole = [(CORE, "100"), (MEMORY, "64")];
    world.cluster.pods.lock().unwrap().insert("b".into(), pod("main", &whole, &[]));
    for (resource, count) in whole {
        let ids: Vec<String> = (0..count.parse().unwrap()).map(|number| unit_id::unit_id(&meant, number)).collect();
        world.kubelet.give("b", resource, &ids);
    }
    world.start("b").await.unwrap();
    assert_eq!(world.slice("b").unwrap().content.parts[0].device_uuid, meant);
    assert!(world.slice("a").is_none());
}

#[tokio::test]
async fn slices_of_gone_containers_are_removed_after_a_while() {
    let world = World::new(1, &[], Duration::ZERO);
    world.admit("a", &THIRD, &[]).await;
    world.start("a").await.unwrap();
    let by_hand = super::test_node::slice_of("train", &device(0, 16), 10, GIB);
    world.node.create(&by_hand.content).unwrap();
    world.kubelet.forget("a");
    let mut devices = world.watch("aliquot.dev/gpu").await;
    until_true("its slice is removed", || world.slice("a").is_none()).await;
    assert_eq!(world.node.list().len(), 1);
    world.node.remove("train").unwrap();
    healthy(&mut devices, 1).await;
}

#[tokio::test]
async fn slices_of_a_pod_that_is_gone_for_all_are_removed_at_once() {
    let world = World::new(1, &[], LONG);
    for pod in ["gone", "forgotten"] {
        world.admit(pod, &THIRD, &[]).await;
        world.start(pod).await.unwrap();
        world.kubelet.forget(pod);
    }
    world.cluster.pods.lock().unwrap().remove("gone");
    until_true("its slice is removed", || world.slice("gone").is_none()).await;
    // Kubelet may know the pod again in a moment.
    assert!(world.slice("forgotten").is_some());
}

/// One question is asked every two seconds, so this bounds how long a slice lingers after its pod.
#[tokio::test]
async fn two_answers_of_kubelet_without_a_pod_end_its_slice() {
    let world = World::new(1, &[], LONG);
    let pods = ["a", "b", "c"];
    for pod in pods {
        world.admit(pod, &THIRD, &[]).await;
        world.start(pod).await.unwrap();
    }
    let (are_gone, is_late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    world.kubelet.at_questions({
        let (node, are_gone, is_late) = (world.node.clone(), are_gone.clone(), is_late.clone());
        let mut questions = 0;
        // The first answer without the pods shows that they are gone, and the second that no new pod has their name.
        // The third question finds no slice.
        move || {
            questions += usize::from(are_gone.load(Ordering::Relaxed));
            is_late.fetch_or(questions > 2 && !node.list().is_empty(), Ordering::Relaxed);
        }
    });
    for pod in pods {
        world.cluster.pods.lock().unwrap().remove(pod);
        world.kubelet.forget(pod);
    }
    are_gone.store(true, Ordering::Relaxed);
    until_true("their slices are removed", || pods.iter().all(|pod| world.slice(pod).is_none())).await;
    assert!(!is_late.load(Ordering::Relaxed));
}

#[tokio::test]
async fn the_slice_of_an_earlier_pod_of_the_name_is_removed() {
    let world = World::new(1, &[], LONG);
    world.admit("web-0", &THIRD, &[]).await;
    world.start("web-0").await.unwrap();
    // The API server has the later pod, which has other units and has not started.
    world.kubelet.forget("web-0");
    world.kubelet.give("web-0", CORE, &[unit_id::unit_id(&device(0, 16).uuid, 99)]);
    until_true("its slice is removed", || world.slice("web-0").is_none()).await;
}

#[tokio::test]
async fn no_slice_is_removed_under_a_container_that_runs() {
    let world = World::new(1, &[], Duration::ZERO);
    for pod in ["a-runs", "b-ended"] {
        world.admit(pod, &THIRD, &[]).await;
        world.start(pod).await.unwrap();
    }
    world.node.set_running("pod.default.a-runs.main", true);
    // Neither kubelet nor the API server has these pods. Both slices are looked at, in this order.
    for pod in ["a-runs", "b-ended"] {
        world.cluster.pods.lock().unwrap().remove(pod);
        world.kubelet.forget(pod);
    }
    until_true("its slice is removed", || world.slice("b-ended").is_none()).await;
    assert!(world.slice("a-runs").is_some());
    // Nor is it removed to make room for others.
    world.admit("needs-all", &[(CORE, "100"), (MEMORY, "64")], &[]).await;
    let refusal = world.start("needs-all").await.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
    assert!(world.slice("a-runs").is_some());
    world.node.set_running("pod.default.a-runs.main", false);
    until_true("its slice is removed", || world.slice("a-runs").is_none()).await;
}

#[tokio::test]
async fn units_of_a_container_that_starts_take_no_others_away() {
    let world = World::new(2, &[], LONG);
    let mut core = world.watch(CORE).await;
    healthy(&mut core, 200).await;
    let (node, kubelet) = (Arc::clone(&world.node), world.kubelet.known());
    world.kubelet.meanwhile(move || {
        let device = device(0, 16);
        let ids: Vec<String> = (0..30).map(|number| unit_id::unit_id(&device.uuid, number)).collect();
        kubelet.give("a", CORE, &ids);
        let mut slice = super::test_node::slice_of("pod.default.a.main", &device, 30, GIB).content;
        slice.aliases.insert(CdiName::of_units(CORE, &ids.into_iter().collect()).alias().to_owned());
        node.create(&slice).unwrap();
        node.set_processes(&slice.name, 1);
    });
    world.node.change(1, |device| device.problem = Some("Xid 79".into()));
    let told = core.next().await.unwrap().unwrap();
    assert_eq!(told.devices.iter().filter(|unit| unit.health == "Healthy").count(), 100);
}
