//! Kills of the agent and of supervisors, and leases that lapse.

use aliquot_proto::agent::v1::scheduler_message::Message;
use aliquot_proto::agent::v1::{Amounts, DevicePart, EndReason, Start};
use nix::sys::signal::{Signal, kill};

use crate::manager::DEVICE;
use crate::scheduler::{claim, generation, shell, start};
use crate::{Node, Pipe, Scheduler};

/// A node on which one job runs. A process of the job that hides holds the pipe open.
fn running(lease_ms: u64) -> (Scheduler, Node, Pipe) {
    let mut scheduler = Scheduler::start(lease_ms);
    let node = Node::start(&scheduler);
    scheduler.report();
    let mut pipe = node.pipe("pipe");
    let script = format!(
        "exec 3>{}; setsid sh -c 'trap \"\" TERM; echo hidden >&3; sleep 1000' & echo up >&3; sleep 1000",
        pipe.path()
    );
    scheduler.start_job(1, shell(&script));
    scheduler.started(1);
    pipe.wait_for("up");
    pipe.wait_for("hidden");
    (scheduler, node, pipe)
}

#[test]
fn a_new_agent_finds_what_runs_and_what_was_handled() {
    let (mut scheduler, mut node, mut pipe) = running(60_000);
    let (session, supervisor) = (scheduler.session, node.supervisor(1));
    node.kill_agent();
    assert!(pipe.is_open(), "the job runs on");
    node.start_agent();
    let report = scheduler.report_after(session);
    assert_eq!(report.handled, Some(generation(1)));
    assert_eq!(report.running.iter().map(|running| running.claim.as_str()).collect::<Vec<_>>(), [claim(1)]);
    assert_eq!(node.supervisor(1), supervisor);
    scheduler.start_job(1, shell("true"));
    scheduler.started(1);
    scheduler.stop_job(1, 2);
    let ended = scheduler.ended(1);
    assert_eq!((ended.signal, ended.reason()), (15, EndReason::Stopped));
    assert!(!pipe.is_open());
}

#[test]
fn a_new_agent_tells_what_has_ended_meanwhile() {
    let mut scheduler = Scheduler::start(60_000);
    let mut node = Node::start(&scheduler);
    scheduler.report();
    let mut pipe = node.pipe("pipe");
    let _go = node.pipe("pipe2");
    scheduler.start_job(1, shell(&format!("exec 3>{0}; echo up >&3; read go < {0}2; exit 6", pipe.path())));
    scheduler.started(1);
    pipe.wait_for("up");
    let session = scheduler.session;
    node.kill_agent();
    std::fs::write(node.path("pipe2"), "go\n").unwrap();
    pipe.wait_for_end();
    node.start_agent();
    scheduler.report_after(session);
    let ended = scheduler.ended(1);
    assert_eq!((ended.exit_code, ended.reason()), (Some(6), EndReason::Exited));
    assert!(ended.started_unix_ms > 0);
}

#[test]
fn ends_are_known_where_the_agent_ignores_children() {
    let mut scheduler = Scheduler::start(60_000);
    let mut node = Node::start(&scheduler);
    scheduler.report();
    let session = scheduler.session;
    node.kill_agent();
    node.start_agent_that_ignores_children();
    scheduler.report_after(session);
    scheduler.start_job(1, shell("exit 7"));
    let ended = scheduler.ended(1);
    assert_eq!((ended.exit_code, ended.signal, ended.reason()), (Some(7), 0, EndReason::Exited));
}

#[test]
fn a_restart_during_a_start_does_not_fail_the_job() {
    let mut scheduler = Scheduler::start(60_000);
    let mut node = Node::start(&scheduler);
    scheduler.report();
    node.manager.asked(|asked| asked.is_silent = true);
    let devices = vec![DevicePart { uuid: DEVICE.into(), core_millis: 300, memory_bytes: 12_345 }];
    let amounts = Some(Amounts { devices, ..Amounts::default() });
    scheduler.say(Message::Start(Start { amounts, ..start(1, shell("true")) }));
    node.wait_until("the manager is asked for a slice", |node| node.manager.asked(|asked| !asked.made.is_empty()));
    let session = scheduler.session;
    node.kill_agent();
    node.start_agent();
    scheduler.report_after(session);
    let why = scheduler.refused(1);
    assert!(why.contains("node manager has ended"), "{why}");
}

#[test]
fn a_job_dies_with_its_supervisor() {
    let (mut scheduler, node, mut pipe) = running(60_000);
    kill(node.supervisor(1), Signal::SIGKILL).unwrap();
    let ended = scheduler.ended(1);
    assert_eq!((ended.exit_code, ended.reason()), (None, EndReason::Lost));
    assert!(!pipe.is_open(), "nothing of the job is left when its end is told");
}

#[test]
fn a_lease_that_lapses_ends_the_job_and_the_session() {
    let (mut scheduler, _node, mut pipe) = running(3_000);
    let session = scheduler.session;
    scheduler.give_leases_of(0);
    scheduler.report_after(session);
    assert!(!pipe.is_open(), "nothing of the session before runs when another begins");
    assert_eq!(scheduler.ended(1).reason(), EndReason::Lease);
}

#[test]
fn a_lease_lapses_although_the_agent_was_killed() {
    let (mut scheduler, mut node, mut pipe) = running(3_000);
    let session = scheduler.session;
    node.kill_agent();
    // Only the supervisor is left to end the job; nothing can extend the lease.
    pipe.wait_for_end();
    node.start_agent();
    scheduler.report_after(session);
    assert_eq!(scheduler.ended(1).reason(), EndReason::Lease);
}

#[test]
fn a_job_dies_with_its_supervisor_although_the_agent_was_killed() {
    let (mut scheduler, mut node, mut pipe) = running(60_000);
    let session = scheduler.session;
    node.kill_agent();
    kill(node.supervisor(1), Signal::SIGKILL).unwrap();
    pipe.wait_for_end();
    node.start_agent();
    scheduler.report_after(session);
    assert_eq!(scheduler.ended(1).reason(), EndReason::Lost);
}

#[test]
fn a_certificate_is_renewed_while_jobs_run_on() {
    let mut scheduler = Scheduler::start(60_000);
    scheduler.give_old_certificates();
    let node = Node::start(&scheduler);
    scheduler.report();
    let session = scheduler.session;
    let mut pipe = node.pipe("pipe");
    scheduler.start_job(1, shell(&format!("exec 3>{}; echo up >&3; sleep 1000", pipe.path())));
    scheduler.started(1);
    pipe.wait_for("up");
    let report = scheduler.report_after_renewal();
    assert_eq!((scheduler.session, report.running.len()), (session, 1));
    assert!(pipe.is_open());
    // The scheduler may have lost the messages of the last connection.
    scheduler.started(1);
    scheduler.stop_job(1, 2);
    assert_eq!(scheduler.ended(1).signal, 15);
    assert_eq!(scheduler.renewals(), 1, "the new certificate is young");
}
