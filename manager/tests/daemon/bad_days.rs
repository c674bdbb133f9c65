//! Full and read-only disks, wrong permissions, damaged files, two managers at once.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use aliquot_abi::region::{Header, LEDGER_FILE, LIMITS_FILE, MAJOR};
use aliquot_manager::config::{Config, DriverRoot};
use aliquot_manager::daemon::Daemon;
use aliquot_manager::file_system::is_in_memory;
use aliquot_proto::node::v1 as proto;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::unistd::Pid;
use tonic::Code;

use crate::node::{GIB, Node, eventually, part, refused, uuid};
use crate::tenant::Tenant;

#[track_caller]
fn does_not_start(node: &mut Node, expected: &str) {
    let error = node.restart().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_second_manager_is_refused_and_the_first_goes_on() {
    let mut node = Node::start();
    node.create("a", vec![part(10, GIB)]).unwrap();
    let second = Daemon::start(node.config.clone()).map(drop).unwrap_err().to_string();
    // It is refused at once, and the message names the first manager.
    assert!(second.contains("another manager uses"), "{second}");
    assert!(second.contains("[cluster]") && second.contains("a manager of other devices"), "{second}");
    assert!(second.contains(&format!("process {} (", std::process::id())), "{second}");
    // The same for a manager with other directories, but the same socket or state directory.
    let elsewhere = tempfile::tempdir().unwrap();
    let config = Config { socket: node.config.socket.clone(), ..Config::embedded(elsewhere.path().join("r")) };
    let error = Daemon::start(config).map(drop).unwrap_err().to_string();
    assert!(error.contains("another manager serves"), "{error}");
    let config = Config { state_dir: node.config.state_dir.clone(), ..Config::embedded(elsewhere.path().join("r")) };
    assert!(Daemon::start(config).map(drop).unwrap_err().to_string().contains("another manager uses"));
    assert_eq!(node.list().len(), 1);
    node.restart().unwrap();
}

#[test]
fn a_stale_socket_is_replaced_and_another_file_is_not() {
    let mut node = Node::start();
    node.stop();
    // This socket never had a listener: a closed listener stays alive while a child that another test is starting still
    // has its descriptor.
    let stale = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(stale.as_raw_fd(), &UnixAddr::new(&node.config.socket).unwrap()).unwrap();
    node.restart().unwrap();
    node.list();
    let mode = fs::metadata(&node.config.socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, if nix::unistd::geteuid().is_root() { 0o660 } else { 0o600 });
    node.stop();
    fs::write(&node.config.socket, "").unwrap();
    does_not_start(&mut node, "is not a socket");
}

#[test]
fn a_newer_checkpoint_keeps_the_manager_from_starting() {
    let mut node = Node::start();
    node.create("a", vec![part(10, GIB)]).unwrap();
    node.stop();
    let sound = fs::read_to_string(node.checkpoint()).unwrap();
    let text = sound.replace("\"version\": 1", "\"version\": 99");
    fs::write(node.checkpoint(), &text).unwrap();
    does_not_start(&mut node, "is of version 99");
    let path = node.checkpoint().display().to_string();
    does_not_start(&mut node, &path);
    assert_eq!(fs::read_to_string(node.checkpoint()).unwrap(), text);
    fs::write(node.checkpoint(), sound).unwrap();
    node.restart().unwrap();
    assert_eq!(node.list().len(), 1);
}

#[test]
fn directories_that_others_can_write_to_are_refused() {
    let mut node = Node::prepare();
    let dir = node.config.runtime_dir.clone();
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    does_not_start(&mut node, "writable for others");
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    node.restart().unwrap();
}

#[test]
fn a_runtime_directory_with_a_path_that_cannot_work_is_refused() {
    let mut node = Node::prepare();
    for (name, expected) in
        [("a b", "contains a space"), ("a:b", "contains a space, ':'"), (&"x".repeat(100), "too long")]
    {
        node.config.runtime_dir = node.config.runtime_dir.parent().unwrap().join(name);
        does_not_start(&mut node, expected);
    }
}

#[test]
fn a_ledger_scribbled_over_or_truncated_by_its_tenant_harms_only_its_own_slice() {
    let mut node = Node::start();
    let names = ["scribbled", "truncated", "sound"];
    let slices = names.map(|name| node.create(name, vec![part(20, GIB)]).unwrap());
    let mut tenants = slices.each_ref().map(|slice| Tenant::start(&slice.region_path));
    tenants.iter_mut().for_each(|tenant| assert_eq!(tenant.tell("reserve 1000"), "Ok(())"));
    for name in names {
        eventually("the process is attached", || (node.get(name).unwrap().processes == 1).then_some(()));
    }
    let ledger =
        |at: usize| OpenOptions::new().write(true).open(Path::new(&slices[at].region_path).join("ledger")).unwrap();
    ledger(0).write_all_at(&vec![0xA5; 3 << 20], 0).unwrap();
    ledger(1).set_len(0).unwrap();
    for name in &names[..2] {
        let problem =
            eventually("it is reported", || Some(node.get(name).unwrap().problem).filter(|text| !text.is_empty()));
        assert!(problem.contains("by a process of the slice"), "{problem}");
        let usage = node.usage(name);
        assert_eq!((usage.parts[0].memory_used_bytes, usage.problem), (0, problem));
        assert_eq!(crate::metrics::value(&node, &format!("aliquot_slice_healthy{{slice=\"{name}\"}}")), 0.0);
    }
    assert_eq!(node.usage("sound").parts[0].memory_used_bytes, 1000);
    // The end of a process is noticed in a damaged slice, too.
    tenants[0].kill();
    tenants[1].kill();
    for name in &names[..2] {
        eventually("the process is gone", || (node.get(name).unwrap().processes == 0).then_some(()));
    }
    // A new manager reports the same damage, and can remove both slices.
    node.restart().unwrap();
    for name in &names[..2] {
        assert!(node.get(name).unwrap().problem.contains("damaged"));
        node.remove(name, false).unwrap();
    }
    assert_eq!((node.list().len(), node.regions().len()), (1, 1));
    assert_eq!(node.usage("sound").parts[0].memory_used_bytes, 1000);
}

#[test]
fn a_region_of_another_version_in_use_is_an_error_of_that_slice_only() {
    for version in [MAJOR - 1, MAJOR + 5] {
        let mut node = Node::start();
        let slice = node.create("old", vec![part(10, GIB)]).unwrap();
        node.create("sound", vec![part(10, GIB)]).unwrap();
        let tenant = Tenant::start(&slice.region_path);
        node.stop();
        set_major(&slice.region_path, version);
        node.restart().unwrap();
        let problem = node.get("old").unwrap().problem;
        for expected in [format!("version {version}"), "remove the slice".into(), tenant.pid().to_string()] {
            assert!(problem.contains(&expected), "{expected} is missing in {problem}");
        }
        assert_eq!(node.get("sound").unwrap().problem, "");
        // The slice still counts against the device until it is removed.
        assert_eq!(node.node().devices[0].core_requested_percent, 20);
        node.remove("old", false).unwrap();
        assert_eq!(node.list().len(), 1);
    }
}

#[test]
fn an_unused_region_of_another_version_is_made_anew() {
    let mut node = Node::start();
    let slice = node.create("old", vec![part(10, GIB)]).unwrap();
    node.stop();
    set_major(&slice.region_path, MAJOR - 1);
    node.restart().unwrap();
    assert_eq!(node.get("old").unwrap(), slice);
    let mut tenant = Tenant::start(&slice.region_path);
    assert_eq!(tenant.tell("reserve 1000"), "Ok(())");
    eventually("its processes are heard", || (node.get("old").unwrap().processes == 1).then_some(()));
}

/// Makes a region look as if a manager of another version had made it.
fn set_major(region: &str, version: u32) {
    for file in [LIMITS_FILE, LEDGER_FILE] {
        let file = OpenOptions::new().write(true).open(Path::new(region).join(file)).unwrap();
        file.write_all_at(&version.to_ne_bytes(), offset_of!(Header, major) as u64).unwrap();
    }
}

/// A tmpfs that is unmounted on drop. `mount` returns `None` where this user may not mount.
struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    fn mount(path: &'a Path, options: &str) -> Option<Tmpfs<'a>> {
        fs::create_dir_all(path).unwrap();
        let mounted = mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(options));
        if let Err(error) = mounted {
            eprintln!("SKIPPED: this user cannot mount a file system: {error}");
            return None;
        }
        Some(Tmpfs(path))
    }

    fn remount(&self, flags: MsFlags) {
        let flags = MsFlags::MS_REMOUNT | flags;
        when_nothing_is_open(|| mount(None::<&str>, self.0, None::<&str>, flags, None::<&str>));
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        when_nothing_is_open(|| umount(self.0));
    }
}

