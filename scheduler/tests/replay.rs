//! The command line, on a cluster that is small enough to be worked out by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model,gpu_memory_mib\n\
                     n0,32000,131072,2,T4,16000\n\
                     n1,96000,393216,4,G2,32000\n";

/// A folder of its own for each test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("aliquot-replay-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be written");
        Self(path)
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).expect("the temporary folder can be written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn replay(folder: &Folder, nodes: &str, arrivals: &str, more: &[&str]) -> Output {
    let (nodes, arrivals) = (folder.file("nodes.csv", nodes), folder.file("arrivals.csv", arrivals));
    Command::new(env!("CARGO_BIN_EXE_aliquot-scheduler"))
        .arg("replay")
        .args([Path::new("--nodes"), &nodes, Path::new("--arrivals"), &arrivals])
        .arg("--placements")
        .arg(folder.0.join("placements.csv"))
        .args(more)
        .output()
        .expect("the program runs")
}

fn placements(folder: &Folder) -> String {
    fs::read_to_string(folder.0.join("placements.csv")).expect("placements were written")
}

#[test]
fn each_task_that_fits_is_placed_and_the_summary_counts_the_others() {
    let folder = Folder::new("fits");
    let arrivals = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,gpu_memory_mib\n\
                    a,4000,8192,1,470,T4,15000\n\
                    b,4000,8192,1,470,T4,15000\n\
                    c,4000,8192,1,10,T4,2000\n\
                    d,2000,4096,0,0,,\n\
                    e,16000,65536,4,1000,,32000\n\
                    f,16000,65536,2,1000,,\n";
    let out = replay(&folder, NODES, arrivals, &["--policy", "binpack"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // Because of their memory, a and b are on different devices, and c fits nowhere. e takes all of n1, and nothing is
    // left for f.
    let text = placements(&folder);
    let expected = ["pod,node,gpus", "a,n0,0", "b,n0,1", "c,,", "d,n0,", "e,n1,0-1-2-3", "f,,"];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).expect("the summary is JSON");
    assert_eq!(summary["placed"], 4);
    assert_eq!(summary["unplaced"]["shared"], 1);
    assert_eq!(summary["unplaced"]["several_devices"], 1);
}

#[test]
fn the_same_input_gives_the_same_plan_with_every_policy() {
    let folder = Folder::new("same");
    let mut arrivals = String::from("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n");
    for number in 0..40 {
        let (devices, milli) = [(1, 300), (1, 470), (2, 1000), (0, 0), (1, 1000)][number % 5];
        arrivals.push_str(&format!("t{number},{},4096,{devices},{milli}\n", 1000 + number * 100));
    }
    for policy in
        ["default", "fgd", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "binpack", "spread", "random"]
    {
        let run = || {
            let out = replay(&folder, NODES, &arrivals, &["--policy", policy]);
            assert!(out.status.success(), "{policy}: {}", String::from_utf8_lossy(&out.stderr));
            (out.stdout, placements(&folder))
        };
        assert_eq!(run(), run(), "{policy}");
    }
}

#[test]
fn the_picture_shows_both_curves() {
    let folder = Folder::new("plot");
    let plot = folder.0.join("out.svg");
    let arrivals = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,500\nb,1000,1024,4,1000\n";
    let out = replay(&folder, NODES, arrivals, &["--plot", &plot.display().to_string()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let svg = fs::read_to_string(plot).expect("the picture was written");
    assert_eq!(svg.matches("<polyline").count(), 2);
}

#[test]
fn a_line_that_makes_no_sense_is_named() {
    let folder = Folder::new("error");
    for (arrivals, reason) in [
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,NaN\n", "\"NaN\" in column gpu_milli"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,0\n", "neither time nor memory"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,,1024,1,100\n", "column cpu_milli is empty"),
        ("name,cpu_milli,memory_mib,gpu_milli\na,1,1024,100\n", "no column \"num_gpu\"; the first line names name,cpu"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,70000,100\n", "70000 devices in column num_gpu"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,99999999999999999999,1,1,100\n", "not a whole number"),
    ] {
        let out = replay(&folder, NODES, arrivals, &[]);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && errors.contains("line 2") && errors.contains(reason), "{errors}");
    }
}

#[test]
fn files_that_are_no_traces_are_refused_and_nothing_is_written() {
    let folder = Folder::new("nonsense");
    let arrivals = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,500\n";
    let columns = "sn,cpu_milli,memory_mib,gpu,model\n";
    for (nodes, reason) in [
        (String::new(), "nodes.csv is empty; its first line must name the columns"),
        (columns.to_owned(), "no node has a device"),
        (format!("{columns}n,1000,1024,1,A\nn,1000,1024,1,A\n"), "nodes.csv: there is a node named \"n\""),
        (format!("{columns}n,1000,1024,4000,A\n"), "line 2: a node has 4000 devices"),
    ] {
        let out = replay(&folder, &nodes, arrivals, &[]);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && errors.contains(reason), "{errors}");
        assert!(!folder.0.join("placements.csv").exists());
    }
}

#[test]
fn a_trace_can_begin_with_a_byte_order_mark_and_end_its_lines_as_windows_does() {
    let folder = Folder::new("marks");
    let arrivals = "\u{feff}name,cpu_milli,memory_mib,num_gpu,gpu_milli\r\na,1000,1024,1,500\r\n";
    let out = replay(&folder, NODES, arrivals, &[]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(placements(&folder).lines().count(), 2);
}

#[test]
fn a_name_with_a_comma_is_read_and_written_in_quotes() {
    let folder = Folder::new("quotes");
    let arrivals = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n\"a, b\",1000,1024,1,500\n";
    let out = replay(&folder, NODES, arrivals, &[]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(placements(&folder).lines().nth(1).is_some_and(|line| line.starts_with("\"a, b\",")));
}

#[test]
fn what_a_trace_leaves_goes_on_as_a_snapshot() {
    let folder = Folder::new("dump");
    let arrivals = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n\
                    a,1000,1024,4,1000\nb,1000,1024,1,500\nc,1000,1024,4,1000\n";
    let dump = folder.0.join("end.json");
    let out = replay(&folder, NODES, arrivals, &["--dump", &dump.display().to_string(), "--policy", "best-fit"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let run = |args: &[&str]| -> serde_json::Value {
        let out = Command::new(env!("CARGO_BIN_EXE_aliquot-scheduler")).args(args).arg(&dump).output();
        let out = out.expect("the program runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).expect("JSON")
    };
    let report = run(&["replay", "--json"]);
    assert_eq!((&report["placed"], &report["cycles"]), (&2.into(), &serde_json::json!([])));
    assert_eq!(report["waiting"][0]["claims"], serde_json::json!(["c"]));
    let report = run(&["simulate", "--json", "--add-nodes", "n1=1"]);
    assert_eq!(report["placed"][0]["claim"], "c", "one more such node takes what was dropped");
}

#[test]
fn whoever_stops_reading_has_seen_enough() {
    use std::process::Stdio;
    let folder = Folder::new("pipe");
    let arrivals = folder.file("arrivals.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,500\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-scheduler"));
    command.args(["replay", "--nodes"]).arg(folder.file("nodes.csv", NODES)).arg("--arrivals").arg(arrivals);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    let out = child.wait_with_output().expect("the program ends");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
