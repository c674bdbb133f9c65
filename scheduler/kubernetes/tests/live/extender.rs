//! Kube-scheduler asks about its pods by HTTP, beside pods that name this scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aliquot_dialects::Decision;
use aliquot_test_api_server::{Fault, NAMESPACES, QUEUES};
use serde_json::{Value, json};

use crate::kit::{Cluster, LIMIT, Scheduler};

/// What a server answers: the status, the head, and the body as JSON if it is some.
struct Answer {
    status: u16,
    head: String,
    body: Value,
}

fn send(address: SocketAddr, request: &str, body: &[u8]) -> Answer {
    try_send(address, request, body).unwrap()
}

/// Fails if the replica ends meanwhile.
fn try_send(address: SocketAddr, request: &str, body: &[u8]) -> io::Result<Answer> {
    let mut connection = TcpStream::connect(address)?;
    let head =
        format!("{request} HTTP/1.1\r\nhost: replica\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    connection.write_all(head.as_bytes())?;
    // A server that refuses a body may close the connection before it has all of it.
    _ = connection.write_all(body);
    let mut answer = Vec::new();
    _ = connection.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok(Answer { status, head: head.to_owned(), body: serde_json::from_str(body).unwrap_or(Value::Null) })
}

fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    send(address, &format!("POST {path}"), body.to_string().as_bytes())
}

/// A client that asks as kube-scheduler does, and binds where it is told.
struct KubeScheduler<'a> {
    cluster: &'a Cluster,
    /// Where the extender answers.
    address: SocketAddr,
    /// How many bindings were answered.
    bindings: AtomicUsize,
}

impl<'a> KubeScheduler<'a> {
    fn new(cluster: &'a Cluster, address: SocketAddr) -> KubeScheduler<'a> {
        KubeScheduler { cluster, address, bindings: AtomicUsize::new(0) }
    }
}

impl KubeScheduler<'_> {
    /// The nodes that have room, by an extender that knows the nodes itself; else all reasons.
    fn filter(&self, pod: &Value, nodes: &[&str]) -> Value {
        self.ask("/filter", &json!({"Pod": pod, "Nodes": null, "NodeNames": nodes}))
    }

