//! `aliquot-scheduler steady`: cases with an answer from queueing theory, and laws for all cases.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A folder of its own for each test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    /// A folder with the lists of so many nodes of so many devices each, and of tasks for these numbers of devices and
    /// thousandths of each.
    fn new(test: &str, nodes: usize, devices: usize, tasks: &[(u32, u32)]) -> Self {
        let path = std::env::temp_dir().join(format!("aliquot-steady-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be written");
        let mut list = String::from("sn,cpu_milli,memory_mib,gpu,model\n");
        (0..nodes).for_each(|node| _ = writeln!(list, "n{node},64000,262144,{devices},A"));
        fs::write(path.join("nodes.csv"), list).expect("the temporary folder can be written");
        let mut list = String::from("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n");
        for (number, (devices, milli)) in tasks.iter().enumerate() {
            _ = writeln!(list, "t{number},1000,1024,{devices},{milli}");
        }
        fs::write(path.join("tasks.csv"), list).expect("the temporary folder can be written");
        Self(path)
    }

    fn run(&self, more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-scheduler"));
        command.arg("steady").arg("--nodes").arg(self.0.join("nodes.csv")).arg("--tasks").arg(self.0.join("tasks.csv"));
        command.args(more).output().expect("the program runs")
    }

    fn text(&self, more: &[&str]) -> String {
        let out = self.run(more);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("the report is text")
    }

    fn report(&self, more: &[&str]) -> Value {
        serde_json::from_str(&self.text(more)).expect("the report is JSON")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// Whether two numbers differ by at most `most`.
fn near(found: f64, expected: f64, most: f64) -> bool {
    (found - expected).abs() <= most
}

/// The part of arrivals that finds all servers busy and is lost, by Erlang's formula B: `offered` is the mean number of
/// servers that would be busy if no arrival were lost.
fn erlang_b(servers: u32, offered: f64) -> f64 {
    (1..=servers).fold(1.0, |lost, servers| offered * lost / (f64::from(servers) + offered * lost))
}

const MANY: [&str; 4] = ["--warm-up", "1000", "--count", "60000"];

#[test]
fn tasks_for_one_device_are_lost_as_erlang_says() {
    let folder = Folder::new("erlang-b", 10, 1, &[(1, 1000)]);
    for (load, offered) in [("90", 9.0), ("50", 5.0)] {
        let report = folder.report(&[&["--load", load][..], &MANY].concat());
        let lost = erlang_b(10, offered);
        assert!(near(number(&report["all"]["lost_percent"]), 100.0 * lost, 1.0), "{lost}: {report}");
        // An arrival that is not lost is served for the mean duration.
        let allocated = 100.0 * offered * (1.0 - lost) / 10.0;
        assert!(near(number(&report["allocated_device_percent"]), allocated, 1.5), "{allocated}: {report}");
        assert_eq!(report["all"]["free_at_loss"]["devices"], 0.0, "a task is lost only where none is free: {report}");
    }
}

#[test]
fn tasks_for_one_device_wait_as_erlang_says() {
    let folder = Folder::new("erlang-c", 10, 1, &[(1, 1000)]);
    let report = folder.report(&[&["--load", "80", "--mode", "queue"][..], &MANY].concat());
    let lost = erlang_b(10, 8.0);
    // Erlang's formula C: the part of arrivals that has to wait; and the mean wait of all, in percent of the mean
    // duration.
    let waits = lost / (1.0 - 0.8 * (1.0 - lost));
    let mean = 100.0 * waits / (10.0 - 8.0);
    assert!(near(number(&report["all"]["waits"]["mean"]), mean, 3.0), "{mean}: {report}");
    assert!(near(number(&report["allocated_device_percent"]), 80.0, 1.5), "nothing is lost: {report}");
    assert_eq!(report["all"]["lost"], 0);
}

#[test]
fn every_task_that_comes_is_placed_or_lost_or_still_waits() {
    let folder = Folder::new("conservation", 6, 4, &[(0, 0), (1, 300), (1, 500), (1, 1000), (2, 1000), (4, 1000)]);
    let sorts = ["cpu_only", "shared", "one_device", "several_devices"];
    let of = |counts: &Value, what: &str| counts[what].as_u64().unwrap_or(0);
    for (mode, load) in [("loss", "150"), ("queue", "120")] {
        for policy in ["default", "fgd", "best-fit", "random"] {
            let more = ["--mode", mode, "--load", load, "--policy", policy, "--warm-up", "0", "--count", "2000"];
            let report = folder.report(&more);
            let mut came = 0;
            for counts in sorts.map(|sort| &report["sorts"][sort]) {
                let waiting = of(&counts["waits"], "still_waiting");
                assert_eq!(of(counts, "came"), of(counts, "placed") + of(counts, "lost") + waiting, "{report}");
                assert!((mode == "loss") == (waiting == 0 && counts.get("waits").is_none()), "{report}");
                came += of(counts, "came");
            }
            assert_eq!((came, of(&report["all"], "came")), (2000, 2000));
            assert!(of(&report["all"], if mode == "loss" { "lost" } else { "placed" }) > 0, "{report}");
            let allocated = number(&report["allocated_device_percent"]);
            assert!(allocated > 50.0 && allocated <= 100.0, "{report}");
        }
    }
}

#[test]
fn what_is_free_at_a_loss_tells_a_split_cluster_from_a_full_one() {
    let folder = Folder::new("free-at-loss", 6, 4, &[(1, 1000), (4, 1000)]);
    let report = folder.report(&["--load", "90", "--policy", "random", "--warm-up", "0", "--count", "2000"]);
    let free = |sort: &str, what: &str| number(&report["sorts"][sort]["free_at_loss"][what]);
    assert_eq!(free("one_device", "devices"), 0.0, "one free device would have been enough: {report}");
    assert!(free("several_devices", "devices") > 1.0, "free devices are on several nodes: {report}");
    assert_eq!(free("several_devices", "devices"), free("several_devices", "device_time"), "no device is shared");
    // CPU is never short: each of the six nodes has 64 cores, and each task takes one.
    assert_eq!(free("several_devices", "devices"), free("several_devices", "devices_with_cpu"));
    assert!((60_000.0..=64_000.0).contains(&free("several_devices", "cpu_of_one_node_milli")), "{report}");
    assert_eq!(report["sorts"]["shared"].get("free_at_loss"), None, "no such task was lost");

    let folder = Folder::new("free-parts", 1, 2, &[(1, 600)]);
    let report = folder.report(&["--load", "200", "--warm-up", "100", "--count", "500"]);
    let free = &report["sorts"]["shared"]["free_at_loss"];
    assert!(near(number(&free["device_time"]), 0.8, 1e-9) && number(&free["devices"]) == 0.0, "two rests: {report}");
}

#[test]
fn a_seed_gives_the_same_report_again_and_another_seed_another_one() {
    let folder = Folder::new("seed", 5, 4, &[(1, 300), (1, 1000), (2, 1000), (4, 1000)]);
    for mode in ["loss", "queue"] {
        let more = ["--mode", mode, "--warm-up", "500", "--count", "500", "--load", "100", "--seed"];
        let run = |seed: &str| folder.text(&[&more[..], &[seed]].concat());
        assert_eq!(run("7"), run("7"));
        let counts = |seed: &str| serde_json::from_str::<Value>(&run(seed)).expect("JSON")["sorts"].clone();
        assert_ne!(counts("7"), counts("8"));
    }
}

#[test]
fn each_value_of_a_list_prints_a_line_and_all_policies_meet_the_same_tasks() {
    let folder = Folder::new("lists", 5, 4, &[(1, 300), (2, 1000), (4, 1000)]);
    let more = ["--load", "80,90", "--policy", "fgd,default", "--seed", "1,2", "--warm-up", "10", "--count", "300"];
    let text = folder.text(&more);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 8);
    for line in &lines {
        let alike = lines.iter().filter(|other| {
            ["load_percent", "seed"].iter().all(|key| other[key] == line[key])
                && other["sorts"]["shared"]["came"] == line["sorts"]["shared"]["came"]
                && other["durations"] == line["durations"]
        });
        assert_eq!(alike.count(), 2, "{line}");
    }
}

#[test]
fn cycles_lose_what_single_decisions_lose_where_nobody_can_be_moved() {
    // Where all tasks take a whole device, no move makes room.
    let folder = Folder::new("cycles", 12, 1, &[(1, 1000), (0, 0)]);
    let more = ["--policy", "binpack", "--warm-up", "0", "--count", "1000", "--load", "60"];
    assert!(folder.report(&more)["all"]["lost"].as_u64() > Some(0));
    assert_eq!(folder.text(&more), folder.text(&[&more[..], &["--consolidate"]].concat()));
}

#[test]
fn moves_make_room_and_are_counted() {
    let folder = Folder::new("moves", 8, 4, &[(1, 1000), (1, 1000), (1, 1000), (4, 1000)]);
    let more = ["--policy", "random", "--warm-up", "100", "--count", "1000", "--load", "70"];
    let (without, with) = (folder.report(&more), folder.report(&[&more[..], &["--consolidate"]].concat()));
    let lost = |report: &Value| report["sorts"]["several_devices"]["lost"].as_u64().expect("a number");
    assert!(lost(&with) < lost(&without) / 2, "{with} {without}");
    assert_eq!(without["moves"], 0);
    assert!(with["moves"].as_u64().expect("a number") > 0);
}

#[test]
fn what_cannot_be_played_is_refused_with_a_reason() {
    let some = Folder::new("refused", 2, 2, &[(1, 1000)]);
    let no_device = Folder::new("no-device", 2, 0, &[(1, 1000)]);
    let no_demand = Folder::new("no-demand", 2, 2, &[(0, 0)]);
    let no_tasks = Folder::new("no-tasks", 2, 2, &[]);
    for (folder, more, reason) in [
        (&some, &["--load", "0"][..], "invalid value '0' for '--load"),
        (&some, &["--load", "1001"], "invalid value '1001' for '--load"),
        (&some, &["--load", "much"], "invalid value 'much' for '--load"),
        (&some, &["--count", "0"], "invalid value '0' for '--count"),
        (&some, &["--mode", "lossy"], "invalid value 'lossy' for '--mode"),
        (&some, &["--policy", "fdg"], "invalid value 'fdg' for '--policy"),
        (&some, &["--seed", "-1"], "unexpected argument '-1'"),
        (&some, &["--arrivals", "x"], "unexpected argument '--arrivals'"),
        (&no_device, &[], "no node has a device"),
        (&no_demand, &[], "no task requests device time"),
        (&no_tasks, &[], "no task requests device time"),
    ] {
        let out = folder.run(more);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && errors.contains(reason), "{more:?}: {errors}");
        assert!(out.stdout.is_empty(), "{more:?}");
    }
}
