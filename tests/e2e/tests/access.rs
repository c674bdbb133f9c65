//! Only the processes of a slice can open its files, whatever their user. A process that cannot open them cannot use
//! the device.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_abi::region::{ATTACH_SOCKET, LEDGER_FILE, LIMITS_FILE};
use aliquot_harness::{
    HostProgram, Image, MIB, Node, Outcome, Process, RootFs, SimulatedGpu, artifacts, as_user, copy_program, run, wait,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tempfile::TempDir;

/// Two users without a name, and without a common group.
const USER: u32 = 21_000;
const STRANGER: u32 = 21_001;

/// The output of the program `secure` in a slice of 64 MiB.
const LIMITED: &str = "secure: no, free 64 MiB, one byte more: 2\n";

/// The files of the region in `dir` that the user `uid` can read, write, or connect to.
fn opened_by(uid: u32, dir: &Path) -> Vec<String> {
    let files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    for expected in [LIMITS_FILE, LEDGER_FILE, ATTACH_SOCKET] {
        assert!(files.contains(&dir.join(expected)), "{files:?}");
    }
    as_user(uid, || {
        let mut opened = Vec::new();
        for file in files.iter().chain([&dir.to_path_buf(), &dir.parent().unwrap().to_path_buf()]) {
            let ways = [
                ("read", OpenOptions::new().read(true).open(file).is_ok()),
                ("written", OpenOptions::new().write(true).open(file).is_ok()),
                ("stat", fs::metadata(file).is_ok() && *file != dir.parent().unwrap()),
                ("connected to", connects(file)),
            ];
            opened.extend(ways.iter().filter(|(_, way)| *way).map(|(how, _)| format!("{} {how}", file.display())));
        }
        opened
    })
}

fn connects(path: &Path) -> bool {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    SocketAddrUnix::new(path).is_ok_and(|address| connect(&socket, &address).is_ok())
}

/// The paths of sockets below `dir`, which the kernel shows to every user.
fn sockets_below(dir: &Path) -> BTreeSet<PathBuf> {
    let listed = fs::read_to_string("/proc/net/unix").unwrap();
    let paths = listed.lines().filter_map(|line| line.split_whitespace().nth(7)).map(PathBuf::from);
    paths.filter(|path| path.starts_with(dir)).collect()
}

/// The command line in a directory where every user can run it, with `programs` beside it.
struct Tools {
    dir: TempDir,
    gpu: SimulatedGpu,
    node: Node,
}

impl Tools {
    fn new(programs: &[&HostProgram]) -> Tools {
        let gpu = SimulatedGpu::exact();
        let node = Node::start(&gpu);
        // On a real system the manager's group may use the socket.
        fs::set_permissions(node.socket(), Permissions::from_mode(0o666)).unwrap();
        let dir = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap();
        copy_program(artifacts::cli(), &dir.path().join("aliquot"));
        for program in programs {
            copy_program(program.path(), &dir.path().join(program.path().file_name().unwrap()));
        }
        Tools { dir, gpu, node }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn driver(&self) -> String {
        fs::canonicalize(self.gpu.library_dir().join("libcuda.so.1")).unwrap().to_str().unwrap().to_owned()
    }

    /// `aliquot run` of `command` in a slice named `job`, with further `options`, as the user `uid`.
    fn run_as(&self, uid: u32, options: &[&str], command: &[&str]) -> Command {
        let mut run = Command::new(self.path("aliquot"));
        self.gpu.show_to(&mut run).env("ALIQUOT_SOCKET", self.node.socket());
        run.args(["run", "--gpu-core", "30", "--gpu-memory", "64MiB", "--name", "job"]).args(options).arg("--");
        run.args(command).uid(uid).gid(uid);
        run
    }

    fn region_of_job(&self) -> PathBuf {
        PathBuf::from(&self.node.client().slices().unwrap()[0].region_path)
    }
}

#[test]
fn strangers_reach_nothing_of_a_slice() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slices = [node.slice("closed", 30, 64 * MIB), node.slice_for(USER, "shared", 64 * MIB)];
    for slice in &slices {
        let dir = slice.region_dir();
        assert!(sockets_below(&node.runtime_dir()).iter().any(|path| path.starts_with(dir)), "nothing to be found by");
        assert_eq!(opened_by(STRANGER, dir), Vec::<String>::new());
        assert_eq!(fs::metadata(dir.join(LEDGER_FILE)).unwrap().mode() & 0o777, 0o666);
    }
    assert_eq!(opened_by(USER, slices[0].region_dir()), Vec::<String>::new());
    // A user with access can do everything that a process of the slice must do, and no more.
    let dir = slices[1].region_dir();
    let opened = opened_by(USER, dir);
    for (file, how, expected) in [
        (LEDGER_FILE, "written", true),
        (LIMITS_FILE, "read", true),
        (ATTACH_SOCKET, "connected to", true),
        (LIMITS_FILE, "written", false),
    ] {
        assert_eq!(opened.contains(&format!("{} {how}", dir.join(file).display())), expected, "{file}: {opened:?}");
    }
    let moved = as_user(USER, || {
        let away = fs::rename(dir, dir.with_file_name("away")).is_ok();
        away || fs::remove_file(dir.join(LIMITS_FILE)).is_ok() || fs::create_dir(dir.with_file_name("other")).is_ok()
    });
    assert!(!moved, "a user of the slice can put another region in its place");
}

#[test]
fn a_user_s_run_under_root_s_manager_is_that_user_s_alone() {
    let tools = Tools::new(&[&HostProgram::new("secure")]);
    let (secure, driver) = (tools.path("secure"), tools.driver());
    run(&mut tools.run_as(USER, &[], &[&secure, &driver])).success().assert_said(LIMITED);

    let mut job = Process::start(&mut tools.run_as(USER, &[], &["/bin/sh", "-c", "echo ready; exec sleep 1000"]));
    job.wait_for("ready");
    let dir = tools.region_of_job();
    assert_eq!(opened_by(STRANGER, &dir), Vec::<String>::new());
    assert!(!opened_by(USER, &dir).is_empty());
}

/// A program's output without the loader's lines and the shim's complaints, and the number of those complaints.
fn said(outcome: Outcome) -> (String, usize) {
    let (complaints, said): (Vec<String>, Vec<String>) = outcome
        .stdout
        .lines()
        .filter(|line| !line.starts_with("ERROR: ld.so:"))
        .map(|line| format!("{line}\n"))
        .partition(|line| line.starts_with("aliquot: the region of this slice"));
    (said.concat(), complaints.len())
}

#[test]
fn a_program_that_becomes_a_user_not_let_in_is_refused() {
    let programs = [HostProgram::new("secure"), HostProgram::new("asks_by_name"), HostProgram::new("switch_user")];
    let tools = Tools::new(&programs.each_ref());
    let ask = |options: &[&str], way: &str| {
        let (asks, switches, driver) = (tools.path("asks_by_name"), tools.path("switch_user"), tools.driver());
        // The user changes before the program starts, as by `su`, or while it runs, as in a server. Standard error is a
        // pipe, as in a container.
        let script = match way {
            "starts" => format!("{switches} {STRANGER} {asks} {driver} 2>&1 | cat"),
            _ => format!("{asks} {driver} {STRANGER} 2>&1 | cat"),
        };
        said(run(&mut tools.run_as(0, options, &["/bin/sh", "-c", &script])).success())
    };
    for way in ["starts", "changes"] {
        assert_eq!(ask(&[], way), ("context: 800\n".to_owned(), 1), "{way}");
        let allowed = STRANGER.to_string();
        assert_eq!(ask(&["--allow-user", &allowed], way), ("context: 0\nfree: 64 MiB\n".to_owned(), 0), "{way}");
    }
}

#[test]
fn a_user_can_be_let_into_a_slice_that_exists() {
    let tools = Tools::new(&[&HostProgram::new("secure")]);
    let (secure, driver) = (tools.path("secure"), tools.driver());
    let slice = tools.node.slice_for(USER, "job", 64 * MIB);
    let as_stranger = |arguments: &[&str]| {
        let mut command = Command::new(tools.path("aliquot"));
        tools.gpu.show_to(&mut command).env("ALIQUOT_SOCKET", tools.node.socket());
        run(command.args(arguments).uid(STRANGER).gid(STRANGER))
    };
    let exec = ["exec", "job", "--", &secure, &driver];
    let refused = as_stranger(&exec);
    let hint = format!("aliquot slice resize job --allow-user {STRANGER}");
    assert!(refused.status.code() == Some(125) && refused.stderr.contains(&hint), "{refused:?}");

    let allow = ["slice", "resize", "job", "--allow-user", &STRANGER.to_string(), "--json"];
    let said =
        run(Command::new(tools.path("aliquot")).env("ALIQUOT_SOCKET", tools.node.socket()).args(allow)).success();
    assert!(said.stdout.contains(&USER.to_string()) && said.stdout.contains(&STRANGER.to_string()), "{said:?}");
    as_stranger(&exec).success().assert_said(LIMITED);
    assert!(!opened_by(USER, slice.region_dir()).is_empty(), "the first user was shut out");
}

#[test]
fn users_of_containers_get_in_and_users_of_the_node_do_not() {
    let gpu = SimulatedGpu::exact();
    let node = Node::publishing(&gpu, "");
    let image = Image::of(&RootFs::with(&[&HostProgram::new("secure"), &HostProgram::linked(&gpu, "hold")]));
    let name = format!("users-{}", std::process::id());
    let slice = node.slice(&name, 50, 64 * MIB);
    let device = format!("aliquot.dev/slice={name}");
    let ask = ["/bin/secure", "libcuda.so.1"];
    let mut holder = image.start(&["--device", &device, "--user", "1000:1000"], &["/bin/hold-linked", "1048576"]);
    holder.process().wait_for("held");
    let free = LIMITED.replace("64", "63");
    for user in ["0:0", "1000:1000", "21001:21001"] {
        holder.exec(&["--user", user], &ask).wait().success().assert_said(&free);
        image.start(&["--device", &device, "--user", user], &ask).wait().success().assert_said(&free);
        let options = ["--device", &device, "--user", user, "--cap-drop", "all"];
        image.start(&options, &ask).wait().success().assert_said(&free);
    }
    // The node's user 1000 has the same number as the container's, and no access either.
    for uid in [1000, STRANGER] {
        assert_eq!(opened_by(uid, slice.region_dir()), Vec::<String>::new());
    }
    wait::until_true("the manager knows who is there", || node.client().usage(&name).unwrap().processes.len() == 1);
}
