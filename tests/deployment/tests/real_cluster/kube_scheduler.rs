//! A kube-scheduler that asks the scheduler about devices: see `deploy/kubernetes/components/extender`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use aliquot_deployment::kube_scheduler::{KIND, KubeSchedulerConfiguration};
use aliquot_deployment::objects;
use aliquot_harness::{run, tool};
use serde_json::json;

use super::Tests;
use super::holder::HELD_BYTES;
use super::manager::NAMESPACE;
use super::objects::holds;

/// The kube-scheduler of the test, beside the one of the cluster.
const NAME: &str = "aliquot-test-asks";
const SERVER_NAME: &str = "aliquot-scheduler-extender.aliquot-system.svc";

/// A kube-scheduler, for as long as this is kept.
struct KubeScheduler {
    process: Child,
    _dir: tempfile::TempDir,
}

impl Drop for KubeScheduler {
    fn drop(&mut self) {
        // The process has ended already, or ends now.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The command that starts kube-scheduler; `None`, with a message, if there is no such command for the cluster.
pub(crate) fn command() -> Option<String> {
    let command = std::env::var("ALIQUOT_TEST_KUBE_SCHEDULER").ok();
    if command.is_none() {
        println!("not run: kube-scheduler asks, because ALIQUOT_TEST_KUBE_SCHEDULER says not how to start it");
    }
    command
}

impl Tests<'_> {
    /// The certificates of both sides, as an administrator makes them, and the Secret with the scheduler's.
    pub(crate) fn extender_certificates(&self) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "set -e; cd \"$0\"
            openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 1 -subj /CN=test
            for name in tls kube-scheduler; do
                openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=$name
                echo subjectAltName=DNS:{SERVER_NAME} > $name.ext
                openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out $name.crt -days 1 -extfile $name.ext
            done"
        );
        let _ = tool("openssl", "openssl");
        let _ = run(Command::new("sh").args(["-c", &script]).arg(dir.path())).success();
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap();
        self.cluster.apply(&[json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "aliquot-extender", "namespace": NAMESPACE},
            "stringData": {"tls.crt": read("tls.crt"), "tls.key": read("tls.key"), "ca.crt": read("ca.crt")},
        })]);
        dir
    }

    fn start_kube_scheduler(&self, command: &str, certificates: &Path) -> KubeScheduler {
        let example = objects("examples/kube-scheduler").into_iter().find(|object| object.kind() == KIND).unwrap();
        let mut configuration: KubeSchedulerConfiguration = example.read();
        let file = |name: &str| certificates.join(name).to_string_lossy().into_owned();
        let extender = &mut configuration.extenders[0];
        let service = ["get", "service", "aliquot-scheduler-extender", "--namespace", NAMESPACE];
        let address = self.cluster.kubectl(&[&service[..], &["--output=jsonpath={.spec.clusterIP}"]].concat(), "");
        extender.url_prefix = format!("https://{address}:9408");
        extender.tls_config.ca_file = file("ca.crt");
        extender.tls_config.cert_file = file("kube-scheduler.crt");
        extender.tls_config.key_file = file("kube-scheduler.key");
        let kubeconfig = std::env::var("KUBECONFIG").unwrap();
        configuration.client_connection.insert("kubeconfig".into(), kubeconfig.into());
        let mut configuration = serde_json::to_value(&configuration).unwrap();
        configuration["leaderElection"] = json!({"leaderElect": false});
        configuration["profiles"] = json!([{"schedulerName": NAME}]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("configuration.json");
        fs::write(&path, configuration.to_string()).unwrap();
        let started = format!("exec {command} --config \"$0\" --secure-port 0");
        let process = Command::new("sh").args(["-c", &started]).arg(&path).spawn().expect("kube-scheduler starts");
        KubeScheduler { process, _dir: dir }
    }

    fn asked(&self, name: &str, core: u64) {
        let mut objects = self.asks(name, &holds(HELD_BYTES), core, 64);
        for pod in &mut objects {
            pod["spec"]["schedulerName"] = NAME.into();
            pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
        }
        self.namespace.apply(&objects);
    }

    pub(crate) fn kube_scheduler_asks_about_devices(&self, command: &str, certificates: &Path) {
        let _kube_scheduler = self.start_kube_scheduler(command, certificates);
        let halves: Vec<String> = (0..2 * self.devices - 1).map(|number| format!("asked-{number}")).collect();
        halves.iter().for_each(|name| self.asked(name, 50));
        // Both schedulers' pods at once, from the same books.
        self.scheduled("named", 50, &json!({}));
        halves.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        self.namespace.wait_for_output("named", "held");
        assert!(self.all_is_given(), "{:?}", self.given());
        println!(
            "ok: kube-scheduler asked, and {} halves beside one of the scheduler's own fill all devices",
            halves.len()
        );
        self.asked("asked-too-much", 50);
        let why = self.waits_with("asked-too-much", "Unschedulable");
        assert!(why.contains("50 percent gpu-core"), "{why}");
        // Kube-scheduler uses a reason as a format of Go's: a percent sign would be shown as "%!g(MISSING)".
        let events = self.namespace.list("events");
        let broken = events.iter().find(|event| event["message"].as_str().is_some_and(|text| text.contains("%!")));
        assert_eq!(broken, None);
        println!("ok: kube-scheduler says why one more waits: {why}");
        self.kill_leader();
        self.remove(&halves[0]);
        self.namespace.wait_for_output("asked-too-much", "held");
        assert!(self.all_is_given(), "{:?}", self.given());
        let pod = self.namespace.get("pod", "asked-too-much");
        let decided = pod["metadata"]["annotations"]["aliquot.dev/devices"].as_str().unwrap().to_owned();
        let slice = self.slice_of("asked-too-much");
        let device = slice["parts"][0]["device_uuid"].as_str().unwrap();
        assert!(decided.contains(device), "decided {decided}, and has {device}");
        println!("ok: after the leader was killed kube-scheduler asked the other replica");
        self.clear();
    }
}
