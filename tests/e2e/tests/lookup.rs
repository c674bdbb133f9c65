//! In whatever way a program looks up a driver function, it gets the one that applies the limit, and no function that
//! the driver lacks.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use aliquot_abi::region::LEDGER_FILE;
use aliquot_harness::{GIB, HostProgram, MIB, Region, SimulatedGpu, run, tool, unchanged_in_a_slice};

const WAYS: [&str; 5] = ["dlsym", "default", "next", "cuGetProcAddress", "cuGetProcAddress_v2"];

/// `cuGetProcAddress` returns the addresses of the driver's exports, or other addresses.
const ADDRESSES: [&str; 2] = ["", "proc_address = 'other'\n"];

#[test]
fn every_way_leads_to_the_limit() {
    for addresses in ADDRESSES {
        let gpu = SimulatedGpu::with(addresses);
        let program = HostProgram::new("lookup");
        for way in WAYS {
            let command = || {
                let mut command = program.on(&gpu);
                command.args([way, &(64 * MIB).to_string()]);
                command
            };
            let bare = unchanged_in_a_slice(&gpu, command).success();
            assert!(bare.stdout.contains("all of it: 0\nand one byte: 0\n"), "{bare:?}");

            let region = Region::new(&gpu, 64 * MIB);
            let limited = run(region.preload_into(&mut command())).success();
            assert_eq!(limited.stdout, bare.stdout.replace("and one byte: 0", "and one byte: 2"), "by {way}");
            assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 64 * MIB), "by {way}");
        }
    }
}

#[test]
fn a_linked_program_is_limited_too() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::linked(&gpu, "plain");
    let bare = unchanged_in_a_slice(&gpu, || program.on(&gpu)).success();
    assert!(bare.stdout.contains("100 kernels ran"), "{bare:?}");
}

#[test]
fn functions_that_the_driver_lacks_stay_missing() {
    let gpu = SimulatedGpu::new();
    let probe = HostProgram::new("probe");
    let modern = unchanged_in_a_slice(&gpu, || probe.on(&gpu)).success();
    assert!(
        modern.stdout.contains("before: cuMemAlloc_v2: default NULL, next NULL, through dlsym NULL\n"),
        "{modern:?}"
    );
    assert!(modern.stdout.contains("global: cuMemAlloc_v2: default yes, next yes, through dlsym yes, handle yes"));
    assert!(modern.stdout.contains(
        "loaded: cuFromTheFuture: default NULL, next NULL, through dlsym NULL, handle NULL, with a version NULL\n"
    ));

    let old_driver = tempfile::tempdir().unwrap();
    symlink(
        HostProgram::versioned_library("old_driver", "libcuda.so.1").path(),
        old_driver.path().join("libcuda.so.1"),
    )
    .unwrap();
    let on_old_driver = || {
        let mut command = probe.on(&gpu);
        command.env("LD_LIBRARY_PATH", old_driver.path());
        command
    };
    let old = unchanged_in_a_slice(&gpu, on_old_driver).success();
    assert!(
        old.stdout.contains(
            "global: cuMemAlloc: default yes, next yes, through dlsym yes, handle yes, with a version the same\n"
        ),
        "{old:?}"
    );
    assert!(
        old.stdout.contains(
            "global: cuMemAllocAsync: default NULL, next NULL, through dlsym NULL, handle NULL, with a version NULL\n"
        ),
        "{old:?}"
    );
}

