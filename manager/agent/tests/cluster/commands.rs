//! How a node handles commands of the scheduler.

use std::fs;

use aliquot_proto::agent::v1::scheduler_message::Message;
use aliquot_proto::agent::v1::{
    Amounts, AskReport, DevicePart, EndReason, EndSession, PriorityClass, Process, ReadLog, Secret, Start, outcome,
};
use nix::sys::signal::{Signal, kill};
use tonic::Code;

use crate::manager::DEVICE;
use crate::scheduler::{claim, generation, shell, start};
use crate::{Node, Scheduler};

const LEASE_MS: u64 = 60_000;

fn joined() -> (Scheduler, Node) {
    let mut scheduler = Scheduler::start(LEASE_MS);
    let node = Node::start(&scheduler);
    let report = scheduler.report();
    let spec = report.spec.expect("what the node is");
    assert_eq!(spec.devices.iter().map(|device| device.uuid.as_str()).collect::<Vec<_>>(), [DEVICE]);
    assert!(spec.cpu_millis > 0 && spec.address == "127.0.0.1" && report.running.is_empty());
    (scheduler, node)
}

fn of_log(id: &str) -> ReadLog {
    ReadLog { read_id: id.into(), log: "1.0.0".into(), ..ReadLog::default() }
}

#[test]
fn a_job_is_forgotten_when_its_end_was_acknowledged() {
    let (mut scheduler, node) = joined();
    let mut process = shell("echo \"rank $RANK of $USER\"; echo twice >&2; exit 7");
    process.environment.insert("RANK".into(), "3".into());
    scheduler.start_job(1, process);
    let ended = scheduler.ended(1);
    assert_eq!((ended.exit_code, ended.signal, ended.reason()), (Some(7), 0, EndReason::Exited));
    assert!(ended.started_unix_ms > 0 && ended.ended_unix_ms >= ended.started_unix_ms);
    scheduler.ask();
    let report = scheduler.report();
    assert_eq!(report.handled, Some(generation(1)));
    assert_eq!(report.running.iter().map(|running| running.claim.as_str()).collect::<Vec<_>>(), [claim(1)]);
    scheduler.acknowledge(1);
    scheduler.ask();
    assert!(scheduler.report().running.is_empty());
    assert_eq!(fs::read_dir(node.path("state/cluster/instances")).unwrap().count(), 0);
    scheduler.ask_for_log(of_log("a"));
    let log = scheduler.log("a");
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap();
    assert_eq!(log, format!("rank 3 of {}\ntwice\n", user.name));
}

/// The user that every system has for processes without files of their own.
const NOBODY: u32 = 65534;

#[test]
fn a_job_has_the_rights_of_its_user_and_no_others() {
    let (mut scheduler, _node) = joined();
    let is_root = nix::unistd::geteuid().is_root();
    let uid = if is_root { NOBODY } else { nix::unistd::geteuid().as_raw() };
    let script =
        "id -u; id -ru; if test -w /etc/passwd; then echo root; fi; ulimit -Sn; cat /proc/self/oom_score_adj; umask";
    scheduler.start_job(1, Process { uid, ..shell(script) });
    assert_eq!(scheduler.ended(1).exit_code, Some(0));
    scheduler.ask_for_log(of_log("d"));
    assert_eq!(scheduler.log("d"), format!("{uid}\n{uid}\n1024\n0\n0022\n"));
    if !is_root {
        scheduler.start_job(2, Process { uid: 0, ..shell("true") });
        assert!(scheduler.trouble(2).contains("not as root"));
    }
}

