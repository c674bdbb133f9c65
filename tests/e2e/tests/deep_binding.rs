//! A library opened with `RTLD_DEEPBIND` looks for functions in its own dependencies before the shim. The limit holds
//! all the same.

use std::process::Command;

use aliquot_harness::{HostProgram, MIB, Outcome, Region, SimulatedGpu, run, unchanged_in_a_slice};

const LIMIT_BYTES: u64 = 64 * MIB;

/// The plugin, linked to the driver, with the linker's options `options`.
fn plugin(gpu: &SimulatedGpu, variant: &str, options: &[&str]) -> HostProgram {
    let search = format!("-L{}", gpu.library_dir().display());
    let mut arguments = vec!["-shared", "-fPIC", search.as_str(), "-lcuda"];
    arguments.extend(options);
    HostProgram::variant("deep_plugin", &format!("{variant}.so"), &arguments)
}

/// Every look-up of the plugin leads to the limit; in an unlimited slice nothing changes.
fn assert_limited(gpu: &SimulatedGpu, command: impl Fn() -> Command) {
    let bare = unchanged_in_a_slice(gpu, &command).success();
    assert_eq!(bare.stdout.matches("one byte more: 0\n").count(), 4, "{bare:?}");
    let region = Region::new(gpu, LIMIT_BYTES);
    let limited: Outcome = run(region.preload_into(&mut command())).success();
    assert_eq!(limited.stdout, bare.stdout.replace("more: 0", "more: 2"), "{limited:?}");
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, LIMIT_BYTES));
}

#[test]
fn a_library_opened_with_deep_binding_is_limited_however_it_is_bound() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::interposing("binds_deeply");
    let variants: [(&str, &[&str]); 4] = [
        ("late", &["-Wl,-z,lazy"]),
        ("protected", &["-Wl,-z,now"]),
        ("unprotected", &["-Wl,-z,now", "-Wl,-z,norelro"]),
        ("packed", &["-Wl,-z,now", "-fno-plt", "-Wl,--hash-style=gnu", "-Wl,-z,pack-relative-relocs"]),
    ];
    for (variant, options) in variants {
        let plugin = plugin(&gpu, variant, options);
        for binding in ["now", "lazy"] {
            assert_limited(&gpu, || {
                let mut command = program.on(&gpu);
                command.arg(plugin.path()).args(["take", binding, &LIMIT_BYTES.to_string()]);
                command
            });
        }
    }
}

#[test]
fn dependencies_of_such_a_library_are_limited_too() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::interposing("binds_deeply");
    let plugin = plugin(&gpu, "needed", &["-Wl,-z,lazy"]);
    let path = plugin.path().to_str().unwrap();
    let outer = HostProgram::variant("needs_plugin", "outer.so", &["-shared", "-fPIC", path]);
    assert_limited(&gpu, || {
        let mut command = program.on(&gpu);
        command.arg(outer.path()).args(["take_through", "lazy", &LIMIT_BYTES.to_string()]);
        command
    });
}

/// A plugin that registers itself: the program calls no look-up function on it.
#[test]
fn a_plugin_that_nothing_is_looked_up_in_is_limited() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::interposing("binds_deeply");
    for (variant, options) in [("late", ["-Wl,-z,lazy"]), ("protected", ["-Wl,-z,now"])] {
        let plugin = plugin(&gpu, variant, &options);
        assert_limited(&gpu, || {
            let mut command = program.on(&gpu);
            command.arg(plugin.path()).args(["registered", "lazy", &LIMIT_BYTES.to_string()]);
            command
        });
    }
}

/// A library opened by its bare name: the loader must use the program's search path, not the shim's.
#[test]
fn a_library_that_is_searched_for_is_limited() {
    let gpu = SimulatedGpu::new();
    let plugin = plugin(&gpu, "searched", &["-Wl,-z,lazy"]);
    let directory = plugin.path().parent().unwrap().to_str().unwrap();
    let path = format!("-Wl,-rpath,{directory},--enable-new-dtags");
    let program = HostProgram::variant("binds_deeply", "searching", &[path.as_str()]);
    assert_limited(&gpu, || {
        let mut command = program.on(&gpu);
        command.args(["deep_plugin-searched.so", "take", "lazy", &LIMIT_BYTES.to_string()]);
        command
    });
}

#[test]
fn libraries_that_come_and_go_in_many_threads_are_limited_each_time() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::new("binds_deeply_at_once");
    for (variant, options) in [("late", ["-Wl,-z,lazy"]), ("protected", ["-Wl,-z,now"])] {
        let plugin = plugin(&gpu, variant, &options);
        let command = || {
            let mut command = program.on(&gpu);
            command.arg(plugin.path()).arg((LIMIT_BYTES + 1).to_string());
            command
        };
        unchanged_in_a_slice(&gpu, command).success().assert_said("granted 400, refused 0\n");
        let region = Region::new(&gpu, LIMIT_BYTES);
        run(region.preload_into(&mut command())).success().assert_said("granted 0, refused 400\n");
    }
}
