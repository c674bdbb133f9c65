//! The command line `aliquot` with a real manager, and without one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use aliquot_harness::{
    EXACT_MEMORY, HostProgram, MIB, Node, Outcome, Process, SimulatedGpu, artifacts, freeze, resume, run, wait,
};
use rustix::process::Signal;

/// `aliquot` with these arguments, on the machine `gpu` and its manager.
fn aliquot(gpu: &SimulatedGpu, node: &Node, arguments: &[&str]) -> Command {
    let mut command = Command::new(artifacts::cli());
    gpu.show_to(&mut command);
    command.env("ALIQUOT_SOCKET", node.socket()).args(arguments);
    command
}

/// `aliquot run` of a command in a slice of 30 % and 64 MiB.
fn in_slice(gpu: &SimulatedGpu, node: &Node, command: &[&str]) -> Command {
    let mut run = aliquot(gpu, node, &["run", "--gpu-core", "30", "--gpu-memory", "64MiB", "--name", "job", "--"]);
    run.args(command);
    run
}

/// Fails the test unless `outcome` is a refusal with this status that names `words`, in a line that begins with
/// "error:".
#[track_caller]
fn assert_refused(outcome: &Outcome, status: i32, words: &[&str]) {
    assert_eq!(outcome.status.code(), Some(status), "{outcome:?}");
    assert!(outcome.stderr.starts_with("error: "), "{outcome:?}");
    for word in words {
        assert!(outcome.stderr.contains(word), "nothing of {word:?}: {outcome:?}");
    }
}

#[test]
fn run_limits_a_program_and_leaves_no_slice() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let program = HostProgram::linked(&gpu, "exact");
    let outcome = run(&mut in_slice(&gpu, &node, &[program.path().to_str().unwrap(), "67108864"])).success();
    assert!(outcome.stdout.starts_with("free: 67108864\none byte more than all: 2\n"), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
    assert!(node.client().slices().unwrap().is_empty());
}

#[test]
fn run_gives_parts_of_several_devices() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}[[device]]\n[[device]]\n[[device]]\n"));
    let node = Node::start(&gpu);
    let program = HostProgram::linked(&gpu, "devices");
    let uuids = [gpu.uuid(2), gpu.uuid(0)];
    let mut arguments =
        vec!["run", "--gpu-core", "30", "--gpu-memory", "64MiB", "--device", &uuids[0], "--device", &uuids[1], "--"];
    arguments.push(program.path().to_str().unwrap());
    let outcome = run(&mut aliquot(&gpu, &node, &arguments)).success();
    assert_eq!(
        outcome.stdout,
        "device 0: total 67108864, free 67108864, all 0, then 2, launch 0\n\
         device 1: total 67108864, free 67108864, all 0, then 2, launch 0\n"
    );
}

#[test]
fn run_passes_on_how_the_command_ended() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let not_executable = tempfile::NamedTempFile::new().unwrap();
    fs::set_permissions(not_executable.path(), fs::Permissions::from_mode(0o644)).unwrap();
    for (command, status) in [
        (vec!["/bin/true"], 0),
        (vec!["/bin/sh", "-c", "exit 7"], 7),
        (vec!["/bin/sh", "-c", "kill -TERM $$"], 128 + 15),
        (vec!["/bin/sh", "-c", "kill -KILL $$"], 128 + 9),
        (vec!["/nowhere/at/all"], 127),
        (vec![not_executable.path().to_str().unwrap()], 126),
    ] {
        let outcome = run(&mut in_slice(&gpu, &node, &command));
        assert_eq!(outcome.status.code(), Some(status), "{outcome:?}");
        assert!(node.client().slices().unwrap().is_empty(), "a slice is left after {command:?}");
    }
}

#[test]
fn run_passes_output_environment_and_arguments_through() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let script = "echo \"out $1 $VALUE\"; echo err >&2; echo $CUDA_VISIBLE_DEVICES; echo ${LD_PRELOAD##*:}";
    let mut command = in_slice(&gpu, &node, &["/bin/sh", "-c", script, "sh", "an argument"]);
    command.env("VALUE", "a value").env("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libm.so.6");
    let outcome = run(&mut command).success();
    assert_eq!(outcome.stdout, format!("out an argument a value\n0\n/usr/lib/x86_64-linux-gnu/libm.so.6\n"));
    assert_eq!(outcome.stderr, "err\n");
}

