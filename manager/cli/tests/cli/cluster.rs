//! The commands for a cluster, with a scheduler that gives the answers of a test.

mod scheduler;
mod secrets;
mod streams;
mod users;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use aliquot_proto::scheduler::v1::{
    CancelJobRequest, CreateJoinTokenRequest, ExplainResponse, Job, JobState, ListJobsRequest, Node, NodeState, Queue,
    QueueAmounts, QueueRules, ReadLogRequest,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{aliquot, output, stderr, stdout};
use scheduler::{Asked, Played, Scene, ended, job};

fn log_request(offset: u64, follow: bool, last_lines: u32) -> Asked {
    Asked::Log(ReadLogRequest { id: 17, task: None, rank: 0, follow, last_lines, offset })
}

#[test]
fn a_job_is_submitted_and_its_number_printed() {
    let scheduler = Played::with_job(job(JobState::Pending));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.yaml");
    std::fs::write(&file, "name: from-file\nqueue: b\ngpu-core: 30\ncommand: [python, train.py]\n").unwrap();
    let mut command = scheduler.aliquot(&["submit", "--queue", "a", "--array", "0-3", "-f"]);
    let submitted = output(command.arg(&file).current_dir(dir.path()));
    assert_eq!((stdout(&submitted).as_str(), stderr(&submitted).as_str()), ("17\n", ""));
    let asked = scheduler.asked();
    let [Asked::Submit(request)] = asked.as_slice() else { panic!("one question: {asked:?}") };
    let spec = request.spec.as_ref().unwrap();
    assert_eq!((spec.name.as_str(), spec.queue.as_str(), spec.gpu_core_percent), ("from-file", "a", 30));
    assert_eq!(
        (spec.array.as_slice(), spec.command.as_slice()),
        (&[0, 1, 2, 3][..], &["python", "train.py"].map(String::from)[..])
    );
    assert_eq!(spec.work_dir, dir.path().canonicalize().unwrap().to_str().unwrap());
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&output(&mut scheduler.aliquot(&["submit", "--json", "--", "true"])))).unwrap();
    assert_eq!((&json["id"], &json["state"]), (&17.into(), &"pending".into()));
}

#[test]
fn what_an_older_scheduler_ignores_is_said() {
    let scheduler = Played::with_job(job(JobState::Pending));
    let limited = ["submit", "--gpu-core", "30", "--gpu-core-limit", "60", "--", "true"];
    let submitted = output(&mut scheduler.aliquot(&limited));
    assert_eq!((stdout(&submitted).as_str(), submitted.status.code()), ("17\n", Some(0)));
    assert_eq!(stderr(&submitted), "the scheduler is of an older version and ignores --gpu-core-limit of job 17\n");
    let mut understood = job(JobState::Pending);
    understood.spec.as_mut().unwrap().gpu_core_limit_percent = 60;
    scheduler.change(|scene| scene.job = understood);
    assert_eq!(stderr(&output(&mut scheduler.aliquot(&limited))), "");
}

#[test]
fn with_credentials_the_current_directory_is_not_the_job_s() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials.toml");
    std::fs::write(&file, "").unwrap();
    let submit = ["--scheduler", file.to_str().unwrap(), "submit", "--workdir", "data", "--", "true"];
    let refused = output(aliquot(submit).current_dir(dir.path()));
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--workdir \"data\" is no path from the root"), "{}", stderr(&refused));
}

#[test]
fn a_job_whose_answer_is_lost_is_sent_again_as_the_same() {
    let mut scheduler = Played::with_job(job(JobState::Pending));
    scheduler.change(|scene| scene.loses_answers = true);
    let submits = |asked: &Asked| matches!(asked, Asked::Submit(_));
    let submitting = scheduler.aliquot(&["submit", "--", "true"]).stdout(Stdio::piped()).spawn().unwrap();
    scheduler.wait_for(1, submits);
    scheduler.kill();
    scheduler.change(|scene| scene.loses_answers = false);
    scheduler.start();
    let submitted = submitting.wait_with_output().unwrap();
    assert_eq!((stdout(&submitted).as_str(), submitted.status.code()), ("17\n", Some(0)));
    let asked = scheduler.asked();
    let [Asked::Submit(first), Asked::Submit(second)] = asked.as_slice() else { panic!("sent twice: {asked:?}") };
    assert_eq!(first, second);
    assert_eq!(first.request_id.len(), 32, "{}", first.request_id);
    let other = output(&mut scheduler.aliquot(&["submit", "--", "true"]));
    assert_eq!(stdout(&other), "17\n");
    let Some(Asked::Submit(third)) = scheduler.asked().pop() else { panic!("another question") };
    assert_ne!(first.request_id, third.request_id);
}

