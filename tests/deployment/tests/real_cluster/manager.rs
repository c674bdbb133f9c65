//! The managers, deployed as the manifests say.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use aliquot_deployment::directory;
use aliquot_harness::{Image, SimulatedGpu, artifacts, run, wait};
use serde_json::{Value, json};

use super::cluster::Cluster;

const NAMESPACE: &str = "aliquot-system";
const DAEMON_SET: &str = "daemonset/aliquot-manager";

pub(crate) struct Manager<'a> {
    cluster: &'a Cluster,
}

impl Manager<'_> {
    /// Deploys them, where `gpu` says so with a simulated one in place of NVIDIA's driver, and waits until they serve.
    pub(crate) fn deploy<'a>(cluster: &'a Cluster, gpu: Option<&SimulatedGpu>) -> Manager<'a> {
        let image = manager_image();
        cluster.import(&image);
        let directory = directory().join("dra");
        let rendered = cluster.kubectl(&["kustomize", &directory.to_string_lossy()], "");
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
        for object in &mut objects {
            match object["kind"].as_str() {
                Some("DaemonSet") => {
                    let pod = &mut object["spec"]["template"]["spec"];
                    for kind in ["initContainers", "containers"] {
                        pod[kind][0]["image"] = image.reference().into();
                        pod[kind][0]["imagePullPolicy"] = "Never".into();
                    }
                    if let Some(gpu) = gpu {
                        simulate(pod, gpu);
                    }
                }
                Some("ConfigMap") => {
                    if let Some(gpu) = gpu {
                        let settings = object["data"]["manager.toml"].as_str().unwrap();
                        let nvml = format!("nvml_library = {:?}\n", gpu.nvml_library());
                        object["data"]["manager.toml"] = format!("{nvml}{settings}\n{}", gpu.for_containers("")).into();
                    }
                }
                _ => {}
            }
        }
        // Who is in a namespace comes after it.
        objects.sort_by_key(|object| object["kind"] != "Namespace");
        cluster.apply(&objects);
        let manager = Manager { cluster };
        // Pods that a former run has left have another simulated GPU.
        if gpu.is_some() {
            manager.restart();
        }
        manager.wait();
        manager
    }

    fn wait(&self) {
        let arguments = ["rollout", "status", DAEMON_SET, "--namespace", NAMESPACE, "--timeout=180s"];
        if let Err(error) = self.cluster.try_kubectl(&arguments, "") {
            let log = self.cluster.try_kubectl(&["logs", DAEMON_SET, "--namespace", NAMESPACE, "--tail=50"], "");
            panic!("{error}\n{log:?}\n{:#?}", self.cluster.list("pods", Some(NAMESPACE)));
        }
    }

    /// Replaces the managers, as an upgrade does.
    pub(crate) fn restart(&self) {
        self.cluster.kubectl(&["rollout", "restart", DAEMON_SET, "--namespace", NAMESPACE], "");
        self.wait();
    }

    /// How many devices are published; waits for the first.
    pub(crate) fn devices(&self) -> usize {
        wait::until("devices are published", || {
            let slices = self.cluster.list("resourceslices", None);
            let ours = slices.iter().filter(|slice| slice["spec"]["driver"] == "gpu.aliquot.dev");
            let devices = ours.flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten()).count();
            (devices > 0).then_some(devices)
        })
    }

    /// The slices on one node, as `aliquot ps` shows them.
    pub(crate) fn slices(&self) -> Vec<Value> {
        let command =
            ["exec", DAEMON_SET, "--namespace", NAMESPACE, "--container=manager", "--", "aliquot", "ps", "--json"];
        let mut said: Value = serde_json::from_str(&self.cluster.kubectl(&command, "")).unwrap();
        serde_json::from_value(said["slices"].take()).unwrap_or_default()
    }

    /// How much memory of its first device each of them uses.
    pub(crate) fn used_bytes(&self) -> BTreeMap<String, u64> {
        let used = |slice: &Value| {
            let bytes = slice["parts"][0]["memory_used_bytes"].as_u64()?;
            Some((slice["name"].as_str()?.to_owned(), bytes))
        };
        self.slices().iter().filter_map(used).collect()
    }
}

/// The image, of the programs that tests use.
fn manager_image() -> Image {
    let dir = tempfile::tempdir().unwrap();
    for program in [artifacts::manager(), artifacts::cli()] {
        std::os::unix::fs::symlink(program, dir.path().join(program.file_name().unwrap())).unwrap();
    }
    let archive = dir.path().join("image.tar");
    // Another name for other contents: a cluster does not import what it has.
    let reference = format!("localhost/aliquot-test-manager:{}", std::process::id());
    let _ = run(Command::new(directory().join("image")).arg(&archive).arg(dir.path()).arg(reference)).success();
    Image::load(&archive)
}

/// Gives the manager's pod the simulated GPU in place of what NVIDIA's runtime brings.
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
