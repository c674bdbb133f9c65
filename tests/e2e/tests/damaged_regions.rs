//! A slice with damaged or missing files gives nothing more, neither to running processes nor to new ones, with a
//! manager or without. The problem is reported, and no other slice is affected.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;

use aliquot_abi::region::{LEDGER_FILE, LEDGER_FILE_BYTES, LIMITS_FILE};
use aliquot_harness::{
    Container, HostProgram, Image, MIB, Node, Process, RootFs, SimulatedGpu, Slice, artifacts, delete_at_once, run,
    wait,
};
use aliquot_proto::node::v1::{Part, ResizeSliceRequest};
use tempfile::TempDir;
use tonic::Code;

/// A way to damage the region in a directory.
type Harm = (&'static str, fn(&Path));

const HARM: [Harm; 5] = [
    ("a truncated ledger", |region| ledger(region).set_len(0).unwrap()),
    ("a ledger of zeros", |region| {
        ledger(region).set_len(0).unwrap();
        ledger(region).set_len(LEDGER_FILE_BYTES as u64).unwrap();
    }),
    ("no directory", |region| delete_at_once(region.parent().unwrap())),
    ("no ledger", |region| fs::remove_file(region.join(LEDGER_FILE)).unwrap()),
    ("no limits", |region| fs::remove_file(region.join(LIMITS_FILE)).unwrap()),
];

fn ledger(region: &Path) -> fs::File {
    OpenOptions::new().write(true).open(region.join(LEDGER_FILE)).unwrap()
}

/// A program in a slice that allocates memory on request.
struct Asked {
    process: Process,
    requests: TempDir,
    number: u32,
}

impl Asked {
    fn start(gpu: &SimulatedGpu, slice: &Slice) -> Asked {
        let requests = tempfile::tempdir().unwrap();
        let mut command = HostProgram::linked(gpu, "on_request").on(gpu);
        let process = Process::start(slice.preload_into(command.arg(requests.path())));
        Asked { process, requests, number: 0 }
    }

    /// The driver's answer to an allocation of this many mebibytes.
    fn ask(&mut self, mebibytes: u64) -> String {
        self.number += 1;
        let new = self.requests.path().join("new");
        fs::write(&new, mebibytes.to_string()).unwrap();
        fs::rename(&new, self.requests.path().join(self.number.to_string())).unwrap();
        self.process.wait_for(&format!("done {}\n", self.number));
        let said = self.process.output();
        let answer = said.lines().find_map(|line| line.strip_prefix(&format!("request {}: ", self.number)));
        answer.unwrap().split(',').next().unwrap().to_owned()
    }
}

/// Whether a program that is started in `slice` now is refused everything of the device.
fn refuses_new_programs(gpu: &SimulatedGpu, slice: &Slice) -> bool {
    let mut command = HostProgram::linked(gpu, "refused").on(gpu);
    let said = run(slice.preload_into(&mut command)).success().stdout;
    assert_eq!(said.contains("own context: 800"), said.contains("memory: refused"), "{said}");
    said.contains("own context: 800")
}

fn problem_of(node: &Node, name: &str) -> String {
    node.client().slices().unwrap().into_iter().find(|slice| slice.name == name).unwrap().problem
}

#[test]
fn neither_running_nor_new_processes_get_anything() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let sound = node.slice("sound", 30, 64 * MIB);
    let mut neighbour = Asked::start(&gpu, &sound);
    assert_eq!(neighbour.ask(16), "0");
    for (what, harm) in HARM {
        let ill = node.slice("ill", 30, 64 * MIB);
        let mut running = Asked::start(&gpu, &ill);
        assert_eq!(running.ask(16), "0", "{what}");
        assert!(!refuses_new_programs(&gpu, &ill), "{what}");
        let dir = ill.region_dir().to_owned();
        harm(&dir);
        // At once, before the manager has noticed.
        assert!(refuses_new_programs(&gpu, &ill), "{what}");
        wait::until_true("the manager says so", || problem_of(&node, "ill").contains("damaged"));
        assert_eq!(running.ask(1), "2", "{what}");
        assert!(refuses_new_programs(&gpu, &ill), "{what}");
        // Also a program that preloads the library by its path alone.
        let mut command = HostProgram::linked(&gpu, "refused").on(&gpu);
        let said = run(command.env("LD_PRELOAD", ill.shim())).success().stdout;
        assert!(said.contains("own context: 800"), "{what}: {said}");

        for view in [&["ps"][..], &["describe", "ill"]] {
            let mut command = Command::new(artifacts::cli());
            let outcome = run(command.env("ALIQUOT_SOCKET", node.socket()).args(view)).success();
            assert!(
                outcome.stdout.contains("damaged") && outcome.stdout.contains("create it again"),
                "{what}: {outcome:?}"
            );
        }
        let parts = vec![Part { core_request_percent: 20, ..Part::default() }];
        let request = ResizeSliceRequest { name: "ill".into(), parts, ..ResizeSliceRequest::default() };
        assert_eq!(node.client().resize(request).unwrap_err().code(), Code::FailedPrecondition, "{what}");
        assert_eq!(running.ask(1), "2", "{what}");

        drop(running);
        node.client().remove("ill", true).unwrap();
        assert!(!dir.exists(), "{what}");
        assert_eq!((neighbour.ask(1), problem_of(&node, "sound")), ("0".to_owned(), String::new()), "{what}");
    }
}

