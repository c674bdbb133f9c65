//! Claims whose containers have different requests.

use super::*;
use crate::device_plugin::test_kubelet::TestKubelet;

/// A claim with a request for a part of each of two devices, of 10, 20, ... percent.
fn claim_of(requests: &[&str]) -> Value {
    let result = |(at, request): (usize, &&str)| {
        let device = device(u32::try_from(at % 2).unwrap(), 80).uuid.to_lowercase();
        let core = (10 * (at + 1)).to_string();
        json!({
            "request": request, "driver": DRIVER, "pool": "node-1", "device": device,
            "shareID": request, "consumedCapacity": {"core": core, "memory": "8Gi"},
        })
    };
    let results: Vec<Value> = requests.iter().enumerate().map(result).collect();
    let mut claim = claim(0);
    claim["status"]["allocation"]["devices"]["results"] = results.into();
    claim
}

/// A pod whose containers have these requests of the claim.
fn pod(containers: &[(&str, &[&str])]) -> Value {
    let container = |(name, requests): &(&str, &[&str])| {
        let claims: Vec<Value> = requests.iter().map(|request| json!({"name": "gpus", "request": request})).collect();
        json!({"name": name, "resources": {"claims": claims}})
    };
    json!({
        "metadata": {"name": "pod", "uid": "pod-uid"},
        "spec": {
            "containers": containers.iter().map(container).collect::<Vec<_>>(),
            "resourceClaims": [{"name": "gpus", "resourceClaimName": "train"}],
        },
    })
}

fn world(requests: &[&str], pod: Value) -> World {
    let server = ApiServer { claim: Some(claim_of(requests)), pod: Some(pod), ..ApiServer::default() };
    let node = TestNode::new(vec![device(0, 80), device(1, 80)]);
    World { dir: tempfile::tempdir().unwrap(), node, server: Arc::new(Mutex::new(server)) }
}

/// The devices that kubelet gives a container with these requests: each slice once, with its part of each device.
fn given(world: &World, prepared: &[Prepared], requests: &[&str]) -> Vec<Vec<(String, u32)>> {
    let has = |prepared: &&Prepared| prepared.devices.iter().any(|device| requests.contains(&device.request.as_str()));
    let slices = prepared.iter().filter(has).map(|prepared| {
        let name = prepared.cdi_device.strip_prefix("aliquot.dev/slice=").unwrap();
        let parts = world.node.get(name).unwrap().content.parts;
        parts.into_iter().map(|part| (part.device_uuid, part.core_request_percent)).collect()
    });
    slices.collect()
}

fn of(device_number: u32, core: u32) -> (String, u32) {
    (device(device_number, 80).uuid, core)
}

#[tokio::test]
async fn each_container_of_a_pod_with_extended_resources_gets_its_own_devices() {
    let mut pod = pod(&[("a", &[]), ("b", &[])]);
    pod["spec"].as_object_mut().unwrap().remove("resourceClaims");
    let mapping = |container: &str, request: &str| json!({"containerName": container, "resourceName": "example.com/gpu", "requestName": request});
    let mappings = json!([mapping("a", "container-0-request-0"), mapping("b", "container-1-request-0")]);
    pod["status"] = json!({"extendedResourceClaimStatus": {"resourceClaimName": "train", "requestMappings": mappings}});
    let world = world(&["container-0-request-0", "container-1-request-0"], pod);
    let prepared = prepare(&world.start("boot-1")).await.unwrap();
    assert_eq!(given(&world, &prepared, &["container-0-request-0"]), [[of(0, 10)]]);
    assert_eq!(given(&world, &prepared, &["container-1-request-0"]), [[of(1, 20)]]);
}

#[tokio::test]
async fn containers_that_name_requests_get_exactly_these_and_may_share_them() {
    let pod = pod(&[("a", &["one", "three"]), ("b", &["two"]), ("c", &["two"]), ("d", &[])]);
    let world = world(&["one", "two", "three"], pod);
    let prepared = prepare(&world.start("boot-1")).await.unwrap();
    // Both are on the first device, so they are one part of it.
    assert_eq!(given(&world, &prepared, &["one", "three"]), [[of(0, 40)]]);
    assert_eq!(given(&world, &prepared, &["two"]), [[of(1, 20)]]);
    assert_eq!(world.node.list().len(), 2);
}

