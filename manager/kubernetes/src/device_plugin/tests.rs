//! The plugin against kubelet's protocols.

mod node_status;
mod removal;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_api_server::{Inventory, InventoryDevice};
use aliquot_dialects::{Dialect, NodeFacts, Pod, Spoken};
use aliquot_node::{Consumer, QosClass};
use aliquot_proto::kubelet::device_plugin as proto;
use proto::device_plugin_client::DevicePluginClient;
use tempfile::TempDir;
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::test_kubelet::TestKubelet;
use super::test_node::{GIB, TestNode, device, pod};
use super::*;

const CORE: &str = "aliquot.dev/gpu-core";
const MEMORY: &str = "aliquot.dev/gpu-memory";

#[derive(Default)]
struct TestCluster {
    pods: Mutex<BTreeMap<String, Pod>>,
    /// The node's status; the first write is refused.
    counted: Mutex<BTreeMap<&'static str, u64>>,
    refuses_counts: AtomicBool,
    /// The node's annotation; the first write is refused.
    described: Mutex<Option<Inventory>>,
    refuses_descriptions: AtomicBool,
    /// The events, each with its subject.
    events: Mutex<Vec<(String, String)>>,
}

#[tonic::async_trait]
impl Cluster for TestCluster {
    async fn pod(&self, _namespace: &str, name: &str) -> Result<Option<KnownPod>, String> {
        let pods = self.pods.lock().unwrap();
        Ok(pods.get(name).cloned().map(|pod| KnownPod { uid: format!("uid-of-{name}"), pod }))
    }

    async fn has_gone(&self, _namespace: &str, name: &str) -> Option<bool> {
        Some(!self.pods.lock().unwrap().contains_key(name))
    }

    async fn refused(&self, container: &Consumer, pod_uid: &str, reason: &str) {
        assert_eq!(pod_uid, format!("uid-of-{}", container.pod));
        self.events.lock().unwrap().push((container.to_string(), reason.to_owned()));
    }

    async fn evict(&self, container: &Consumer, pod_uid: &str, reason: &str) {
        self.refused(container, pod_uid, &format!("evicted: {reason}")).await;
    }

    async fn not_read(&self, container: &Consumer, pod_uid: &str, text: &str) {
        self.refused(container, pod_uid, text).await;
    }

    async fn count(&self, amounts: &BTreeMap<&'static str, u64>) -> Result<(), String> {
        if self.refuses_counts.swap(false, Ordering::Relaxed) {
            return Err("not now".to_owned());
        }
        *self.counted.lock().unwrap() = amounts.clone();
        Ok(())
    }

    async fn describe(&self, inventory: Option<&Inventory>) -> Result<(), String> {
        if self.refuses_descriptions.swap(false, Ordering::Relaxed) {
            return Err("not now".to_owned());
        }
        *self.described.lock().unwrap() = inventory.cloned();
        Ok(())
    }

    async fn not_offered(&self, reason: &str) {
        self.events.lock().unwrap().push(("node".to_owned(), reason.to_owned()));
    }
}

/// A node with a kubelet and the plugin.
struct World {
    node: Arc<TestNode>,
    kubelet: TestKubelet,
    cluster: Arc<TestCluster>,
    config: Config,
    plugin: JoinSet<()>,
    dir: TempDir,
}

impl World {
    fn new(devices: u32, dialects: &[Dialect], gone_grace: Duration) -> World {
        let dir = tempfile::tempdir().unwrap();
        let node = TestNode::new((0..devices).map(|number| device(number, 16)).collect());
        let kubelet = TestKubelet::start(dir.path());
        let cluster = Arc::new(TestCluster::default());
        let facts = NodeFacts { whole_devices: true, ..NodeFacts::default() };
        let spoken = Spoken::new(dialects.iter().copied()).unwrap();
        let config = Config { spoken, facts, gone_grace, room_grace: Duration::ZERO };
        let mut world = World { node, kubelet, cluster, config, plugin: JoinSet::new(), dir };
        world.serve();
        world
    }

