//! The publisher and an API server in virtual time.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http_body::Frame;
use k8s_openapi::api::resource::v1::{DeviceTaint, ResourcePool, ResourceSliceSpec};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tonic::codegen::Bytes;
use tonic::codegen::http::{Request, Response, Uri};

use super::*;
use crate::device_plugin::test_node::TestNode;
use crate::dra::claims::tests::World;

/// The client takes a longer silence for a failure.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// An API server that has the resource slices of one node.
#[derive(Default)]
struct ApiServer {
    slices: BTreeMap<String, Value>,
    /// All changes, as lines of a watch. The version of each is its number.
    changes: watch::Sender<Vec<String>>,
    lists: usize,
    watches: usize,
    /// Whether it knows consumable capacity.
    knows_shares: bool,
    version: &'static str,
}

impl ApiServer {
    fn change(&mut self, kind: &str, mut slice: Value) -> Value {
        let version = self.changes.borrow().len() + 1;
        for device in slice["spec"]["devices"].as_array_mut().into_iter().flatten().filter(|_| !self.knows_shares) {
            device.as_object_mut().unwrap().remove("allowMultipleAllocations");
        }
        slice["metadata"]["resourceVersion"] = version.to_string().into();
        let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
        match kind {
            "DELETED" => self.slices.remove(&name),
            _ => self.slices.insert(name, slice.clone()),
        };
        let line = format!("{}\n", json!({"type": kind, "object": slice}));
        self.changes.send_modify(|changes| changes.push(line));
        slice
    }

    /// Deletes all resource slices, as a kubelet that starts does.
    fn delete_all(&mut self) {
        for slice in self.slices.clone().into_values() {
            self.change("DELETED", slice);
        }
    }

    fn answer(&mut self, method: &str, uri: &Uri, body: &[u8]) -> Answer {
        let value = || serde_json::from_slice(body).unwrap();
        let query = uri.query().unwrap_or_default();
        Answer::of(&match (method, uri.path()) {
            ("GET", "/version") => json!({"major": "1", "minor": "36", "gitVersion": self.version}),
            ("GET", path) if path.contains("/nodes/") => json!({"metadata": {"name": "node-1", "uid": "node-uid"}}),
            ("POST", _) => self.change("ADDED", value()),
            ("PUT", _) => self.change("MODIFIED", value()),
            ("GET", _) if query.contains("watch=true") => {
                self.watches += 1;
                return self.watch(query);
            }
            ("GET", _) => {
                self.lists += 1;
                let version = self.changes.borrow().len().to_string();
                let items: Vec<&Value> = self.slices.values().collect();
                json!({"metadata": {"resourceVersion": version}, "items": items})
            }
            (method, path) => panic!("{method} {path}"),
        })
    }

    /// The changes after the version in `query`; after version 0 everything that there is.
    fn watch(&self, query: &str) -> Answer {
        let number =
            |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
        let (seconds, mut seen) = (number("timeoutSeconds").unwrap(), number("resourceVersion").unwrap() as usize);
        let mut changes = self.changes.subscribe();
        let (lines, answer) = mpsc::channel(100);
        if seen == 0 {
            seen = changes.borrow().len();
            for slice in self.slices.values() {
                lines.try_send(Ok(format!("{}\n", json!({"type": "ADDED", "object": slice})))).unwrap();
            }
        }
        let end = Instant::now() + Duration::from_secs(seconds);
        tokio::spawn(async move {
            loop {
                let new: Vec<String> = changes.borrow_and_update()[seen..].to_vec();
                seen += new.len();
                for line in new {
                    lines.send(Ok(line)).await.unwrap_or_default();
                }
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep_until(end) => return,
                    () = sleep(SILENCE_MAX) => return lines.send(Err("no answer in time")).await.unwrap_or_default(),
                    () = lines.closed() => return,
                }
            }
        });
        Answer(answer)
    }
}

/// The body of an answer.
struct Answer(mpsc::Receiver<Result<String, &'static str>>);

impl Answer {
    fn of(value: &Value) -> Answer {
        let (lines, answer) = mpsc::channel(1);
        lines.try_send(Ok(value.to_string())).unwrap();
        Answer(answer)
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| line.map(|line| Frame::data(Bytes::from(line)))))
    }
}

fn client(server: &Arc<Mutex<ApiServer>>) -> Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let answer = server.lock().answer(parts.method.as_str(), &parts.uri, &body);
            Ok::<_, Infallible>(Response::new(answer))
        }
    });
    Client::new(service, "default")
}

/// A publisher that runs, and its API server, once the devices are published.
async fn published() -> (Arc<Mutex<ApiServer>>, watch::Sender<bool>) {
    let (_, server, stop) = published_to(ApiServer { knows_shares: true, ..ApiServer::default() }).await;
    (server, stop)
}

async fn published_to(server: ApiServer) -> (Arc<TestNode>, Arc<Mutex<ApiServer>>, watch::Sender<bool>) {
    let world = World::new(30);
    let server = Arc::new(Mutex::new(server));
    let (stop, end) = watch::channel(false);
    let publisher = Publisher::new(client(&server), "node-1".into(), world.start("boot-1"));
    tokio::spawn(publisher.run(end));
    until_there(&server).await;
    (Arc::clone(&world.node), server, stop)
}

