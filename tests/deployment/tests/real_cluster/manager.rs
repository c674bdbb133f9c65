//! The managers, deployed as the manifests say.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aliquot_deployment::directory;
use aliquot_harness::{SimulatedGpu, artifacts, run, tool, wait};
use serde_json::{Value, json};

use super::cluster::Cluster;

pub(crate) const NAMESPACE: &str = "aliquot-system";
const DAEMON_SET: &str = "daemonset/aliquot-manager";
/// The port of the metrics, as in the manifest.
const METRICS_PORT: u16 = 9405;

/// How pods ask for slices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By claims of the DRA driver.
    Claims,
    /// By units of the device plugin.
    Units,
}

impl Mode {
    /// The manifests, below `deploy/kubernetes`.
    pub(crate) fn directory(self) -> &'static str {
        match self {
            Mode::Claims => "dra",
            Mode::Units => "device-plugin",
        }
    }
}

/// How the managers are deployed.
#[derive(Clone, Copy)]
pub(crate) struct Deployment {
    pub(crate) mode: Mode,
    /// Further keys of the configuration's table `kubernetes`.
    pub(crate) settings: &'static str,
    /// The devices of a simulated machine, as its configuration has them.
    pub(crate) machine: &'static str,
}

pub(crate) struct Manager<'a> {
    cluster: &'a Cluster,
    deployment: Deployment,
    /// The simulated GPU, if there is one.
    gpu: Option<&'a SimulatedGpu>,
    /// The name of the image that the manager's and the scheduler's pods run.
    image: String,
}

/// An image of the managers that is made and brought to the nodes meanwhile. To pack it takes long.
pub(crate) struct ImageUnderWay(JoinHandle<String>);