    fn serve(&mut self) {
        let pod_resources = Arc::new(PodResources::new(self.dir.path()));
        let serves = Serves::Kubelet(self.dir.path().into());
        let (config, node, cluster) = (self.config.clone(), self.node.clone(), self.cluster.clone());
        self.plugin.spawn(run(config, serves, node, cluster, pod_resources));
    }

    /// Ends the plugin and kubelet, and starts both again.
    async fn restart(&mut self) {
        self.plugin.shutdown().await;
        self.kubelet.restart();
        self.serve();
    }

    async fn watch(&self, resource: &str) -> Streaming<proto::ListAndWatchResponse> {
        let mut plugin = self.kubelet.plugin(resource).await;
        plugin.list_and_watch(proto::Empty {}).await.unwrap().into_inner()
    }

    /// Acts as kubelet when a pod is admitted: takes units as they are preferred, and asks for their devices.
    async fn admit(&self, name: &str, resources: &[(&str, &str)], annotations: &[(&str, &str)]) -> Vec<String> {
        self.cluster.pods.lock().unwrap().insert(name.into(), pod("main", resources, annotations));
        let mut cdi_devices = Vec::new();
        for (resource, count) in resources {
            let mut plugin = self.kubelet.plugin(resource).await;
            let ids = self.preferred(&mut plugin, resource, count.parse().unwrap()).await;
            cdi_devices.extend(self.allocate(name, resource, &ids).await);
        }
        cdi_devices
    }

    /// Gives these units to a pod, and returns their CDI devices.
    async fn allocate(&self, pod: &str, resource: &str, ids: &[String]) -> Vec<String> {
        let mut plugin = self.kubelet.plugin(resource).await;
        let container_requests = vec![proto::ContainerAllocateRequest { device_ids: ids.to_vec() }];
        let answer = plugin.allocate(proto::AllocateRequest { container_requests }).await.unwrap().into_inner();
        self.kubelet.give(pod, resource, ids);
        answer.container_responses[0].cdi_devices.iter().map(|device| device.name.clone()).collect()
    }

    /// Writes kubelet's checkpoint: only the containers `main` of these pods, with these UIDs, have units.
    fn record(&self, pods: &[(&str, &str)]) {
        let mut entries = Vec::new();
        for (pod, uid) in pods {
            for (resource, ids) in self.kubelet.units(pod) {
                entries.push(serde_json::json!({
                    "PodUID": uid, "ContainerName": "main", "ResourceName": resource, "DeviceIDs": {"-1": ids},
                }));
            }
        }
        let checkpoint = serde_json::json!({"Data": {"PodDeviceEntries": entries}});
        let path = self.dir.path().join("device-plugins/kubelet_internal_checkpoint");
        std::fs::write(path, checkpoint.to_string()).unwrap();
    }

    async fn preferred(&self, plugin: &mut DevicePluginClient<Channel>, resource: &str, count: i32) -> Vec<String> {
        let taken = self.kubelet.taken(resource);
        let listed = plugin.list_and_watch(proto::Empty {}).await.unwrap().into_inner().next().await.unwrap().unwrap();
        let free = listed.devices.into_iter().filter(|unit| unit.health == "Healthy" && !taken.contains(&unit.id));
        let container_requests = vec![proto::ContainerPreferredAllocationRequest {
            available_device_ids: free.map(|unit| unit.id).collect(),
            must_include_device_ids: Vec::new(),
            allocation_size: count,
        }];
        let request = proto::PreferredAllocationRequest { container_requests };
        let answer = plugin.get_preferred_allocation(request).await.unwrap().into_inner();
        answer.container_responses[0].device_ids.clone()
    }

