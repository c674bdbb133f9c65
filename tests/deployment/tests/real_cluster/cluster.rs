//! A cluster, by way of `kubectl`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use aliquot_deployment::directory;
use aliquot_harness::{Image, tool, wait};
use serde_json::{Value, json};

use super::PATIENCE;
use super::objects::MAIN;

/// The longest that `kubectl` may take. It waits for at most [`PATIENCE`] where it is told for how long.
const LONGEST: Duration = PATIENCE.saturating_add(Duration::from_secs(20));
/// The code with which `timeout` exits after it has ended its command.
const ENDED: i32 = 124;

/// The cluster that `KUBECONFIG` names.
#[derive(Clone, Copy)]
pub(crate) struct Cluster;

/// A namespace of a test's own. Dropping this deletes it, unless the test fails.
pub(crate) struct Namespace<'a> {
    cluster: &'a Cluster,
    name: String,
}

impl Cluster {
    /// # Panics
    /// `KUBECONFIG` is not set.
    pub(crate) fn of_kubeconfig() -> Cluster {
        assert!(std::env::var_os("KUBECONFIG").is_some(), "KUBECONFIG names no cluster");
        Cluster
    }

    /// The version of its API server.
    pub(crate) fn version(&self) -> String {
        let version: Value = serde_json::from_str(&self.kubectl(&["version", "--output=json"], "")).unwrap();
        version["serverVersion"]["gitVersion"].as_str().unwrap_or_default().to_owned()
    }

    /// Whether its API server is older than Kubernetes 1.`minor`.
    pub(crate) fn is_before(&self, minor: u32) -> bool {
        let version = self.version();
        let found = version.split('.').nth(1).and_then(|found| found.parse::<u32>().ok());
        found.unwrap_or_else(|| panic!("the version {version} has no minor number")) < minor
    }

    /// Whether this feature of Kubernetes is on, as its API server says. A feature without a gate is on for good.
    pub(crate) fn has_feature(&self, name: &str) -> bool {
        let of_name = format!("name=\"{name}\"");
        let metrics = self.kubectl(&["get", "--raw", "/metrics"], "");
        let is_off = |line: &str| {
            line.starts_with("kubernetes_feature_enabled{") && line.contains(&of_name) && line.ends_with(" 0")
        };
        !metrics.lines().any(is_off)
    }