#[test]
fn secrets_are_there_as_long_as_the_job_is() {
    let mut scheduler = Scheduler::start(LEASE_MS);
    // In memory, so that it also works where this user may mount nothing.
    let mut node = Node::in_memory(&scheduler);
    let spec = scheduler.report().spec.expect("what the node is");
    assert!(spec.keeps_secrets);
    let mut pipe = node.pipe("pipe");
    let secret = |value: &str| Secret { name: "token".into(), value: value.into(), variable: "TOKEN".into() };
    let script = "echo $(cat $ALIQUOT_SECRETS/token) $TOKEN > PIPE; exec sleep 1000";
    let process = Process { secrets: vec![secret("sesame")], ..shell(&script.replace("PIPE", &pipe.path())) };
    scheduler.start_job(1, process.clone());
    scheduler.started(1);
    pipe.wait_for("sesame sesame");
    let count = || fs::read_dir(node.path("run/secrets")).unwrap().count();
    assert_eq!(count(), 1);
    let command = fs::read(node.path("state/cluster/instances/1-1/command")).unwrap();
    assert!(!command.windows(6).any(|part| part == b"sesame"));
    scheduler.stop_job(1, 2);
    scheduler.ended(1);
    assert_eq!(count(), 0);

    // The agent removes the secrets that a killed supervisor leaves behind, even though the agent was killed as well.
    scheduler.start_job(3, process);
    scheduler.started(3);
    pipe.wait_for("sesame sesame\nsesame sesame");
    let (session, supervisor) = (scheduler.session, node.supervisor(3));
    node.kill_agent();
    kill(supervisor, Signal::SIGKILL).unwrap();
    assert_eq!(fs::read_dir(node.path("run/secrets")).unwrap().count(), 1);
    node.start_agent();
    scheduler.report_after(session);
    scheduler.ended(3);
    assert_eq!(fs::read_dir(node.path("run/secrets")).unwrap().count(), 0);

    scheduler.start_job(4, Process { secrets: vec![Secret { name: "../x".into(), ..secret("x") }], ..shell("true") });
    assert!(scheduler.trouble(4).contains("\"../x\" cannot be the name of a secret"));
}

#[test]
fn a_log_that_is_gone_is_not_an_empty_one() {
    let (mut scheduler, node) = joined();
    scheduler.start_job(1, shell("true"));
    scheduler.ended(1);
    scheduler.ask_for_log(of_log("a"));
    assert_eq!(scheduler.log("a"), "");
    fs::remove_dir_all(node.path("state/cluster/logs/1.0.0")).unwrap();
    scheduler.ask_for_log(of_log("b"));
    assert_eq!(scheduler.broken_log("b"), Code::Internal);
}

#[test]
fn a_new_log_takes_the_room_of_an_old_one() {
    let mut scheduler = Scheduler::start(LEASE_MS);
    let node = Node::with(&format!("{}log_bytes_max = 65536\nlogs_bytes_max = 65536\n", scheduler.settings()));
    scheduler.report();
    scheduler.start_job(1, shell("head -c 65536 /dev/zero"));
    scheduler.ended(1);
    assert!(node.path("state/cluster/logs/1.0.0").exists());
    scheduler.start_job(2, Process { log: "2.0.0".into(), ..shell("true") });
    scheduler.ended(2);
    node.wait_until("the old log is gone", |node| !node.path("state/cluster/logs/1.0.0").exists());
    assert!(node.path("state/cluster/logs/2.0.0").exists());
}

#[test]
fn a_log_is_followed_until_its_job_has_ended() {
    let (mut scheduler, node) = joined();
    let mut pipe = node.pipe("pipe");
    scheduler.start_job(1, shell(&format!("echo one; echo up > {0}; read go < {0}2; echo two", pipe.path())));
    let _go = node.pipe("pipe2");
    scheduler.started(1);
    pipe.wait_for("up");
    scheduler.ask_for_log(ReadLog { follow: true, ..of_log("b") });
    fs::write(node.path("pipe2"), "go\n").unwrap();
    assert_eq!(scheduler.log("b"), "one\ntwo\n");
}

