//! Jobs that run in a container image.

use std::path::Path;
use std::process::Command;

use aliquot_harness::{HostProgram, Image, MIB, Node, Scheduler, SimulatedGpu, artifacts, container, run, wait};
use aliquot_proto::scheduler::v1::{JobSpec, JobState, Mount, NodeState, SecretUse};

use crate::Cluster;

/// A scheduler, and one node that runs images and permits `mounts`.
fn start(mounts: &str) -> Cluster {
    let scheduler = Scheduler::start("");
    let gpu = SimulatedGpu::exact();
    let name = format!("images-{}", std::process::id());
    let node = Node::with(&gpu, &scheduler.joins_with_images(&name, &gpu, &format!("mounts = [{mounts}]")));
    let cluster = Cluster { nodes: vec![node], _gpus: vec![gpu], scheduler };
    wait::until_true("the node is up", || {
        let nodes = cluster.client().nodes().unwrap_or_default();
        nodes.iter().any(|node| node.state() == NodeState::Up)
    });
    cluster
}

/// The containers that podman knows for jobs of this process's schedulers, by their supervisors.
fn containers_of(supervised: &str) -> String {
    let mut podman = container::podman();
    let listed =
        podman.args(["ps", "--all", "--format", "{{.Names}}", "--filter", &format!("name={supervised}")]).output();
    String::from_utf8_lossy(&listed.expect("podman runs").stdout).into_owned()
}

/// This is a single test: podman uses one directory, in which the slices of two clusters would have the same names.
#[test]
fn a_job_with_an_image_has_its_part_and_ends_whole() {
    let data = tempfile::tempdir().unwrap();
    let cluster = start(&format!("{:?}", data.path()));
    has_its_exact_part(&cluster, data.path());
    ends_with_its_job(&cluster);
}

fn has_its_exact_part(cluster: &Cluster, data: &Path) {
    let program = HostProgram::linked(&cluster._gpus[0], "exact");
    let image = Image::with(&[&program]);
    cluster.client().set_secret("token", b"sesame\n").expect("it is kept");
    let spec = JobSpec {
        image: image.reference().into(),
        gpu_core_percent: 50,
        gpu_memory_bytes: 64 * MIB,
        secrets: vec![SecretUse { name: "token".into(), variable: "TOKEN".into() }],
        environment: [("GREETING".to_owned(), "hello".to_owned())].into(),
        mounts: vec![Mount { source: data.to_str().unwrap().into(), target: "/data".into(), read_only: false }],
        command: [
            "/bin/sh",
            "-c",
            &format!("echo $GREETING $ALIQUOT_JOB_ID; read token <$ALIQUOT_SECRETS/token; echo $token $TOKEN; read groups </etc/group; echo $groups; echo kept >/data/file; exec /bin/exact-linked {}", 64 * MIB),
        ]
        .map(str::to_owned)
        .into(),
        ..JobSpec::default()
    };
    let id = cluster.submit(spec.clone());
    let ended = wait::until("the job has ended", || {
        let job = cluster.client().job(id).ok()?;
        matches!(job.state(), JobState::Succeeded | JobState::Failed).then_some(job)
    });
    let log = cluster.client().log(id, 0).expect("there is a log");
    assert_eq!(ended.state(), JobState::Succeeded, "{log}\n{ended:?}");
    let expected = format!("hello {id}\nsesame sesame\nroot:x:0:\nfree: {}\none byte more than all: 2\n", 64 * MIB);
    assert!(log.starts_with(&expected), "{log}");
    assert_eq!(std::fs::read_to_string(data.join("file")).unwrap(), "kept\n");
    wait::until_true("the slice is gone", || cluster.nodes[0].client().slices().is_ok_and(|slices| slices.is_empty()));

    // The node permits no other directory. It refuses the job and says so.
    let mounts = vec![Mount { source: "/etc".into(), target: "/data".into(), read_only: true }];
    let refused = cluster.submit(JobSpec { mounts, ..spec });
    wait::until_true("it is said why it does not start", || {
        cluster.client().job(refused).is_ok_and(|job| job.reason.contains("\"/etc\" cannot be mounted"))
    });
    cluster.client().cancel(refused).expect("it can be cancelled");
    cluster.wait_for(refused, JobState::Cancelled);
}

/// Checks that a command next to the job runs in the job's container.
fn is_reached(cluster: &Cluster, id: u64) {
    let mut command = Command::new(artifacts::cli());
    command.env("ALIQUOT_SCHEDULER", cluster.scheduler.socket());
    let script = "read groups </etc/group; echo $ALIQUOT_JOB_ID $groups; exit 4";
    let ended = run(command.args(["exec", &id.to_string(), "/bin/sh", "-c", script]));
    let expected = format!("{id} root:x:0:\n");
    assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(4), expected.as_str()), "{ended:?}");

    // `script` makes the terminal.
    let dir = tempfile::tempdir().expect("a directory");
    let seen = dir.path().join("seen");
    let inside = "test -t 0 && test -t 1 && test -t 2 && echo terminal $TERM of $ALIQUOT_JOB_ID; exit 5";
    let line = format!("{} exec -t {id} -- /bin/sh -c '{inside}'; echo status $?", artifacts::cli().display());
    let mut command = Command::new("script");
    command.args(["-q", "-c", &line]).arg(&seen).env("TERM", "vt220").env("SHELL", "/bin/sh");
    let _ = run(command.env("ALIQUOT_SCHEDULER", cluster.scheduler.socket()));
    let seen = std::fs::read_to_string(&seen).expect("script writes it");
    assert!(seen.contains(&format!("terminal vt220 of {id}\r\n")) && seen.contains("status 5\r\n"), "{seen}");
}

fn ends_with_its_job(cluster: &Cluster) {
    let image = Image::with(&[]);
    let spec = JobSpec {
        image: image.reference().into(),
        command: ["/bin/sh", "-c", "trap : TERM; while :; do sleep 1; done"].map(str::to_owned).into(),
        gpu_core_percent: 50,
        gpu_memory_bytes: MIB,
        grace_ms: 1,
        ..JobSpec::default()
    };
    let name_of = |id: u64| {
        cluster.wait_for(id, JobState::Running);
        wait::until("its container runs", || {
            let job = cluster.client().job(id).ok()?;
            let log = || cluster.client().log(id, 0).unwrap_or_default();
            assert_eq!(job.state(), JobState::Running, "{job:?}\n{}", log());
            let slice = cluster.nodes[0].client().slices().ok()?.first()?.name.clone();
            let name = containers_of(&format!("aliquot-{slice}-"));
            (!name.is_empty()).then(|| name.trim().to_owned())
        })
    };

    // The program ignores SIGTERM, so it is killed after the grace period.
    let id = cluster.submit(spec.clone());
    let container = name_of(id);
    is_reached(cluster, id);
    cluster.client().cancel(id).expect("it can be cancelled");
    cluster.wait_for(id, JobState::Cancelled);
    assert_eq!(containers_of(&container), "");

    // The supervisor is killed, and all processes that it has started end with it.
    let id = cluster.submit(JobSpec { restart: aliquot_proto::scheduler::v1::Restart::Never.into(), ..spec });
    let container = name_of(id);
    let (_, supervisor) = container.rsplit_once('-').expect("the name ends in the supervisor");
    assert!(Command::new("kill").args(["-9", supervisor]).status().unwrap().success());
    cluster.wait_for(id, JobState::Failed);
    assert_eq!(containers_of(&container), "");
}
