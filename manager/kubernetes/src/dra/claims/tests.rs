//! Claims on a node in memory, with an API server that has one claim.

mod division;
mod instances;

use std::convert::Infallible;
use std::path::Path;

use aliquot_node::{Consumer, Part, SliceRequest};
use aliquot_proto::kubelet::dra;
use aliquot_proto::kubelet::dra::dra_plugin_server::DraPlugin;
use kube::client::Body;
use serde_json::{Value, json};
use tonic::codegen::http::{Request, Response};

use super::*;
use crate::device_plugin::test_node::{GIB, TestNode, device};
use crate::dra::names::DRIVER;
use crate::dra::server::Driver;
use crate::dra::stale;

const UID: &str = "3f0c1d2e-0000-4000-8000-000000000001";

/// The API server's objects, and the requests that it got.
#[derive(Default)]
struct ApiServer {
    /// `None`: it answers that there is no claim.
    claim: Option<Value>,
    pod: Option<Value>,
    /// How many times it answers that it is too busy.
    busy: u32,
    /// How many times it refuses to write a claim's status.
    statuses_refused: u32,
    /// It answers no request about events.
    is_silent_about_events: bool,
    calls: Vec<String>,
    /// The events that were written.
    events: Vec<Value>,
}

const EVENT: &str = "POST /api/v1/namespaces/team/events";

impl ApiServer {
    fn was_told_an_event(&self) -> bool {
        self.calls.iter().any(|call| call == EVENT)
    }

    fn answer(&mut self, method: &str, path: &str) -> Response<Body> {
        self.calls.push(format!("{method} {path}"));
        if let Some(left) = self.busy.checked_sub(1) {
            self.busy = left;
            return failure(503, "ServiceUnavailable");
        }
        if let Some(left) = self.statuses_refused.checked_sub(1).filter(|_| path.ends_with("/status")) {
            self.statuses_refused = left;
            return failure(403, "Forbidden");
        }
        let object = match path {
            _ if path.contains("/pods/") => self.pod.clone(),
            _ if path.contains("/resourceclaims/") => self.claim.clone(),
            _ => Some(json!({"metadata": {}, "involvedObject": {}})),
        };
        object.map_or_else(|| failure(404, "NotFound"), |object| response(200, &object))
    }
}

fn failure(code: u16, reason: &str) -> Response<Body> {
    response(code, &json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "none"}))
}

fn response(code: u16, body: &Value) -> Response<Body> {
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn client(server: &Arc<Mutex<ApiServer>>) -> kube::Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let (method, path) = (parts.method.as_str(), parts.uri.path());
            let body = body.collect_bytes().await.unwrap();
            let (answer, is_silent) = {
                let mut server = server.lock();
                if method == "POST" && path.ends_with("/events") {
                    server.events.push(serde_json::from_slice(&body).unwrap());
                }
                (server.answer(method, path), server.is_silent_about_events && path.contains("/events"))
            };
            if is_silent {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(answer)
        }
    });
    kube::Client::new(service, "default")
}

pub(in crate::dra) struct World {
    dir: tempfile::TempDir,
    pub(in crate::dra) node: Arc<TestNode>,
    server: Arc<Mutex<ApiServer>>,
}

impl World {
    /// A node with one device of 80 GiB, of which the claim has `core` percent and 8 GiB.
    pub(in crate::dra) fn new(core: u32) -> World {
        let node = TestNode::new(vec![device(0, 80)]);
        let server = Arc::new(Mutex::new(ApiServer { claim: Some(claim(core)), ..ApiServer::default() }));
        World { dir: tempfile::tempdir().unwrap(), node, server }
    }

    fn prepared(&self) -> PreparedClaims {
        PreparedClaims::open(self.path().join("claims")).unwrap()
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The driver, started in the boot `boot_id` of the machine.
    pub(in crate::dra) fn start(&self, boot_id: &str) -> Arc<Claims> {
        let node = Arc::clone(&self.node) as Arc<dyn Node>;
        let client = client(&self.server);
        let events = Events::new(client.clone(), DRIVER, "node-1".into());
        let pod_resources = Arc::new(PodResources::new(self.path()));
        let (name, boot_id) = ("node-1".into(), boot_id.into());
        Arc::new(Claims::new(node, client, events, name, boot_id, self.prepared(), pod_resources).unwrap())
    }

    fn slice(&self) -> Option<Slice> {
        self.node.get(&format!("claim-{UID}"))
    }

    fn record(&self, phase: Phase, boot_id: &str) -> Record {
        let uid = ClaimUid::parse(UID).unwrap();
        let division = [BTreeSet::from(["gpu".into()])];
        let devices = self.node.devices().borrow().clone();
        let slices = resolve(&object(&claim(30)), &uid, "node-1", &devices, &division).unwrap();
        Record { uid, namespace: "team".into(), name: "train".into(), phase, boot_id: boot_id.into(), slices }
    }
}

fn claim(core: u32) -> Value {
    let result = json!({
        "request": "gpu", "driver": DRIVER, "pool": "node-1", "device": device(0, 80).uuid.to_lowercase(),
        "shareID": "share", "consumedCapacity": {"core": core.to_string(), "memory": "8Gi"},
    });
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "train", "namespace": "team", "uid": UID},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "pod-uid"}],
        },
    })
}