    /// Acts as kubelet before it creates the container.
    async fn start(&self, pod: &str) -> Result<(), Status> {
        for (resource, ids) in self.kubelet.units(pod) {
            let mut plugin = self.kubelet.plugin(&resource).await;
            plugin.pre_start_container(proto::PreStartContainerRequest { device_ids: ids }).await?;
        }
        Ok(())
    }

    fn slice(&self, pod: &str) -> Option<node::Slice> {
        self.node.get(&format!("pod.default.{pod}.main"))
    }
}

/// The longest wait. It is generous, because machines that run tests are slow and shared.
const DEADLINE: Duration = Duration::from_secs(180);

/// Waits for an answer with `count` healthy units.
async fn healthy(units: &mut Streaming<proto::ListAndWatchResponse>, count: usize) {
    let listed = async {
        loop {
            let listed = units.next().await.unwrap().unwrap();
            if listed.devices.iter().filter(|unit| unit.health == "Healthy").count() == count {
                return;
            }
        }
    };
    let listed = tokio::time::timeout(DEADLINE, listed).await;
    listed.unwrap_or_else(|_| panic!("there are never {count} healthy units"));
}

/// Waits until `look` returns a value. `what` describes it in the message of a failure.
async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Waits until `condition` holds. See [`until`].
async fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(())).await;
}

const LONG: Duration = Duration::from_secs(3600);
const THIRD: [(&str, &str); 2] = [(CORE, "30"), (MEMORY, "16")];

#[tokio::test]
async fn an_unknown_annotation_is_an_event_and_blocks_nothing() {
    let world = World::new(1, &[], LONG);
    world.admit("a", &THIRD, &[("aliquot.dev/priority", "batch")]).await;
    world.start("a").await.unwrap();
    let (container, text) = until("an event", || world.cluster.events.lock().unwrap().first().cloned()).await;
    assert_eq!(container, "default/a/main");
    assert!(text.starts_with("aliquot.dev/priority changes nothing; there are aliquot.dev/gpu-core-limit"), "{text}");
}

#[tokio::test]
async fn a_container_starts_in_the_slice_of_both_its_resources() {
    let world = World::new(2, &[], LONG);
    let cdi_devices = world.admit("a", &THIRD, &[("aliquot.dev/priority-class", "batch")]).await;
    assert!(world.node.list().is_empty());
    world.start("a").await.unwrap();
    let slice = world.slice("a").unwrap();
    let aliases: Vec<String> =
        slice.content.aliases.iter().map(|alias| CdiName::of_slice(alias).as_str().to_owned()).collect();
    assert_eq!(aliases.len(), 2);
    assert!(cdi_devices.iter().all(|device| aliases.contains(device)), "{cdi_devices:?} {aliases:?}");
    let part = &slice.content.parts[0];
    assert_eq!((part.core_request_percent, part.core_limit_percent, part.memory_limit_bytes), (30, 30, 4 * GIB));
    assert_eq!(slice.content.qos_class, Some(QosClass::Batch));
    let consumer = Consumer { namespace: "default".into(), pod: "a".into(), container: "main".into() };
    assert_eq!(slice.consumers, [consumer].into());
    world.start("a").await.unwrap();
    assert_eq!(world.node.list(), [slice]);
}

#[tokio::test]
async fn a_slice_outlives_what_is_told_late_but_not_its_pod() {
    let mut world = World::new(2, &[], LONG);
    world.admit("a", &THIRD, &[]).await;
    let units = world.kubelet.units("a");
    world.record(&[("a", "uid-1")]);
    world.start("a").await.unwrap();
    let slice = world.slice("a").unwrap();
    // The message of a relay that is late.
    world.allocate("a", MEMORY, &units[MEMORY]).await;
    assert_eq!(world.node.list(), [slice]);
    // The next pod of that name gets the same units.
    let comes_again = |world: &World, uid: &str, limit: &str| {
        let pod = pod("main", &THIRD, &[("aliquot.dev/gpu-core-limit", limit)]);
        world.cluster.pods.lock().unwrap().insert("a".into(), pod);
        world.record(&[("a", uid)]);
    };
    let limit = |world: &World| world.slice("a").unwrap().content.parts[0].core_limit_percent;
    comes_again(&world, "uid-2", "40");
    world.allocate("a", MEMORY, &units[MEMORY]).await;
    world.start("a").await.unwrap();
    assert_eq!(limit(&world), 40);
    // And the pod after that: nothing was told before it starts, and this plugin has not made the slice.
    world.restart().await;
    comes_again(&world, "uid-3", "50");
    world.start("a").await.unwrap();
    assert_eq!(limit(&world), 50);
}