#[test]
fn a_job_that_is_stopped_may_clean_up() {
    let (mut scheduler, node) = joined();
    let mut pipe = node.pipe("pipe");
    let script = format!("exec 3>{}; trap 'exit 3' TERM; echo up >&3; while :; do sleep 0.05; done", pipe.path());
    scheduler.start_job(1, shell(&script));
    scheduler.started(1);
    pipe.wait_for("up");
    scheduler.stop_job(1, 2);
    let ended = scheduler.ended(1);
    assert_eq!((ended.exit_code, ended.reason()), (Some(3), EndReason::Stopped));
    pipe.wait_for_end();
}

#[test]
fn a_program_that_a_shell_runs_may_clean_up_too() {
    let (mut scheduler, node) = joined();
    let mut pipe = node.pipe("pipe");
    let saved = node.path("saved");
    // The shell ends at once. Its program saves only when it has no parent but the job's first process any more.
    let worker = format!(
        "shell=$PPID; has_parent() {{ read -r a b c parent d < /proc/$$/stat; test $parent = $shell; }}; \
         trap 'while has_parent; do sleep 0.02; done; echo done > {}; exit 0' TERM; \
         echo up > {}; while :; do sleep 0.05; done",
        saved.display(),
        pipe.path()
    );
    let script = "sh -c \"$WORKER\"; true";
    let environment = [("WORKER".to_owned(), worker)].into();
    scheduler.start_job(1, Process { environment, ..shell(script) });
    scheduler.started(1);
    pipe.wait_for("up");
    scheduler.stop_job(1, 2);
    let ended = scheduler.ended(1);
    assert_eq!((ended.signal, ended.reason()), (15, EndReason::Stopped));
    assert_eq!(fs::read_to_string(&saved).unwrap(), "done\n");
}

#[test]
fn a_job_that_does_not_end_is_killed_as_a_whole() {
    let (mut scheduler, node) = joined();
    let mut pipe = node.pipe("pipe");
    let script = format!(
        "exec 3>{}; trap '' TERM; setsid sh -c 'trap \"\" TERM; echo hidden >&3; sleep 1000' & echo up >&3; sleep 1000",
        pipe.path()
    );
    scheduler.start_job(1, Process { grace_ms: 100, ..shell(&script) });
    scheduler.started(1);
    pipe.wait_for("up");
    pipe.wait_for("hidden");
    scheduler.stop_job(1, 2);
    let ended = scheduler.ended(1);
    assert_eq!((ended.exit_code, ended.signal, ended.reason()), (None, 9, EndReason::Stopped));
    assert!(!pipe.is_open());
}

#[test]
fn what_a_job_leaves_behind_ends_with_it() {
    let (mut scheduler, node) = joined();
    let mut pipe = node.pipe("pipe");
    let script = format!("exec 3>{}; setsid sleep 1000 & echo up >&3; exit 0", pipe.path());
    scheduler.start_job(1, shell(&script));
    pipe.wait_for("up");
    assert_eq!(scheduler.ended(1).exit_code, Some(0));
    assert!(!pipe.is_open());
}

#[test]
fn a_job_ends_with_its_time_limit() {
    let (mut scheduler, _node) = joined();
    scheduler.start_job(1, Process { time_limit_ms: 100, ..shell("sleep 1000") });
    assert_eq!(scheduler.ended(1).reason(), EndReason::TimeLimit);
}

#[test]
fn a_job_has_a_slice_with_exactly_its_parts() {
    let (mut scheduler, node) = joined();
    let devices = vec![DevicePart { uuid: DEVICE.into(), core_millis: 300, memory_bytes: 12_345 }];
    let amounts = Some(Amounts { devices, ..Amounts::default() });
    let process = shell("echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES $LD_PRELOAD");
    scheduler.say(Message::Start(Start { amounts: amounts.clone(), ..start(1, process) }));
    assert_eq!(scheduler.ended(1).exit_code, Some(0));
    let supervisor = node.supervisor(1);
    node.manager.asked(|asked| {
        let part = &asked.made[0].parts[0];
        assert_eq!((part.core_request_percent, part.core_limit_percent, part.memory_limit_bytes), (30, 30, 12_345));
        assert_eq!(asked.made[0].owner_pid.cast_signed(), supervisor.as_raw());
        assert_eq!(asked.removed, ["job-1-1"], "the slice is gone before the end is told");
        asked.refuses = Some("the device has not enough core left".into());
    });
    scheduler.ask_for_log(of_log("c"));
    let log = scheduler.log("c");
    assert!(log.contains(DEVICE) && log.contains("no-shim.so"), "{log}");
    scheduler.say(Message::Start(Start { amounts, ..start(2, shell("true")) }));
    assert!(scheduler.trouble(2).contains("not enough core"));
}

