//! Certificates that come from elsewhere, for the scheduler, nodes and users.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_harness::{Node, Outcome, Scheduler, SimulatedGpu, artifacts, run, wait};
use aliquot_proto::scheduler::v1::NodeState;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// A certificate authority of another organisation. It writes the certificates that it signs into a directory.
struct Authority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let dir = tempfile::tempdir().expect("a directory");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "somebody else");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(dir.path().join("authority.pem"), params.self_signed(&key).expect("a certificate").pem())
            .expect("room");
        Authority { dir, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Signs a certificate, and answers the lines for it in a configuration.
    fn sign(&self, name: &str, organization: &str) -> String {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["scheduler.aliquot.internal".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let files = [".pem", ".key"].map(|ending| self.path(&format!("{name}{ending}")));
        fs::write(&files[0], certificate.pem()).expect("room");
        fs::write(&files[1], key.serialize_pem()).expect("room");
        format!("certificate = {:?}\nkey = {:?}\nauthority = {:?}\n", files[0], files[1], self.path("authority.pem"))
    }
}

fn node_of(scheduler: &Scheduler, gpu: &SimulatedGpu, name: &str, files: &str) -> Node {
    let address = scheduler.address();
    let cluster = format!("[cluster]\nscheduler = {address:?}\nnode_name = {name:?}\nallow_root = true\n{files}");
    Node::with(gpu, &format!("cdi_dir = 'off'\n{cluster}"))
}

fn user_of(scheduler: &Scheduler, file: &Path, name: &str, files: &str) {
    let text = format!("user = {name:?}\nschedulers = [{:?}]\n{files}", scheduler.address());
    fs::write(file, text).expect("room");
}

fn aliquot(file: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(artifacts::cli());
    run(command.arg("--scheduler").arg(file).args(arguments))
}

#[test]
fn a_cluster_runs_with_certificates_from_elsewhere() {
    let (ours, others) = (Authority::new(), Authority::new());
    let users = "[[users]]\ncertificate = 'ada'\nruns_as = 'root'\n";
    let tls = ours.sign("scheduler", "somebody");
    let scheduler = Scheduler::start(&format!("{users}[tls]\n{tls}"));
    let mut command = Command::new(artifacts::cli());
    let refused = run(command.arg("token").env("ALIQUOT_SCHEDULER", scheduler.socket()));
    assert!(refused.stderr.contains("this scheduler signs no certificates"), "{refused:?}");

    let gpu = SimulatedGpu::with("[[device]]\nmemory = '80GiB'\n");
    let _node = node_of(&scheduler, &gpu, "node-0", &ours.sign("node-0", "aliquot:nodes"));
    let is_up = || scheduler.client().nodes().is_ok_and(|nodes| nodes.iter().any(|node| node.state() == NodeState::Up));
    wait::until_true("the node is up", is_up);
    let ada = ours.path("ada.toml");
    user_of(&scheduler, &ada, "ada", &ours.sign("ada", "aliquot:users"));
    let said = aliquot(&ada, &["submit", "--wait", "--follow", "--gpu-core", "10", "--", "sh", "-c", "echo it runs"]);
    assert_eq!(said.success().stdout, "it runs\n");

    // The authority signs for this user, but the user has been given no role.
    let eve = ours.path("eve.toml");
    user_of(&scheduler, &eve, "eve", &ours.sign("eve", "aliquot:users"));
    let refused = aliquot(&eve, &["jobs"]);
    assert!(refused.stderr.contains("user eve is not known here"), "{refused:?}");
    // A certificate of this authority with another organisation does not stand for a node or a user.
    let web = ours.path("web.toml");
    user_of(&scheduler, &web, "web", &ours.sign("web", "web servers"));
    assert!(!aliquot(&web, &["jobs"]).status.success());
    // A certificate of another authority is not accepted, whatever it contains, and its owner does not trust this
    // scheduler.
    let mallory = others.path("mallory.toml");
    let files = others.sign("ada", "aliquot:users");
    let trusting =
        files.replace(&format!("{:?}", others.path("authority.pem")), &format!("{:?}", ours.path("authority.pem")));
    for files in [files, trusting] {
        user_of(&scheduler, &mallory, "ada", &files);
        assert!(!aliquot(&mallory, &["jobs"]).status.success(), "{files}");
    }
    let _foreign = node_of(&scheduler, &gpu, "node-1", &others.sign("node-1", "aliquot:nodes"));
    assert_eq!(scheduler.client().nodes().expect("it answers").len(), 1);
}