#[tokio::test]
async fn a_pod_with_another_one_s_units_waits_and_takes_no_slice() {
    let mut world = World::new(2, &[], LONG);
    world.admit("a", &THIRD, &[]).await;
    world.record(&[("a", "uid-a")]);
    world.start("a").await.unwrap();
    let slice = world.slice("a").unwrap();
    // The next process must know which pod this one has made the slice for.
    world.restart().await;
    // Kubelet has forgotten that it gave the memory away.
    world.admit("b", &THIRD, &[]).await;
    world.allocate("b", MEMORY, &world.kubelet.units("a")[MEMORY]).await;
    world.record(&[("b", "uid-b"), ("a", "uid-a")]);
    let refusal = world.start("b").await.unwrap_err();
    assert!(refusal.message().starts_with("kubelet has given units of default/a/main also to this pod"), "{refusal}");
    world.start("a").await.unwrap();
    assert_eq!(world.node.list(), [slice]);
    world.kubelet.forget("a");
    world.record(&[("b", "uid-b")]);
    world.start("b").await.unwrap();
    assert!(world.slice("b").is_some());
}

#[tokio::test]
async fn two_containers_with_the_same_amounts_are_told_apart_by_their_units() {
    let world = World::new(2, &[], LONG);
    for pod in ["a", "b"] {
        world.admit(pod, &THIRD, &[("aliquot.dev/gpu-core-limit", if pod == "a" { "40" } else { "50" })]).await;
    }
    world.start("b").await.unwrap();
    world.start("a").await.unwrap();
    let limit = |pod| world.slice(pod).unwrap().content.parts[0].core_limit_percent;
    assert_eq!((limit("a"), limit("b")), (40, 50));
}

#[tokio::test]
async fn many_containers_at_once_share_the_questions_to_kubelet() {
    let world = World::new(4, &[], LONG);
    let names: Vec<String> = (0..100).map(|number| format!("p{number}")).collect();
    for name in &names {
        world.admit(name, &[(CORE, "4"), (MEMORY, "2")], &[]).await;
    }
    let asked = world.kubelet.lists();
    world.kubelet.reject(3);
    // Long enough for the other requests to arrive, even if they are slow.
    world.kubelet.answer_after(Duration::from_millis(100));
    let starts: Vec<_> = names.iter().map(|name| world.start(name)).collect();
    for started in futures_all(starts).await {
        started.unwrap();
    }
    assert_eq!(world.node.list().len(), 100);
    for name in &names {
        let consumers = world.slice(name).unwrap().consumers;
        assert!(consumers.len() == 1 && consumers.iter().all(|consumer| consumer.pod == *name), "{consumers:?}");
    }
    assert!(world.kubelet.lists() - asked < 100, "{}", world.kubelet.lists() - asked);
}

/// Waits for all of them, in turn.
async fn futures_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outcomes: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, outcome) in futures.iter_mut().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *outcome = Some(value);
            }
        }
        if outcomes.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    outcomes.into_iter().flatten().collect()
}