impl Manager<'_> {
    /// Deploys the managers, and waits until they serve. With `gpu`, a simulated GPU takes the place of NVIDIA's
    /// driver.
    pub(crate) fn deploy<'a>(
        cluster: &'a Cluster,
        deployment: &Deployment,
        gpu: Option<&'a SimulatedGpu>,
    ) -> Manager<'a> {
        let image = import_image(cluster, artifacts::manager());
        let manager = Manager { cluster, deployment: *deployment, gpu, image };
        let mut objects = cluster.kustomized(&[deployment.mode.directory()], &[]);
        objects.iter_mut().for_each(|object| manager.adapt(object));
        // Objects in a namespace come after the namespace.
        objects.sort_by_key(|object| object["kind"] != "Namespace");
        cluster.apply(&objects);
        // Pods that an earlier run has left are replaced, because their image has another name.
        manager.wait();
        manager
    }

    /// Changes an object of the manifests for the deployment of the test.
    pub(crate) fn adapt(&self, object: &mut Value) {
        match object["kind"].as_str() {
            Some("DaemonSet" | "Deployment") => {
                let is_manager = object["kind"] == "DaemonSet";
                let pod = &mut object["spec"]["template"]["spec"];
                for kind in ["initContainers", "containers"] {
                    for container in pod[kind].as_array_mut().into_iter().flatten() {
                        container["image"] = self.image.as_str().into();
                        container["imagePullPolicy"] = "Never".into();
                    }
                }
                if let Some(gpu) = self.gpu.filter(|_| is_manager) {
                    simulate(pod, gpu);
                }
            }
            Some("ConfigMap") => {
                let settings = object["data"]["manager.toml"].as_str().unwrap();
                // The table `kubernetes` is the last one.
                let mut settings = format!("{settings}{}", self.deployment.settings);
                if let Some(gpu) = self.gpu {
                    let nvml = format!("nvml_library = {:?}\n", gpu.nvml_library());
                    settings = format!("{nvml}{settings}\n{}", gpu.for_containers(""));
                }
                object["data"]["manager.toml"] = settings.into();
            }
            _ => {}
        }
    }

    /// Waits until all managers serve that were deployed last.
    pub(crate) fn wait(&self) {
        let arguments = ["rollout", "status", DAEMON_SET, "--namespace", NAMESPACE, "--timeout=180s"];
        self.cluster.try_kubectl(&arguments, "").unwrap_or_else(|error| panic!("{error}\n{}", self.state()));
    }

    /// Waits until the managers have been ready for as long as the DaemonSet wants. Kubernetes 1.36.2 can forget a rollout
    /// that begins earlier: the controller's timer for the old pod takes the place of the one for the new pod, fires
    /// before the new pod counts as available, and no other follows.
    pub(crate) fn wait_until_available(&self) {
        let get = ["get", DAEMON_SET, "--namespace", NAMESPACE, "--output=json"];
        wait::until_true("the managers are available", || {
            let daemon_set: Value = serde_json::from_str(&self.cluster.kubectl(&get, "")).unwrap();
            let status = &daemon_set["status"];
            status["numberAvailable"] == status["desiredNumberScheduled"]
        });
    }

    /// The status of the managers' DaemonSet and of their pods, and the end of a manager's log.
    pub(crate) fn state(&self) -> String {
        let get = ["get", DAEMON_SET, "--namespace", NAMESPACE, "--output=jsonpath={.status}"];
        let status = self.cluster.try_kubectl(&get, "").unwrap_or_else(|error| error);
        let of_pod = |pod: Value| format!("{}: {:#}", pod["metadata"]["name"], pod["status"]);
        let pods: Vec<String> = self.all_pods().into_iter().map(of_pod).collect();
        let log = self.cluster.try_kubectl(&["logs", DAEMON_SET, "--namespace", NAMESPACE, "--tail=50"], "");
        format!("{DAEMON_SET}: {status}\n{}\n{}", pods.join("\n"), log.unwrap_or_else(|error| error))
    }

    /// Replaces the managers by others of the same version.
    pub(crate) fn restart(&self) {
        self.begin_restart();
        self.wait();
    }

    /// Begins to replace the managers by others of the same version.
    pub(crate) fn begin_restart(&self) {
        self.cluster.kubectl(&["rollout", "restart", DAEMON_SET, "--namespace", NAMESPACE], "");
    }

    /// Whether all managers are replaced, and the old ones have ended.
    pub(crate) fn is_restarted(&self) -> bool {
        let arguments = ["rollout", "status", DAEMON_SET, "--namespace", NAMESPACE, "--watch=false"];
        let is_ending = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
        self.cluster.kubectl(&arguments, "").contains("successfully rolled out")
            && !self.all_pods().iter().any(is_ending)
    }

    /// Kills the processes of the managers that run on this machine, but not those of their relays.
    pub(crate) fn kill(&self) {
        for pod in self.all_pods() {
            let uid = pod["metadata"]["uid"].as_str().expect("a pod has a UID");
            let process =
                manager_process(uid).unwrap_or_else(|| panic!("no manager of pod {uid} runs on this machine"));
            let _ = run(Command::new("kill").args(["-KILL", &process])).success();
        }
    }

    /// The image of the managers, which has the scheduler too.
    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    /// Brings an image with another version of the scheduler to the nodes. Returns its name.
    pub(crate) fn import_scheduler(&self, scheduler: &Path) -> String {
        import_image_with(self.cluster, "older", artifacts::manager(), scheduler)
    }

    /// Begins to bring the image of another version, which brings another shim, to the nodes.
    pub(crate) fn begin_to_import_an_upgrade(&self) -> ImageUnderWay {
        let cluster = *self.cluster;
        ImageUnderWay(thread::spawn(move || import_image(&cluster, artifacts::manager_with_another_shim())))
    }

    /// Replaces the managers by those of this image.
    pub(crate) fn upgrade(&self, image: ImageUnderWay) {
        let image = image.0.join().expect("the image is made and imported");
        let of_all = format!("*={image}");
        self.cluster.kubectl(&["set", "image", DAEMON_SET, &of_all, "--namespace", NAMESPACE], "");
        self.wait();
    }

    /// Removes the managers from all nodes, and returns when they are gone.
    pub(crate) fn take_away(&self) {
        self.select_nodes(&json!("taken-away"));
        wait::until_true("the managers are gone", || self.all_pods().is_empty());
    }

    /// Brings the managers back to all nodes.
    pub(crate) fn bring_back(&self) {
        self.select_nodes(&Value::Null);
        self.wait();
    }

    fn select_nodes(&self, label: &Value) {
        let selector = json!({"spec": {"template": {"spec": {"nodeSelector": {"aliquot-test": label}}}}});
        let patch = format!("--patch={selector}");
        self.cluster.kubectl(&["patch", DAEMON_SET, "--type=merge", &patch, "--namespace", NAMESPACE], "");
    }

    /// The managers' pods, without the schedulers in the same namespace.
    fn all_pods(&self) -> Vec<Value> {
        let pods = self.cluster.list("pods", Some(NAMESPACE)).into_iter();
        pods.filter(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "aliquot-manager").collect()
    }

    /// The names of the managers' pods, without pods that end after a rollout: they do not answer any more.
    fn pods(&self) -> Vec<String> {
        let stay = self.all_pods().into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        stay.map(|pod| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// How many devices are published; waits for the first.
    pub(crate) fn devices(&self) -> usize {
        wait::until("devices are published", || Some(self.published()).filter(|devices| *devices > 0))
    }

    /// How many devices are published now: with claims all devices, with units those that are well.
    pub(crate) fn published(&self) -> usize {
        match self.deployment.mode {
            Mode::Claims => self.cluster.list("resourceslices", None).iter().map(devices_of).sum(),
            Mode::Units => self.cluster.list("nodes", None).iter().map(whole_cores_of).sum(),
        }
    }

    /// The slices on all nodes and their use, as `aliquot ps` shows them.
    pub(crate) fn slices(&self) -> Vec<Value> {
        self.ask(&["ps", "--json"])
    }

    /// Waits until there is no slice. What is still there after a minute is printed, with what the managers have logged
    /// about it.
    #[track_caller]
    pub(crate) fn have_no_slices(&self, what: &str) {
        let began = Instant::now();
        let mut is_said = false;
        wait::until_true(what, || {
            let left = self.slices();
            if !left.is_empty() && !is_said && began.elapsed() > Duration::from_secs(60) {
                is_said = true;
                println!("still there: {left:#?}");
                let names: Vec<&str> = left.iter().filter_map(|slice| slice["name"].as_str()).collect();
                let is_about = |line: &&str| names.iter().any(|name| line.contains(name));
                self.logs().lines().filter(is_about).for_each(|line| println!("{line}"));
            }
            left.is_empty()
        });
    }

    /// The slice of that name, as `aliquot slice ls` shows it.
    pub(crate) fn slice(&self, name: &str) -> Option<Value> {
        self.ask(&["slice", "ls", "--json"]).into_iter().find(|slice| slice["name"] == name)
    }

    /// The managers' logs since their start.
    pub(crate) fn logs(&self) -> String {
        let logs =
            |pod: String| self.cluster.kubectl(&["logs", &pod, "--namespace", NAMESPACE, "--container=manager"], "");
        self.pods().into_iter().map(logs).collect()
    }

    /// The table of `aliquot ps`, on all nodes.
    pub(crate) fn table(&self) -> String {
        self.pods().iter().map(|pod| self.aliquot(pod, &["ps"])).collect()
    }

    /// The output of `aliquot doctor` on all nodes. Fails if it finds a fault.
    pub(crate) fn doctor(&self) -> String {
        self.pods().iter().map(|pod| self.aliquot(pod, &["doctor"])).collect()
    }

    /// The metrics of all managers.
    pub(crate) fn metrics(&self) -> String {
        let path = |pod: String| format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{METRICS_PORT}/proxy/metrics");
        self.pods().into_iter().map(|pod| self.cluster.kubectl(&["get", "--raw", &path(pod)], "")).collect()
    }

    /// The slices that the managers report, each with the pod of its manager, because simulated devices of two nodes
    /// have the same UUIDs.
    fn ask(&self, arguments: &[&str]) -> Vec<Value> {
        let slices = |pod: String| {
            let mut said: Value = serde_json::from_str(&self.aliquot(&pod, arguments)).unwrap();
            let mut slices: Vec<Value> = serde_json::from_value(said["slices"].take()).unwrap();
            slices.iter_mut().for_each(|slice| slice["manager"] = pod.as_str().into());
            slices
        };
        self.pods().into_iter().flat_map(slices).collect()
    }

    /// Runs the command line in a manager's pod, and returns its output.
    fn aliquot(&self, pod: &str, arguments: &[&str]) -> String {
        let exec = ["exec", pod, "--namespace", NAMESPACE, "--container=manager", "--", "aliquot"];
        let arguments = [&exec, arguments].concat();
        // After a rollout no manager answers for the moment in which the new one takes over from the old one.
        wait::until("a manager answers", || match self.cluster.try_kubectl(&arguments, "") {
            Err(error) if error.contains("no node manager runs here") => None,
            said => Some(said.unwrap_or_else(|error| panic!("{}: {error}", arguments.join(" ")))),
        })
    }
}

/// The process of the manager in the pod with this UID.
fn manager_process(pod_uid: &str) -> Option<String> {
    // The name of a pod's cgroup by cgroupfs, and by systemd.
    let names = [pod_uid.to_owned(), pod_uid.replace('-', "_")];
    fs::read_dir("/proc").expect("/proc can be listed").flatten().find_map(|process| {
        let read = |file: &str| fs::read_to_string(process.path().join(file)).unwrap_or_default();
        let is_manager =
            read("cmdline").contains("--stand-by") && names.iter().any(|name| read("cgroup").contains(name));
        is_manager.then(|| process.file_name().to_string_lossy().into_owned())
    })
}

/// The devices in a resource slice, if it is ours.
fn devices_of(slice: &Value) -> usize {
    let devices = slice["spec"]["devices"].as_array().map_or(0, Vec::len);
    if slice["spec"]["driver"] == "gpu.aliquot.dev" { devices } else { 0 }
}

/// The devices whose time the node offers in units.
fn whole_cores_of(node: &Value) -> usize {
    let units = node["status"]["allocatable"]["aliquot.dev/gpu-core"].as_str().unwrap_or("0");
    units.parse::<usize>().expect("a number of units") / 100
}

/// Brings the image, made of this manager and of the programs that tests use, to the nodes. Returns its name.
fn import_image(cluster: &Cluster, manager: &Path) -> String {
    // Other contents need another name: a cluster does not import an image that it has by name.
    let version = manager.parent().and_then(Path::file_name).unwrap().to_string_lossy();
    import_image_with(cluster, &version, manager, artifacts::scheduler())
}

fn import_image_with(cluster: &Cluster, version: &str, manager: &Path, scheduler: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        for program in [manager, artifacts::cli(), scheduler, artifacts::kubectl_plugin()] {
            // Debugging information is half of a program, and packing it takes long.
            let mut strip = Command::new(tool("strip", "binutils"));
            strip.arg("-o").arg(dir.path().join(program.file_name().unwrap())).arg(program);
            scope.spawn(move || run(&mut strip).success());
        }
    });
    let archive = dir.path().join("image.tar");
    let name = format!("localhost/aliquot-test-manager:{version}-{}", std::process::id());
    let mut image = Command::new(directory().join("image"));
    // Programs without optimisation are large, and gzip would take most of the time until the managers are deployed.
    image.arg(&archive).arg(dir.path()).arg(&name).env("GZIP", "-1");
    let _ = run(&mut image).success();
    cluster.import_archive(&archive);
    name
}

/// Gives the manager's pod the simulated GPU in place of the files that NVIDIA's runtime adds.
fn simulate(pod: &mut Value, gpu: &SimulatedGpu) {
    if let Some(pod) = pod.as_object_mut() {
        pod.remove("runtimeClassName");
    }
    let nvml = fs::canonicalize(gpu.nvml_library()).unwrap();
    let mut add = |list: &str, value: Value| pod["containers"][0][list].as_array_mut().unwrap().push(value);
    add("env", json!({"name": "ALIQUOT_FAKE_GPU", "value": gpu.config_file()}));
    add("volumeMounts", json!({"name": "simulated-gpu", "mountPath": gpu.dir()}));
    add("volumeMounts", json!({"name": "simulated-nvml", "mountPath": nvml, "readOnly": true}));
    let volumes = pod["volumes"].as_array_mut().unwrap();
    volumes.push(json!({"name": "simulated-gpu", "hostPath": {"path": gpu.dir(), "type": "Directory"}}));
    volumes.push(json!({"name": "simulated-nvml", "hostPath": {"path": nvml, "type": "File"}}));
}
