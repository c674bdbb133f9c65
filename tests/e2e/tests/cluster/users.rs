//! Access rights: users of other machines, roles, the audit log, and the limits of calls.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_harness::{Jobs, Node, Outcome, Process, Scheduler, SimulatedGpu, artifacts, as_user, run, wait};
use aliquot_proto::scheduler::v1::{JobState, Queue};
use serde_json::Value;
use tempfile::TempDir;
use tonic::Code;

use crate::failover::Pair;
use crate::{Cluster, endless, shell};

/// A user of another machine: its `aliquot` knows the scheduler only from a file of credentials.
struct Elsewhere {
    dir: TempDir,
    file: PathBuf,
}

impl Elsewhere {
    /// Adds a user with these options of `aliquot users add`.
    fn add(scheduler: &Scheduler, name: &str, options: &[&str]) -> Elsewhere {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join(format!("{name}.toml"));
        let mut command = Command::new(artifacts::cli());
        command.args(["users", "add", name, "--output"]).arg(&file).args(options);
        let _ = run(command.env("ALIQUOT_SCHEDULER", scheduler.socket())).success();
        Elsewhere { dir, file }
    }

    fn aliquot(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(artifacts::cli());
        command.arg("--scheduler").arg(&self.file).args(arguments).env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    /// Runs `aliquot`, which must succeed.
    #[track_caller]
    fn done(&self, arguments: &[&str]) -> Outcome {
        run(&mut self.aliquot(arguments)).success()
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], words: &str) {
        let outcome = run(&mut self.aliquot(arguments));
        assert!(!outcome.status.success() && outcome.stderr.contains(words), "{words:?} is not in: {outcome:?}");
    }
}

fn set_queue(scheduler: &Scheduler, name: &str) {
    let queue = Queue { name: name.into(), weight: 1, ..Queue::default() };
    scheduler.client().set_queue(queue).expect("root is an administrator");
}

fn remove(scheduler: &Scheduler, user: &str) {
    let mut command = Command::new(artifacts::cli());
    let _ = run(command.args(["users", "remove", user]).env("ALIQUOT_SCHEDULER", scheduler.socket())).success();
}

/// The lines of the audit log, each as `caller call result: object`.
fn audited(scheduler: &Scheduler) -> Vec<String> {
    let text = fs::read_to_string(scheduler.state_dir().join("audit.jsonl")).unwrap_or_default();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("each line is whole"));
    let word = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let line = |line: Value| {
        let [who, call, result, object] = ["who", "call", "result", "object"].map(|key| word(&line, key));
        format!("{who} {call} {result}: {object}")
    };
    lines.map(line).collect()
}