#[test]
fn jobs_that_cannot_be_are_refused_before_they_are_submitted() {
    let scheduler = Played::with_job(job(JobState::Pending));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("job.yaml"), "name: x\n\ngpucore: 30\n").unwrap();
    for (args, code, words) in [
        (&["submit"][..], 2, "the job has no command"),
        (&["submit", "--gpu-core", "300", "--", "x"], 2, "more than one device has"),
        (&["submit", "--gpu-memory", "25%", "--", "x"], 2, "devices differ"),
        (&["submit", "--array", "9-1", "--", "x"], 2, "ends before it begins"),
        (&["submit", "--name", "", "--", "x"], 2, "it is empty"),
        (&["submit", "--follow", "--", "x"], 2, "--wait"),
        (&["submit", "--env", "ALIQUOT_NO_SUCH", "--", "x"], 2, "it is not set here"),
        (
            &["submit", "-f", "job.yaml"],
            2,
            "job.yaml:3:1: there is no key \"gpucore\"\nhint: did you mean \"gpu-core\"?",
        ),
        (&["submit", "-f", "none.yaml"], 2, "cannot read none.yaml"),
        (&["submit", "--wait", "-f", "job.yaml"], 125, "gpu-core"),
        (&["submit", "--wait", "--bogus"], 125, "--bogus"),
        (&["submit", "--wait", "--follow", "--array", "0-3", "--", "x"], 125, "aliquot logs JOB.TASK -f"),
        (&["job", "x"], 2, "such as 17"),
        (&["queues", "set", "a", "--quota", "1.2345"], 2, "finer than a thousandth"),
        (&["nodes", "remove", "gpu-1"], 2, "--nothing-runs-there"),
    ] {
        let refused = output(scheduler.aliquot(args).current_dir(dir.path()));
        assert_eq!(refused.status.code(), Some(code), "{args:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(words), "{args:?}: {}", stderr(&refused));
    }
    assert_eq!(scheduler.asked(), []);
}

#[test]
fn the_schema_is_json_and_needs_no_scheduler() {
    let printed = output(&mut aliquot(["submit", "--schema"]));
    let schema: serde_json::Value = serde_json::from_str(&stdout(&printed)).unwrap();
    assert!(schema["properties"]["gpu-core"]["description"].as_str().unwrap().contains("percent"), "{schema}");
}

#[test]
fn whoever_waits_gets_the_status_of_the_command() {
    for (job, code) in [
        (ended(JobState::Succeeded, Some(0), 0), 0),
        (ended(JobState::Failed, Some(3), 0), 3),
        (ended(JobState::Failed, None, 9), 137),
        (ended(JobState::Cancelled, None, 15), 1),
    ] {
        let state = job.state().as_str_name().to_lowercase();
        let scheduler = Played::with_job(job);
        let waited = output(&mut scheduler.aliquot(&["submit", "--wait", "--", "x"]));
        assert_eq!((waited.status.code(), stdout(&waited).as_str()), (Some(code), "17\n"));
        let told = stderr(&waited);
        assert_eq!(told.is_empty(), code == 0, "{told}");
        assert!(code == 0 || state.ends_with(told.trim_end().rsplit(' ').next().unwrap()), "{told}");
    }
}

#[test]
fn whoever_waits_does_not_notice_a_restart_of_the_scheduler() {
    let mut scheduler = Played::with_job(job(JobState::Running));
    let mut waiting = scheduler.aliquot(&["submit", "--wait", "--", "x"]).stdout(Stdio::piped()).spawn().unwrap();
    scheduler.wait_for(1, |asked| *asked == Asked::Watch);
    scheduler.kill();
    scheduler.change(|scene| scene.job = ended(JobState::Failed, Some(7), 0));
    scheduler.start();
    assert_eq!(waiting.wait().unwrap().code(), Some(7));
}