#[test]
fn run_forwards_signals() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    // Not INT and HUP: a test run in the background may ignore these, and a shell cannot trap a signal that was ignored
    // when it started.
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::USR1, "USR1"), (Signal::USR2, "USR2")] {
        let script = format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut process = Process::start(&mut in_slice(&gpu, &node, &["/bin/sh", "-c", &script]));
        process.wait_for("ready\n");
        process.signal(signal);
        let outcome = process.wait();
        assert_eq!((outcome.status.code(), outcome.stdout.as_str()), (Some(9), &*format!("ready\ngot {name}\n")));
    }
}

#[test]
fn a_slice_goes_with_its_run_however_that_ends() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let mut process = Process::start(&mut in_slice(&gpu, &node, &["/bin/sh", "-c", "echo ready; exec sleep 100"]));
    process.wait_for("ready\n");
    assert_eq!(node.client().slices().unwrap().len(), 1);
    assert_eq!(process.kill().signal(), Some(9));
    wait::until_true("the slice is gone", || node.client().slices().unwrap().is_empty());
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let _taken = node.slice("job", 30, 64 * MIB);
    let outcome = run(&mut in_slice(&gpu, &node, &["/bin/true"]));
    assert_refused(&outcome, 125, &["job"]);
    let refused = |arguments: &[&str], status: i32, words: &[&str]| {
        assert_refused(&run(&mut aliquot(&gpu, &node, arguments)), status, words);
        assert_eq!(node.client().slices().unwrap().len(), 1, "{arguments:?} changed something");
    };
    refused(&["slice", "create", "job", "--gpu-core", "10"], 1, &["job"]);
    refused(&["slice", "create", "big", "--gpu-core", "71"], 1, &["70"]);
    refused(&["slice", "create", "big", "--gpu-core", "10", "--gpu-memory", "81GiB"], 2, &["81", "80"]);
    refused(&["slice", "create", "Bad_Name", "--gpu-core", "10"], 1, &["Bad_Name"]);
    refused(&["slice", "rm", "nobody"], 1, &["nobody"]);
    refused(&["slice", "resize", "nobody", "--gpu-core", "10"], 1, &["nobody"]);
    for (core, memory) in [
        ("0", "1GiB"),
        ("-1", "1GiB"),
        ("101", "1GiB"),
        ("NaN", "1GiB"),
        ("10", "0"),
        ("10", "-4GiB"),
        ("10", "4XiB"),
        ("10", "NaN"),
    ] {
        let outcome =
            run(&mut aliquot(&gpu, &node, &["slice", "create", "odd", "--gpu-core", core, "--gpu-memory", memory]));
        assert_eq!(outcome.status.code(), Some(2), "{core} {memory}: {outcome:?}");
        assert_eq!(node.client().slices().unwrap().len(), 1);
    }
}

#[test]
fn a_slice_in_use_is_removed_only_by_force() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("used", 30, 64 * MIB);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut holder = Process::start(slice.preload_into(command.arg("4096")));
    holder.wait_for("held");
    wait::until_true("the manager knows the process", || node.client().usage("used").unwrap().processes.len() == 1);
    assert_refused(&run(&mut aliquot(&gpu, &node, &["slice", "rm", "used"])), 1, &["used"]);
    let _ = run(&mut aliquot(&gpu, &node, &["slice", "rm", "--force", "used"])).success();
    assert!(node.client().slices().unwrap().is_empty());
    assert!(!holder.has_ended(), "what ran in the slice was ended");
}

#[test]
fn of_several_slices_those_that_can_be_removed_are() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    for name in ["one", "two"] {
        let _ = run(&mut aliquot(&gpu, &node, &["slice", "create", name, "--gpu-core", "10"])).success();
    }
    let outcome = run(&mut aliquot(&gpu, &node, &["slice", "rm", "one", "nowhere", "two", "no-more"]));
    assert_refused(&outcome, 1, &["nowhere", "no-more"]);
    assert!(node.client().slices().unwrap().is_empty());
}

