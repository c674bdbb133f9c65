//! However a container's process is started, it has the shim, and the image's own settings still work.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use aliquot_harness::{Container, HostProgram, Image, MIB, Node, Outcome, RootFs, SimulatedGpu, run, wait};
use rustix::fs::{XattrFlags, setxattr};

/// The output of the program `secure` in a slice of 64 MiB, and without a slice on a device of 80 GiB.
const LIMITED: &str = "secure: no, free 64 MiB, one byte more: 2\n";
const UNLIMITED: &str = "secure: no, free 81920 MiB, one byte more: 2\n";
/// A command that prints the free memory.
const ASK: [&str; 2] = ["/bin/secure", "libcuda.so.1"];

/// A machine, a manager that publishes CDI devices, a slice of 64 MiB, and an image with test programs.
struct Setup {
    gpu: SimulatedGpu,
    node: Node,
    root: RootFs,
    slice: String,
}

impl Setup {
    /// With the keys `cdi` of the manager's configuration.
    fn with(name: &str, cdi: &str) -> Setup {
        let gpu = SimulatedGpu::exact();
        let node = Node::publishing(&gpu, cdi);
        let root = RootFs::with(&[&HostProgram::new("secure"), &HostProgram::linked(&gpu, "hold")]);
        let slice = format!("{name}-{}", std::process::id());
        let _ = node.slice(&slice, 50, 64 * MIB);
        Setup { gpu, node, root, slice }
    }

    /// With the manager's default configuration.
    fn new(name: &str) -> Setup {
        Setup::with(name, "")
    }

    fn image(&self) -> Image {
        Image::of(&self.root)
    }

    fn start(&self, image: &Image, options: &[&str], command: &[&str]) -> Container {
        let device = format!("aliquot.dev/slice={}", self.slice);
        let options: Vec<&str> = ["--device", &device].into_iter().chain(options.iter().copied()).collect();
        image.start(&options, command)
    }

    fn run(&self, image: &Image, options: &[&str], command: &[&str]) -> Outcome {
        self.start(image, options, command).wait()
    }

    /// `command` with only the variable in its environment that the simulated driver needs to find its machine.
    fn with_clear_environment(&self, command: &[&str]) -> Vec<String> {
        let variable = format!("ALIQUOT_FAKE_GPU={}", self.gpu.config_file().display());
        ["/bin/env", "-i", &variable].iter().chain(command).map(|&word| word.to_owned()).collect()
    }
}

fn words(command: &[String]) -> Vec<&str> {
    command.iter().map(String::as_str).collect()
}

/// How often process `pid` has the shim loaded: the number of its mappings with file offset 0.
fn shims_in(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let is_first = |line: &&str| line.contains("/libaliquot-") && line.split(' ').nth(2) == Some("00000000");
    maps.lines().filter(is_first).count()
}

#[test]
fn a_program_that_clears_its_environment_is_limited() {
    let setup = Setup::new("clear");
    let image = setup.image();
    setup.run(&image, &[], &ASK).success().assert_said(LIMITED);
    setup.run(&image, &[], &words(&setup.with_clear_environment(&ASK))).success().assert_said(LIMITED);
}

#[test]
fn a_set_user_id_program_is_limited() {
    let setup = Setup::new("setuid");
    setup.root.set_mode("/bin/secure", 0o4755);
    let outcome = setup.run(&setup.image(), &["--user", "1000:1000"], &ASK).success();
    outcome.assert_said(&LIMITED.replace("secure: no", "secure: yes"));
}

#[test]
fn a_process_that_enters_a_running_container_is_limited() {
    let setup = Setup::new("enter");
    let image = setup.image();
    let mut holder = setup.start(&image, &[], &["/bin/hold-linked", &(16 * MIB).to_string()]);
    holder.process().wait_for("held");
    let expected = LIMITED.replace("64", "48");
    holder.exec(&[], &ASK).wait().success().assert_said(&expected);
    // A login makes an environment of its own.
    let login = setup.with_clear_environment(&["/bin/sh", "-l", "-c", "exec /bin/secure libcuda.so.1"]);
    holder.exec(&["--user", "1000:1000"], &words(&login)).wait().success().assert_said(&expected);
}

#[test]
fn the_container_s_root_cannot_take_the_shim_away() {
    let setup = Setup::new("tamper");
    let image = setup.image();
    let tamper = "echo > /etc/ld.so.preload; rm /etc/ld.so.preload; mv /etc/ld.so.preload /tmp; \
                  rm $(cat /etc/ld.so.preload); unset LD_PRELOAD; exec /bin/secure libcuda.so.1";
    let outcome = setup.run(&image, &[], &["/bin/sh", "-c", tamper]).success();
    outcome.assert_said(LIMITED);
    assert_eq!(outcome.stderr.lines().count(), 5, "one of the attempts did not fail: {outcome:?}");
}

