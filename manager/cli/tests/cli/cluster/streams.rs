//! Commands beside a job, and connections to its ports.

use std::io::Write;
use std::process::Stdio;

use aliquot_proto::scheduler::v1::JobState;
use aliquot_proto::stream::v1::from_job::Frame;
use aliquot_proto::stream::v1::open::What;
use aliquot_proto::stream::v1::{Exec, Exit, FromUser, Open, Opened, Refused, from_user};

use super::scheduler::{Asked, Played, Scene, job};
use crate::support::{output, stderr, stdout};

fn played(stream: Vec<Frame>) -> Played {
    Played::new(Scene { job: job(JobState::Running), stream: Some(stream), ..Scene::default() })
}

fn exit(code: i32, signal: u32, with_job: bool) -> Frame {
    Frame::Exit(Exit { code, signal, with_job })
}

#[test]
fn what_a_command_writes_and_its_status_come_here() {
    let said = [Frame::Data(b"out\xff".to_vec()), Frame::Errors(b"err\n".to_vec()), exit(7, 0, false)];
    let scheduler = played([vec![Frame::Opened(Opened {})], said.into()].concat());
    let ended = output(&mut scheduler.aliquot(&["exec", "17.3", "--rank", "2", "--", "echo", "-n", "--json"]));
    assert_eq!((ended.status.code(), ended.stdout.as_slice()), (Some(7), &b"out\xff"[..]), "{}", stderr(&ended));
    assert_eq!(stderr(&ended), "err\n");
    let command = ["echo", "-n", "--json"].map(str::to_owned).into();
    let exec = Exec { command, terminal: None };
    let open = Open { id: 17, task: Some(3), rank: 2, what: Some(What::Exec(exec)) };
    assert_eq!(scheduler.asked(), [Asked::Open(FromUser { frame: Some(from_user::Frame::Open(open)) })]);
}

#[test]
fn ends_of_commands_and_refusals_are_told_apart() {
    let opened = || Frame::Opened(Opened {});
    let refused = |exit_code| Frame::Refused(Refused { why: "no such program".into(), exit_code });
    for (stream, code, words) in [
        (vec![opened(), exit(0, 0, false)], 0, ""),
        (vec![opened(), exit(0, 15, false)], 143, ""),
        (vec![opened(), exit(0, 9, true)], 137, "the job has ended, and the command with it"),
        (vec![refused(127)], 127, "no such program"),
        (vec![refused(0)], 125, "no such program"),
        (vec![opened()], 125, "ended before the command did"),
    ] {
        let ended = output(&mut played(stream).aliquot(&["exec", "17", "true"]));
        assert_eq!(ended.status.code(), Some(code), "{}", stderr(&ended));
        assert!(stderr(&ended).contains(words), "{}", stderr(&ended));
    }
    let stranger = Played::with_job(job(JobState::Running));
    let ended = output(&mut stranger.aliquot(&["exec", "17", "true"]));
    assert_eq!((ended.status.code(), stderr(&ended).as_str()), (Some(125), "error: job 17 is of user ada\n"));
}

#[test]
fn options_for_jobs_are_refused_for_slices() {
    let scheduler = played(Vec::new());
    for (args, words) in [
        (&["exec", "-i", "train", "true"][..], "\"train\" is a slice"),
        (&["exec", "--rank", "1", "train", "true"], "\"train\" is a slice"),
        (&["exec", "--slice", "-t", "17", "true"], "cannot be used with"),
        (&["exec", "-t", "17", "true"], "needs a terminal"),
    ] {
        let ended = output(&mut scheduler.aliquot(args));
        assert!(stderr(&ended).contains(words), "{args:?}: {}", stderr(&ended));
        assert_eq!(ended.status.code(), Some(125), "{args:?}");
    }
    assert_eq!(scheduler.asked(), []);
}

#[test]
fn a_job_that_does_not_run_has_no_ports() {
    let scheduler = Played::with_job(job(JobState::Pending));
    let ended = output(&mut scheduler.aliquot(&["port-forward", "17", ":80"]));
    assert_eq!(ended.status.code(), Some(1));
    assert!(stderr(&ended).contains("job 17 does not run: it is pending"), "{}", stderr(&ended));
    let ended = output(&mut scheduler.aliquot(&["port-forward", "17", "x:80"]));
    assert_eq!(ended.status.code(), Some(2));
}

#[test]
fn who_attaches_reads_on_from_the_end_and_gets_the_status() {
    let scheduler = Played::with_job(job(JobState::Running));
    scheduler.change(|scene| scene.log = b"one\ntwo\n".to_vec());
    let attached = scheduler.aliquot(&["attach", "17"]).stdout(Stdio::piped()).spawn().unwrap();
    scheduler.wait_for(1, |asked| matches!(asked, Asked::Log(request) if request.follow && request.offset == 8));
    scheduler.change(|scene| {
        scene.log.write_all(b"three\n").unwrap();
        scene.job = super::scheduler::ended(JobState::Failed, Some(3), 0);
    });
    let ended = attached.wait_with_output().unwrap();
    assert_eq!((stdout(&ended).as_str(), ended.status.code()), ("three\n", Some(3)));
}
