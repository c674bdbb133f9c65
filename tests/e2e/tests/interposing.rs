//! Programs that interpose functions themselves, or by a sanitizer's runtime, keep working, and the limit holds.

use std::process::Command;

use aliquot_harness::{
    EXACT_MEMORY, HostProgram, MIB, PythonEnvironment, Region, SimulatedGpu, run, tool, unchanged_in_a_slice,
};

/// The program's look-ups of the driver behave as without the shim, and in a slice one byte more than the limit is
/// refused.
fn assert_limited(gpu: &SimulatedGpu, what: &str, command: impl Fn(&str) -> Command) {
    for way in ["dlsym", "default", "next", "cuGetProcAddress_v2"] {
        let bare = unchanged_in_a_slice(gpu, || command(way)).success();
        assert!(bare.stdout.contains("and one byte: 0\na kernel ran\n"), "{what}: {bare:?}");
        let region = Region::new(gpu, 64 * MIB);
        let limited = run(region.preload_into(&mut command(way))).success();
        assert_eq!(limited.stdout, bare.stdout.replace("one byte: 0", "one byte: 2"), "{what}: {limited:?}");
        assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 64 * MIB), "{what}");
    }
}

/// The address sanitizer's runtime, if it is a shared library, must be the first library and otherwise ends the
/// program, whatever library is preloaded. An option switches that check off. A runtime linked into the program does
/// not check.
#[test]
fn programs_with_sanitizers_are_unharmed_and_limited() {
    let gpu = SimulatedGpu::new();
    let variants: [(&str, &[&str]); 6] = [
        ("undefined", &["-fsanitize=undefined"]),
        ("undefined-static", &["-fsanitize=undefined", "-static-libubsan"]),
        ("address", &["-fsanitize=address"]),
        ("address-static", &["-fsanitize=address", "-static-libasan"]),
        ("thread", &["-fsanitize=thread"]),
        ("thread-static", &["-fsanitize=thread", "-static-libtsan"]),
    ];
    for (variant, arguments) in variants {
        let program = HostProgram::variant("lookup", variant, arguments);
        assert_limited(&gpu, variant, |way| {
            // The thread sanitizer needs memory at addresses that are not random.
            let mut command = Command::new(tool("setarch", "util-linux"));
            command.arg("--addr-no-randomize").arg(program.path()).args([way, &(64 * MIB).to_string()]);
            // As real drivers, the simulated one never frees some of its memory.
            command.env("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0");
            gpu.show_to(&mut command);
            command
        });
    }
}

#[test]
fn a_program_that_interposes_dlopen_itself_is_left_in_peace() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::interposing("own_dlopen");
    let bare = unchanged_in_a_slice(&gpu, || program.on(&gpu)).success();
    assert_eq!(bare.stdout, format!("2 openings, {} bytes\n", gpu.config().devices[0].memory_bytes));
    let region = Region::new(&gpu, 64 * MIB);
    let limited = run(region.preload_into(&mut program.on(&gpu))).success();
    assert_eq!(limited.stdout, format!("2 openings, {} bytes\n", 64 * MIB));
}

/// The program's functions look up the real ones at their first call, and the shim must not call them meanwhile.
#[test]
fn a_program_that_interposes_string_functions_is_unharmed() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::variant("own_strings", "program", &["-rdynamic", "-fno-builtin"]);
    let bare = unchanged_in_a_slice(&gpu, || program.on(&gpu)).success();
    assert_eq!(bare.stdout, format!("{} bytes\n", gpu.config().devices[0].memory_bytes));
    let region = Region::new(&gpu, 64 * MIB);
    run(region.preload_into(&mut program.on(&gpu))).success().assert_said(&format!("{} bytes\n", 64 * MIB));
}

/// UCX, which MPI is built on, overwrites the functions that it finds, which are the hooks in a slice.
#[test]
fn a_program_that_patches_functions_is_limited() {
    let gpu = SimulatedGpu::exact();
    let program = HostProgram::linked(&gpu, "overwrites_functions");
    let said = "one byte more: 2, on a handle: 2, by look-up: 2\n4 allocations and 1 frees seen\n";
    unchanged_in_a_slice(&gpu, || program.on(&gpu)).success().assert_said(said);
    let region = Region::new(&gpu, 64 * MIB);
    run(region.preload_into(&mut program.on(&gpu))).success().assert_said(said);
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 64 * MIB));
}

/// UCX asks the driver where memory lies, exports it to other processes, and allocates some itself.
#[test]
fn ucx_registers_memory_within_the_limit() {
    let small = SimulatedGpu::with(&format!("{EXACT_MEMORY}[[device]]\nmemory = '64MiB'\n"));
    let large = SimulatedGpu::exact();
    let ucx = PythonEnvironment::ucx().package("libucx");
    let [headers, libraries] = ["include", "lib"].map(|part| ucx.join(part).display().to_string());
    let drivers = large.library_dir().display().to_string();
    let search = [format!("-isystem{headers}"), format!("-L{libraries}"), format!("-L{drivers}")];
    let mut arguments: Vec<&str> = search.iter().map(String::as_str).collect();
    arguments.extend(["-lucp", "-lucs", "-lucm", "-luct", "-lcuda"]);
    let program = HostProgram::variant("maps_memory", "ucx", &arguments);
    let command = |gpu: &SimulatedGpu| {
        let mut command = program.on(gpu);
        let drivers = gpu.library_dir().display().to_string();
        command.env("LD_LIBRARY_PATH", format!("{drivers}:{libraries}")).env("UCX_LOG_LEVEL", "fatal");
        command
    };
    let bare = unchanged_in_a_slice(&small, || command(&small)).success();
    bare.assert_said(
        "host memory: Success, host, short key\n\
         cuMemAlloc: Success, device, longer key\n\
         by UCX: Success, device, longer key\n\
         by UCX, too much: Out of memory\n\
         by UCX, when there is room: Success, device, longer key\n",
    );
    let region = Region::new(&large, 64 * MIB);
    run(region.preload_into(&mut command(&large))).success().assert_said(&bare.stdout);
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 64 * MIB));
}

#[test]
fn libraries_are_found_by_the_search_path_of_the_opening_object() {
    let gpu = SimulatedGpu::new();
    let library = HostProgram::variant("driver_of_11_3", "beside.so", &["-shared", "-fPIC"]);
    let directory = library.path().parent().unwrap().to_str().unwrap();
    let path = format!("-Wl,-rpath,{directory},--enable-new-dtags");
    let program = HostProgram::variant("search_path", "searching", &[path.as_str()]);
    let outcome = unchanged_in_a_slice(&gpu, || {
        let mut command = program.on(&gpu);
        command.arg("driver_of_11_3-beside.so");
        command
    });
    let lines = "dlopen: yes\ndlmopen: yes, another copy: yes\ntwo functions: yes\nmissing: libno-such.so: cannot open";
    assert!(outcome.success().stdout.starts_with(lines));
}

#[test]
fn a_program_that_patches_its_own_references_keeps_them() {
    let gpu = SimulatedGpu::new();
    let plugin = HostProgram::linked_library(&gpu, "deep_plugin");
    for binding in ["lazy", "now"] {
        let search = format!("-L{}", gpu.library_dir().display());
        let binding_option = format!("-Wl,-z,{binding}");
        let program =
            HostProgram::variant("patches_itself", binding, &[search.as_str(), "-lcuda", binding_option.as_str()]);
        let command = || {
            let mut command = program.on(&gpu);
            command.arg(plugin.path());
            command
        };
        unchanged_in_a_slice(&gpu, command).success().assert_said("too much: 2\nseen: 2\n");
    }
}