fn object(claim: &Value) -> ResourceClaim {
    serde_json::from_value(claim.clone()).unwrap()
}

fn name() -> ClaimName {
    ClaimName { namespace: "team".into(), name: "train".into(), uid: UID.into() }
}

async fn prepare(claims: &Arc<Claims>) -> Result<Vec<Prepared>, ClaimError> {
    claims.prepare(&name(), &BTreeSet::from([name()])).await
}

async fn until_told_an_event(world: &World) {
    while !world.server.lock().was_told_an_event() {
        tokio::task::yield_now().await;
    }
}

fn core_percent(slice: &SliceRequest) -> u32 {
    slice.parts.iter().map(|part| part.core_request_percent).sum()
}

#[tokio::test]
async fn a_claim_is_prepared_once_and_given_up_once() {
    let world = World::new(30);
    let claims = world.start("boot-1");
    let first = prepare(&claims).await.unwrap();
    assert_eq!((first.len(), &first[0].cdi_device), (1, &format!("aliquot.dev/slice=claim-{UID}")));
    assert_eq!(first[0].devices[0].share_id.as_deref(), Some("share"));
    let slice = world.slice().unwrap().content;
    assert_eq!((core_percent(&slice), slice.parts[0].memory_limit_bytes), (30, 8 * GIB));
    assert_eq!(prepare(&claims).await.unwrap(), first);
    claims.unprepare(UID).await.unwrap();
    assert_eq!((world.slice(), claims.known().len()), (None, 0));
    assert_eq!(world.prepared().uids().unwrap(), []);
    claims.unprepare(UID).await.unwrap();
}

#[tokio::test]
async fn a_claim_costs_the_same_however_many_slices_there_are() {
    let world = World::new(30);
    let claims = world.start("boot-1");
    let add = |uid: &str| {
        let content = SliceRequest { name: format!("claim-{uid}"), ..SliceRequest::default() };
        world.node.create(&content).unwrap();
    };
    // The UID of the other claim begins with this one's.
    add(&format!("{UID}9"));
    let mut looked_at = Vec::new();
    for others in [0, 100] {
        (0..others).for_each(|number| add(&format!("other-{number}")));
        let before = world.node.looked_at();
        prepare(&claims).await.unwrap();
        claims.unprepare(UID).await.unwrap();
        looked_at.push(world.node.looked_at() - before);
    }
    assert_eq!(looked_at[0], looked_at[1]);
    assert_eq!(world.node.list().len(), 101);
}

