//! Schedulers and nodes of different versions side by side.

use std::process::Command;

use aliquot_harness::{Node, PlayedNodes, Scheduler, SimulatedGpu, artifacts, run, spec_of_today, wait};
use aliquot_proto::agent::v1::NodeSpec;
use aliquot_proto::scheduler::v1::{JobSpec, JobState, SecretUse};

use crate::{Cluster, shell};

/// A node as its first version reported itself. Its administrator has set the label for secrets, which it cannot give
/// to jobs.
fn first_version() -> NodeSpec {
    let labels = [("aliquot.dev/secrets".to_owned(), "yes".to_owned())].into();
    NodeSpec { version: "0.0.1".to_owned(), labels, opens_streams: false, keeps_secrets: false, ..spec_of_today(2) }
}

#[test]
fn a_node_too_old_for_something_is_given_everything_else() {
    let scheduler = Scheduler::start("");
    let token = scheduler.client().token();
    let addresses = [scheduler.address().to_owned()];
    let old = PlayedNodes::join(&addresses, &token, &["old".to_owned()], &first_version(), None);
    let mut cluster = Cluster { nodes: Vec::new(), _gpus: Vec::new(), scheduler };
    cluster.wait_for_nodes(1);
    let plain = cluster.submit(JobSpec { gpu_core_percent: 30, ..shell("exec sleep 1000000") });
    cluster.wait_for(plain, JobState::Running);
    assert_eq!(old.start_count(), 1);

    let mut command = Command::new(artifacts::cli());
    command.args(["exec", &plain.to_string(), "true"]).env("ALIQUOT_SCHEDULER", cluster.scheduler.socket());
    let refused = run(&mut command);
    assert!(refused.stderr.contains("the manager of node old (version 0.0.1) does not know `exec`"), "{refused:?}");

    cluster.client().set_secret("token", b"sesame").expect("it is kept");
    let secrets = vec![SecretUse { name: "token".into(), variable: String::new() }];
    let waits = cluster.submit(JobSpec { secrets, ..shell("cat $ALIQUOT_SECRETS/token") });
    let explained = wait::until("it is said what is missing", || {
        let explained = cluster.client().explain(waits).ok()?;
        explained.reasons.iter().any(|reason| reason.contains("no secrets to jobs")).then_some(explained)
    });
    assert!(explained.remedies.iter().any(|remedy| remedy.contains("update the managers")), "{explained:?}");
    assert_eq!(old.start_count(), 1, "it is never started without its secret");

    // The first updated node gets the job. The old node keeps its own jobs.
    let gpu = SimulatedGpu::with("[[device]]\nmemory = '80GiB'\n");
    let node = Node::with(&gpu, &cluster.scheduler.joins("new"));
    cluster.nodes.push(node);
    cluster._gpus.push(gpu);
    cluster.wait_for(waits, JobState::Succeeded);
    assert_eq!(cluster.client().log(waits, 0).expect("a log"), "sesame");
    assert_eq!(cluster.client().job(plain).expect("it is there").state(), JobState::Running);
    assert_eq!(old.start_count(), 1);

    // A restarted scheduler knows the same about both nodes.
    cluster.scheduler.kill();
    cluster.scheduler.restart();
    cluster.wait_for_nodes(2);
    assert_eq!(cluster.client().job(plain).expect("it is there").state(), JobState::Running);
    cluster.client().cancel(plain).expect("it can be cancelled");
    cluster.wait_for(plain, JobState::Cancelled);
}