#[tokio::test]
async fn a_division_survives_restarts_and_reboots_and_goes_as_a_whole() {
    let world = world(&["one", "two"], pod(&[("a", &["one"]), ("b", &["two"])]));
    let first = prepare(&world.start("boot-1")).await.unwrap();
    assert_eq!(world.node.list().len(), 2);
    // The same answer without a request to the API server, even though a slice was removed meanwhile.
    world.node.remove(&format!("claim-{UID}.1")).unwrap();
    // The write of the status may come in between.
    let questions = || world.server.lock().calls.iter().filter(|call| call.starts_with("GET ")).count();
    let before = questions();
    assert_eq!(prepare(&world.start("boot-1")).await.unwrap(), first);
    assert_eq!((world.node.list().len(), questions()), (2, before));
    // Kubelet keeps its answer, even if the pods have changed.
    world.server.lock().pod = None;
    assert_eq!(prepare(&world.start("boot-2")).await.unwrap(), first);
    world.server.lock().pod = Some(pod(&[("a", &["one", "two"])]));
    let refused = prepare(&world.start("boot-3")).await.unwrap_err().to_string();
    assert!(refused.contains("became a slice when the claim was first prepared"), "{refused}");
    // The same without the record.
    std::fs::write(world.path().join(format!("claims/{UID}.json")), "{").unwrap();
    let claims = world.start("boot-3");
    claims.unprepare(UID).await.unwrap();
    assert_eq!((world.node.list().len(), claims.known().len()), (0, 0));
}

#[tokio::test]
async fn a_claim_that_was_one_slice_before_stays_so_and_is_not_given_to_who_has_a_part_of_it() {
    // As an older program prepared it, which did not know requests.
    let world = world(&["one", "two"], pod(&[("a", &["one"]), ("b", &["two"])]));
    let uid = ClaimUid::parse(UID).unwrap();
    let object = object(&claim_of(&["one", "two"]));
    let all = [requests(&object, &uid).unwrap()];
    let devices = world.node.devices().borrow().clone();
    let record = Record {
        slices: resolve(&object, &uid, "node-1", &devices, &all).unwrap(),
        ..world.record(Phase::Completed, "boot-1")
    };
    world.prepared().save(&record).unwrap();
    // Its containers run.
    let adopted = prepare(&world.start("boot-1")).await.unwrap();
    assert_eq!(adopted[0].cdi_device, format!("aliquot.dev/slice=claim-{UID}"));
    let refused = prepare(&world.start("boot-2")).await.unwrap_err().to_string();
    assert!(refused.starts_with("pod pod: container \"a\" has request \"one\" of claim \"train\""), "{refused}");
}

#[tokio::test]
async fn what_was_begun_as_one_slice_is_divided_and_nothing_of_it_is_left() {
    for is_divided in [false, true] {
        let pod = if is_divided { pod(&[("a", &["one"])]) } else { pod(&[("a", &["one", "two"])]) };
        let world = world(&["one", "two"], pod);
        let uid = ClaimUid::parse(UID).unwrap();
        let object = object(&claim_of(&["one", "two"]));
        let set = |name: &str| BTreeSet::from([name.to_owned()]);
        let division = if is_divided { vec![requests(&object, &uid).unwrap()] } else { vec![set("one"), set("two")] };
        let devices = world.node.devices().borrow().clone();
        let slices = resolve(&object, &uid, "node-1", &devices, &division).unwrap();
        slices.iter().for_each(|slice| _ = world.node.create(&slice.slice).unwrap());
        let record = Record { slices, ..world.record(Phase::Started, "boot-1") };
        world.prepared().save(&record).unwrap();
        let prepared = prepare(&world.start("boot-1")).await.unwrap();
        assert_eq!(prepared.len(), if is_divided { 2 } else { 1 });
        assert_eq!(world.node.list().len(), prepared.len());
    }
}