/// In every version, with all flags, for existing and missing names, before and after `cuInit`.
#[test]
fn get_proc_address_answers_are_unchanged() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::new("get_proc_address");
    let answers = unchanged_in_a_slice(&gpu, || program.on(&gpu)).success();
    for line in [
        "cuGetProcAddress(cuGetProcAddress, 11030, 0): 0, status 77, cuGetProcAddress\n",
        "cuGetProcAddress_v2(cuGetProcAddress, 12000, 0): 0, status 0, cuGetProcAddress_v2\n",
        "cuGetProcAddress_v2(cuGetProcAddress, 12000, 2): 0, status 0, cuGetProcAddress_v2_ptsz\n",
        "cuGetProcAddress_v2_ptsz(cuLaunchKernel, 13000, 0): 0, status 0, cuLaunchKernel_ptsz\n",
        "cuGetProcAddress_v2_ptsz(cuLaunchKernel, 13000, 1): 0, status 0, cuLaunchKernel\n",
        "cuGetProcAddress_v2(cuFromTheFuture, 13000, 0): 0, status 1, NULL\n",
    ] {
        assert_eq!(answers.stdout.matches(line).count(), 2, "{line}");
    }

    let old_driver = tempfile::tempdir().unwrap();
    let library =
        HostProgram::variant("driver_of_11_3", "libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    symlink(library.path(), old_driver.path().join("libcuda.so.1")).unwrap();
    let on_old_driver = || {
        let mut command = program.on(&gpu);
        command.env("LD_LIBRARY_PATH", old_driver.path());
        command
    };
    let answers = unchanged_in_a_slice(&gpu, on_old_driver).success();
    for line in [
        "no cuGetProcAddress_v2\n",
        "cuGetProcAddress(cuGetProcAddress, 13000, 0): 0, status 77, cuGetProcAddress\n",
        "cuGetProcAddress(cuMemAlloc, 13000, 2): 0, status 77, cuMemAlloc_v2\n",
        "cuGetProcAddress(cuLaunchKernel, 13000, 0): 500, status 77, NULL\n",
    ] {
        assert_eq!(answers.stdout.matches(line).count(), 2, "{line}");
    }
}

/// Some drivers export one function under several symbols. The caller must get the hook of the symbol that it asked
/// for: one reads its arguments as 32-bit numbers, the other as 64-bit numbers.
#[test]
fn symbols_that_share_a_function_are_told_apart() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::new("get_proc_address");
    // As the driver, the library is bound to its own symbols.
    let options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1,-Bsymbolic", "-DSHARED_FUNCTIONS"];
    let library = HostProgram::variant("driver_of_11_3", "shared-libcuda.so.1", &options);
    let driver = tempfile::tempdir().unwrap();
    symlink(library.path(), driver.path().join("libcuda.so.1")).unwrap();
    let command = || {
        let mut command = program.on(&gpu);
        command.env("LD_LIBRARY_PATH", driver.path()).env("DEVICE_UUID", gpu.uuid(0));
        command
    };
    let bare = run(&mut command()).success();
    let in_slice = run(Region::unlimited(&gpu).preload_into(&mut command())).success();
    for (request, given) in [
        ("cuMemAlloc, 2000, 0", "cuMemAlloc"),
        ("cuMemAlloc, 3020, 0", "cuMemAlloc_v2"),
        ("cuMemAlloc, 13000, 0", "cuMemAlloc_v2"),
        ("cuMemAllocAsync, 11030, 0", "cuMemAllocAsync"),
        ("cuMemAllocAsync, 11030, 1", "cuMemAllocAsync"),
        ("cuMemAllocAsync, 11030, 2", "cuMemAllocAsync_ptsz"),
    ] {
        let line = |given: &str| format!("cuGetProcAddress({request}): 0, status 77, {given}\n");
        assert_eq!(bare.stdout.matches(&line(given)).count(), 0, "{request}: the functions are one");
        assert_eq!(in_slice.stdout.matches(&line(given)).count(), 2, "{request}");
    }

    // This driver's pools answer no queries, so only the first round is judged.
    let region = Region::new(&gpu, 5 * GIB);
    let limited = run(region.preload_into(command().arg((5 * GIB).to_string()))).success();
    assert!(limited.stdout.starts_with("cuGetProcAddress, flags 0: one byte more: 2,"), "{limited:?}");
}

#[test]
fn functions_from_get_proc_address_are_limited() {
    for addresses in ADDRESSES {
        let gpu = SimulatedGpu::with(addresses);
        let program = HostProgram::new("get_proc_address");
        let command = || {
            let mut command = program.on(&gpu);
            command.arg((64 * MIB).to_string());
            command
        };
        let bare = unchanged_in_a_slice(&gpu, command).success();
        assert_eq!(bare.stdout.matches("one byte more: 0, in order of a stream: 0\n").count(), 12, "{bare:?}");
        let region = Region::new(&gpu, 64 * MIB);
        let limited = run(region.preload_into(&mut command())).success();
        assert_eq!(limited.stdout, bare.stdout.replace(": 0", ": 2"));
    }
}

#[test]
fn a_driver_that_is_let_go_and_loaded_again_is_limited_again() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::new("dlclose");
    let bare = unchanged_in_a_slice(&gpu, || program.on(&gpu)).success();
    let region = Region::new(&gpu, 4 * MIB);
    run(region.preload_into(&mut program.on(&gpu))).success().assert_said(&bare.stdout);
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 4 * MIB));
}