#[tokio::test]
async fn only_who_would_find_room_on_the_empty_node_waits_for_room() {
    let world = World::new(1, &[Dialect::Hami], LONG);
    let taken = super::test_node::slice_of("train", &device(0, 16), 30, GIB);
    world.node.create(&taken.content).unwrap();
    let spoken = Spoken::new([Dialect::Hami]).unwrap();
    let (facts, all_devices) = (NodeFacts::default(), world.node.devices().borrow().clone());
    let resources = Resource::all(&spoken, &facts, &all_devices);
    let waits = async |name: &str, asked: &[(&str, &str)], annotations: &[(&str, &str)]| {
        let pod_resources = Arc::new(PodResources::new(world.dir.path()));
        let (node, cluster) = (world.node.clone(), world.cluster.clone());
        let preparer =
            Preparer::new(node, cluster, pod_resources, spoken.clone(), facts.clone(), ChoiceLock::default());
        world.cluster.pods.lock().unwrap().insert(name.into(), pod("main", asked, annotations));
        let resource = resources.iter().find(|resource| resource.name == asked[0].0).unwrap();
        let ids = [unit_id::unit_id(&device(0, 16).uuid, 0)];
        world.kubelet.give(name, &resource.name, &ids);
        let refusal = preparer.prepare(resource, &ids.into()).await.unwrap_err().to_string();
        assert!(refusal.starts_with("no device found that will do"), "{refusal}");
        world.kubelet.forget(name);
        preparer.waits().are_split(&world.node.list())
    };
    assert!(waits("full", &[(CORE, "80")], &[]).await);
    assert!(!waits("too-big", &[(CORE, "10"), (MEMORY, "65")], &[]).await);
    let elsewhere = [("nvidia.com/use-gpuuuid", "GPU-of-another-node")];
    assert!(!waits("bound", &[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "1000")], &elsewhere).await);
    // A container with a decision for a full device shows nothing about the other devices, which may have room.
    let decided = format!("main={}/800/1", device(0, 16).uuid);
    assert!(!waits("sent", &[(CORE, "80")], &[("aliquot.dev/devices", &decided)]).await);
    // A container that waits for a device to recover waits for room.
    world.node.change(0, |device| device.problem = Some("Xid 79".into()));
    assert!(waits("ill", &[(CORE, "10")], &[]).await);
}

#[tokio::test]
async fn the_plugin_registers_again_when_kubelet_was_restarted() {
    let mut world = World::new(1, &[], LONG);
    world.admit("a", &THIRD, &[]).await;
    world.start("a").await.unwrap();
    world.kubelet.restart();
    let mut core = world.watch(CORE).await;
    healthy(&mut core, 100).await;
    world.start("a").await.unwrap();
    assert_eq!(world.node.list().len(), 1);
}

#[tokio::test]
async fn ill_devices_have_no_healthy_units_until_they_are_well() {
    let world = World::new(2, &[], LONG);
    let mut core = world.watch(CORE).await;
    healthy(&mut core, 200).await;
    world.node.change(1, |device| device.problem = Some("Xid 79".into()));
    healthy(&mut core, 100).await;
    world.node.change(1, |device| device.problem = None);
    healthy(&mut core, 200).await;
}

#[tokio::test]
async fn whole_devices_are_the_ones_that_kubelet_chose_and_leave_no_shares() {
    let world = World::new(2, &[], LONG);
    let mut core = world.watch(CORE).await;
    world.admit("a", &[("aliquot.dev/gpu", "1")], &[]).await;
    let chosen = world.kubelet.units("a")["aliquot.dev/gpu"][0].clone();
    world.start("a").await.unwrap();
    let part = world.slice("a").unwrap().content.parts[0].clone();
    assert_eq!((part.core_request_percent, part.memory_limit_bytes), (100, 16 * GIB));
    assert_eq!(unit_id::device_of(&chosen), Some(part.device_uuid.as_str()));
    healthy(&mut core, 100).await;
}