/// Makes a change to a file system that fails while files in it are open. A child that another test is starting has
/// this process's open files until its exec.
fn when_nothing_is_open(change: impl Fn() -> nix::Result<()>) {
    eventually("nothing in it is open", || match change() {
        Err(Errno::EBUSY) => None,
        outcome => {
            outcome.unwrap();
            Some(())
        }
    });
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    let mut node = Node::prepare();
    let runtime_dir = node.config.runtime_dir.clone();
    let Some(tmpfs) = Tmpfs::mount(&runtime_dir, "size=8m,mode=755") else { return };
    node.restart().unwrap();
    node.create("a", vec![part(10, GIB)]).unwrap();
    let mut made = 1;
    let status = loop {
        match node.create(&format!("s{made}"), vec![part(1, GIB)]) {
            Ok(_) => made += 1,
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("No space left"), "{status}");
    assert_eq!((node.list().len(), node.regions().len()), (made, made));
    assert!(!node.cdi_file(&format!("s{made}")).exists());
    node.remove("a", false).unwrap();
    // A thread that is reading the region keeps its pages for a moment longer; a child that another test is starting
    // keeps its files.
    eventually("there is room again", || match node.create("b", vec![part(10, GIB)]) {
        Err(status) if status.message().contains("No space left") => None,
        outcome => {
            outcome.unwrap();
            Some(())
        }
    });
    node.restart().unwrap();
    assert_eq!(node.list().len(), made);
    node.stop();
    drop(tmpfs);
}

/// Fills the file system of `dir`, and returns the file that fills it.
fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("filler");
    let mut file = fs::File::create(&path).unwrap();
    // Up to the last page: then less than a page does not fit either.
    while file.write_all(&[0; 4096]).is_ok() {}
    path
}