#[test]
fn a_program_that_interposes_dlsym_itself_is_left_in_peace() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::interposing("own_dlsym");
    let bare = unchanged_in_a_slice(&gpu, || program.on(&gpu)).success();
    assert_eq!(bare.stdout, format!("3 look-ups, {} bytes\n", gpu.config().devices[0].memory_bytes));
    let region = Region::new(&gpu, 64 * MIB);
    let limited = run(region.preload_into(&mut program.on(&gpu))).success();
    assert_eq!(limited.stdout, format!("3 look-ups, {} bytes\n", 64 * MIB));
}

/// A plugin's look-up by `RTLD_DEFAULT` also searches the libraries that the plugin needs. The program does not see
/// these.
#[test]
fn a_plugin_finds_the_driver_that_it_is_linked_to() {
    let gpu = SimulatedGpu::new();
    let plugin = HostProgram::linked_library(&gpu, "plugin");
    let program = HostProgram::new("loads_plugin");
    let command = || {
        let mut command = program.on(&gpu);
        command.arg(plugin.path());
        command
    };
    let outcome = unchanged_in_a_slice(&gpu, command).success();
    assert!(outcome.stdout.contains("the plugin finds cuMemAlloc_v2: yes\n"), "{outcome:?}");
    assert!(outcome.stdout.contains("the program finds cuMemAlloc_v2: no\n"), "{outcome:?}");
}

/// The plugin's references are bound to the shim when the plugin is opened. When it is opened again, nothing is looked
/// up.
#[test]
fn a_plugin_that_brings_the_driver_along_is_limited_each_time_it_is_opened() {
    let gpu = SimulatedGpu::new();
    let plugin = HostProgram::linked_library(&gpu, "deep_plugin");
    let program = HostProgram::new("opens_again");
    let command = || {
        let mut command = program.on(&gpu);
        command.arg(plugin.path()).arg((64 * MIB + 1).to_string());
        command
    };
    let bare = unchanged_in_a_slice(&gpu, command).success();
    bare.assert_said("too much: 0\ntoo much: 0\ntoo much: 0\n");
    let region = Region::new(&gpu, 64 * MIB);
    run(region.preload_into(&mut command())).success().assert_said(&bare.stdout.replace(": 0", ": 2"));
}

/// Nor does the program see the libraries that the plugin's own libraries need.
#[test]
fn a_plugin_finds_the_driver_that_its_libraries_bring_along() {
    let gpu = SimulatedGpu::new();
    let search = format!("-L{}", gpu.library_dir().display());
    let inner = HostProgram::variant(
        "deep_plugin",
        "inner.so",
        &["-shared", "-fPIC", &search, "-lcuda", "-Wl,-soname,deep_plugin-inner.so"],
    );
    let directory = inner.path().parent().unwrap().to_str().unwrap();
    let path = format!("-Wl,-rpath,{directory}");
    let plugin = HostProgram::variant(
        "indirect_plugin",
        "outer.so",
        &["-shared", "-fPIC", inner.path().to_str().unwrap(), &path],
    );
    let program = HostProgram::new("loads_plugin");
    let command = || {
        let mut command = program.on(&gpu);
        command.arg(plugin.path());
        command
    };
    let outcome = unchanged_in_a_slice(&gpu, command).success();
    let lines = "the plugin finds cuMemAlloc_v2: yes\nmessage: no\nthe program finds cuMemAlloc_v2: no\n";
    assert_eq!(outcome.stdout, lines);
}

/// Such a library has functions, or function variables, with the names of the driver's functions.
#[test]
fn a_library_that_loads_the_driver_by_itself_is_limited() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::new("loads_plugin");
    let the_rest = "the program finds cuMemAlloc_v2: no\n";
    for loader in ["own_functions", "own_variables"] {
        for binding in ["-Wl,-z,lazy", "-Wl,-z,now"] {
            let variant = format!("{}.so", binding.rsplit(',').next().unwrap());
            let plugin = HostProgram::variant(loader, &variant, &["-shared", "-fPIC", binding]);
            let command = || {
                let mut command = program.on(&gpu);
                command.arg(plugin.path());
                command
            };
            let bare = unchanged_in_a_slice(&gpu, command).success();
            let device_bytes = gpu.config().devices[0].memory_bytes;
            assert_eq!(bare.stdout, format!("{device_bytes} bytes\n{the_rest}"), "{loader}");
            let region = Region::new(&gpu, 64 * MIB);
            let limited = run(region.preload_into(&mut command())).success();
            assert_eq!(limited.stdout, format!("{} bytes\n{the_rest}", 64 * MIB), "{loader}");
        }
    }
}