    /// For each node, the container runtime, the kernel, and how kubelet makes cgroups.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let describe = |node: Value| {
            let path = format!("/api/v1/nodes/{}/proxy/configz", node["metadata"]["name"].as_str().unwrap_or_default());
            let kubelet = self.try_kubectl(&["get", "--raw", &path], "").unwrap_or_default();
            let kubelet: Value = serde_json::from_str(&kubelet).unwrap_or_default();
            let info = &node["status"]["nodeInfo"];
            let [runtime, kernel] = ["containerRuntimeVersion", "kernelVersion"].map(|field| info[field].as_str());
            let driver = kubelet["kubeletconfig"]["cgroupDriver"].as_str();
            let [runtime, kernel, driver] = [runtime, kernel, driver].map(|found| found.unwrap_or("unknown"));
            format!("{runtime}, Linux {kernel}, cgroup driver {driver}")
        };
        self.list("nodes", None).into_iter().map(describe).collect()
    }

    /// Runs `kubectl` with these arguments and this input, and returns its output.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        self.try_kubectl(arguments, input).unwrap_or_else(|error| panic!("kubectl {}: {error}", arguments.join(" ")))
    }

    /// Runs `kubectl`, and returns its output. If it fails, the error has all of the output. It is ended if it takes
    /// longer than any wait: by itself it waits without end for a pod that does not go.
    pub(crate) fn try_kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut kubectl = Command::new(tool("timeout", "coreutils"));
        kubectl.arg(LONGEST.as_secs().to_string()).arg(tool("kubectl", "kubernetes-client"));
        kubectl.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut kubectl = kubectl.spawn().expect("kubectl runs");
        // It reads all of its input before it prints.
        kubectl.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("kubectl reads");
        let output = kubectl.wait_with_output().expect("kubectl ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = || text(&output.stdout) + &text(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(text(&output.stdout)),
            Some(ENDED) => Err(format!("not done after {LONGEST:?}\n{}", said())),
            _ => Err(said()),
        }
    }

    /// The objects of these directories of the manifests with components laid over them, as an administrator's own
    /// kustomization has them.
    pub(crate) fn kustomized(&self, directories: &[&str], components: &[&str]) -> Vec<Value> {
        let own = tempfile::tempdir().unwrap();
        // Kustomize takes other directories by relative paths alone.
        let to_root: String = fs::canonicalize(own.path()).unwrap().components().skip(1).map(|_| "../").collect();
        let manifests = fs::canonicalize(directory()).unwrap();
        let relative = |path: &str| format!("{to_root}{}", manifests.join(path).strip_prefix("/").unwrap().display());
        let resources: Vec<String> = directories.iter().map(|name| relative(name)).collect();
        let components: Vec<String> = components.iter().map(|name| relative(&format!("components/{name}"))).collect();
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": resources, "components": components,
        });
        fs::write(own.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
        let rendered = self.kubectl(&["kustomize", &own.path().to_string_lossy()], "");
        serde_saphyr::from_multiple(&rendered).unwrap()
    }

    pub(crate) fn apply(&self, objects: &[Value]) {
        self.try_apply(objects).unwrap_or_else(|error| panic!("kubectl apply: {error}"));
    }

    fn try_apply(&self, objects: &[Value]) -> Result<(), String> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename=-"];
        self.try_kubectl(&apply, &list.to_string()).map(drop)
    }

    /// The objects of a kind, in `namespace` if it has one.
    pub(crate) fn list(&self, kind: &str, namespace: Option<&str>) -> Vec<Value> {
        let namespace = namespace.map(|namespace| format!("--namespace={namespace}"));
        let arguments = ["get", kind, "--output=json"].into_iter().chain(namespace.as_deref());
        let mut list: Value = serde_json::from_str(&self.kubectl(&arguments.collect::<Vec<_>>(), "")).unwrap();
        serde_json::from_value(list["items"].take()).unwrap()
    }

    /// Brings an image to the nodes.
    pub(crate) fn import(&self, image: &Image) {
        let file = tempfile::Builder::new().suffix(".tar").tempdir().unwrap();
        let archive = file.path().join("image.tar");
        image.save(&archive);
        self.import_archive(&archive);
    }

    /// Brings the image in this archive to the nodes.
    pub(crate) fn import_archive(&self, archive: &Path) {
        let import = std::env::var("ALIQUOT_TEST_IMPORT")
            .expect("ALIQUOT_TEST_IMPORT says how an image's archive is brought to the cluster's nodes");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{import} \"$0\"")]).arg(archive);
        let _ = aliquot_harness::run(&mut command).success();
    }

    pub(crate) fn namespace(&self, prefix: &str) -> Namespace<'_> {
        let name = format!("{prefix}-{}", std::process::id());
        self.apply(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})]);
        Namespace { cluster: self, name }
    }
}