#[test]
fn slices_can_be_removed_on_a_full_disk() {
    let mut node = Node::prepare();
    let (runtime_dir, state_dir) = (node.config.runtime_dir.clone(), node.config.state_dir.clone().unwrap());
    let Some(run) = Tmpfs::mount(&runtime_dir, "size=32m,mode=755") else { return };
    let Some(state) = Tmpfs::mount(&state_dir, "size=64k,mode=700") else { return };
    node.restart().unwrap();
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| drop(node.create(name, vec![part(10, GIB)]).unwrap()));
    let mut tenant = Tenant::start(&node.get("a").unwrap().region_path);
    assert_eq!(tenant.tell("reserve 1000"), "Ok(())");
    let fillers = [&runtime_dir, &state_dir].map(|dir| fill(dir));
    refused(node.create("e", vec![part(10, GIB)]), Code::Internal, "No space left");
    let there = |node: &Node| node.list().into_iter().map(|slice| slice.name).collect::<Vec<_>>();
    assert_eq!(there(&node), names);
    node.remove("b", false).unwrap();
    assert_eq!((there(&node), node.regions().len()), (vec!["a".into(), "c".into(), "d".into()], 3));
    // A new manager finds exactly the slices that were left.
    node.restart().unwrap();
    assert_eq!(there(&node), ["a", "c", "d"]);
    assert!(node.list().iter().all(|slice| slice.problem.is_empty()), "{:?}", node.list());
    assert_eq!((node.get("a").unwrap().processes, node.usage("a").parts[0].memory_used_bytes), (1, 1000));
    fill(&runtime_dir);
    for name in ["c", "d"] {
        node.remove(name, false).unwrap();
    }
    node.restart().unwrap();
    assert_eq!(there(&node), ["a"]);
    for filler in fillers {
        fs::remove_file(filler).unwrap();
    }
    node.create("e", vec![part(10, GIB)]).unwrap();
    node.restart().unwrap();
    assert_eq!(there(&node), ["a", "e"]);
    drop(tenant);
    node.stop();
    drop((run, state));
}

#[test]
fn a_read_only_disk_is_an_error_and_nothing_is_lost() {
    let mut node = Node::prepare();
    let state_dir = node.config.state_dir.clone().unwrap();
    let Some(tmpfs) = Tmpfs::mount(&state_dir, "mode=700") else { return };
    node.restart().unwrap();
    let slice = node.create("a", vec![part(10, GIB)]).unwrap();
    node.stop();
    // A running manager holds its lock file open for writing, so a file system without it is made read-only.
    let cdi = node.config.cdi.clone().unwrap().dir;
    let Some(cdi_tmpfs) = Tmpfs::mount(&cdi, "mode=755") else { return };
    node.restart().unwrap();
    cdi_tmpfs.remount(MsFlags::MS_RDONLY);
    refused(node.create("b", vec![part(10, GIB)]), Code::Internal, "Read-only file system");
    refused(node.remove("a", true), Code::Internal, "Read-only file system");
    assert_eq!(node.list(), [slice]);
    assert_eq!(node.regions().len(), 1);
    cdi_tmpfs.remount(MsFlags::empty());
    node.create("b", vec![part(10, GIB)]).unwrap();
    node.remove("a", true).unwrap();
    node.stop();
    drop((tmpfs, cdi_tmpfs));
}

#[test]
fn a_runtime_directory_that_is_mounted_noexec_is_refused() {
    let mut node = Node::prepare();
    let runtime_dir = node.config.runtime_dir.clone();
    let Some(tmpfs) = Tmpfs::mount(&runtime_dir, "mode=755") else { return };
    tmpfs.remount(MsFlags::MS_NOEXEC);
    does_not_start(&mut node, "noexec");
    drop(tmpfs);
}

