//! A manager of another version takes over: existing slices keep their shim, new slices get the new one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aliquot_harness::{Container, HostProgram, Image, MIB, Node, Process, RootFs, SimulatedGpu, Slice, wait};

/// The output of the program `secure` when this many mebibytes are free.
fn free(mebibytes: u64) -> String {
    format!("secure: no, free {mebibytes} MiB, one byte more: 2\n")
}

/// The shim files below `dir`.
fn shims_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.extend(shims_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "so") {
            found.push(path);
        }
    }
    found
}

/// The name of the one shim that process `pid` has mapped.
fn shim_of(pid: u32) -> String {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut names: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.rsplit('/').next().filter(|name| name.starts_with("libaliquot-")))
        .collect();
    names.dedup();
    assert_eq!(names.len(), 1, "{maps}");
    names[0].to_owned()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn processes_of_both_versions_share_a_device_and_the_old_file_goes_with_its_slice() {
    let gpu = SimulatedGpu::exact();
    let mut node = Node::start(&gpu);
    let hold = HostProgram::linked(&gpu, "hold");
    let holder = |slice: &Slice| {
        let mut command = hold.on(&gpu);
        let mut process = Process::start(slice.preload_into(command.arg((16 * MIB).to_string())));
        process.wait_for("held");
        process
    };
    let old = node.slice("old", 40, 64 * MIB);
    let before = holder(&old);
    let inode = fs::metadata(old.shim()).unwrap().ino();

    node.upgrade();
    let new = node.slice("new", 40, 32 * MIB);
    let (old_name, new_name) = (file_name(old.shim()), file_name(new.shim()));
    assert_ne!(old_name, new_name);
    let described = node.client().slices().unwrap().into_iter().find(|slice| slice.name == "old").unwrap();
    assert_eq!(described.shim_path, old.shim().to_str().unwrap());
    assert_eq!(fs::metadata(old.shim()).unwrap().ino(), inode, "the file was replaced");
    // One process is started in the old slice now, and one in the new slice.
    let (later, fresh) = (holder(&old), holder(&new));
    assert_eq!(
        [&before, &later, &fresh].map(|process| shim_of(process.id())),
        [&old_name, &old_name, &new_name].map(String::clone)
    );
    assert_eq!((old.used_bytes(0), new.used_bytes(0)), (32 * MIB, 16 * MIB));
    wait::until_true("the manager knows all of them", || {
        ["old", "new"].map(|name| node.client().usage(name).unwrap().processes.len()) == [2, 1]
    });

    // Each version has two files: the slice's, and its stand-in. The old version's are removed with its slice.
    let mut left: Vec<String> = shims_below(&node.runtime_dir()).iter().map(|path| file_name(path)).collect();
    left.sort();
    let mut expected = vec![new_name.clone(), new_name.clone(), old_name.clone(), old_name];
    expected.sort();
    assert_eq!(left, expected);
    drop((before, later));
    wait::until_true("the old slice can be removed", || node.client().remove("old", false).is_ok());
    let left: Vec<String> = shims_below(&node.runtime_dir()).iter().map(|path| file_name(path)).collect();
    assert_eq!(left, [new_name.clone(), new_name]);
    drop(fresh);
}

#[test]
fn a_container_keeps_its_shim_and_its_limit() {
    let gpu = SimulatedGpu::exact();
    let mut node = Node::publishing(&gpu, "");
    let image = Image::of(&RootFs::with(&[&HostProgram::new("secure"), &HostProgram::linked(&gpu, "hold")]));
    let names = ["old", "new"].map(|name| format!("{name}-{}", std::process::id()));
    let start = |slice: &str, command: &[&str]| -> Container {
        image.start(&["--device", &format!("aliquot.dev/slice={slice}")], command)
    };
    let hold = ["/bin/hold-linked", &(16 * MIB).to_string()];
    let ask = ["/bin/secure", "libcuda.so.1"];
    let pid_of = |node: &Node, slice: &str| {
        // Waits until it is the only one: processes that have ended stay listed until the manager notices.
        wait::until("the manager knows the process", || {
            let [process] = node.client().usage(slice).unwrap().processes.try_into().ok()?;
            Some(process.pid)
        })
    };

    let old = node.slice(&names[0], 40, 64 * MIB);
    let mut running = start(&names[0], &hold);
    running.process().wait_for("held");
    node.upgrade();
    let new = node.slice(&names[1], 40, 32 * MIB);
    // A process that enters the container, and another container of the same slice.
    running.exec(&[], &ask).wait().success().assert_said(&free(48));
    start(&names[0], &ask).wait().success().assert_said(&free(48));
    assert_eq!(shim_of(pid_of(&node, &names[0])), file_name(old.shim()));

    let mut fresh = start(&names[1], &hold);
    fresh.process().wait_for("held");
    fresh.exec(&[], &ask).wait().success().assert_said(&free(16));
    assert_eq!(shim_of(pid_of(&node, &names[1])), file_name(new.shim()));
    assert_ne!(file_name(old.shim()), file_name(new.shim()));
}

/// The container's mounts were fixed when it was created. They must lead to the present files.
#[test]
fn a_container_that_was_made_before_a_reboot_and_an_upgrade_is_limited() {
    let gpu = SimulatedGpu::exact();
    let mut node = Node::publishing(&gpu, "");
    let image = Image::of(&RootFs::with(&[&HostProgram::new("secure")]));
    let name = format!("reboot-{}", std::process::id());
    let old_name = file_name(node.slice(&name, 40, 64 * MIB).shim());
    let device = format!("aliquot.dev/slice={name}");
    let mut container = image.create(&["--device", &device], &["/bin/secure", "libcuda.so.1"]);
    // A reboot empties the runtime directory.
    node.kill();
    fs::remove_dir_all(node.runtime_dir()).unwrap();
    fs::create_dir(node.runtime_dir()).unwrap();
    node.upgrade();
    container.start();
    container.wait().success().assert_said(&free(64));
    let left: Vec<String> = shims_below(&node.runtime_dir()).iter().map(|path| file_name(path)).collect();
    assert!(left.len() == 2 && !left.contains(&old_name), "{left:?}");
}