#[test]
fn a_user_of_another_machine_may_what_the_role_says() {
    let mut cluster = Cluster::start(1, "");
    for queue in ["team-a", "team-b"] {
        set_queue(&cluster.scheduler, queue);
    }
    let other = cluster.submit(shell("echo secret; exec sleep 1000000")).to_string();
    let ada = Elsewhere::add(&cluster.scheduler, "ada", &["--queue", "team-a", "--as", "root"]);

    let said = ada.done(&["submit", "--queue", "team-a", "--wait", "--follow", "--", "sh", "-c", "echo from $PWD"]);
    assert_eq!(said.stdout, "from /root\n", "the directory is the node's and not one of here: {said:?}");
    let own = ada.done(&["submit", "--queue", "team-a", "--", "sleep", "1000000"]).stdout.trim().to_owned();
    ada.refused(&["submit", "--queue", "team-b", "--", "true"], "may submit jobs to \"team-a\"");
    ada.refused(&["queues", "set", "team-a", "--quota", "4"], "only administrators may do this");
    ada.refused(&["users"], "only administrators and viewers");

    // All users see the list of jobs.
    let listed: Value = serde_json::from_str(&ada.done(&["jobs", "--json"]).stdout).expect("JSON");
    let job = |id: &str| listed["jobs"].as_array()?.iter().find(|job| job["id"].as_u64() == id.parse().ok()).cloned();
    let (mine, theirs) = (job(&own).expect("it is listed"), job(&other).expect("it is listed"));
    assert_eq!(
        (&mine["user"], &mine["is_remote"], &mine["spec"]["command"][0]),
        (&"ada".into(), &true.into(), &"sleep".into())
    );
    assert_eq!(theirs["spec"]["command"], serde_json::json!([]), "what others run is theirs");
    ada.refused(&["logs", &other], "only that user, administrators and viewers may read it");
    ada.refused(&["explain", &other], "may ask about it");
    ada.refused(&["cancel", &other], "only that user and administrators may cancel it");
    let _ = ada.done(&["cancel", &own]);
    let viewer = Elsewhere::add(&cluster.scheduler, "eve", &["--role", "viewer"]);
    let job: Value = serde_json::from_str(&viewer.done(&["job", &other, "--json"]).stdout).expect("JSON");
    assert_eq!(job["spec"]["command"][0], "/bin/sh");
    viewer.refused(&["cancel", &other], "may see everything and change nothing");

    // An answered call is in the log, even if the scheduler is killed then.
    let last = cluster.submit(endless());
    cluster.scheduler.kill();
    let lines = audited(&cluster.scheduler);
    for line in [
        "root CreateJoinToken ok: 1 nodes".to_owned(),
        " Join ok: node node-0".to_owned(),
        "root AddUser ok: user ada: ROLE_UNSPECIFIED, queues [\"team-a\"], runs as \"root\"".to_owned(),
        format!("ada SubmitJob ok: job {own} in queue team-a"),
        "ada SubmitJob permission-denied: queue team-b".to_owned(),
        format!("ada ReadLog permission-denied: job {other}"),
        format!("ada CancelJob permission-denied: job {other}"),
        format!("ada CancelJob ok: job {own}"),
        format!("root SubmitJob ok: job {last} in queue default"),
    ] {
        assert!(lines.contains(&line), "{line:?} is not in {lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains("ListJobs")), "looking changes nothing: {lines:#?}");
}

/// Starts an `aliquot` that follows a log, and waits until it has written a line.
fn follows(user: &Elsewhere, job: &str) -> Process {
    let mut following = Process::start(&mut user.aliquot(&["logs", "-f", job]));
    following.wait_for("begun");
    following
}

#[test]
fn a_user_who_is_removed_is_refused_at_once() {
    let mut cluster = Cluster::start(1, "");
    let ada = Elsewhere::add(&cluster.scheduler, "ada", &["--as", "root"]);
    let bob = Elsewhere::add(&cluster.scheduler, "bob", &["--as", "root"]);
    let script = ["submit", "--", "sh", "-c", "echo begun; exec sleep 1000000"];
    let [of_ada, of_bob] = [&ada, &bob].map(|user| user.done(&script).stdout.trim().to_owned());
    let (ending, mut going_on) = (follows(&ada, &of_ada), follows(&bob, &of_bob));
    let waiting = Process::start(&mut ada.aliquot(&["submit", "--wait", "--", "sleep", "1000000"]));
    wait::until_true("the second job of ada is there", || {
        ada.done(&["jobs", "--json"]).stdout.matches("\"user\": \"ada\"").count() == 2
    });

    remove(&cluster.scheduler, "ada");
    for process in [ending, waiting] {
        let ended = process.wait();
        assert!(!ended.status.success() && ended.stderr.contains("not valid any more"), "{ended:?}");
    }
    ada.refused(&["jobs"], "not valid any more");
    let _ = bob.done(&["jobs"]);
    assert!(!going_on.has_ended(), "others go on: {}", going_on.errors());
    drop(going_on);
    cluster.wait_for(of_ada.parse().expect("a number"), JobState::Running);

    cluster.scheduler.kill();
    cluster.scheduler.restart();
    ada.refused(&["jobs"], "not valid any more");
    let _ = bob.done(&["jobs"]);
    let again = Elsewhere::add(&cluster.scheduler, "ada", &["--as", "root"]);
    let _ = again.done(&["cancel", &of_ada]);
    ada.refused(&["jobs"], "not valid any more");
}

#[test]
fn without_a_local_user_nobody_elsewhere_submits() {
    let scheduler = Scheduler::start("");
    let ada = Elsewhere::add(&scheduler, "ada", &[]);
    ada.refused(&["submit", "--", "true"], "aliquot users set ada --as LOCALUSER");
    let socket = scheduler.socket();
    let set = |user: &str| {
        let mut command = Command::new(artifacts::cli());
        run(command.args(["users", "set", "ada", "--as", user]).env("ALIQUOT_SCHEDULER", &socket))
    };
    assert!(set("no-such-user").stderr.contains("there is no user \"no-such-user\""));
    let _ = set("root").success();
    let _ = ada.done(&["submit", "--", "true"]);
}

#[test]
fn a_certificate_ends_when_it_was_said() {
    let scheduler = Scheduler::start("");
    let ada = Elsewhere::add(&scheduler, "ada", &["--as", "root", "--valid", "1s"]);
    wait::until_true("the certificate has ended", || {
        let asked = run(&mut ada.aliquot(&["jobs"]));
        !asked.status.success() && asked.stderr.contains("has expired") && asked.stderr.contains("--replace")
    });
    // A client does not wait for a scheduler that will never answer.
    ada.refused(&["submit", "--wait", "--", "true"], "has expired");
}

/// The certificate, the key and the authority of a joined node, as the files of a manager's configuration.
fn identity(dir: &Path, texts: [&str; 3]) -> [PathBuf; 3] {
    let names = ["certificate.pem", "key.pem", "authority.pem"].map(|name| dir.join(name));
    names.iter().zip(texts).for_each(|(path, text)| fs::write(path, text).expect("a file"));
    names
}

#[test]
fn nodes_and_users_do_not_call_for_each_other() {
    let cluster = Cluster::start(1, "");
    let address = cluster.scheduler.address();
    let joined = fs::read_to_string(cluster.nodes[0].state_dir().join("cluster/identity.json")).expect("it has joined");
    let joined: Value = serde_json::from_str(&joined).expect("JSON");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let texts = ["certificate", "key", "authority"].map(|key| joined[key].as_str().expect("PEM"));
    let [certificate, key, authority] = identity(dir.path(), texts);
    let file = dir.path().join("node.toml");
    let credentials = format!(
        "user = 'x'\nschedulers = [{address:?}]\ncertificate = {certificate:?}\nkey = {key:?}\nauthority = {authority:?}\n"
    );
    fs::write(&file, credentials).expect("a file");
    let node = Elsewhere { dir, file };
    for call in [&["jobs"][..], &["submit", "--", "true"], &["nodes", "remove", "node-0", "--nothing-runs-there"]] {
        node.refused(call, "node node-0 may only make the calls for nodes");
    }

    // An administrator's certificate is not valid for a node.
    let ada = Elsewhere::add(&cluster.scheduler, "ada", &["--role", "administrator"]);
    let text = fs::read_to_string(&ada.file).expect("credentials");
    let texts = ["certificate", "key", "authority"].map(|name| {
        let (_, rest) = text.split_once(&format!("{name} = \"\"\"\n")).expect("the file has it");
        rest.split_once("\"\"\"").expect("it ends").0
    });
    let [certificate, key, authority] = identity(ada.dir.path(), texts);
    let gpu = SimulatedGpu::with("[[device]]\nmemory = '80GiB'\n");
    let settings = format!(
        "cdi_dir = 'off'\n[cluster]\nscheduler = {address:?}\nnode_name = 'ada'\ncertificate = {certificate:?}\nkey = {key:?}\n\
         authority = {authority:?}\n"
    );
    let node = Node::with(&gpu, &settings);
    wait::until_true("the node is refused", || node.log().contains("ada is a user, and this call is for nodes"));
    let nodes = cluster.client().nodes().expect("the scheduler answers");
    assert!(nodes.iter().all(|node| node.name != "ada"), "{nodes:?}");
}

#[test]
fn local_users_have_the_roles_of_the_configuration() {
    let settings = "default_role = 'none'\n[[users]]\nlocal = 54321\nrole = 'viewer'\n[[users]]\nlocal = 54322\nqueues = ['team-a']\n";
    let scheduler = Scheduler::start(settings);
    set_queue(&scheduler, "team-a");
    let id = scheduler.client().submit(endless()).expect("root may").id;
    let socket = scheduler.socket();
    // Other users can reach this socket, as they can reach the system's.
    fs::set_permissions(socket.parent().expect("its directory"), Permissions::from_mode(0o755)).expect("it is ours");
    let connect = || Jobs::connect(&socket).expect("the scheduler listens");
    as_user(54321, || {
        assert!(!connect().job(id).expect("a viewer sees it").spec.expect("a job").command.is_empty());
        let refused = connect().submit(endless()).expect_err("a viewer submits nothing");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    });
    as_user(54322, || {
        assert!(connect().job(id).expect("it is listed").spec.expect("a job").command.is_empty());
        let own = connect().submit(aliquot_proto::scheduler::v1::JobSpec { queue: "team-a".into(), ..endless() });
        connect().cancel(own.expect("it is this user's queue").id).expect("it is this user's job");
        let refused = connect().submit(endless()).expect_err("the other queue is not");
        assert!(refused.message().contains("\"team-a\""), "{refused}");
    });
    as_user(54323, || assert_eq!(connect().nodes().expect_err("no role").code(), Code::PermissionDenied));
}

#[test]
fn whoever_calls_too_often_is_told_when_to_call_again() {
    let scheduler = Scheduler::start("[limits]\ncalls_per_second = 1\ncalls_burst = 100\n");
    let refused = wait::until("a call is refused", || scheduler.client().queues().err());
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let after_ms = refused.metadata().get("grpc-retry-pushback-ms").expect("it says when").to_str().expect("a number");
    assert!((1..=1000).contains(&after_ms.parse::<u64>().expect("a number")), "{after_ms}");
    assert!(refused.message().contains("limits.calls_per_second"), "{refused}");
}

#[test]
fn a_scheduler_that_stands_by_hands_users_of_other_machines_on() {
    let mut pair = Pair::start();
    wait::until_true("the leader knows the one that stands by", || {
        let mut token = Command::new(artifacts::cli());
        let token = run(token.arg("token").env("ALIQUOT_SCHEDULER", pair.first.socket())).success();
        token.stdout.contains(pair.second.address())
    });
    let ada = Elsewhere::add(&pair.first, "ada", &["--as", "root"]);
    let bob = Elsewhere::add(&pair.first, "bob", &["--as", "root"]);
    let text = fs::read_to_string(&ada.file).expect("credentials");
    assert!(text.contains(pair.second.address()), "the file names all schedulers: {text}");
    // Now they know only the standby scheduler.
    for user in [&ada, &bob] {
        let text = fs::read_to_string(&user.file).expect("credentials");
        let first = format!("{:?}", pair.first.address());
        fs::write(&user.file, text.replace(&first, &format!("{:?}", pair.second.address()))).expect("a file");
    }
    let of_ada = ada.done(&["submit", "--", "sleep", "1000000"]).stdout.trim().to_owned();
    bob.refused(&["cancel", &of_ada], "is of user ada");
    let _ = ada.done(&["cancel", &of_ada]);
    remove(&pair.first, "ada");
    ada.refused(&["jobs"], "not valid any more");
    let text = fs::read_to_string(pair.first.state_dir().join("audit.jsonl")).expect("the leader notes it");
    assert!(text.contains("\"by_way_of\":\"127."), "{text}");

    // The next leader knows the change, too.
    pair.first.kill();
    wait::until_true("the second one leads", || pair.second.log().contains("this scheduler leads"));
    wait::until_true("bob is served", || run(&mut bob.aliquot(&["jobs"])).status.success());
    ada.refused(&["jobs"], "not valid any more");
}
