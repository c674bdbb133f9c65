//! Connections from other machines without a caller: how many are allowed, and how long one may be idle.

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;

use aliquot_harness::{Node, Process, Scheduler, SimulatedGpu, artifacts, run, wait};
use aliquot_proto::scheduler::v1::JobState;

use crate::{Cluster, endless, shell};

fn connect(scheduler: &Scheduler) -> TcpStream {
    TcpStream::connect(scheduler.address()).expect("the port is open")
}

/// Waits until the scheduler has closed the connection.
fn wait_for_end(mut stream: TcpStream) {
    let mut byte = [0];
    assert!(!matches!(stream.read(&mut byte), Ok(1..)), "the scheduler says nothing to strangers");
}

#[test]
fn strangers_are_cut_off_and_keep_nobody_out() {
    let cluster = Cluster::start(1, "[limits]\nconnections = 6\n");
    let strangers: Vec<TcpStream> = (0..16).map(|_| connect(&cluster.scheduler)).collect();
    wait::until_true("the log tells of it", || cluster.scheduler.log().contains("limits.connections allows at most"));
    // Connections that had a place are closed when their time is over; the others were closed at once.
    strangers.into_iter().for_each(wait_for_end);
    let id = cluster.submit(endless());
    cluster.wait_for(id, JobState::Running);
    let gpu = SimulatedGpu::with("[[device]]\nmemory = '80GiB'\n");
    let _other = Node::with(&gpu, &cluster.scheduler.joins("late"));
    cluster.wait_for_nodes(2);
}

#[test]
fn one_user_has_no_more_connections_than_allowed() {
    let cluster = Cluster::start(1, "[limits]\nconnections_per_caller = 4\n");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("ada.toml");
    let mut add = Command::new(artifacts::cli());
    add.args(["users", "add", "ada", "--role", "viewer", "--output"]).arg(&file);
    let _ = run(add.env("ALIQUOT_SCHEDULER", cluster.scheduler.socket())).success();
    let id = cluster.submit(shell("echo begun; exec sleep 1000000"));
    cluster.wait_for(id, JobState::Running);
    let aliquot = |arguments: &[&str]| {
        let mut command = Command::new(artifacts::cli());
        command.arg("--scheduler").arg(&file).args(arguments);
        command
    };
    let mut following: Vec<Process> = Vec::new();
    for _ in 0..4 {
        let mut process = Process::start(&mut aliquot(&["logs", "-f", &id.to_string()]));
        process.wait_for("begun");
        following.push(process);
    }
    let refused = run(&mut aliquot(&["jobs"]));
    assert!(refused.stderr.contains("limits.connections_per_caller"), "{refused:?}");
    drop(following);
    wait::until_true("there is room again", || run(&mut aliquot(&["jobs"])).status.success());
}