impl Namespace<'_> {
    pub(crate) fn apply(&self, objects: &[Value]) {
        self.try_apply(objects).unwrap_or_else(|error| panic!("kubectl apply: {error}"));
    }

    /// Applies these objects. The error says why the API server refuses one of them.
    pub(crate) fn try_apply(&self, objects: &[Value]) -> Result<(), String> {
        let mut objects = objects.to_vec();
        for object in &mut objects {
            object["metadata"]["namespace"] = self.name.as_str().into();
        }
        self.cluster.try_apply(&objects)
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        let arguments = ["get", kind, name, "--output=json", "--namespace", &self.name];
        serde_json::from_str(&self.cluster.kubectl(&arguments, "")).unwrap()
    }

    /// Gives a pod an annotation, `key=value`, in place of one with the same key.
    pub(crate) fn annotate(&self, pod: &str, annotation: &str) {
        self.cluster.kubectl(&["annotate", "pod", pod, annotation, "--overwrite", "--namespace", &self.name], "");
    }

    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        self.cluster.list(kind, Some(&self.name))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Deletes an object, and returns when it is gone.
    pub(crate) fn delete(&self, kind: &str, name: &str) {
        self.cluster.kubectl(&["delete", kind, name, "--namespace", &self.name], "");
    }

    /// Deletes all objects of a kind, and returns when they are gone.
    pub(crate) fn delete_all(&self, kind: &str) {
        self.cluster.kubectl(&["delete", kind, "--all", "--namespace", &self.name], "");
    }

    /// Begins to delete all objects of a kind.
    pub(crate) fn begin_to_delete_all(&self, kind: &str) {
        self.cluster.kubectl(&["delete", kind, "--all", "--wait=false", "--namespace", &self.name], "");
    }

    /// The pod's output, once the pod has succeeded.
    pub(crate) fn output(&self, pod: &str) -> String {
        self.outcome(pod).unwrap_or_else(|status| panic!("the pod {pod} failed: {}\n{status:#}", self.log(pod, MAIN)))
    }

    /// The pod's output, once the pod has ended. If the pod has failed, the error is its status.
    pub(crate) fn outcome(&self, pod: &str) -> Result<String, Value> {
        self.wait(pod, "has ended", |phase| ["Succeeded", "Failed"].contains(&phase));
        let status = self.get("pod", pod)["status"].take();
        if status["phase"] == "Succeeded" { Ok(self.log(pod, MAIN)) } else { Err(status) }
    }

    /// Begins to delete an object.
    pub(crate) fn begin_to_delete(&self, kind: &str, name: &str) {
        self.cluster.kubectl(&["delete", kind, name, "--wait=false", "--namespace", &self.name], "");
    }

    /// Waits until all pods run. Asks about all pods at once, because one question for each takes longer than the pods.
    pub(crate) fn wait_until_all_run(&self) {
        let runs = |pod: &Value| pod["status"]["phase"] == "Running";
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let missing: Vec<Value> = self.list("pods").into_iter().filter(|pod| !runs(pod)).collect();
            let Some(first) = missing.first() else { return };
            let (name, status) = (&first["metadata"]["name"], &first["status"]);
            assert!(std::time::Instant::now() < end, "{} pods do not run, as {name}: {status:#}", missing.len());
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    /// Waits until the pod has printed `text`.
    pub(crate) fn wait_for_output(&self, pod: &str, text: &str) {
        self.wait(pod, "runs", |phase| phase == "Running");
        wait::until_true("the pod prints", || self.log(pod, MAIN).contains(text));
    }

    /// Runs a command in a container of a pod, and returns its output. The error says why it did not run.
    pub(crate) fn exec(&self, pod: &str, container: &str, command: &[&str]) -> Result<String, String> {
        let exec = ["exec", pod, "--container", container, "--namespace", &self.name, "--"];
        self.cluster.try_kubectl(&[&exec, command].concat(), "")
    }

    fn wait(&self, pod: &str, what: &str, is_there: impl Fn(&str) -> bool) {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let found = self.get("pod", pod);
            if is_there(found["status"]["phase"].as_str().unwrap_or_default()) {
                return;
            }
            if std::time::Instant::now() > end {
                let events = self.list("events").into_iter().map(|event| event["message"].clone());
                panic!("the pod {pod} never {what}: {:#}\n{:#?}", found["status"], events.collect::<Vec<_>>());
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    /// The output of all `count` pods with this label. Each line begins with the name of its pod.
    pub(crate) fn logs_of(&self, label: &str, count: usize) -> String {
        let at_once = format!("--max-log-requests={count}");
        let logs = ["logs", "--selector", label, "--prefix", "--tail=-1", &at_once, "--namespace", &self.name];
        self.cluster.kubectl(&logs, "")
    }

    /// A container's output since its last start.
    pub(crate) fn log(&self, pod: &str, container: &str) -> String {
        let logs = ["logs", pod, "--container", container, "--namespace", &self.name];
        self.cluster.try_kubectl(&logs, "").unwrap_or_default()
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        // After a failure the namespace is kept, so that a developer can look at it.
        if !std::thread::panicking() {
            // Kubernetes looks again only after many seconds if it finds something that has not ended yet.
            let _ =
                self.cluster.try_kubectl(&["delete", "pods,resourceclaims", "--all", "--namespace", &self.name], "");
            let _ = self.cluster.try_kubectl(&["delete", "namespace", &self.name], "");
        }
    }
}
