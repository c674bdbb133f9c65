//! Programs with another C library than this machine's: an older one, a different one, or none.

use std::fs;
use std::process::Command;

use aliquot_harness::{
    HostProgram, Image, MIB, Outcome, Region, RootFs, SimulatedGpu, Sysroot, run, tool, unchanged_in_a_slice,
};

/// The options of `podman run` that give a container the simulated machine's files; the driver itself is in the image.
fn machine_options(gpu: &SimulatedGpu) -> Vec<String> {
    let dir = gpu.dir().display();
    let mut options: Vec<String> = vec!["--env".into(), format!("ALIQUOT_FAKE_GPU={}", gpu.config_file().display())];
    for file in ["machine.toml", "state", "state.lock"] {
        options.extend(["--volume".into(), format!("{dir}/{file}:{dir}/{file}")]);
    }
    options
}

/// The options that put a container into `region`, as its CDI device would: with the preload file and the variable.
fn region_options(region: &Region) -> Vec<String> {
    let dir = region.dir().display();
    fs::write(region.dir().join("ld.so.preload"), format!("{}\n", region.shim().display())).unwrap();
    let volume = |volume: String| ["--volume".to_owned(), volume];
    let mut options = vec!["--env".into(), format!("LD_PRELOAD={}", region.shim().display())];
    options.extend(volume(format!("{dir}:{dir}:ro")));
    options.extend(volume(format!("{dir}/ledger:{dir}/ledger")));
    options.extend(volume(format!("{dir}/ld.so.preload:/etc/ld.so.preload:ro")));
    options
}

fn run_in(image: &Image, options: &[String], command: &[&str]) -> Outcome {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    image.start(&options, command).wait()
}

/// Runs `command` in a container without a slice and in an unlimited slice; status and output must be the same.
#[track_caller]
fn unchanged_in(image: &Image, gpu: &SimulatedGpu, command: &[&str]) -> Outcome {
    let region = Region::unlimited(gpu);
    let bare = run_in(image, &machine_options(gpu), command);
    let in_slice = run_in(image, &[machine_options(gpu), region_options(&region)].concat(), command);
    let what = |outcome: &Outcome| (outcome.status, outcome.stdout.clone(), outcome.stderr.clone());
    assert_eq!(what(&bare), what(&in_slice), "{command:?}");
    bare
}

#[test]
fn with_an_older_c_library_programs_run_unchanged_and_are_limited() {
    let gpu = SimulatedGpu::exact();
    let old = Sysroot::debian_11();
    let programs = ["starts", "plain", "probe", "dlclose", "fork", "exec", "thread_storm", "capture", "exact"];
    let programs = programs.map(|name| old.program(name));
    let image = Image::of(&old.root(&programs.each_ref()));
    let in_bin = |name: &str| format!("/bin/{name}-bullseye");

    let starts = unchanged_in(&image, &gpu, &[&in_bin("starts"), "libcuda.so.1"]);
    assert_eq!(starts.status.code(), Some(7), "{starts:?}");
    assert!(starts.stdout.contains("library 1: cuInit found, answers 0, cuMemAlloc_v2 found\n"), "{starts:?}");
    for (name, argument) in [
        ("plain", ""),
        ("probe", ""),
        ("dlclose", ""),
        ("fork", "before"),
        ("fork", "after"),
        ("fork", "storm"),
        ("exec", "vfork"),
        ("exec", "thread"),
        ("thread_storm", ""),
        ("capture", ""),
    ] {
        let program = in_bin(name);
        let command = [&*program, argument];
        let command = if argument.is_empty() { &command[..1] } else { &command[..] };
        let _ = unchanged_in(&image, &gpu, command).success();
    }

    let region = Region::new(&gpu, 64 * MIB);
    let bytes = (64 * MIB).to_string();
    let options = [machine_options(&gpu), region_options(&region)].concat();
    let exact = run_in(&image, &options, &[&in_bin("exact"), &bytes]).success();
    assert!(exact.stdout.starts_with(&format!("free: {bytes}\none byte more than all: 2\n")), "{exact:?}");
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 64 * MIB));
}

/// The program `name` for musl, with further arguments to the compiler.
fn for_musl(name: &str, variant: &str, arguments: &[&str]) -> HostProgram {
    let _ = tool("musl-gcc", "musl-tools");
    let specs = ["-specs=/usr/lib/x86_64-linux-musl/musl-gcc.specs"];
    HostProgram::variant(name, variant, &[&specs, arguments].concat())
}

const MUSL: &str = "/usr/lib/x86_64-linux-musl/libc.so";

/// The driver needs the GNU C library, so such programs use no GPU and must not notice the shim.
#[test]
fn programs_with_another_c_library_start_unharmed() {
    let gpu = SimulatedGpu::exact();
    let program = for_musl("starts", "musl", &[]);
    // A library with the driver's name.
    let library = for_musl("old_driver", "musl.so", &["-shared", "-fPIC"]);
    let on_this_machine = unchanged_in_a_slice(&gpu, || {
        let mut command = Command::new(program.path());
        command.arg(library.path());
        command
    });
    assert_eq!(on_this_machine.status.code(), Some(7), "{on_this_machine:?}");
    assert!(on_this_machine.stdout.contains("cuInit: not found\n"), "{on_this_machine:?}");
    assert!(on_this_machine.stdout.contains("library 1: cuInit found, answers 0, cuMemAlloc_v2 not found\n"));

    let root = RootFs::new();
    root.copy(MUSL.as_ref(), "/lib/ld-musl-x86_64.so.1");
    root.add_program(&program);
    root.copy(library.path(), "/lib/libcuda.so.1");
    let image = Image::of(&root);
    let in_image = unchanged_in(&image, &gpu, &["/bin/starts-musl", "libcuda.so.1"]);
    assert_eq!((in_image.status.code(), in_image.stdout), (Some(7), on_this_machine.stdout));
}

#[test]
fn programs_without_a_loader_start_unharmed() {
    let gpu = SimulatedGpu::exact();
    let program = for_musl("starts", "static", &["-static"]);
    let region = Region::unlimited(&gpu);
    let bare = run(&mut Command::new(program.path()));
    bare.assert_same(&run(region.preload_into(&mut Command::new(program.path()))));
    assert_eq!(bare.status.code(), Some(7), "{bare:?}");
}