#[tokio::test]
async fn if_one_slice_has_no_room_none_is_left() {
    let world = world(&["one", "two"], pod(&[("a", &["one"]), ("b", &["two"])]));
    let part = Part {
        device_uuid: device(1, 80).uuid,
        core_request_percent: 90,
        core_limit_percent: 90,
        memory_limit_bytes: GIB,
    };
    world.node.create(&SliceRequest { name: "other".into(), parts: vec![part], ..SliceRequest::default() }).unwrap();
    let claims = world.start("boot-1");
    let refused = prepare(&claims).await.unwrap_err();
    assert!(matches!(refused, ClaimError::Create(CreateError::Unavailable(_))), "{refused}");
    assert_eq!((world.node.list().len(), claims.known().len()), (1, 0));
    world.node.remove("other").unwrap();
    prepare(&claims).await.unwrap();
    assert_eq!(world.node.list().len(), 2);
}

#[tokio::test]
async fn containers_with_some_requests_in_common_are_refused_and_leave_nothing() {
    let world = world(&["one", "two"], pod(&[("a", &["one", "two"]), ("b", &["two"])]));
    let claims = world.start("boot-1");
    let refused = prepare(&claims).await.unwrap_err().to_string();
    let expected = "pod pod: container \"b\" has request \"two\" of claim \"train\", and container \"a\" of pod \"pod\" \
                    has request \"one\" and \"two\"";
    assert!(refused.starts_with(expected), "{refused}");
    assert_eq!((world.node.list().len(), claims.known().len()), (0, 0));
}

/// What the claim is reserved for.
fn reserved_for(api_group: &str, resource: &str) -> Value {
    json!([{"apiGroup": api_group, "resource": resource, "name": "workers", "uid": "u"}])
}

#[tokio::test]
async fn whose_requests_cannot_be_told_is_refused_unless_there_is_only_one() {
    let world = world(&["one", "two"], pod(&[]));
    let mut other = claim_of(&["one", "two"]);
    other["status"]["reservedFor"] = reserved_for("example.com", "jobs");
    world.server.lock().claim = Some(other.clone());
    let refused = prepare(&world.start("boot-1")).await.unwrap_err().to_string();
    assert!(refused.contains("is reserved for jobs \"workers\""), "{refused}");
    other["status"]["allocation"]["devices"]["results"].as_array_mut().unwrap().truncate(1);
    world.server.lock().claim = Some(other);
    assert_eq!(prepare(&world.start("boot-1")).await.unwrap().len(), 1);
}

/// A claim that is reserved for a PodGroup does not name the pods. Kubelet knows those on the node.
#[tokio::test]
async fn containers_of_a_group_s_pods_get_their_own_requests() {
    let mut member = pod(&[("a", &["one"]), ("b", &["two"])]);
    member["spec"]["schedulingGroup"] = json!({"podGroupName": "workers"});
    let world = world(&["one", "two"], member.clone());
    let mut claim = claim_of(&["one", "two"]);
    claim["status"]["reservedFor"] = reserved_for("scheduling.k8s.io", "podgroups");
    world.server.lock().claim = Some(claim);
    let kubelet = TestKubelet::start(world.path());
    let claims = world.start("boot-1");
    // The namespace of the pods that this kubelet lists.
    let named = ClaimName { namespace: "default".into(), ..name() };
    let prepare = async || claims.prepare(&named, &BTreeSet::from([named.clone()])).await;
    let refused = prepare().await.unwrap_err().to_string();
    assert!(refused.contains("PodGroup \"workers\", of which kubelet lists no pod"), "{refused}");
    kubelet.give("pod", "example.com/any", &["unit".to_owned()]);
    member["spec"]["schedulingGroup"]["podGroupName"] = "others".into();
    world.server.lock().pod = Some(member.clone());
    prepare().await.unwrap_err();
    assert!(world.node.list().is_empty());
    member["spec"]["schedulingGroup"]["podGroupName"] = "workers".into();
    world.server.lock().pod = Some(member);
    let prepared = prepare().await.unwrap();
    assert_eq!(given(&world, &prepared, &["one"]), [[of(0, 10)]]);
    assert_eq!(given(&world, &prepared, &["two"]), [[of(1, 20)]]);
}

#[tokio::test]
async fn a_container_is_told_of_its_own_slices_as_far_as_that_is_known() {
    let world = world(&["one", "two"], pod(&[("a", &["one"]), ("b", &["two"])]));
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    for claims in [claims, world.start("boot-1")] {
        let has = |number: u32, container: &str| claims.has(&slice(number), &consumer("pod", container));
        assert!(has(0, "a") && has(1, "b") && !has(0, "b") && !has(1, "a"));
        assert!(has(0, "late") && has(1, "late"));
    }
}

