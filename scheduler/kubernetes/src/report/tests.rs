//! The report as a whole, in virtual time: each call of the API server takes a while.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, channel};

use aliquot_scheduler_engine::{Engine, Message};
use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use crate::dra::ClaimFacts;
use crate::lease::Fence;
use crate::mirror::Access;
use crate::node::NodeFacts;
use crate::played::{self, Call, failure};
use crate::pod::PodFacts;
use crate::questions;

/// What a call of the API server takes.
const CALL: Duration = Duration::from_millis(5);

/// A leader, and the pods of its cluster. There are no nodes.
struct World {
    shared: Arc<Shared>,
    shown: Shown,
    server: Arc<Server>,
    engine: Engine,
    inbox: Receiver<Message>,
    now_ms: u64,
    /// The report as it runs, if it has begun.
    running: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

#[derive(Default)]
struct Server {
    pods: Mutex<BTreeMap<String, Value>>,
    /// When each call began, its method, and the name of its pod or event.
    calls: Mutex<Vec<(Instant, String, String)>>,
    under_way: Mutex<usize>,
    most: Mutex<usize>,
}

impl World {
    fn new() -> World {
        let shared = played::leader(Fence::until(Instant::now() + Duration::from_secs(3600)));
        let engine = played::engine();
        let (to_engine, inbox) = channel();
        shared.begin(to_engine);
        let (shown, server): (Shown, Arc<Server>) = Default::default();
        let (of_server, of_shared) = (Arc::clone(&server), Arc::clone(&shared));
        let client = played::client(move |call| answer(Arc::clone(&of_server), Arc::clone(&of_shared), call));
        let events = Events::new(client.clone(), "aliquot-scheduler", "replica-1".into());
        let running = Some(Box::pin(run(client, Arc::clone(&shared), shown.clone(), events)) as _);
        World { shared, shown, server, engine, inbox, now_ms: 1_000_000, running }
    }

    /// A pod that fits nowhere. `more` is merged into it.
    fn pod(&self, name: &str, more: &Value) {
        let limits = json!({"aliquot.dev/gpu-core": "100"});
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "annotations": {}},
            "spec": {"schedulerName": "aliquot", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        });
        json_patch::merge(&mut pod, more);
        self.server.pods.lock().insert(name.into(), pod);
        self.show(name);
    }

    /// The watch tells of a pod.
    fn show(&self, name: &str) {
        show(&self.shared, &self.server.pods.lock()[name]);
    }

    /// The engine decides about all that is known.
    fn decide(&mut self) {
        for _ in 0..10 {
            self.now_ms += 50;
            for Message { observation, .. } in self.inbox.try_iter() {
                self.engine.handle(self.now_ms, observation).unwrap();
            }
            if let Some(view) = self.engine.poll(self.now_ms).view {
                self.shown.set(view);
            }
        }
    }

    /// Reports until this is so. Returns how long that took.
    async fn report_until(&mut self, is_so: impl Fn(&World) -> bool) -> Duration {
        let (began, limit) = (Instant::now(), Duration::from_secs(1000));
        let mut running = self.running.take().unwrap();
        let until = async {
            while !is_so(self) {
                assert!(began.elapsed() < limit, "{:?}", self.server.pods.lock());
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = &mut running => {}
            () = until => {}
        }
        self.running = Some(running);
        began.elapsed()
    }

    async fn report_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        self.report_until(|_| Instant::now() >= end).await;
    }

    /// The reason and the message of a pod's condition.
    fn said(&self, name: &str) -> Option<(String, String)> {
        said_of(&self.server.pods.lock()[name])
    }

    fn all_say(&self, word: &str) -> bool {
        let pods = self.server.pods.lock();
        pods.values().all(|pod| said_of(pod).is_some_and(|(_, message)| message.contains(word)))
    }

    /// How many conditions were written, or tried.
    fn written(&self) -> usize {
        self.server.calls.lock().iter().filter(|(_, method, _)| method == "PATCH").count()
    }
}

fn said_of(pod: &Value) -> Option<(String, String)> {
    let condition = &pod["status"]["conditions"][0];
    Some((condition["reason"].as_str()?.to_owned(), condition["message"].as_str()?.to_owned()))
}

fn show(shared: &Shared, pod: &Value) {
    let facts = PodFacts::of(serde_json::from_value(pod.clone()).unwrap(), "aliquot").unwrap();
    shared.change(|mirror| mirror.pod(facts));
}