#[test]
fn a_job_may_use_idle_time_up_to_its_limit() {
    let (mut scheduler, node) = joined();
    let devices = vec![DevicePart { uuid: DEVICE.into(), core_millis: 300, memory_bytes: 12_345 }];
    let amounts = Some(Amounts { devices, ..Amounts::default() });
    let priority_class = PriorityClass::Batch.into();
    let process = Process { core_limit_percent: 60, priority_class, ..shell("true") };
    scheduler.say(Message::Start(Start { amounts, ..start(1, process) }));
    assert_eq!(scheduler.ended(1).exit_code, Some(0));
    node.manager.asked(|asked| {
        let part = &asked.made[0].parts[0];
        assert_eq!((part.core_request_percent, part.core_limit_percent), (30, 60));
        assert_eq!(asked.made[0].priority_class().as_str_name(), "PRIORITY_CLASS_BATCH");
    });
}

#[test]
fn what_cannot_be_started_is_said_with_the_reason() {
    let (mut scheduler, _node) = joined();
    scheduler.start_job(1, Process { command: vec!["/no/such/program".into()], ..shell("") });
    assert!(scheduler.trouble(1).contains("/no/such/program"));
    scheduler.start_job(2, Process { work_dir: "/no/such/place".into(), ..shell("true") });
    let why = scheduler.trouble(2);
    assert_eq!(why, "the directory /no/such/place does not exist on node test-node; give another with --workdir");
    scheduler.start_job(3, Process { uid: 4_000_000_001, user: "ada".into(), ..shell("true") });
    assert!(scheduler.trouble(3).contains("ada"));
    scheduler.start_job(4, Process { log: "../elsewhere".into(), ..shell("true") });
    assert!(scheduler.trouble(4).contains("elsewhere"));
}

#[test]
fn what_the_node_lacks_does_not_fail_a_job() {
    let (mut scheduler, node) = joined();
    let log = node.path("state/cluster/logs/1.0.0");
    fs::write(&log, "this is no directory").unwrap();
    scheduler.start_job(1, shell("true"));
    let why = scheduler.refused(1);
    assert!(why.contains("cannot write the log"), "{why}");
    fs::remove_file(&log).unwrap();
    scheduler.start_job(2, Process { command: vec!["/no/such/program".into()], ..shell("") });
    let failed = scheduler.outcome(2).outcome;
    assert!(matches!(failed, Some(outcome::Outcome::Failed(_))), "another node has no such program either: {failed:?}");
}

#[test]
fn a_command_that_comes_again_does_nothing_twice() {
    let (mut scheduler, node) = joined();
    let marks = node.path("marks");
    let script = format!("echo x >> {}", marks.display());
    for _ in 0..3 {
        scheduler.start_job(5, shell(&script));
    }
    scheduler.wait("its end", |message| format!("{message:?}").contains("Ended").then_some(()));
    // A command before the handled ones, one of another session, and the same one again after it was forgotten.
    scheduler.start_job(4, shell(&script));
    assert!(scheduler.trouble(4).contains("later command"));
    scheduler.acknowledge(5);
    scheduler.say_to(scheduler.session + 1, Message::Start(start(6, shell(&script))));
    scheduler.start_job(5, shell(&script));
    let why = scheduler.wait("that it is refused", |message| {
        let text = format!("{message:?}");
        text.contains("Refused").then_some(text)
    });
    assert!(why.contains("later command"), "{why}");
    scheduler.ask();
    let report = scheduler.report();
    assert_eq!((report.handled, report.running.len()), (Some(generation(5)), 0));
    assert_eq!(fs::read_to_string(marks).unwrap(), "x\n");
}