fn asked_for_pods(world: &World) -> Vec<String> {
    let calls = world.server.lock().calls.clone();
    calls.into_iter().filter(|call| call.contains("/pods/")).collect()
}

fn consumer(pod: &str, container: &str) -> Consumer {
    Consumer { namespace: "team".into(), pod: pod.into(), container: container.into() }
}

fn slice(number: u32) -> String {
    format!("claim-{UID}.{number}")
}

/// Kubelet's list for a claim of two slices: it names both for each container.
fn list(consumers: &[Consumer]) -> BTreeMap<String, BTreeSet<Consumer>> {
    (0..2).map(|number| (slice(number), consumers.iter().cloned().collect())).collect()
}

/// Kubelet does not ask the driver again for a pod that joins, and lists all slices of the claim for each container.
#[tokio::test]
async fn a_container_that_joins_is_told_of_its_own_slices() {
    let world = world(&["one", "two"], pod(&[("a", &["one"]), ("b", &["two"])]));
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    let mut joining = pod(&[("c", &["two"]), ("none", &[])]);
    joining["metadata"] = json!({"name": "joins", "uid": "other-uid"});
    world.server.lock().pod = Some(joining);
    let joined = list(&[consumer("pod", "a"), consumer("pod", "b"), consumer("joins", "c"), consumer("joins", "none")]);
    let restarted = world.start("boot-1");
    for claims in [&claims, &restarted] {
        assert!(claims.has(&slice(0), &consumer("joins", "c")));
        world.server.lock().calls.clear();
        claims.learn(&joined).await.unwrap();
        let has = |number: u32, container: &str| claims.has(&slice(number), &consumer("joins", container));
        assert!(!has(0, "c") && has(1, "c") && !has(0, "none") && !has(1, "none"));
        // It is asked about once.
        claims.learn(&joined).await.unwrap();
        assert_eq!(asked_for_pods(&world), ["GET /api/v1/namespaces/team/pods/joins"]);
        assert!(claims.has(&slice(0), &consumer("pod", "a")) && !claims.has(&slice(1), &consumer("pod", "a")));
    }
}

#[tokio::test]
async fn a_pod_that_takes_another_ones_name_has_its_own_slices() {
    let world = world(&["one", "two"], pod(&[("a", &["one"]), ("b", &["two"])]));
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    // The first pod is listed some time after the claim was divided, and is not asked about.
    claims.learn(&list(&[])).await.unwrap();
    world.server.lock().calls.clear();
    claims.learn(&list(&[consumer("pod", "a")])).await.unwrap();
    assert_eq!(asked_for_pods(&world), [""; 0]);
    for name in ["pod", "joins"] {
        for (request, number) in [("two", 1), ("one", 0)] {
            claims.learn(&list(&[])).await.unwrap();
            let mut newcomer = pod(&[("a", &[request])]);
            newcomer["metadata"]["name"] = name.into();
            world.server.lock().pod = Some(newcomer);
            claims.learn(&list(&[consumer(name, "a")])).await.unwrap();
            let has = |number: u32| claims.has(&slice(number), &consumer(name, "a"));
            assert!(has(number) && !has(1 - number), "{name} has {request}");
        }
    }
}

#[tokio::test]
async fn a_claim_of_several_slices_is_not_forgotten_while_one_of_them_is_used() {
    let world = world(&["one", "two"], pod(&[("a", &["one"]), ("b", &["two"])]));
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    world.server.lock().claim = None;
    let client = client(&world.server);
    let second = slice(1);
    world.node.set_consumers(&second, &BTreeSet::from([consumer("pod", "b")]));
    assert!(stale::look(&claims, &client, &BTreeSet::new()).await.is_empty());
    world.node.set_consumers(&second, &BTreeSet::new());
    let suspects = stale::look(&claims, &client, &BTreeSet::new()).await;
    assert_eq!(suspects.len(), 1);
    assert!(stale::look(&claims, &client, &suspects).await.is_empty());
    assert_eq!((world.node.list().len(), claims.known().len()), (0, 0));
}
