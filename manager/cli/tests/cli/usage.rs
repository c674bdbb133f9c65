//! Queries to the manager by an `aliquot` inside a run, where the socket is that of the embedded manager.

use serde_json::Value;

use crate::support::{output, simulated_run, stderr, stdout};

const ALIQUOT: &str = env!("CARGO_BIN_EXE_aliquot");

/// The output of `aliquot` with `args` inside a run.
fn inside(args: &[&str]) -> String {
    let ended = output(&mut simulated_run([&[ALIQUOT][..], args].concat()));
    assert!(ended.status.success(), "{args:?}: {}", stderr(&ended));
    stdout(&ended)
}

fn json(args: &[&str]) -> Value {
    let text = inside(args);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn ps_shows_the_slice() {
    let text = inside(&["ps"]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("SLICE") && lines[1].starts_with("test"), "{text}");
    assert!(lines[1].contains("4 GiB"), "{text}");
    let part = json(&["ps", "--json"])["slices"][0]["parts"][0].clone();
    assert_eq!(part["core_request_percent"], 30);
    assert_eq!(part["core_limit_percent"], 30);
    assert_eq!(part["memory_limit_bytes"], 4u64 << 30);
}

#[test]
fn describe_says_everything() {
    let text = inside(&["describe", "test"]);
    for expected in
        ["Name:", "Core guaranteed:", "30 %", "Memory limit:", "4 GiB", "Throttled:", "Overruns:", "LD_PRELOAD="]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let value = json(&["describe", "test", "--json"]);
    assert_eq!(value["slice"]["name"], "test");
    assert_eq!(value["usage"]["parts"][0]["memory_refused"], 0);
}

#[test]
fn a_limit_on_host_memory_is_given_shown_changed_and_taken_away() {
    let script = format!(
        "set -e
        {ALIQUOT} slice create other --gpu-core 10 --gpu-memory 1GiB --host-memory 2GiB
        {ALIQUOT} slice resize other --host-memory 3GiB
        {ALIQUOT} describe other
        {ALIQUOT} slice resize other --host-memory none
        {ALIQUOT} describe other --json
        {ALIQUOT} slice resize other --host-memory 25% && exit 1
        exit 0"
    );
    let ended = output(&mut simulated_run(["sh", "-c", &script]));
    let text = stdout(&ended);
    assert!(ended.status.success(), "{text}{}", stderr(&ended));
    for expected in
        ["other: 2 GiB of page-locked host memory at most", "other: 3 GiB of page-locked", "Limit:    3 GiB"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let shown: Value = serde_json::from_str(&text[text.find("\n{").unwrap()..]).unwrap();
    assert_eq!(shown["slice"]["host_memory_limit_bytes"], 0);
    assert_eq!(shown["usage"]["host_memory"]["limit_bytes"], 0);
    assert!(stderr(&ended).contains("host memory needs an amount"), "{}", stderr(&ended));
}

#[test]
fn a_name_that_is_too_long_is_not_repeated_whole() {
    let long = "a".repeat(300);
    for args in [&["describe", &long][..], &["slice", "rm", &long], &["slice", "create", &long, "--gpu-core", "1"]] {
        let ended = output(&mut simulated_run([&[ALIQUOT][..], args].concat()));
        let text = stderr(&ended);
        assert!(
            !ended.status.success() && text.contains("aaaa…") && text.contains("300 characters"),
            "{args:?}: {text}"
        );
        assert!(!text.contains(&long), "{args:?}: {text}");
    }
}

#[test]
fn memory_is_told_in_words_that_people_read() {
    let script = "set -e
        $1 slice create other --gpu-core 10 --gpu-memory 1%
        $1 describe other
        $1 slice ls
        $1 slice rm other";
    let ended = output(&mut simulated_run(["sh", "-c", script, "sh", ALIQUOT]));
    let text = stdout(&ended);
    assert!(text.starts_with("other: 10 % guaranteed, 10 % at most, 819.2 MiB of GPU-"), "{text}{}", stderr(&ended));
    assert!(text.contains("Memory limit:     819.2 MiB\n"), "{text}");
    assert!(!text.contains("858993459B"), "{text}");
    assert!(text.ends_with("\nother: removed\n"), "{text}");
}

#[test]
fn recent_usage_is_listed() {
    let script = "set -e
        $1 load --busy 50 --memory 512MiB --seconds 3 > /dev/null
        $1 ps --since 1h
        $1 ps --since 1h --json";
    let ended = output(&mut simulated_run(["sh", "-c", script, "sh", ALIQUOT]));
    let text = stdout(&ended);
    let (table, document) = text.split_at(text.find("\n{").unwrap_or_else(|| panic!("{text}{}", stderr(&ended))));
    assert!(table.starts_with("SLICE") && table.contains("\ntest ") && !table.contains('▕'), "{text}");
    let part = serde_json::from_str::<Value>(document).unwrap()["slices"][0]["parts"][0].clone();
    assert_eq!(part["core_limit_percent"], 30);
    let sum = |key: &str| -> u64 {
        part["points"].as_array().unwrap().iter().map(|point| point[key].as_u64().unwrap()).sum()
    };
    assert!(sum("core_used_ns") > 0 && sum("core_used_ns") < sum("length_ns"), "{part}");
    // A context takes memory in addition to the requested amount.
    let peaks = part["points"].as_array().unwrap().iter().map(|point| point["memory_peak_bytes"].as_u64().unwrap());
    let peak = peaks.max().unwrap();
    assert!((512 << 20..=4 << 30).contains(&peak), "{part}");
}

#[test]
fn events_are_listed() {
    let script = "set -e
        $1 slice create other --gpu-core 20 --gpu-memory 1GiB > /dev/null
        $1 slice resize other --gpu-core 30 > /dev/null
        $1 exec other -- $1 load --memory 256MiB --seconds 1 > /dev/null
        $1 exec other -- $1 load --memory 2GiB --seconds 1 2> /dev/null && exit 9
        $1 slice rm --force other > /dev/null
        $1 events --json
        echo
        $1 events other
        $1 events -f other | head -1";
    let ended = output(&mut simulated_run(["sh", "-c", script, "sh", ALIQUOT]));
    let text = stdout(&ended);
    assert!(ended.status.success(), "{text}{}", stderr(&ended));
    let (objects, lines) = text.split_once("\n\n").unwrap();
    let events: Vec<Value> = objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&events[0]["kind"], &events[0]["sequence"]), (&"manager_started".into(), &1.into()));
    let of_other: Vec<&str> =
        events.iter().filter(|event| event["slice"] == "other").map(|event| event["kind"].as_str().unwrap()).collect();
    for kind in ["slice_made", "slice_changed", "process_attached", "slice_removed"] {
        assert!(of_other.contains(&kind), "{kind}: {text}");
    }
    assert!(lines.lines().next().unwrap().contains("slice_made        other: was made with 20 %"), "{text}");
    let followed = lines.lines().last().unwrap();
    assert!(followed.contains("slice_made"), "{text}");
}