#[test]
fn libraries_preloaded_by_an_image_are_loaded_too() {
    // If the manager sets the variable for the shim too, the image's value is replaced.
    for (cdi, announced) in [("", "announce: loaded\n"), ("preload = 'environment'", ""), ("preload = 'both'", "")] {
        let setup = Setup::with("env", cdi);
        let library = HostProgram::library("announce");
        setup.root.copy(library.path(), "/lib/announce.so");
        let outcome = setup.run(&setup.image(), &["--env", "LD_PRELOAD=/lib/announce.so"], &ASK).success();
        outcome.assert_said(LIMITED);
        assert_eq!(outcome.stderr, announced, "{cdi}");
    }
}

/// The mounted preload file hides the image's. With the variable instead, the image's file stays in force.
#[test]
fn an_image_with_a_preload_file_of_its_own_has_a_way_to_keep_it() {
    for (cdi, own) in [("", ""), ("preload = 'environment'", "announce: loaded\n")] {
        let setup = Setup::with("own", cdi);
        setup.root.copy(HostProgram::library("announce").path(), "/lib/announce.so");
        setup.root.write("/etc/ld.so.preload", "/lib/announce.so\n");
        let outcome = setup.run(&setup.image(), &[], &ASK).success();
        outcome.assert_said(LIMITED);
        assert_eq!(outcome.stderr, own, "{cdi}");
    }
}

/// The reason for the preload file.
#[test]
fn by_the_environment_alone_a_program_that_clears_it_is_not_limited() {
    let setup = Setup::with("escape", "preload = 'environment'");
    let image = setup.image();
    setup.run(&image, &[], &ASK).success().assert_said(LIMITED);
    setup.run(&image, &[], &words(&setup.with_clear_environment(&ASK))).success().assert_said(UNLIMITED);
}

#[test]
fn a_library_that_is_preloaded_in_both_ways_is_loaded_once() {
    for cdi in ["preload = 'file'", "preload = 'environment'", "preload = 'both'"] {
        let setup = Setup::with("both", cdi);
        let image = setup.image();
        let mut holder = setup.start(&image, &[], &["/bin/hold-linked", &(16 * MIB).to_string()]);
        holder.process().wait_for("held");
        let pid = wait::until("the manager knows the process", || {
            Some(setup.node.client().usage(&setup.slice).unwrap().processes.first()?.pid)
        });
        assert_eq!(shims_in(pid), 1, "{cdi}");
    }
}

#[test]
fn a_container_whose_file_system_cannot_be_written_is_limited() {
    let setup = Setup::new("readonly");
    setup.run(&setup.image(), &["--read-only"], &ASK).success().assert_said(LIMITED);
}

#[test]
fn a_container_with_a_user_namespace_of_its_own_is_limited() {
    let setup = Setup::new("userns");
    let outcome = setup.run(&setup.image(), &["--uidmap", "0:200000:2000", "--gidmap", "0:200000:2000"], &ASK);
    outcome.success().assert_said(LIMITED);
}

#[test]
fn an_image_without_a_c_library_starts_unharmed() {
    let setup = Setup { root: RootFs::new(), ..Setup::with("static", "preload = 'both'") };
    let outcome = setup.run(&setup.image(), &[], &["/bin/sh", "-c", "env echo started; exit 3"]);
    assert_eq!((outcome.status.code(), &*outcome.stdout, &*outcome.stderr), (Some(3), "started\n", ""), "{outcome:?}");
}

/// Outside a container a slice has no preload file of its own. The loader ignores paths in `LD_PRELOAD` when a program
/// gives rights to its user: such a program runs as without the shim, and unharmed.
#[test]
fn outside_a_container_a_privileged_program_runs_as_without_the_shim() {
    /// In the kernel's format (`vfs_cap_data`, revision 2): the capability 10, CAP_NET_BIND_SERVICE, effective and
    /// permitted.
    const CAPABILITY: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice_for(1000, "setuid", 64 * MIB);
    let root = RootFs::new();
    root.add_program(&HostProgram::new("secure"));
    let program = root.path().join("bin/secure");
    let driver = fs::canonicalize(gpu.library_dir().join("libcuda.so.1")).unwrap();
    let run_as_user = || {
        let mut command = Command::new(&program);
        gpu.show_to(slice.preload_into(&mut command)).arg(&driver).uid(1000).gid(1000);
        run(&mut command).success()
    };
    let without_shim = UNLIMITED.replace("secure: no", "secure: yes");
    run_as_user().assert_said(LIMITED);
    root.set_mode("/bin/secure", 0o4755);
    run_as_user().assert_said(&without_shim);
    root.set_mode("/bin/secure", 0o755);
    run_as_user().assert_said(LIMITED);
    let capability: Vec<u8> = CAPABILITY.iter().flat_map(|word| word.to_le_bytes()).collect();
    setxattr(&program, "security.capability", &capability, XattrFlags::empty()).unwrap();
    run_as_user().assert_said(&without_shim);
}