    fn bind(&self, name: &str, node: &str) -> Result<(), String> {
        let uid = self.cluster.get(name)["metadata"]["uid"].clone();
        let args = json!({"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node});
        let began = Instant::now();
        loop {
            let answer = self.ask("/bind", &args);
            self.bindings.fetch_add(1, Ordering::SeqCst);
            match answer["Error"].as_str() {
                None | Some("") => return Ok(()),
                // On a slow machine the pod is bound after the answer.
                Some(error) if !is_final(error) && began.elapsed() < LIMIT => {}
                Some(error) => return Err(error.to_owned()),
            }
        }
    }

    /// What the leader answers. A replica that has lost its lease is asked again when it leads again.
    fn ask(&self, path: &str, body: &Value) -> Value {
        let began = Instant::now();
        loop {
            match try_send(self.address, &format!("POST {path}"), body.to_string().as_bytes()) {
                Ok(Answer { status: 200, body, .. }) => return body,
                Ok(Answer { status: 307 | 503, .. }) | Err(_) if began.elapsed() < LIMIT => {}
                Ok(other) => panic!("{}: {}", other.status, other.body),
                Err(error) => panic!("{error}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether the pod cannot be bound later.
fn is_final(error: &str) -> bool {
    !error.ends_with("ask again") && !error.ends_with("no longer the leader")
}

/// A pod of kube-scheduler.
fn kube_pod(cluster: &Cluster, name: &str, percent: u32) {
    cluster.pod(name, percent, json!({"spec": {"schedulerName": "default-scheduler"}}));
}

/// Waits until the replica leads and knows the cluster.
fn wait_until_it_answers(cluster: &Cluster, scheduler: &Scheduler) {
    cluster.wait_until("the leader answers", |_| {
        try_send(scheduler.extender_address, "GET /inspect", b"").is_ok_and(|answer| answer.status == 200)
    });
}

/// No device is given out twice, by whomever.
fn check_devices(cluster: &Cluster) {
    let mut given: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    for pod in cluster.objects.list(&aliquot_test_api_server::PODS) {
        let Some(text) = pod["metadata"]["annotations"]["aliquot.dev/devices"].as_str() else { continue };
        assert!(pod["spec"]["nodeName"].is_string(), "{pod}");
        for part in text.parse::<Decision>().unwrap().containers.into_values().flatten() {
            let of = given.entry(part.uuid).or_default();
            *of = (of.0 + part.core_thousandths, of.1 + part.memory_bytes);
        }
    }
    assert!(given.values().all(|(core, bytes)| *core <= 1000 && *bytes <= 80 << 30), "{given:?}");
}

#[test]
fn two_halves_are_bound_to_one_gpu_and_a_third_waits() {
    // A replica that has lost its lease on a slow machine counts from zero again.
    assert!((0..5).any(|_| a_third_half_waits()), "the replica never kept its lease");
}

fn a_third_half_waits() -> bool {
    let (cluster, scheduler) = Cluster::with_one_gpu();
    wait_until_it_answers(&cluster, &scheduler);
    let kube = KubeScheduler::new(&cluster, scheduler.extender_address);
    for name in ["a", "b", "c"] {
        kube_pod(&cluster, name, 50);
    }
    for name in ["a", "b"] {
        assert_eq!(kube.filter(&cluster.get(name), &["n"])["NodeNames"], json!(["n"]), "{name}");
        assert_eq!(kube.bind(name, "n"), Ok(()));
    }
    cluster.wait_until_bound(&["a", "b"]);
    let part = format!("main=GPU-n-0/500/{}", 40_u64 << 30);
    assert_eq!(cluster.get("b")["metadata"]["annotations"]["aliquot.dev/devices"], part);
    // What readers see is a moment late; what decides is not.
    let refused = kube.bind("c", "n").unwrap_err();
    assert!(refused.contains("0 of the 1 devices"), "{refused}");
    cluster.wait_until("the filter knows it, too", |cluster| {
        let filtered = kube.filter(&cluster.get("c"), &["n"]);
        filtered["NodeNames"] == json!([])
            && filtered["FailedNodes"]["n"].as_str().is_some_and(|why| why.contains("50 percent gpu-core"))
    });
    // A pod that names this scheduler sees the same devices, and all of them stay open to it.
    cluster.pod("own", 10, json!({}));
    cluster.wait_until("own says why it waits", |cluster| cluster.why_waiting("own").is_some());
    cluster.objects.delete(&aliquot_test_api_server::PODS, "default", "a");
    cluster.wait_until("own is bound", |cluster| cluster.bound().contains_key("own"));
    cluster.wait_until("a node's devices are told with their pods", |_| {
        let inspected = send(scheduler.extender_address, "GET /gpushare-scheduler/inspect/n", b"");
        let device = &inspected.body["nodes"][0]["devs"][0];
        let pods = device["pods"].as_array().unwrap().iter().map(|pod| pod["name"].as_str().unwrap());
        (&device["totalGPU"], &device["usedGPU"]) == (&json!(80), &json!(48))
            && pods.collect::<BTreeSet<_>>() == BTreeSet::from(["b", "own"])
    });
    let number = kube.bindings.load(Ordering::SeqCst) as f64;
    let is_counted = scheduler.counts(&[
        ("extender_calls_total{verb=\"bind\",outcome=\"answered\"}", 2.0),
        ("extender_calls_total{verb=\"bind\",outcome=\"refused\"}", number - 2.0),
        ("extender_calls_total{verb=\"preempt\",outcome=\"answered\"}", 0.0),
        ("extender_call_seconds_count{verb=\"bind\"}", number),
    ]);
    let answered =
        |verb: &str| scheduler.metric(&format!("extender_calls_total{{verb=\"{verb}\",outcome=\"answered\"}}"));
    assert!(!is_counted || answered("filter") >= Some(3.0) && answered("inspect") >= Some(2.0));
    is_counted
}

#[test]
fn nodes_are_filtered_and_scored_in_either_way_of_naming_them() {
    let mut cluster = Cluster::start();
    cluster.node("empty", 1);
    cluster.node("half", 1);
    cluster.node("none", 0);
    let scheduler = cluster.scheduler();
    wait_until_it_answers(&cluster, &scheduler);
    let kube = KubeScheduler::new(&cluster, scheduler.extender_address);
    kube_pod(&cluster, "first", 50);
    assert_eq!(kube.bind("first", "half"), Ok(()));
    kube_pod(&cluster, "a", 50);
    let pod = cluster.get("a");
    let names = ["empty", "half", "none", "unknown"];
    cluster.wait_until("the node that is half full is the better one", |_| {
        let answer = post(scheduler.extender_address, "/prioritize", &json!({"Pod": pod, "NodeNames": names}));
        let score = |host: &str| {
            answer.body.as_array().unwrap().iter().find(|of| of["Host"] == host).unwrap()["Score"].as_i64().unwrap()
        };
        assert_eq!((score("none"), score("unknown")), (0, 0));
        score("half") == 10 && score("empty") == 0
    });
    let filtered = kube.filter(&pod, &names);
    assert_eq!(filtered["NodeNames"], json!(["empty", "half"]));
    let why = filtered["FailedAndUnresolvableNodes"]["none"].as_str().unwrap();
    assert!(why.contains("the node has fewer than 1 device"), "{why}");
    assert!(filtered["FailedNodes"]["unknown"].as_str().unwrap().contains("not seen"), "{filtered}");
    // Nodes that come as objects go back as they came.
    let node =
        |name: &str| json!({"metadata": {"name": name, "labels": {"kept": "as it is"}}, "spec": {}, "status": {}});
    let nodes = json!({"metadata": {}, "items": [node("empty"), node("none")]});
    let answer = post(scheduler.extender_address, "/filter", &json!({"Pod": pod, "Nodes": nodes, "NodeNames": null}));
    assert_eq!(answer.body["Nodes"]["items"], json!([node("empty")]));
    assert!(answer.body.get("NodeNames").is_none());
    // What asks for nothing here passes.
    let mut plain = pod.clone();
    plain["spec"]["containers"] = json!([{"name": "main", "image": "none"}]);
    assert_eq!(kube.filter(&plain, &names)["NodeNames"], json!(names));
    // Two containers need room for both of their parts.
    let core = |percent: &str| json!({"limits": {"aliquot.dev/gpu-core": percent}});
    plain["spec"]["containers"] =
        json!([{"name": "a", "resources": core("30")}, {"name": "b", "resources": core("30")}]);
    assert_eq!(kube.filter(&plain, &names)["NodeNames"], json!(["empty"]));
    // What never can be says so on all nodes.
    plain["spec"]["containers"] = json!([{"name": "a", "resources": core("130")}]);
    let filtered = kube.filter(&plain, &names);
    assert_eq!(filtered["FailedAndUnresolvableNodes"].as_object().unwrap().len(), names.len(), "{filtered}");
    let own = json!({"metadata": pod["metadata"], "spec": {"schedulerName": "aliquot", "containers": []}});
    let filtered = kube.filter(&own, &["empty"]);
    assert!(filtered["FailedAndUnresolvableNodes"]["empty"].as_str().unwrap().contains("by itself"), "{filtered}");
}

#[test]
fn a_queue_limit_is_said_by_the_filter_and_by_the_binding() {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let queue = json!({
        "apiVersion": "aliquot.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "small"},
        "spec": {"resources": {"gpu": {"quota": 0.5, "limit": 0.5}}},
    });
    cluster.objects.create(&QUEUES, "", queue);
    let labels = json!({"aliquot.dev/queue": "small"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}});
    cluster.objects.replace(&NAMESPACES, "", namespace);
    let scheduler = cluster.scheduler();
    wait_until_it_answers(&cluster, &scheduler);
    let kube = KubeScheduler::new(&cluster, scheduler.extender_address);
    kube_pod(&cluster, "large", 60);
    let filtered = kube.filter(&cluster.get("large"), &["n"]);
    assert!(filtered["FailedNodes"]["n"].as_str().unwrap().contains("\"small\""), "{filtered}");
    assert!(kube.bind("large", "n").unwrap_err().contains("\"small\""));
    kube_pod(&cluster, "small", 40);
    assert_eq!(kube.bind("small", "n"), Ok(()));
}

#[test]
fn victims_are_kept_where_they_help_and_others_are_added() {
    let mut cluster = Cluster::start();
    cluster.node("n", 2);
    cluster.node("m", 1);
    cluster.node("o", 1);
    let scheduler = cluster.scheduler();
    wait_until_it_answers(&cluster, &scheduler);
    let kube = KubeScheduler::new(&cluster, scheduler.extender_address);
    for (name, percent, node) in [("a", 60, "n"), ("b", 60, "n"), ("c", 100, "m")] {
        kube_pod(&cluster, name, percent);
        assert_eq!(kube.bind(name, node), Ok(()));
    }
    // This one is not to be evicted for others.
    let stays = json!({
        "metadata": {"labels": {"aliquot.dev/preemptible": "false"}}, "spec": {"schedulerName": "default-scheduler"},
    });
    cluster.pod("stays", 60, stays);
    assert_eq!(kube.bind("stays", "o"), Ok(()));
    let important = json!({"spec": {"schedulerName": "default-scheduler", "priority": 50}});
    cluster.pod("new", 60, important);
    let uid = |name: &str| cluster.get(name)["metadata"]["uid"].clone();
    let asked = json!({
        "Pod": cluster.get("new"),
        "NodeNameToMetaVictims": {
            "n": {"Pods": [], "NumPDBViolations": 0},
            "m": {"Pods": [{"UID": uid("c")}], "NumPDBViolations": 1},
            "o": {"Pods": [], "NumPDBViolations": 0},
            "unknown": {"Pods": [], "NumPDBViolations": 0},
        },
    });
    cluster.wait_until("one victim is enough on each node", |_| {
        let answer = post(scheduler.extender_address, "/preempt", &asked);
        let victims = &answer.body["NodeNameToMetaVictims"];
        let of_n = victims["n"]["Pods"].as_array().cloned().unwrap_or_default();
        let is_one = of_n.len() == 1 && [uid("a"), uid("b")].contains(&of_n[0]["UID"]);
        let is_kept = victims["m"] == json!({"Pods": [{"UID": uid("c")}], "NumPDBViolations": 1});
        assert!(victims.get("unknown").is_none(), "{victims}");
        is_one && is_kept && victims.get("o").is_none()
    });
    // As pods in place of their UIDs; and who is not more important evicts nobody.
    kube_pod(&cluster, "equal", 60);
    let asked = json!({
        "Pod": cluster.get("equal"),
        "NodeNameToVictims": {"n": {"Pods": null, "NumPDBViolations": 0}, "m": {"Pods": [cluster.get("c")]}},
    });
    let answer = post(scheduler.extender_address, "/preempt", &asked);
    let nodes: Vec<&String> = answer.body["NodeNameToMetaVictims"].as_object().unwrap().keys().collect();
    assert_eq!(nodes, ["m"], "{}", answer.body);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let (cluster, scheduler) = Cluster::with_one_gpu();
    wait_until_it_answers(&cluster, &scheduler);
    let address = scheduler.extender_address;
    for (path, body, expected) in [
        ("/filter", &b"{"[..], "the body is not a request of kube-scheduler"),
        ("/filter", b"3", "the body is not a request of kube-scheduler"),
        ("/prioritize", b"{}", "neither NodeNames nor Nodes"),
        ("/preempt", b"{\"Pod\": 3}", "the body is not a request of kube-scheduler"),
        ("/preempt", b"{}", "neither NodeNameToMetaVictims nor"),
        ("/bind", b"{}", "PodName"),
    ] {
        let answer = send(address, &format!("POST {path}"), body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(answer.body["Error"].as_str().unwrap().contains(expected), "{path}: {}", answer.body);
    }
    let answer = send(address, "POST /filter", b"{}");
    assert_eq!(answer.status, 200);
    assert!(answer.body["Error"].as_str().unwrap().contains("neither NodeNames nor Nodes"), "{}", answer.body);
    let answer = send(address, "POST /bind", &vec![b' '; 100 << 10]);
    assert_eq!(answer.status, 413, "{}", answer.body);
    assert_eq!(send(address, "GET /inspect/unknown", b"").status, 404);
    assert_eq!(send(address, "POST /unknown", b"{}").status, 404);
    let args = json!({"PodName": "x", "PodNamespace": "default", "PodUID": "none", "Node": "n"});
    let answer = post(scheduler.extender_address, "/bind", &args);
    assert!(answer.body["Error"].as_str().unwrap().contains("there is no pod default/x"), "{}", answer.body);
}

#[test]
fn a_replica_that_stands_by_sends_kube_scheduler_to_the_leader() {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let leader = cluster.scheduler();
    wait_until_it_answers(&cluster, &leader);
    let second = cluster.scheduler();
    let expected = format!("location: http://{}/gpushare-scheduler/filter", leader.extender_address);
    cluster.wait_until("the second replica knows the leader", |_| {
        let answer = post(second.extender_address, "/gpushare-scheduler/filter", &json!({}));
        assert!([307, 503].contains(&answer.status), "{}", answer.head);
        answer.status == 307 && answer.head.to_lowercase().contains(&expected)
    });
    leader.stop();
    wait_until_it_answers(&cluster, &second);
}

#[test]
fn many_bindings_at_once_give_no_device_twice() {
    const NODES: usize = 10;
    const PODS: usize = 200;
    const THREADS: usize = 16;
    let mut cluster = Cluster::start();
    (0..NODES).for_each(|node| cluster.node(&format!("n{node}"), 4));
    let scheduler = cluster.scheduler();
    wait_until_it_answers(&cluster, &scheduler);
    let percents = [20, 30, 40, 50];
    // Otherwise one may be moved to make room in one place: then it is bound, and gone.
    let stays = |scheduler: &str| json!({"metadata": {"labels": {"aliquot.dev/preemptible": "false"}}, "spec": {"schedulerName": scheduler}});
    for pod in 0..PODS {
        cluster.pod(&format!("kube-{pod}"), percents[pod % percents.len()], stays("default-scheduler"));
    }
    let (next, bound) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cluster, address, next, bound) = (&cluster, scheduler.extender_address, &next, &bound);
            scope.spawn(move || {
                let kube = KubeScheduler::new(cluster, address);
                loop {
                    let pod = next.fetch_add(1, Ordering::SeqCst);
                    if pod >= PODS {
                        return;
                    }
                    // Any node will do: it may be full.
                    let is_bound = (0..NODES).any(|turn| {
                        let node = format!("n{}", (pod * 7 + thread + turn) % NODES);
                        kube.bind(&format!("kube-{pod}"), &node).is_ok()
                    });
                    bound.fetch_add(usize::from(is_bound), Ordering::SeqCst);
                }
            });
        }
        scope.spawn(|| (0..60).for_each(|pod| cluster.pod(&format!("own-{pod}"), percents[pod % 4], stays("aliquot"))));
    });
    let of_kube = |cluster: &Cluster| cluster.bound().keys().filter(|name| name.starts_with("kube-")).count();
    assert_eq!(of_kube(&cluster), bound.load(Ordering::SeqCst), "each answer is true");
    check_devices(&cluster);
    // 40 GPUs hold at least so many, and every pod that names this scheduler is bound or says why it waits.
    assert!(cluster.bound().len() > 100, "{}", cluster.bound().len());
    cluster.wait_until("the others say why they wait", |cluster| {
        let bound = cluster.bound();
        (0..60)
            .map(|pod| format!("own-{pod}"))
            .all(|name| bound.contains_key(&name) || cluster.why_waiting(&name).is_some())
    });
    check_devices(&cluster);
}

#[test]
fn a_leader_that_dies_while_it_binds_loses_nothing() {
    let mut cluster = Cluster::with_faults();
    cluster.node("n", 1);
    cluster.node("m", 1);
    // The first binding is done, and its answer is lost; the second one is not done.
    cluster.server().set_fault(|_, path| match path {
        _ if path.ends_with("/done/binding") => Fault::AnswerLost,
        _ if path.ends_with("/lost/binding") => Fault::Refused,
        _ => Fault::None,
    });
    let leader = cluster.scheduler();
    wait_until_it_answers(&cluster, &leader);
    kube_pod(&cluster, "done", 60);
    kube_pod(&cluster, "lost", 60);
    thread::scope(|scope| {
        for (name, node) in [("done", "n"), ("lost", "m")] {
            let uid = cluster.get(name)["metadata"]["uid"].clone();
            let args = json!({"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}).to_string();
            let address = leader.extender_address;
            // Nobody hears the answer.
            scope.spawn(move || {
                let mut connection = TcpStream::connect(address).unwrap();
                let head = format!("POST /bind HTTP/1.1\r\nhost: replica\r\ncontent-length: {}\r\n\r\n", args.len());
                connection.write_all(format!("{head}{args}").as_bytes()).unwrap();
                _ = connection.read(&mut [0]);
            });
        }
        let calls = |cluster: &Cluster| {
            let calls = cluster.server().calls();
            calls.iter().any(|call| call.resource == "pods/binding")
        };
        cluster.wait_until("a binding is on its way", calls);
        cluster.wait_until("one pod is bound", |cluster| cluster.bound().contains_key("done"));
        leader.kill();
    });
    cluster.server().set_fault(|_, _| Fault::None);
    let next = cluster.scheduler();
    wait_until_it_answers(&cluster, &next);
    let kube = KubeScheduler::new(&cluster, next.extender_address);
    let before = cluster.get("done")["metadata"]["annotations"]["aliquot.dev/generation"].clone();
    assert_eq!(kube.bind("done", "n"), Ok(()), "it is bound already");
    assert_eq!(cluster.get("done")["metadata"]["annotations"]["aliquot.dev/generation"], before);
    assert_eq!(kube.bind("lost", "m"), Ok(()));
    kube_pod(&cluster, "late", 60);
    assert!(kube.bind("late", "n").is_err() && kube.bind("late", "m").is_err());
    cluster.objects.delete(&aliquot_test_api_server::PODS, "default", "lost");
    cluster.wait_until("the devices are given back", |_| kube.bind("late", "m").is_ok());
    check_devices(&cluster);
}

#[test]
fn a_refused_binding_is_told_and_gives_its_devices_back() {
    let (cluster, scheduler) = Cluster::with_one_gpu_and_faults();
    wait_until_it_answers(&cluster, &scheduler);
    let kube = KubeScheduler::new(&cluster, scheduler.extender_address);
    kube_pod(&cluster, "a", 100);
    cluster.server().set_fault(|_, path| if path.ends_with("/binding") { Fault::Forbidden } else { Fault::None });
    assert!(kube.bind("a", "n").is_err());
    cluster.server().set_fault(|_, _| Fault::None);
    kube_pod(&cluster, "b", 100);
    cluster.wait_until("another pod has its devices", |_| kube.bind("b", "n").is_ok());
    assert!(cluster.get("a")["spec"]["nodeName"].is_null());
}

#[test]
#[ignore = "a measurement: see deploy/kubernetes/README.md"]
fn how_long_answers_take_on_a_thousand_nodes() {
    const NODES: usize = 1000;
    let mut cluster = Cluster::start();
    (0..NODES).for_each(|node| cluster.node(&format!("n{node}"), 8));
    let scheduler = cluster.scheduler();
    wait_until_it_answers(&cluster, &scheduler);
    let kube = KubeScheduler::new(&cluster, scheduler.extender_address);
    (0..50).for_each(|pod| kube_pod(&cluster, &format!("p{pod}"), 30));
    let names: Vec<String> = (0..NODES).map(|node| format!("n{node}")).collect();
    let nodes = cluster.objects.list(&aliquot_test_api_server::NODES);
    let by_name = json!({"Pod": cluster.get("p0"), "NodeNames": names});
    let by_node = json!({"Pod": cluster.get("p0"), "Nodes": {"metadata": {}, "items": nodes}});
    for (what, path, body) in [
        ("filter by names", "/filter", &by_name),
        ("filter by nodes", "/filter", &by_node),
        ("prioritize by names", "/prioritize", &by_name),
        ("prioritize by nodes", "/prioritize", &by_node),
    ] {
        let times = (0..20).map(|_| {
            let began = Instant::now();
            assert_eq!(post(scheduler.extender_address, path, body).status, 200);
            began.elapsed().as_secs_f64() * 1000.0
        });
        print_times(what, times.collect());
    }
    let times = (0..50).map(|pod| {
        let began = Instant::now();
        assert_eq!(kube.bind(&format!("p{pod}"), &format!("n{pod}")), Ok(()));
        began.elapsed().as_secs_f64() * 1000.0
    });
    print_times("bind", times.collect());
}

fn print_times(what: &str, mut times_ms: Vec<f64>) {
    times_ms.sort_by(f64::total_cmp);
    let last = times_ms.len() - 1;
    println!("{what}: {:.1} ms (median), {:.1} ms (the longest)", times_ms[last / 2], times_ms[last]);
}