#[test]
fn a_resize_that_would_change_nothing_says_what_can_be_changed() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let _ = run(&mut aliquot(&gpu, &node, &["slice", "create", "train", "--gpu-core", "10"])).success();
    let device = gpu.uuid(0);
    let resize = |options: &[&str]| run(&mut aliquot(&gpu, &node, &[&["slice", "resize", "train"], options].concat()));
    let parts = ["--gpu-core <", "--gpu-core-limit <", "--gpu-memory <"];
    assert_refused(&resize(&[]), 2, &[&parts[..], &["--host-memory <", "--priority <"]].concat());
    // The priority class belongs to the slice, not to a device.
    assert_refused(&resize(&["--device", &device, "--priority", "batch"]), 2, &parts);
    let _ = resize(&["--device", &device, "--gpu-memory", "1GiB"]).success();
    // Limit and guarantee were equal before, and are equal again.
    assert!(resize(&["--gpu-core", "50"]).success().stdout.contains("50 % guaranteed, 50 % at most, 1 GiB"));
}

#[test]
fn without_a_manager_commands_say_so_and_run_brings_its_own() {
    let gpu = SimulatedGpu::exact();
    let nowhere = tempfile::tempdir().unwrap();
    let aliquot = |arguments: &[&str]| {
        let mut command = Command::new(artifacts::cli());
        gpu.show_to(&mut command);
        command.env_remove("ALIQUOT_SOCKET").args(arguments);
        command
    };
    let socket = nowhere.path().join("manager.sock");
    let socket = socket.to_str().unwrap();
    assert_refused(&run(&mut aliquot(&["--socket", socket, "ps"])), 1, &[socket]);
    // A socket that a killed manager left.
    drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
    assert_refused(&run(&mut aliquot(&["--socket", socket, "ps"])), 1, &[socket]);

    // On the GPU of `--simulated`, a context takes as much memory as on a real one.
    let program = HostProgram::linked(&gpu, "exact");
    let limits = ["run", "--simulated", "--gpu-core", "30", "--gpu-memory", "1GiB", "--"];
    let in_slice = |bytes: &str| run(&mut aliquot(&[&limits[..], &[program.path().to_str().unwrap(), bytes]].concat()));
    let outcome = in_slice("1073741824");
    assert!(!outcome.status.success() && outcome.stderr.contains("cuMemAlloc(&first, all) answers 2"), "{outcome:?}");
    let free: u64 = outcome.stdout.lines().find_map(|line| line.strip_prefix("free: ")?.parse().ok()).unwrap();
    assert!((400 * MIB..600 * MIB).contains(&free), "{outcome:?}");
}