#[test]
fn without_a_manager_new_processes_get_nothing_either() {
    let gpu = SimulatedGpu::exact();
    for (what, harm) in HARM {
        let mut node = Node::start(&gpu);
        let slice = node.slice("ill", 30, 64 * MIB);
        node.kill();
        harm(slice.region_dir());
        assert!(refuses_new_programs(&gpu, &slice), "{what}");
        node.restart();
        assert!(!problem_of(&node, "ill").is_empty() || !refuses_new_programs(&gpu, &slice), "{what}");
    }
}

/// A way to damage a slice with a container in it.
type Spoiler = fn(&Container, &Slice);

#[test]
fn a_container_that_spoils_its_ledger_has_nothing_left() {
    let gpu = SimulatedGpu::exact();
    let node = Node::publishing(&gpu, "");
    let image = Image::of(&RootFs::with(&[&HostProgram::linked(&gpu, "hold"), &HostProgram::linked(&gpu, "refused")]));
    let start = |name: &str| -> Container {
        let mut container =
            image.start(&["--device", &format!("aliquot.dev/slice={name}")], &["/bin/hold-linked", "1048576"]);
        container.process().wait_for("held");
        container
    };
    let refuses = |container: &Container| {
        container.exec(&[], &["/bin/refused-linked"]).wait().success().stdout.contains("own context: 800")
    };
    let spoilers: [(&str, Spoiler); 2] = [
        ("truncated", |container, slice| {
            let script = format!(": > {}", slice.region_dir().join(LEDGER_FILE).display());
            let _ = container.exec(&[], &["/bin/sh", "-c", &script]).wait().success();
        }),
        // Deleted on the node: the container's mount leads to a directory that is gone.
        ("deleted", |_, slice| delete_at_once(slice.region_dir().parent().unwrap())),
    ];
    for (what, spoil) in spoilers {
        let name = format!("{what}-{}", std::process::id());
        let slice = node.slice(&name, 30, 64 * MIB);
        let container = start(&name);
        assert!(!refuses(&container), "{what}");
        // The manager's own mapping survives this; a mapping of the test's would not.
        spoil(&container, &slice);
        assert!(refuses(&container), "{what}");
        wait::until_true("the manager says so", || problem_of(&node, &name).contains("damaged"));
        assert!(refuses(&container), "{what}");
        drop(container);
        node.client().remove(&name, true).unwrap();
    }
}