/// The limit holds in either order. A library before the shim sees the same calls as without the shim. A library behind
/// it sees no calls of hooked functions by name, because the shim calls the driver directly.
#[test]
fn beside_another_preloaded_library_the_limit_holds() {
    let gpu = SimulatedGpu::new();
    let gpu_bytes = (64 * MIB).to_string();
    let other = HostProgram::library("other_preload");
    let other = other.path().to_str().unwrap();
    let programs = [
        (HostProgram::new("lookup"), vec!["dlsym", &gpu_bytes]),
        (HostProgram::linked(&gpu, "exact"), vec![gpu_bytes.as_str()]),
    ];
    for (program, arguments) in programs {
        let with = |preloaded: &str| run(program.on(&gpu).args(&arguments).env("LD_PRELOAD", preloaded)).success();
        let without_shim = with(other);
        for shim_is_first in [true, false] {
            let region = Region::new(&gpu, 64 * MIB);
            let shim = region.shim();
            let shim = shim.to_str().unwrap();
            let list = if shim_is_first { format!("{shim}:{other}") } else { format!("{other}:{shim}") };
            let both = with(&list);
            assert!(both.stdout.contains("one byte: 2") || both.stdout.contains("one byte more: 2"), "{both:?}");
            assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 64 * MIB), "{both:?}");
            assert!(both.stderr.contains("other library: "), "{both:?}");
            if !shim_is_first {
                assert_eq!(both.stderr, without_shim.stderr, "{both:?}");
            }
        }
    }
}

#[test]
fn a_program_that_does_not_use_cuda_is_unchanged() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::new("no_cuda");
    let command = || {
        let mut command = program.on(&gpu);
        command.args(["one", "two words", ""]);
        command
    };
    let bare = unchanged_in_a_slice(&gpu, command);
    assert_eq!(bare.status.code(), Some(3));
    assert!(bare.stdout.contains("\nerrno after a look-up: 0, message: yes\n"), "{bare:?}");

    for system_program in [
        vec!["/bin/true"],
        vec!["/bin/false"],
        vec!["/bin/sh", "-c", "echo $0; exit 5"],
        vec!["/bin/ls", "/proc/self/fd"],
        vec!["/bin/cat", "/proc/self/status"],
    ] {
        let command = || {
            let mut command = Command::new(system_program[0]);
            command.args(&system_program[1..]);
            command
        };
        if system_program[0] == "/bin/cat" {
            // Compares only what the shim could change: threads and signals. Times and ids differ between runs, and the
            // descriptor table's size is inherited from this process, whose other tests change it.
            let lines = |outcome: aliquot_harness::Outcome| {
                let kept = ["Threads:", "SigBlk:", "SigIgn:", "SigCgt:"];
                let lines = outcome.stdout.lines().filter(|line| kept.iter().any(|key| line.starts_with(key)));
                lines.map(str::to_owned).collect::<Vec<_>>()
            };
            let region = Region::unlimited(&gpu);
            let preloaded = lines(run(region.preload_into(&mut command())));
            assert_eq!(preloaded.len(), 4);
            assert_eq!(preloaded, lines(run(&mut command())));
        } else {
            let _ = unchanged_in_a_slice(&gpu, command);
        }
    }
}

#[test]
fn a_program_that_changes_its_root_hears_nothing_of_a_region_that_it_does_not_use() {
    let gpu = SimulatedGpu::new();
    let region = Region::unlimited(&gpu);
    fs::remove_file(region.dir().join(LEDGER_FILE)).unwrap();
    let command = || {
        let mut command = Command::new(tool("chroot", "coreutils"));
        command.args(["/", "/bin/echo", "there"]);
        command
    };
    let bare = run(&mut command());
    bare.assert_same(&run(region.preload_into(&mut command())));
}

#[test]
fn the_region_is_not_even_mapped_without_cuda() {
    let gpu = SimulatedGpu::new();
    let region = Region::unlimited(&gpu);
    let mut command = Command::new("/bin/cat");
    command.arg("/proc/self/maps");
    let maps = run(region.preload_into(&mut command)).success().stdout;
    assert!(maps.contains(region.shim().to_str().unwrap()), "{maps}");
    for file in fs::read_dir(region.dir()).unwrap() {
        let file = file.unwrap().path();
        assert!(file == region.shim() || !maps.contains(file.to_str().unwrap()), "{maps}");
    }
}