#[test]
fn doctor_says_where_the_manager_that_runs_keeps_its_files() {
    let script = "echo $ALIQUOT_SOCKET; exec $1 doctor";
    let text = stdout(&output(&mut simulated_run(["sh", "-c", script, "sh", ALIQUOT])));
    let (socket, findings) = text.split_once('\n').unwrap();
    let line = |what: &str| findings.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{text}"));
    let dir = std::path::Path::new(socket).parent().unwrap().to_str().unwrap();
    assert!(line("runtime directory").contains(dir), "{text}");
    assert!(line("CDI").contains("no slices"), "{text}");
    assert!(findings.contains("GPU 0") && findings.contains("simulated GPU.\n"), "{text}");
    assert!(!findings.contains("no NVIDIA GPU"), "{text}");
}

#[test]
fn doctor_shows_the_findings_of_the_audit() {
    // Its exit status is not checked, because other things on the machine may not work.
    let text = stdout(&output(&mut simulated_run([ALIQUOT, "doctor"])));
    assert!(text.contains("audit") && text.contains("nothing found"), "{text}");
}

#[test]
fn nodes_and_slices_show_what_is_given_out() {
    let device = json(&["nodes", "--json"])["devices"][0].clone();
    assert_eq!(device["core_requested_percent"], 30);
    assert_eq!(device["memory_bytes"], 80u64 << 30);
    assert_eq!(device["memory_given_bytes"], 4u64 << 30);
    assert!(inside(&["nodes"]).contains("70 %"));
    assert!(inside(&["slice", "ls"]).contains("test"));
    assert!(inside(&["top", "--once"]).contains("test"));
    let object = inside(&["top", "--once", "--json"]);
    assert!(object.starts_with("{\"") && object.lines().count() == 1, "{object}");
    assert_eq!(inside(&["top", "-n", "2", "--interval", "0.1"]).matches("SLICE").count(), 2);
}

#[test]
fn slices_are_made_changed_and_removed() {
    let script = "set -e
        a=$1
        $a slice create other --gpu-core 20 --gpu-core-limit 100 --gpu-memory 25%
        $a slice resize other --gpu-core 70
        $a slice resize other --gpu-memory 1GiB
        $a slice ls
        ! $a slice create other --gpu-core 1
        ! $a slice create third --gpu-core 10
        ! $a slice resize other --gpu-core 71
        ! $a describe nobody
        $a run --gpu-core 10 --gpu-memory 1GiB -- true && exit 9
        $a slice rm other
        $a run --gpu-core 10 --gpu-memory 1GiB --name inner -- $a describe inner
        $a slice ls";
    let ended = output(&mut simulated_run(["sh", "-c", script, "sh", ALIQUOT]));
    let (text, errors) = (stdout(&ended), stderr(&ended));
    assert!(ended.status.success(), "{text}{errors}");
    assert!(text.contains("other: 20 % guaranteed, 100 % at most, 20 GiB of GPU-"), "{text}");
    assert!(text.contains("other: 70 % guaranteed, 100 % at most, 20 GiB of GPU-"), "{text}");
    assert!(text.contains("other: 70 % guaranteed, 100 % at most, 1 GiB of GPU-"), "{text}");
    assert!(text.contains("Name:         inner"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("test "), "{text}");
    let refusals: Vec<_> = errors.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(refusals.len(), 5, "{errors}");
    assert!(refusals[0].contains("other") && refusals[3].contains("nobody"), "{errors}");
}