#[test]
fn ctrl_c_ends_the_waiting_and_not_the_job() {
    let scheduler = Played::with_job(job(JobState::Running));
    let mut command = scheduler.aliquot(&["submit", "--wait", "--", "x"]);
    let waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    scheduler.wait_for(1, |asked| *asked == Asked::Watch);
    kill(Pid::from_raw(waiting.id() as i32), Signal::SIGINT).unwrap();
    let ended = waiting.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert!(
        stderr(&ended).contains("job 17 goes on") && stderr(&ended).contains("aliquot cancel 17"),
        "{}",
        stderr(&ended)
    );
    assert!(!scheduler.asked().iter().any(|asked| matches!(asked, Asked::Cancel(_))));
}

#[test]
fn a_log_is_printed_as_it_is() {
    let scheduler = Played::with_job(job(JobState::Running));
    scheduler.change(|scene| scene.log = b"one\n\x1b[1mtwo\xff\nthree".to_vec());
    let printed = output(&mut scheduler.aliquot(&["logs", "17"]));
    assert_eq!(printed.stdout, b"one\n\x1b[1mtwo\xff\nthree");
    let last = output(&mut scheduler.aliquot(&["logs", "17", "-n", "1"]));
    assert_eq!(last.stdout, b"\x1b[1mtwo\xff\nthree");
    let json = stdout(&output(&mut scheduler.aliquot(&["logs", "17", "--json"])));
    assert_eq!(json.lines().count(), 3);
    let task = output(&mut scheduler.aliquot(&["logs", "17.0", "--rank", "2"]));
    assert!(task.status.success());
    let of_rank = ReadLogRequest { id: 17, task: Some(0), rank: 2, ..ReadLogRequest::default() };
    assert_eq!(scheduler.asked().last(), Some(&Asked::Log(of_rank)));
}

#[test]
fn what_is_gone_of_a_log_is_said_beside_it() {
    let scheduler = Played::with_job(ended(JobState::Succeeded, Some(0), 0));
    for args in [&["logs", "17"][..], &["logs", "-f", "17"]] {
        scheduler.change(|scene| *scene = Scene { log: b"one\ntwo\n".to_vec(), log_gone: 4, ..scene.clone() });
        let part = output(&mut scheduler.aliquot(args));
        assert_eq!((stdout(&part).as_str(), part.status.code()), ("two\n", Some(0)));
        assert!(stderr(&part).contains("the first 4 bytes of the log are gone"), "{}", stderr(&part));

        scheduler.change(|scene| scene.breaks_log = true);
        let broken = output(&mut scheduler.aliquot(args));
        assert_eq!((stdout(&broken).as_str(), broken.status.code()), ("two\n", Some(1)));
        assert!(
            stderr(&broken).contains("node gpu-1 cannot read the rest of the log of job 17"),
            "{}",
            stderr(&broken)
        );

        scheduler.change(|scene| *scene = Scene { log: Vec::new(), log_gone: 0, ..scene.clone() });
        let none = output(&mut scheduler.aliquot(args));
        assert_eq!(none.status.code(), Some(1));
        assert!(stderr(&none).contains("node gpu-1 has no log of job 17 any more"), "{}", stderr(&none));

        scheduler.change(|scene| scene.breaks_log = false);
        let empty = output(&mut scheduler.aliquot(args));
        assert_eq!((stdout(&empty).as_str(), stderr(&empty).as_str(), empty.status.code()), ("", "", Some(0)));
    }
}