async fn until_there(server: &Mutex<ApiServer>) {
    while server.lock().slices.is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_listed_between_the_looks_if_nothing_changes() {
    let (server, _stop) = published().await;
    server.lock().lists = 0;
    sleep(LOOK_INTERVAL * 10).await;
    let server = server.lock();
    assert!(server.lists <= 10, "{} lists", server.lists);
    assert!(server.watches >= 10, "{} watches", server.watches);
}

#[tokio::test(start_paused = true)]
async fn what_others_delete_is_there_again_before_the_next_look() {
    let (server, _stop) = published().await;
    for seconds in [25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36] {
        sleep(Duration::from_secs(seconds)).await;
        server.lock().delete_all();
        timeout(RETRY_MIN * 2, until_there(&server)).await.unwrap();
    }
}

fn slice(devices: &[Device], generation: i64) -> ResourceSlice {
    let pool = ResourcePool { generation, ..ResourcePool::default() };
    let spec = ResourceSliceSpec { devices: Some(devices.to_vec()), pool, ..ResourceSliceSpec::default() };
    ResourceSlice { spec, ..ResourceSlice::default() }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_learns_something_is_believed() {
    for (version, wait) in [("v1.36.0", LOOK_INTERVAL), ("v1.35.0", TRY_AGAIN_INTERVAL)] {
        let lacking = ApiServer { version: "v1.35.0", ..ApiServer::default() };
        let (node, server, _stop) = published_to(lacking).await;
        let until = async |is_lacking: bool| {
            while node.shortcoming().is_some() != is_lacking {
                sleep(Duration::from_secs(1)).await;
            }
        };
        timeout(LOOK_INTERVAL, until(true)).await.unwrap();
        {
            let mut server = server.lock();
            (server.knows_shares, server.version) = (true, version);
        }
        let is_shared = |slice: &Value| slice["spec"]["devices"][0]["allowMultipleAllocations"] == true;
        let until_shared = async {
            while !server.lock().slices.values().all(is_shared) {
                sleep(Duration::from_secs(1)).await;
            }
            until(false).await;
        };
        timeout(wait + LOOK_INTERVAL, until_shared).await.unwrap();
    }
}

#[test]
fn generations_only_grow() {
    assert_eq!(generation(&[]), 0);
    assert_eq!(generation(&[slice(&[], 7), slice(&[], 8)]), 8);
}

#[test]
fn what_others_change_is_told_from_what_was_written() {
    let of = |name: &str, version: &str| {
        let (name, resource_version) = (Some(name.to_owned()), Some(version.to_owned()));
        let metadata = ObjectMeta { name, resource_version, ..ObjectMeta::default() };
        ResourceSlice { metadata, ..ResourceSlice::default() }
    };
    let written = Written {
        content: Content::default(),
        layout: Layout::Separate,
        versions: BTreeMap::from([("mine".into(), Some("7".into()))]),
    };
    let by_others = |event: WatchEvent<ResourceSlice>| is_by_others(Some(&written), &event);
    assert!(!by_others(WatchEvent::Added(of("mine", "7"))));
    assert!(by_others(WatchEvent::Modified(of("mine", "8"))));
    assert!(by_others(WatchEvent::Added(of("other", "7"))));
    assert!(by_others(WatchEvent::Deleted(of("mine", "9"))), "a kubelet that starts");
    assert!(!by_others(WatchEvent::Deleted(of("other", "9"))), "what this program has removed itself");
    assert!(is_by_others(None, &WatchEvent::Deleted(of("mine", "9"))));
}

#[test]
fn an_api_server_that_drops_a_field_is_noticed() {
    let plain = Device { name: "gpu-0".into(), ..Device::default() };
    let tainted = Device { taints: Some(vec![DeviceTaint::default()]), ..plain.clone() };
    let counting = Device { consumes_counters: Some(Vec::new()), ..plain.clone() };
    let shared = Device { allow_multiple_allocations: Some(true), ..plain.clone() };
    let all = Support { taints: true, counters: true, shares: true };
    for (device, rest) in [
        (tainted, Support { taints: false, ..all }),
        (counting, Support { counters: false, ..all }),
        (shared, Support { shares: false, ..all }),
    ] {
        let named = |name: &str| Device { name: name.into(), ..device.clone() };
        let dropped = |name: &str| Device { name: name.into(), ..plain.clone() };
        let wanted = Content { devices: vec![plain.clone(), named("gpu-1"), named("gpu-2")], ..Content::default() };
        let kept = |devices: [Device; 2]| all.kept(&wanted, &[slice(&[], 1), slice(&devices, 1)]);
        assert_eq!(kept([dropped("gpu-1"), dropped("gpu-2")]), rest);
        assert_eq!(kept([named("gpu-1"), named("gpu-2")]), all);
        // It was kept on a device that had it before the feature was switched off.
        assert_eq!(kept([named("gpu-1"), dropped("gpu-2")]), rest);
        let without = Content { devices: vec![plain.clone()], ..Content::default() };
        assert_eq!(rest.kept(&without, &[slice(&without.devices, 1)]), rest);
    }
}