#[test]
fn the_views_show_what_is_there() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("seen", 30, 64 * MIB);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut holder = Process::start(slice.preload_into(command.arg((16 * MIB).to_string())));
    holder.wait_for("held");
    wait::until_true("the manager knows the process", || node.client().usage("seen").unwrap().processes.len() == 1);
    let said = |arguments: &[&str]| run(&mut aliquot(&gpu, &node, arguments)).success().stdout;
    for arguments in [vec!["ps"], vec!["describe", "seen"], vec!["slice", "ls"], vec!["nodes"], vec!["top", "--once"]] {
        assert!(said(&arguments).contains(if arguments == ["nodes"] { "H100" } else { "seen" }), "{arguments:?}");
    }
    let text = said(&["ps", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(text.contains("16777216") && text.contains("67108864"), "{json:#}");
    assert!(said(&["describe", "seen"]).contains(&holder.id().to_string()));
}

#[test]
fn top_goes_on_when_the_manager_is_started_again() {
    let gpu = SimulatedGpu::exact();
    let mut node = Node::start(&gpu);
    let create = |node: &Node, name: &str| {
        let _ = run(&mut aliquot(&gpu, node, &["slice", "create", name, "--gpu-core", "10"])).success();
    };
    create(&node, "before");
    let mut top = Process::start(&mut aliquot(&gpu, &node, &["top", "--interval", "0.1"]));
    top.wait_for("before");
    node.kill();
    node.restart();
    create(&node, "afterwards");
    top.wait_for("afterwards");
    assert!(!top.has_ended(), "{}", top.errors());
}

#[test]
fn a_priority_class_is_given_changed_and_shown() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let aliquot = |arguments: &[&str]| run(&mut aliquot(&gpu, &node, arguments));
    let said = |arguments: &[&str]| aliquot(arguments).success().stdout;
    let created = said(&["slice", "create", "serve", "--gpu-core", "20", "--priority", "latency-critical"]);
    assert!(created.contains("latency-critical"), "{created}");
    let shown = |class: &str| {
        for arguments in [vec!["slice", "ls"], vec!["describe", "serve"], vec!["ps", "--wide"], vec!["ps", "--json"]] {
            let text = said(&arguments);
            assert!(text.contains(class), "{arguments:?}: {text}");
        }
    };
    shown("latency-critical");
    assert!(said(&["slice", "resize", "serve", "--priority", "batch"]).contains("batch"));
    shown("batch");
    let unknown = aliquot(&["slice", "resize", "serve", "--priority", "urgent"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(unknown.stderr.contains("urgent") && unknown.stderr.contains("latency-critical"), "{unknown:?}");
    let run =
        ["run", "--gpu-core", "10", "--priority", "batch", "--name", "job", "--", artifacts::cli().to_str().unwrap()];
    assert!(said(&[&run[..], &["describe", "job"]].concat()).contains("Priority:     batch\n"));
}

#[test]
fn a_limit_below_what_is_in_use_is_warned_of() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("used", 30, 64 * MIB);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut holder = Process::start(slice.preload_into(command.arg((32 * MIB).to_string())));
    holder.wait_for("held");
    let resize =
        |memory: &str| run(&mut aliquot(&gpu, &node, &["slice", "resize", "used", "--gpu-memory", memory])).success();
    let outcome = resize("16MiB");
    assert!(outcome.stderr.starts_with("warning: 32 MiB of the memory of device GPU-"), "{outcome:?}");
    assert!(outcome.stdout.contains("16 MiB"), "{outcome:?}");
    assert!(run(&mut aliquot(&gpu, &node, &["describe", "used"])).success().stdout.contains("Warning:      32 MiB of"));
    assert_eq!(resize("32MiB").stderr, "");
}

#[test]
fn a_command_is_run_in_a_slice_that_is_there() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let _ = run(&mut aliquot(&gpu, &node, &["slice", "create", "train", "--gpu-core", "30", "--gpu-memory", "64MiB"]))
        .success();
    let program = HostProgram::linked(&gpu, "exact");
    let arguments = ["exec", "train", "--", program.path().to_str().unwrap(), "67108864"];
    let outcome = run(&mut aliquot(&gpu, &node, &arguments)).success();
    assert!(outcome.stdout.starts_with("free: 67108864\none byte more than all: 2\n"), "{outcome:?}");
    assert_eq!(node.client().slices().unwrap().len(), 1);
    // The event of a refusal is kept after the process's end, with the process that was refused.
    let told = || run(&mut aliquot(&gpu, &node, &["events", "train"])).success().stdout;
    wait::until_true("the end of the process is told", || told().contains("process_ended"));
    let told = told();
    assert!(told.contains("slice_made") && told.contains("process_attached") && told.contains("exact"), "{told}");
    wait::until_true("the refusal is told", || {
        let told = run(&mut aliquot(&gpu, &node, &["events", "train"])).success().stdout;
        told.contains("memory_refused    train GPU-")
    });
}

#[test]
fn a_manager_that_is_stopped_is_named_and_goes_on() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    freeze(node.manager_id());
    let outcome = run(&mut aliquot(&gpu, &node, &["--timeout", "0.2", "ps"]));
    assert_refused(&outcome, 1, &["has not answered", &format!("kill -CONT {}", node.manager_id())]);
    resume(node.manager_id());
    let _ = run(&mut aliquot(&gpu, &node, &["ps"])).success();
}