#[test]
fn each_line_of_a_followed_log_comes_once_also_across_a_restart() {
    let mut scheduler = Played::with_job(job(JobState::Pending));
    let mut command = scheduler.aliquot(&["logs", "-f", "-n", "1", "17"]);
    let mut following = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(following.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert_eq!(line, "job 17 waits; `aliquot explain 17` says why\n");

    scheduler.change(|scene| {
        scene.job = job(JobState::Running);
        scene.log = b"old\none\n".to_vec();
    });
    let mut printed = BufReader::new(following.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        printed.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(next(), "one\n");
    scheduler.change(|scene| scene.log.extend_from_slice(b"two\n"));
    assert_eq!(next(), "two\n");

    scheduler.kill();
    scheduler.change(|scene| scene.log.extend_from_slice(b"three\n"));
    scheduler.start();
    assert_eq!(next(), "three\n");

    scheduler.change(|scene| {
        scene.log.extend_from_slice(b"four\n");
        scene.job = ended(JobState::Succeeded, Some(0), 0);
    });
    assert_eq!(next(), "four\n");
    let mut rest = String::new();
    printed.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert!(following.wait().unwrap().success());
    let logs: Vec<Asked> = scheduler.asked().into_iter().filter(|asked| matches!(asked, Asked::Log(_))).collect();
    assert_eq!(logs[..2], [log_request(0, true, 1), log_request(12, true, 0)]);
}

#[test]
fn a_job_can_be_followed_while_it_is_waited_for() {
    let scheduler = Played::with_job(ended(JobState::Failed, Some(5), 0));
    scheduler.change(|scene| scene.log = b"its output\n".to_vec());
    let followed = output(&mut scheduler.aliquot(&["submit", "--wait", "--follow", "--", "x"]));
    assert_eq!((followed.status.code(), stdout(&followed).as_str()), (Some(5), "its output\n"));
    assert_eq!(stderr(&followed), "job 17\njob 17 failed\n");
}

#[test]
fn jobs_are_listed_and_shown() {
    let scheduler = Played::with_job(job(JobState::Running));
    let list = output(&mut scheduler.aliquot(&["jobs", "--user", "ada", "--queue", "team-a", "-n", "5"]));
    let row: Vec<String> = stdout(&list).lines().nth(1).unwrap().split_whitespace().map(ToOwned::to_owned).collect();
    assert_eq!(row[..7], ["17", "train", "ada", "team-a", "running", "1/0/0", "-"]);
    let request =
        ListJobsRequest { active: true, user: "ada".to_owned(), queue: "team-a".to_owned(), count_max: 5, before: 0 };
    assert_eq!(scheduler.asked(), [Asked::List(request)]);
    assert!(stdout(&output(&mut scheduler.aliquot(&["job", "17"]))).contains("Queue:      team-a\n"));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&output(&mut scheduler.aliquot(&["job", "17.0", "--json"])))).unwrap();
    assert_eq!(json["tasks"][0]["members"][0]["node"], "gpu-1");
    for (args, words) in [
        (&["job", "18"][..], "error: there is no job 18; see: aliquot jobs"),
        (&["logs", "18"], "there is no job 18"),
        (&["logs", "-f", "18"], "there is no job 18"),
        (&["explain", "18"], "there is no job 18"),
        (&["job", "17.4"], "job 17 has no task 4"),
        (&["logs", "-f", "17.4"], "job 17 has no task 4"),
    ] {
        let refused = output(&mut scheduler.aliquot(args));
        assert_eq!(refused.status.code(), Some(1), "{args:?}");
        assert!(stderr(&refused).contains(words), "{args:?}: {}", stderr(&refused));
    }
}

#[test]
fn a_list_is_asked_for_until_it_has_all_that_are_wanted() {
    let older = (1..17).rev().map(|id| Job { id, ..job(JobState::Pending) }).collect();
    let scheduler = Played::new(Scene { job: job(JobState::Running), older, ..Scene::default() });
    let rows = |args: &[&str]| {
        let list = stdout(&output(&mut scheduler.aliquot(args)));
        let number = |line: &str| line.split_whitespace().next()?.parse::<u64>().ok();
        (list.lines().filter_map(number).collect::<Vec<u64>>(), list.contains("and older ones"))
    };
    let all = std::iter::once(17).chain((1..17).rev()).collect::<Vec<u64>>();
    assert_eq!(rows(&["jobs"]), (all.clone(), false));
    assert_eq!(rows(&["jobs", "-n", "3"]), (all[..3].to_vec(), true));
    let Some(Asked::List(last)) = scheduler.asked().pop() else { panic!("a list was asked for") };
    assert_eq!((last.count_max, last.before), (1, 16));
}