#[test]
fn a_new_leader_can_repeat_what_the_one_before_did_not_send() {
    let (mut scheduler, _node) = joined();
    scheduler.say(Message::Report(AskReport { term: 2 }));
    scheduler.report();
    scheduler.start_job(1, shell("true"));
    assert!(scheduler.trouble(1).contains("does not lead any more"));
    scheduler.say(Message::Start(Start { term: 2, ..start(2, shell("exit 3")) }));
    assert_eq!(scheduler.ended(2).exit_code, Some(3));
}

#[test]
fn a_stop_that_overtakes_its_start_wins() {
    let (mut scheduler, node) = joined();
    scheduler.stop_job(1, 2);
    assert_eq!(scheduler.ended(1).reason(), EndReason::Stopped);
    let mark = node.path("mark");
    scheduler.start_job(1, shell(&format!("touch {}", mark.display())));
    assert!(scheduler.trouble(1).contains("later command"));
    assert!(!mark.exists());
}

#[test]
fn nothing_is_started_without_a_lease() {
    let mut scheduler = Scheduler::start(0);
    let _node = Node::start(&scheduler);
    scheduler.report();
    scheduler.start_job(1, shell("true"));
    assert!(scheduler.trouble(1).contains("no lease"));
}

#[test]
fn nothing_is_started_that_cannot_be_written_down() {
    let (mut scheduler, node) = joined();
    let instances = node.path("state/cluster/instances");
    fs::remove_dir(&instances).unwrap();
    fs::write(&instances, "").unwrap();
    let mark = node.path("mark");
    scheduler.start_job(1, shell(&format!("touch {}", mark.display())));
    assert!(scheduler.trouble(1).contains("cannot write its state"));
    fs::remove_file(&instances).unwrap();
    scheduler.start_job(2, shell("true"));
    assert_eq!(scheduler.ended(2).exit_code, Some(0));
    assert!(!mark.exists());
}

#[test]
fn the_end_of_a_session_stops_all_and_begins_another() {
    let (mut scheduler, node) = joined();
    let mut pipe = node.pipe("pipe");
    scheduler.start_job(1, shell(&format!("exec 3>{}; echo up >&3; sleep 1000", pipe.path())));
    scheduler.started(1);
    pipe.wait_for("up");
    let session = scheduler.session;
    scheduler.say(Message::EndSession(EndSession { term: 1 }));
    let ended = scheduler.ended(1);
    assert_eq!((ended.reason(), ended.signal), (EndReason::Lease, 15));
    scheduler.report_after(session);
    assert!(!pipe.is_open());
    scheduler.start_job(2, shell("exit 4"));
    assert_eq!(scheduler.ended(2).exit_code, Some(4));
}

#[test]
fn what_a_newer_scheduler_says_does_not_disturb_a_node() {
    let (mut scheduler, _node) = joined();
    // A command that this version does not know.
    scheduler.say_nothing_known();
    scheduler.start_job(1, shell("exit 3"));
    assert_eq!(scheduler.ended(1).exit_code, Some(3));
}

#[test]
fn a_node_whose_clock_is_behind_keeps_what_its_token_gave() {
    let scheduler = Scheduler::start(LEASE_MS);
    scheduler.give_early_certificates();
    let node = Node::start(&scheduler);
    node.wait_until("the log says it", |node| node.agent_log().contains("this machine's clock is"));
    assert!(node.path("state/cluster/identity.json").exists(), "the token works only once");
}

#[test]
fn a_wrong_token_is_said_in_the_log() {
    let scheduler = Scheduler::start(LEASE_MS);
    let node = Node::with(&scheduler.settings_with("wrong"));
    node.wait_until("the log says it", |node| node.agent_log().contains("the join token is unknown"));
}