/// The program with all of its files in `dir`, and no driver.
fn program_in(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-manager"));
    command.arg("--runtime-dir").arg(dir.join("run")).arg("--state-dir").arg(dir.join("state"));
    command.args(["--cdi-dir", "off", "--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    // The configuration file of this machine must not be read.
    fs::write(dir.join("manager.toml"), "").unwrap();
    command.arg("--config").arg(dir.join("manager.toml"));
    command
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    for format in ["text", "json"] {
        let dir = tempfile::tempdir().unwrap();
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut program = program_in(dir.path());
        let mut manager = program.args(["--log-format", format]).stderr(full).spawn().unwrap();
        eventually("the manager serves", || {
            assert_eq!(manager.try_wait().unwrap(), None, "the manager has ended");
            UnixStream::connect(dir.path().join("run/manager.sock")).ok()
        });
        kill(Pid::from_raw(manager.id() as i32), Signal::SIGTERM).unwrap();
        assert!(manager.wait().unwrap().success());
    }
}

#[test]
fn a_runtime_directory_on_a_disk_is_logged() {
    for base in ["/dev/shm", "/var/tmp"] {
        let dir = tempfile::tempdir_in(base).unwrap();
        let runtime_dir = dir.path().join("run");
        let mut manager = program_in(dir.path()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(manager.stderr.take().unwrap()).lines().map(Result::unwrap);
        let said: Vec<String> = lines.take_while(|line| !line.contains("the node manager serves")).collect();
        manager.kill().unwrap();
        manager.wait().unwrap();
        let warned = said.iter().any(|line| line.contains("tmpfs") && line.contains(runtime_dir.to_str().unwrap()));
        assert_eq!(warned, !is_in_memory(&runtime_dir), "{said:?}");
    }
}

#[test]
fn a_node_without_a_driver_serves_and_says_so() {
    let mut node = Node::prepare();
    node.config.nvml_library = Some("/nonexistent/libnvidia-ml.so.1".into());
    let daemon = Daemon::start(node.config.clone()).unwrap();
    let found = node.node();
    assert!(found.devices.is_empty() && found.problem.contains("/nonexistent/libnvidia-ml.so.1"), "{found:?}");
    refused(node.create("a", vec![part(10, GIB)]), Code::FailedPrecondition, "aliquot doctor");
    daemon.stop();
}

/// Containers could do nothing with such a device.
#[test]
fn a_slice_whose_device_has_no_node_is_not_made() {
    let mut node = Node::prepare();
    let root = tempfile::tempdir().unwrap();
    let dev = root.path().join("dev");
    fs::create_dir(&dev).unwrap();
    fs::write(dev.join("nvidiactl"), "").unwrap();
    node.config.driver = DriverRoot::new(root.path().into(), "/".into());
    node.driver.has_nodes = true;
    node.restart().unwrap();
    let create = || node.create("a", vec![proto::Part { device_uuid: uuid(0), ..part(10, GIB) }]);
    refused(create(), Code::FailedPrecondition, "the device node /dev/nvidia0 is missing on the node");
    assert!(!node.cdi_file("a").exists() && node.regions().is_empty(), "{:?}", node.regions());
    fs::write(dev.join("nvidia0"), "").unwrap();
    create().unwrap();
    assert!(node.cdi_file("a").exists());
}

/// After a reboot the driver may come later than the manager.
#[test]
fn slices_get_their_devices_once_the_driver_answers() {
    let mut node = Node::prepare();
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("dev")).unwrap();
    fs::write(root.path().join("dev/nvidia0"), "").unwrap();
    node.config.driver = DriverRoot::new(root.path().into(), "/".into());
    node.driver.has_nodes = true;
    node.restart().unwrap();
    node.create("a", vec![proto::Part { device_uuid: uuid(0), ..part(10, GIB) }]).unwrap();
    let device_nodes = |node: &Node| -> serde_json::Value {
        let spec: serde_json::Value = serde_json::from_slice(&fs::read(node.cdi_file("a")).unwrap()).unwrap();
        spec["devices"][0]["containerEdits"]["deviceNodes"].clone()
    };
    let expected = serde_json::json!([{ "path": "/dev/nvidia0" }]);
    assert_eq!(device_nodes(&node), expected);
    node.driver.is_silent.store(true, Ordering::Relaxed);
    node.restart().unwrap();
    assert_eq!(device_nodes(&node), serde_json::Value::Null);
    node.driver.is_silent.store(false, Ordering::Relaxed);
    eventually("its device is published", || (device_nodes(&node) == expected).then_some(()));
}