async fn answer(server: Arc<Server>, shared: Arc<Shared>, call: Call) -> (u16, Value) {
    server.calls.lock().push((Instant::now(), call.method.clone(), call.name().to_owned()));
    *server.under_way.lock() += 1;
    let most = (*server.most.lock()).max(*server.under_way.lock());
    *server.most.lock() = most;
    sleep(CALL).await;
    *server.under_way.lock() -= 1;
    if call.method != "PATCH" {
        return (201, call.body);
    }
    let mut pods = server.pods.lock();
    let Some(pod) = pods.get_mut(call.name()) else { return failure(404, "NotFound") };
    let expected = &call.body["metadata"]["resourceVersion"];
    if !expected.is_null() && *expected != pod["metadata"]["resourceVersion"] {
        return failure(409, "Conflict");
    }
    let version: u64 = pod["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    pod["metadata"]["resourceVersion"] = (version + 1).to_string().into();
    pod["status"] = call.body["status"].clone();
    show(&shared, pod);
    (200, pod.clone())
}

#[tokio::test(start_paused = true)]
async fn a_thousand_pods_say_within_a_second_why_they_wait() {
    let mut world = World::new();
    (0..1000).for_each(|pod| world.pod(&format!("p{pod}"), &json!({})));
    world.decide();
    // Events would take as long once more.
    let took = world.report_until(|world| world.all_say("no-such-node: ")).await;
    assert!(took < Duration::from_millis(500), "{took:?}");
    let most = *world.server.most.lock();
    assert_eq!(most, AT_ONCE, "the API server has so many of these writes at a time");
    assert_eq!(world.said("p7").unwrap().0, "Waiting");
    // One that comes between two looks.
    world.pod("late", &json!({}));
    world.decide();
    let took = world.report_until(|world| world.said("late").is_some()).await;
    assert!(took <= 2 * LOOK, "{took:?}");
    assert_eq!(world.written(), 1001);
    let events = |world: &World| world.server.calls.lock().iter().filter(|(_, method, _)| method == "POST").count();
    world.report_until(|world| events(world) == 1001).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_said_before_is_changed_slowly_and_once() {
    let mut world = World::new();
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Waiting", "message": "as it was"});
    let before = json!({"status": {"conditions": [condition]}});
    (0..500).for_each(|pod| world.pod(&format!("p{pod:03}"), &before));
    world.pod("q", &json!({}));
    world.decide();
    world.report_for(Duration::from_secs(1)).await;
    assert!(world.said("q").is_some() && world.written() <= 201, "{}", world.written());
    assert_eq!(world.server.calls.lock()[0].2, "q", "what is said first comes first");
    world.report_until(|world| world.all_say("no-such-node: ")).await;
    world.report_for(Duration::from_secs(60)).await;
    assert_eq!(world.written(), 501);
}

#[tokio::test(start_paused = true)]
async fn what_soon_passes_by_itself_is_not_said() {
    let mut world = World::new();
    let gang = json!({"metadata": {"annotations": {"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "2"}}});
    world.pod("a", &gang);
    // Its claim is made a moment after it.
    world.pod("c", &json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}}));
    world.decide();
    world.report_for(Duration::from_millis(300)).await;
    assert_eq!(world.written(), 0);
    world.pod("b", &gang);
    world.pod("c", &json!({"metadata": {"resourceVersion": "2"}}));
    world.decide();
    world.report_until(|world| world.all_say("no-such-node: ")).await;
    assert_eq!(world.written(), 3);
    // What lasts is said, and soon what comes after it.
    world.pod("d", &json!({"metadata": {"annotations": {"aliquot.dev/gang": "h", "aliquot.dev/gang-size": "2"}}}));
    world.pod("e", &json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}}));
    world.decide();
    let took = world.report_until(|world| world.said("d").is_some() && world.said("e").is_some()).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(world.said("d").unwrap().1.starts_with("gang-incomplete: "), "{:?}", world.said("d"));
    let (reason, message) = world.said("e").unwrap();
    assert!(reason == "NotSupported" && message.starts_with("not-supported: "), "{message}");
    world.pod("f", &json!({"metadata": {"annotations": {"aliquot.dev/gang": "h", "aliquot.dev/gang-size": "2"}}}));
    world.server.pods.lock().get_mut("e").unwrap()["spec"]["resourceClaims"] = Value::Null;
    world.show("e");
    world.decide();
    let took = world.report_until(|world| world.all_say("no-such-node: ")).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_changed_is_looked_at_anew() {
    let mut world = World::new();
    world.pod("a", &json!({}));
    world.decide();
    // The watch is late.
    world.server.pods.lock().get_mut("a").unwrap()["metadata"]["resourceVersion"] = "2".into();
    world.report_for(Duration::from_millis(500)).await;
    assert!(world.said("a").is_none() && world.written() > 1, "{}", world.written());
    world.show("a");
    let took = world.report_until(|world| world.said("a").is_some()).await;
    assert!(took <= 2 * LOOK, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_of_pods_that_wait_no_more() {
    let mut world = World::new();
    (0..100).for_each(|pod| world.pod(&format!("p{pod}"), &json!({})));
    world.decide();
    let gone = Mutex::new(false);
    world
        .report_until(|world| {
            let is_first = world.written() > 0 && !std::mem::replace(&mut *gone.lock(), true);
            if is_first {
                world.shared.change(|mirror| (0..100).for_each(|pod| mirror.pod_gone(&format!("p{pod}"))));
            }
            world.written() > 0 && *world.server.under_way.lock() == 0
        })
        .await;
    world.report_for(Duration::from_secs(20)).await;
    assert_eq!(world.written(), AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_after_the_end_of_the_lease() {
    let mut world = World::new();
    (0..100).for_each(|pod| world.pod(&format!("p{pod}"), &json!({})));
    world.decide();
    let ended = Mutex::new(None);
    let has_half = |world: &World| world.written() >= 50;
    world
        .report_until(|world| {
            if has_half(world) && ended.lock().is_none() {
                world.shared.fence.end();
                *ended.lock() = Some(Instant::now());
            }
            ended.lock().is_some()
        })
        .await;
    world.report_for(Duration::from_secs(60)).await;
    let ended = ended.lock().unwrap();
    let after = world.server.calls.lock().iter().filter(|(at, ..)| *at > ended).count();
    assert_eq!((after, world.written() < 100), (0, true));
}

#[tokio::test]
async fn pods_that_wait_alike_are_explained_together() {
    let mut world = World::new();
    let gang = json!({"metadata": {"annotations": {"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "2"}}});
    let other = json!({"spec": {"priority": 7}});
    for (name, more) in [("a", &json!({})), ("b", &json!({})), ("g1", &gang), ("g2", &gang), ("c", &other)] {
        world.pod(name, more);
    }
    world.pod("d", &json!({"metadata": {"namespace": "other"}}));
    world.decide();
    let (view, mut explained) = (world.shown.get().unwrap(), Explained::default());
    let mut of = |name: &str| explained.of(&view, &name.into(), Duration::MAX).unwrap();
    let same = |one: &Arc<_>, other: &Arc<_>| Arc::ptr_eq(one, other);
    let (a, g) = (of("a"), of("g1"));
    assert!(same(&a, &of("b")) && same(&g, &of("g2")) && !same(&a, &g));
    assert!(!same(&a, &of("c")) && !same(&a, &of("d")));
    assert_eq!(view.explain(&"b".into()).unwrap().reasons, a.reasons);
    // Without the time to explain it, it is what a cycle has found.
    let short = Explained::default().of(&view, &"a".into(), Duration::ZERO).unwrap();
    assert_eq!((short.reasons.len(), short.changes.is_empty()), (1, true));
    assert_eq!(explained.of(&view, &"b".into(), Duration::ZERO).unwrap(), a);
}

/// What the books do not know is not said to be missing: an autoscaler would make nodes for the pod.
#[tokio::test(start_paused = true)]
async fn devices_that_are_searched_are_not_said_to_be_missing() {
    let mut world = World::new();
    // No cards with different rows and columns are found soon.
    let square = (0..5).flat_map(|row| (0..5).map(move |column| (row, column)));
    let card = |(row, column): (u32, u32)| json!({"name": format!("{row}-{column}"), "attributes": {"row": {"int": row}, "column": {"int": column}}});
    let cards: Vec<Value> = square.chain([(5, 0), (4, 5)]).map(card).collect();
    let slice = json!({"metadata": {"name": "n"}, "spec": {
        "driver": "nic.example.com", "nodeName": "n", "devices": cards,
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
    }});
    let nic = json!({"name": "nic", "exactly": {"deviceClassName": "nic", "count": 6}});
    let distinct = |name: &str| json!({"distinctAttribute": format!("nic.example.com/{name}")});
    let claim = json!({"metadata": {"name": "cards", "namespace": "default", "uid": "cards"}, "spec": {
        "devices": {"requests": [nic], "constraints": [distinct("row"), distinct("column")]},
    }});
    let ready = json!({"type": "Ready", "status": "True"});
    let amounts = json!({"cpu": "8", "memory": "8Gi", "pods": "10"});
    let node = json!({
        "metadata": {"name": "n", "uid": "n"}, "status": {"conditions": [ready], "allocatable": amounts},
    });
    world.shared.change(|mirror| {
        mirror.device_class(serde_json::from_value(json!({"metadata": {"name": "nic"}, "spec": {}})).unwrap());
        mirror.resource_slice(serde_json::from_value(slice).unwrap());
        mirror.resource_claim(ClaimFacts::of(serde_json::from_value(claim).unwrap()).unwrap());
        mirror.resource_claims_are(Access::Read);
        mirror.node(NodeFacts::of(serde_json::from_value(node).unwrap()).unwrap());
    });
    let of_claim = json!([{"name": "cards", "resourceClaimName": "cards"}]);
    let containers = json!([{"name": "main", "resources": {"claims": [{"name": "cards"}]}}]);
    world.pod("p", &json!({"spec": {"containers": containers, "resourceClaims": of_claim}}));
    world.decide();
    world.report_until(|world| world.said("p").is_some()).await;
    let (reason, message) = world.said("p").unwrap();
    assert_eq!(reason, "Waiting", "{message}");
    assert!(message.starts_with("search: it is not known yet whether node n can give"), "{message}");
    let answer = questions::about_pod(&world.shared, &world.shown.get().unwrap(), "default", "p").unwrap();
    let said: Vec<(&str, &str)> = answer.reasons.iter().map(|of| (of.tier.as_str(), of.text.as_str())).collect();
    assert_eq!(said, [("search", message.strip_prefix("search: ").unwrap())]);
}