#[test]
fn jobs_are_cancelled_and_explained() {
    let scheduler = Played::with_job(job(JobState::Stopping));
    let cancelled = output(&mut scheduler.aliquot(&["cancel", "17.0", "18", "17.2"]));
    assert_eq!((cancelled.status.code(), stdout(&cancelled).as_str()), (Some(1), "17.0,2 stopping\n"));
    assert!(stderr(&cancelled).contains("there is no job 18"));
    let of = |id, tasks: &[u32]| Asked::Cancel(CancelJobRequest { id, tasks: tasks.to_vec() });
    assert_eq!(scheduler.asked(), [of(17, &[0, 2]), of(18, &[])]);
    scheduler.change(|scene| {
        scene.explanation = ExplainResponse {
            reasons: vec!["The queue team-a holds its limit of 4 devices.".to_owned()],
            remedies: vec!["Ask for 20 % instead of 30 %.".to_owned()],
            state: JobState::Pending.into(),
        };
    });
    let explained = stdout(&output(&mut scheduler.aliquot(&["explain", "17"])));
    assert!(
        explained.contains("- The queue team-a holds") && explained.contains("What would help\n- Ask for 20 %"),
        "{explained}"
    );
    let explained = stdout(&output(&mut scheduler.aliquot(&["explain", "17", "--json"])));
    let explained: serde_json::Value = serde_json::from_str(&explained).unwrap();
    assert_eq!((&explained["job"], &explained["state"]), (&17.into(), &"pending".into()));
}

#[test]
fn queues_are_listed_and_changed() {
    let research = Queue { name: "research".to_owned(), quota_gpu_millis: Some(4000), weight: 2, ..Queue::default() };
    let scheduler = Played::new(Scene { queues: vec![research.clone()], ..Scene::default() });
    assert!(stdout(&output(&mut scheduler.aliquot(&["queues"]))).contains("research      4      -       2"));
    for args in [
        &["queues", "set", "research", "--limit", "8"][..],
        &["queues", "set", "vision", "--parent", "research", "--quota", "0.5"],
        &["queues", "remove", "vision"],
    ] {
        let changed = output(&mut scheduler.aliquot(args));
        assert!(changed.status.success(), "{args:?}: {}", stderr(&changed));
    }
    let vision = Queue {
        name: "vision".to_owned(),
        parent: "research".to_owned(),
        quota_gpu_millis: Some(500),
        ..Queue::default()
    };
    let changed = Queue { limit_gpu_millis: Some(8000), ..research };
    let expected = [Asked::SetQueue(changed), Asked::SetQueue(vision), Asked::RemoveQueue("vision".to_owned())];
    assert_eq!(scheduler.asked(), expected);
}

#[test]
fn an_older_scheduler_is_sent_no_rules_of_queues() {
    let older = Queue { name: "default".to_owned(), weight: 1, ..Queue::default() };
    let newer = Queue { rules: Some(QueueRules::default()), ..older.clone() };
    let scheduler = Played::new(Scene { queues: vec![older], ..Scene::default() });
    let set = ["queues", "set", "default", "--cpu-limit", "64", "--memory-quota", "1TiB", "--priority", "-2"];
    let refused = output(&mut scheduler.aliquot(&set));
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("an older version, which knows no --cpu-limit"), "{}", stderr(&refused));
    assert_eq!(scheduler.asked(), []);
    scheduler.change(|scene| scene.queues = vec![newer.clone()]);
    let set = output(&mut scheduler.aliquot(&set));
    assert!(set.status.success(), "{}", stderr(&set));
    let amounts = |quota, limit| Some(QueueAmounts { quota, limit, ..QueueAmounts::default() });
    let expected = Queue {
        rules: Some(QueueRules { priority: -2, ..QueueRules::default() }),
        cpu_millis: amounts(None, Some(64_000)),
        memory_bytes: amounts(Some(1 << 40), None),
        ..newer
    };
    assert_eq!(scheduler.asked(), [Asked::SetQueue(expected)]);
}