#[tokio::test]
async fn who_asks_again_while_the_first_answer_is_not_there_gets_the_same() {
    let world = World::new(30);
    let claims = world.start("boot-1");
    // Kubelet has given up one call and asks again, and another pod joins.
    let given_up = tokio::spawn({
        let claims = Arc::clone(&claims);
        async move { prepare(&claims).await }
    });
    tokio::task::yield_now().await;
    given_up.abort();
    let (one, other) = tokio::join!(prepare(&claims), prepare(&claims));
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(world.node.list().len(), 1);
    assert_eq!(world.prepared().uids().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn kubelet_is_not_told_of_an_api_server_that_is_busy_for_a_moment() {
    let world = World::new(30);
    world.server.lock().busy = 2;
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    let asked = world.server.lock().calls.iter().filter(|call| call.contains("/resourceclaims/train")).count();
    assert!(asked >= 3, "{:?}", world.server.lock().calls);
}

#[tokio::test(start_paused = true)]
async fn the_status_is_written_when_the_api_server_takes_it() {
    let world = World::new(30);
    world.server.lock().statuses_refused = 3;
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    let written = || world.server.lock().calls.iter().filter(|call| call.ends_with("/status")).count();
    while written() < 4 {
        tokio::time::sleep(STATUS_RETRY_MIN).await;
    }
    tokio::time::sleep(STATUS_RETRY_MAX).await;
    assert_eq!(written(), 4);
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_claim_that_is_given_up_is_not_tried_again() {
    let world = World::new(30);
    world.server.lock().statuses_refused = u32::MAX;
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    claims.unprepare(UID).await.unwrap();
    // Only the tries hold the claims beside this test.
    while Arc::strong_count(&claims) > 1 {
        tokio::time::sleep(STATUS_RETRY_MIN).await;
    }
}

#[tokio::test]
async fn what_is_completed_is_answered_without_the_api_server() {
    let world = World::new(30);
    let first = prepare(&world.start("boot-1")).await.unwrap();
    world.server.lock().claim = None;
    let restarted = world.start("boot-1");
    assert_eq!(prepare(&restarted).await.unwrap(), first);
    world.node.remove(&format!("claim-{UID}")).unwrap();
    assert_eq!(prepare(&restarted).await.unwrap(), first);
    assert!(world.slice().is_some());
    let rebooted = prepare(&world.start("boot-2")).await.unwrap_err();
    assert!(matches!(rebooted, ClaimError::Api { .. }), "{rebooted}");
}

#[tokio::test]
async fn what_was_begun_for_nobody_is_made_anew() {
    let world = World::new(40);
    // Killed after the slice was made; the claim was allocated differently since.
    let record = world.record(Phase::Started, "boot-1");
    world.prepared().save(&record).unwrap();
    world.node.create(&record.slices[0].slice).unwrap();
    prepare(&world.start("boot-1")).await.unwrap();
    assert_eq!(core_percent(&world.slice().unwrap().content), 40);
    let kept = world.prepared().load(&record.uid).unwrap().unwrap();
    assert_eq!((kept.phase, core_percent(&kept.slices[0].slice)), (Phase::Completed, 40));
}

#[tokio::test]
async fn in_another_life_of_the_machine_a_claim_is_looked_at_again() {
    let world = World::new(40);
    let record = world.record(Phase::Completed, "boot-1");
    world.prepared().save(&record).unwrap();
    prepare(&world.start("boot-2")).await.unwrap();
    assert_eq!(core_percent(&world.slice().unwrap().content), 40);
    let kept = world.prepared().load(&record.uid).unwrap().unwrap();
    assert_eq!(kept.boot_id, "boot-2");
}

#[tokio::test]
async fn a_damaged_record_costs_nobody_his_slice() {
    let world = World::new(30);
    let first = prepare(&world.start("boot-1")).await.unwrap();
    let file = world.path().join(format!("claims/{UID}.json"));
    std::fs::write(&file, "{").unwrap();
    assert_eq!(prepare(&world.start("boot-1")).await.unwrap(), first);
    std::fs::write(&file, "{").unwrap();
    world.start("boot-1").unprepare(UID).await.unwrap();
    assert!(world.slice().is_none() && !file.exists());
}

#[tokio::test]
async fn what_others_have_is_refused_and_leaves_nothing_behind() {
    let world = World::new(30);
    let part = Part {
        device_uuid: device(0, 80).uuid,
        core_request_percent: 80,
        core_limit_percent: 80,
        memory_limit_bytes: GIB,
    };
    world.node.create(&SliceRequest { name: "other".into(), parts: vec![part], ..SliceRequest::default() }).unwrap();
    let claims = world.start("boot-1");
    let refused = prepare(&claims).await.unwrap_err();
    assert!(matches!(refused, ClaimError::Create(CreateError::Unavailable(_))), "{refused}");
    assert_eq!((world.slice(), claims.known().len()), (None, 0));
    until_told_an_event(&world).await;
    world.node.remove("other").unwrap();
    prepare(&claims).await.unwrap();
}

#[tokio::test]
async fn kubelet_does_not_wait_until_an_event_is_written() {
    let world = World::new(30);
    {
        let mut server = world.server.lock();
        (server.claim, server.is_silent_about_events) = (None, true);
    }
    let claims = world.start("boot-1");
    tokio::select! {
        biased;
        outcome = prepare(&claims) => assert!(matches!(outcome, Err(ClaimError::Api { .. })), "{outcome:?}"),
        () = until_told_an_event(&world) => panic!("the answer waits for the event"),
    }
    until_told_an_event(&world).await;
}

#[tokio::test]
async fn a_claim_that_takes_long_to_give_up_holds_up_no_other() {
    let world = World::new(30);
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    let slow = ClaimUid::parse("3f0c1d2e-0000-4000-8000-000000000000").unwrap();
    let busy = claims.locks.lock(&slow).await;
    let (_stop, end) = tokio::sync::watch::channel(false);
    let driver = Driver::new(Arc::clone(&claims), end);
    let named = |uid: &str| dra::Claim { namespace: "team".into(), name: "train".into(), uid: uid.into() };
    let request = dra::NodeUnprepareResourcesRequest { claims: vec![named(slow.as_str()), named(UID)] };
    let answer = driver.node_unprepare_resources(tonic::Request::new(request));
    let other_is_gone = async {
        while world.slice().is_some() {
            tokio::task::yield_now().await;
        }
        drop(busy);
    };
    let (answer, ()) = tokio::join!(answer, other_is_gone);
    let answers = answer.unwrap().into_inner().claims;
    assert_eq!(answers.len(), 2);
    assert!(answers.values().all(|answer| answer.error.is_empty()), "{answers:?}");
}

#[tokio::test]
async fn a_pod_whose_container_names_two_slices_is_refused() {
    let world = World::new(30);
    let named = json!([{"name": "one"}, {"name": "two"}]);
    world.server.lock().pod = Some(json!({
        "metadata": {"name": "pod", "uid": "pod-uid"},
        "spec": {
            "containers": [{"name": "main", "resources": {"claims": named}}],
            "resourceClaims": [
                {"name": "one", "resourceClaimName": "train"},
                {"name": "two", "resourceClaimName": "other"},
            ],
        },
    }));
    let other = ClaimName { namespace: "team".into(), name: "other".into(), uid: "u".into() };
    let claims = world.start("boot-1");
    let refused = claims.prepare(&name(), &BTreeSet::from([name(), other])).await.unwrap_err().to_string();
    assert!(refused.starts_with("pod pod: container \"main\" has the claims"), "{refused}");
    assert!(world.slice().is_none());
    // This driver knows nothing of the other claim.
    prepare(&claims).await.unwrap();
}

#[tokio::test]
async fn a_pod_that_joins_two_prepared_claims_gets_one_event() {
    let world = World::new(30);
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    let other = ClaimName { name: "other".into(), uid: "u".into(), ..name() };
    {
        let mut object = claim(30);
        object["metadata"] = json!({"name": "other", "namespace": "team", "uid": "u"});
        world.server.lock().claim = Some(object);
    }
    claims.prepare(&other, &BTreeSet::from([other.clone()])).await.unwrap();
    world.server.lock().pod = Some(json!({
        "metadata": {"name": "pod", "uid": "pod-uid"},
        "spec": {
            "containers": [{"name": "main", "resources": {"claims": [{"name": "one"}, {"name": "two"}]}}],
            "resourceClaims": [
                {"name": "one", "resourceClaimName": "train"},
                {"name": "two", "resourceClaimName": "other"},
            ],
        },
    }));
    let consumer =
        |container: &str| Consumer { namespace: "team".into(), pod: "pod".into(), container: container.into() };
    let listed = BTreeMap::from([
        (format!("claim-{UID}"), BTreeSet::from([consumer("main"), consumer("side")])),
        ("claim-u".to_owned(), BTreeSet::from([consumer("main")])),
    ]);
    world.server.lock().calls.clear();
    for _ in 0..3 {
        claims.learn(&listed).await.unwrap();
    }
    until_told_an_event(&world).await;
    let server = world.server.lock();
    let count = |call: &str| server.calls.iter().filter(|other| *other == call).count();
    assert_eq!((count(EVENT), count("GET /api/v1/namespaces/team/pods/pod")), (1, 1), "{:?}", server.calls);
    let text = server.events[0]["message"].as_str().unwrap();
    let expected = "container \"main\" has the claims \"train\" and \"other\"";
    assert!(text.starts_with(expected) && text.ends_with("make it with one claim"), "{text}");
    assert_eq!(server.events[0]["involvedObject"]["uid"], "pod-uid");
}

#[tokio::test]
async fn annotations_are_for_the_device_plugin_and_a_pod_with_claims_is_told_so() {
    let world = World::new(30);
    world.server.lock().pod = Some(json!({
        "metadata": {"name": "pod", "uid": "pod-uid", "annotations": {"aliquot.dev/gpu-core-limit": "80"}},
        "spec": {"containers": [{"name": "main"}]},
    }));
    prepare(&world.start("boot-1")).await.unwrap();
    until_told_an_event(&world).await;
}

#[tokio::test]
async fn a_claim_that_is_gone_is_given_up_at_the_second_look_unless_somebody_has_it() {
    let world = World::new(30);
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    let (client, slice) = (client(&world.server), format!("claim-{UID}"));
    let twice = async || {
        let suspects = stale::look(&claims, &client, &BTreeSet::new()).await;
        stale::look(&claims, &client, &suspects).await
    };
    assert!(twice().await.is_empty());
    world.server.lock().claim = None;
    let consumer = Consumer { namespace: "team".into(), pod: "pod".into(), container: "main".into() };
    world.node.set_consumers(&slice, &BTreeSet::from([consumer]));
    world.server.lock().calls.clear();
    assert!(twice().await.is_empty());
    assert_eq!(world.server.lock().calls, Vec::<String>::new());
    world.node.set_consumers(&slice, &BTreeSet::new());
    world.node.set_processes(&slice, 1);
    assert_eq!(twice().await.len(), 1);
    assert!(world.slice().is_some());
    world.node.set_processes(&slice, 0);
    assert!(twice().await.is_empty());
    assert_eq!((world.slice(), claims.known().len()), (None, 0));
}

#[tokio::test]
async fn a_claim_that_has_nothing_here_any_more_is_given_up() {
    let mut elsewhere = claim(30);
    elsewhere["status"]["allocation"]["devices"]["results"][0]["pool"] = "node-2".into();
    let mut unallocated = claim(30);
    unallocated["status"] = json!({});
    for left in [elsewhere, unallocated] {
        let world = World::new(30);
        let claims = world.start("boot-1");
        prepare(&claims).await.unwrap();
        world.server.lock().claim = Some(left);
        let client = client(&world.server);
        let suspects = stale::look(&claims, &client, &BTreeSet::new()).await;
        assert_eq!((suspects.len(), world.slice().is_some()), (1, true));
        assert!(stale::look(&claims, &client, &suspects).await.is_empty());
        assert_eq!((world.slice(), claims.known().len()), (None, 0));
    }
}

#[tokio::test]
async fn a_slice_of_a_damaged_record_goes_when_its_claim_is_gone() {
    let world = World::new(30);
    prepare(&world.start("boot-1")).await.unwrap();
    let file = world.path().join(format!("claims/{UID}.json"));
    std::fs::write(&file, "{").unwrap();
    let claims = world.start("boot-1");
    let client = client(&world.server);
    let twice = async || {
        let suspects = stale::look(&claims, &client, &BTreeSet::new()).await;
        stale::look(&claims, &client, &suspects).await
    };
    assert!(twice().await.is_empty());
    assert!(world.slice().is_some());
    world.server.lock().claim = None;
    assert!(twice().await.is_empty());
    assert!(world.slice().is_none() && !file.exists());
}

#[tokio::test]
async fn a_claim_of_the_same_name_is_another_one() {
    let world = World::new(30);
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    // The claim was deleted and made again, and the driver was not told.
    let again = "3f0c1d2e-0000-4000-8000-000000000002";
    let mut other = claim(40);
    other["metadata"]["uid"] = again.into();
    world.server.lock().claim = Some(other);
    let named = ClaimName { uid: again.into(), ..name() };
    claims.prepare(&named, &BTreeSet::from([named.clone()])).await.unwrap();
    assert_eq!(core_percent(&world.node.get(&format!("claim-{again}")).unwrap().content), 40);
    claims.unprepare(UID).await.unwrap();
    assert!(world.slice().is_none());
    assert!(world.node.get(&format!("claim-{again}")).is_some());
}

#[tokio::test]
async fn a_record_of_a_newer_version_is_refused_and_kept() {
    let world = World::new(30);
    prepare(&world.start("boot-1")).await.unwrap();
    let file = world.path().join(format!("claims/{UID}.json"));
    let newer = r#"{"version": 3, "claims": []}"#;
    std::fs::write(&file, newer).unwrap();
    let refused = prepare(&world.start("boot-1")).await.unwrap_err().to_string();
    assert!(refused.contains("is of version 3") && refused.contains("use the program that wrote it"), "{refused}");
    assert!(world.slice().is_some());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), newer);
}

#[tokio::test]
async fn a_uid_that_is_none_touches_nothing() {
    let world = World::new(30);
    let claims = world.start("boot-1");
    let odd = ClaimName { uid: "../x".into(), ..name() };
    assert!(matches!(claims.prepare(&odd, &BTreeSet::new()).await, Err(ClaimError::Uid(_))));
    assert!(matches!(claims.unprepare("../x").await, Err(ClaimError::Uid(_))));
}