#[tokio::test]
async fn other_systems_resources_bring_their_variables_along() {
    let world = World::new(1, &[Dialect::GpuShare], LONG);
    world.admit("a", &[("aliyun.com/gpu-mem", "4")], &[]).await;
    world.start("a").await.unwrap();
    let content = world.slice("a").unwrap().content;
    let part = &content.parts[0];
    assert_eq!((part.core_request_percent, part.core_limit_percent, part.memory_limit_bytes), (25, 100, 4 * GIB));
    assert_eq!(content.environment["ALIYUN_COM_GPU_MEM_CONTAINER"], "4");
    assert_eq!(content.environment["ALIYUN_COM_GPU_MEM_DEV"], "16");
}

#[tokio::test]
async fn who_was_sent_to_a_full_device_is_refused_and_told_so() {
    let world = World::new(2, &[], LONG);
    let decided = format!("main={}/300/1", device(1, 16).uuid);
    let sent = [("aliquot.dev/devices", decided.as_str())];
    world.admit("a", &[(CORE, "90"), (MEMORY, "16")], &sent).await;
    world.start("a").await.unwrap();
    let part = world.slice("a").unwrap().content.parts[0].clone();
    // The pod itself says how much it gets.
    assert_eq!((part.device_uuid, part.core_request_percent), (device(1, 16).uuid, 90));
    world.admit("b", &THIRD, &sent).await;
    let refusal = world.start("b").await.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    let says =
        format!("no device found that will do of those that the scheduler has decided on ({})", device(1, 16).uuid);
    assert!(refusal.message().starts_with(&says), "{refusal}");
}

#[tokio::test]
async fn what_a_scheduler_has_decided_takes_nothing_off_the_offer() {
    let mut world = World::new(1, &[], LONG);
    let decided = format!("main={}/300/1", device(0, 16).uuid);
    world.admit("a", &[(CORE, "100"), (MEMORY, "4")], &[("aliquot.dev/devices", &decided)]).await;
    world.start("a").await.unwrap();
    // Its scheduler binds the next pod as soon as this one is gone, before the plugin has seen that.
    let all = 16 * usize::try_from(GIB / (256 << 20)).unwrap();
    healthy(&mut world.watch(MEMORY).await, all).await;
    world.restart().await;
    healthy(&mut world.watch(MEMORY).await, all).await;
    // Where no scheduler has decided, only the plugin knows that the rest of the memory is of no use.
    world.kubelet.forget("a");
    world.cluster.pods.lock().unwrap().remove("a");
    world.admit("b", &[(CORE, "100"), (MEMORY, "4")], &[]).await;
    world.start("b").await.unwrap();
    healthy(&mut world.watch(MEMORY).await, 4).await;
}

#[tokio::test]
async fn what_cannot_be_given_is_refused_with_a_reason_and_leaves_nothing_behind() {
    let world = World::new(1, &[Dialect::GpuShare], LONG);
    world.admit("mixed", &[(CORE, "30"), ("aliyun.com/gpu-mem", "4")], &[]).await;
    let refusal = world.start("mixed").await.unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument);
    assert!(refusal.message().contains("are of two systems"), "{refusal}");
    let event = until("an event", || world.cluster.events.lock().unwrap().pop()).await;
    assert_eq!(event, ("default/mixed/main".to_owned(), refusal.message().to_owned()));

    world.admit("gone", &THIRD, &[]).await;
    world.cluster.pods.lock().unwrap().remove("gone");
    let refusal = world.start("gone").await.unwrap_err();
    assert_eq!(refusal.code(), Code::Unavailable);
    assert!(refusal.message().contains("cannot read pod default/gone"), "{refusal}");

    let mut core = world.kubelet.plugin(CORE).await;
    let strange = proto::PreStartContainerRequest { device_ids: vec!["GPU-1::0".into()] };
    let refusal = core.pre_start_container(strange).await.unwrap_err();
    assert_eq!(refusal.code(), Code::NotFound);
    assert!(refusal.message().contains("units of aliquot.dev/gpu-core: GPU-1::0"), "{refusal}");
    assert!(world.node.list().is_empty());
}