#[test]
fn nodes_are_those_of_the_cluster_unless_this_node_is_meant() {
    let node = Node { name: "gpu-7".to_owned(), state: NodeState::Up.into(), ..Node::default() };
    let scheduler = Played::new(Scene { nodes: vec![node], ..Scene::default() });
    assert!(stdout(&output(&mut scheduler.aliquot(&["nodes"]))).contains("gpu-7  up"));
    let manager = scheduler.socket().with_file_name("manager.sock");
    let manager = manager.to_str().unwrap();
    for args in [&["nodes", "--local", "--socket", manager][..], &["--socket", manager, "nodes"]] {
        let mut command = aliquot(args.iter().copied());
        if args.contains(&"--local") {
            command.env("ALIQUOT_SCHEDULER", scheduler.socket());
        }
        assert!(stderr(&output(&mut command)).contains("no node manager runs here"), "{args:?}");
    }
    assert!(output(&mut scheduler.aliquot(&["nodes", "remove", "gpu-7", "--nothing-runs-there"])).status.success());
    assert_eq!(scheduler.asked(), [Asked::RemoveNode("gpu-7".to_owned())]);
}

#[test]
fn a_token_is_the_command_that_uses_it() {
    let scheduler = Played::new(Scene::default());
    let made = output(&mut scheduler.aliquot(&["token", "--valid", "1d", "--uses", "8", "--replace"]));
    assert_eq!(stdout(&made), "aliquot-manager --join alq1.x?[2J\n");
    assert!(stderr(&made).contains("1970-01-01 01:00:00Z"));
    let request = CreateJoinTokenRequest { valid_ms: 86_400_000, uses: 8, replace: true };
    assert_eq!(scheduler.asked(), [Asked::Token(request)]);
}

#[test]
fn without_a_scheduler_every_command_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("scheduler.sock");
    let socket = socket.to_str().unwrap();
    for (args, code) in [
        (&["submit", "--", "x"][..], 1),
        (&["submit", "--wait", "--", "x"], 125),
        (&["jobs"], 1),
        (&["job", "17"], 1),
        (&["logs", "17"], 1),
        (&["logs", "-f", "17"], 1),
        (&["cancel", "17"], 1),
        (&["explain", "17"], 1),
        (&["queues"], 1),
        (&["nodes"], 1),
        (&["token"], 1),
        (&["users"], 1),
    ] {
        let refused = output(&mut aliquot([&["--scheduler", socket][..], args].concat()));
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.starts_with("error: no scheduler runs here") && text.contains(socket), "{args:?}: {text}");
        assert!(text.contains("\nhint: ") && text.contains("aliquot-scheduler"), "{args:?}: {text}");
    }
}

#[test]
fn a_silent_scheduler_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("scheduler.sock");
    // No process accepts connections at this socket, but the kernel takes some all the same.
    let _listener = UnixListener::bind(&socket).unwrap();
    for args in [&["jobs"][..], &["submit", "--", "x"], &["logs", "-f", "17"]] {
        let common = ["--scheduler", socket.to_str().unwrap(), "--timeout", "0.2"];
        let refused = output(&mut aliquot([&common[..], args].concat()));
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains("the scheduler on ") && text.contains("has not answered for 0.2 s"), "{args:?}: {text}");
        assert!(text.contains("systemctl restart aliquot-scheduler"), "{args:?}: {text}");
    }
}

#[test]
fn a_shell_completes_jobs_queues_and_nodes() {
    let named = |name: &str| Queue { name: name.to_owned(), ..Queue::default() };
    let scheduler = Played::new(Scene {
        job: job(JobState::Running),
        queues: vec![named("team-a"), named("other")],
        nodes: vec![Node { name: "gpu-1".to_owned(), ..Node::default() }],
        ..Scene::default()
    });
    for (words, expected) in [
        (&["aliquot", "job", "1"][..], "17"),
        (&["aliquot", "logs", "1"], "17"),
        (&["aliquot", "submit", "--queue", "te"], "team-a"),
        (&["aliquot", "queues", "remove", "ot"], "other"),
        (&["aliquot", "nodes", "remove", "gp"], "gpu-1"),
    ] {
        // The words are passed as the script for bash passes them.
        let mut command = scheduler.aliquot(&[&["--"][..], words].concat());
        command
            .env("COMPLETE", "bash")
            .env("_CLAP_IFS", "\n")
            .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        assert_eq!(stdout(&output(&mut command)).trim_end(), expected, "{words:?}");
    }
}
