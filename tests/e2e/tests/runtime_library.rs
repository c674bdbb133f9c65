//! NVIDIA's runtime library (libcudart), which PyTorch and most CUDA programs are built on, gets every hook that it asks
//! for. The library does not run on the simulated GPU (`tests/fake-gpu/README.md`), but it looks all functions of the
//! driver up before it finds that out, and these functions are used here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use aliquot_abi::cuda::FORWARDED;
use aliquot_harness::{EXACT_MEMORY, GIB, HostProgram, Outcome, Region, SimulatedGpu, nvidia_runtime, run};

/// A way to link NVIDIA's runtime library.
struct Linking {
    version: u32,
    /// The Python package that has it, and the package's version.
    package: (&'static str, &'static str),
    /// Whether the library is linked statically.
    is_static: bool,
    /// The library's files in the package.
    files: &'static [&'static str],
}

const CUDA_11: (&str, &str) = ("nvidia-cuda-runtime-cu11", "11.8.89");
const CUDA_12: (&str, &str) = ("nvidia-cuda-runtime-cu12", "12.9.79");
const CUDA_13: (&str, &str) = ("nvidia-cuda-runtime", "13.5.37");

/// All that the packages offer. That of CUDA 11 has no static library.
const LINKINGS: [Linking; 5] = [
    Linking { version: 11080, package: CUDA_11, is_static: false, files: &["libcudart.so.11.0"] },
    Linking { version: 12090, package: CUDA_12, is_static: false, files: &["libcudart.so.12"] },
    Linking { version: 12090, package: CUDA_12, is_static: true, files: &["libcudart_static.a", "libculibos.a"] },
    Linking { version: 13050, package: CUDA_13, is_static: false, files: &["libcudart.so.13"] },
    Linking { version: 13050, package: CUDA_13, is_static: true, files: &["libcudart_static.a"] },
];

impl Linking {
    /// The host program, linked in this way.
    fn program(&self) -> HostProgram {
        let (package, release) = self.package;
        let dir = nvidia_runtime(package, release);
        let mut arguments = vec!["-rdynamic".to_owned(), format!("-Wl,-rpath,{}", dir.display())];
        arguments.extend(self.files.iter().map(|file| dir.join(file).display().to_string()));
        arguments.push("-lrt".to_owned());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let way = if self.is_static { "static" } else { "shared" };
        HostProgram::variant("runtime_library", &format!("{}-{way}", self.version), &arguments)
    }
}

impl fmt::Display for Linking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, {}", self.version, if self.is_static { "static" } else { "shared" })
    }
}

macro_rules! classes {
    ($($class:ident $policy:ident : $symbol:ident $(| $per_thread:ident)? = $name:ident @ $since:literal
        ($($argument:ident : $type:ty),* $(,)?);)*) => {
        /// Each symbol of the driver with its class.
        fn classes() -> BTreeMap<&'static str, &'static str> {
            [$((stringify!($symbol), stringify!($class)), $((stringify!($per_thread), stringify!($class)),)?)*].into()
        }
    };
}

aliquot_abi::cuda_api!(classes);

/// The look-ups in the program's output: the requested name with the symbol of the answer, and the file that contains
/// it.
fn lookups(outcome: &Outcome) -> Vec<(String, String)> {
    let all = outcome.stdout.lines().take_while(|line| !line.starts_with("device count "));
    all.map(|line| line.rsplit_once(' ').expect("a file after the symbol"))
        .map(|(what, file)| (what.into(), file.into()))
        .collect()
}

/// The program's output after the look-ups.
fn said(outcome: &Outcome) -> &str {
    let start = outcome.stdout.find("device count ").unwrap_or_else(|| panic!("the library made no call: {outcome:?}"));
    &outcome.stdout[start..]
}

/// Each look-up has the same answer with and without the shim: the same function of the driver, or its hook.
#[test]
fn every_function_that_is_hooked_is_the_hook() {
    let classes = classes();
    // A driver as new as the newest of the libraries, so that it has all the versions that they ask for.
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}cuda_version = 13050\n"));
    for linking in LINKINGS {
        let program = linking.program();
        let bare = run(&mut program.on(&gpu)).success();
        let region = Region::new(&gpu, 4 * GIB);
        let sliced = run(region.preload_into(&mut program.on(&gpu))).success();
        let (bare, sliced) = (lookups(&bare), lookups(&sliced));
        assert!(bare.len() > 350, "{linking}: only {} look-ups", bare.len());
        let what = |lookups: &[(String, String)]| lookups.iter().map(|(what, _)| what.clone()).collect::<Vec<_>>();
        assert_eq!(what(&bare), what(&sliced), "{linking}: the answers differ");
        let mut hooked = BTreeSet::new();
        for (what, file) in &sliced {
            let symbol = what.rsplit_once(' ').expect("a symbol").1;
            let expected = match classes.get(symbol) {
                None => "-",
                Some(&"forward") => "libcuda.so.1",
                Some(_) => "libaliquot-shim.so",
            };
            assert_eq!(file, expected, "{linking}: {what}");
            if expected == "libaliquot-shim.so" {
                hooked.insert(symbol);
            }
        }
        // The forms by which the library allocates, launches and shows memory.
        for symbol in [
            "cuMemAlloc_v2",
            "cuMemAllocManaged",
            "cuMemAllocPitch_v2",
            "cuMemAllocAsync",
            "cuMemAllocAsync_ptsz",
            "cuMemAllocFromPoolAsync",
            "cuArray3DCreate_v2",
            "cuMemHostAlloc",
            "cuMemFree_v2",
            "cuMemGetInfo_v2",
            "cuDeviceTotalMem_v2",
            "cuLaunchKernel",
            "cuLaunchKernel_ptsz",
            "cuLaunchKernelEx",
            "cuLaunchKernelEx_ptsz",
            "cuLaunchCooperativeKernel",
            "cuGraphLaunch",
            "cuGraphLaunch_ptsz",
            "cuDevicePrimaryCtxRetain",
        ] {
            assert!(hooked.contains(symbol), "{linking}: the library did not get {symbol}");
        }
    }
}

/// It may use functions that no header declares.
#[test]
fn every_function_that_it_looks_up_is_classified() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}cuda_version = 13050\n"));
    let classes = classes();
    let symbols = || classes.keys().chain(FORWARDED.iter().flat_map(|family| family.symbols));
    for linking in LINKINGS {
        let looked_up = lookups(&run(&mut linking.program().on(&gpu)).success());
        let names: BTreeSet<&str> = looked_up.iter().filter_map(|(what, _)| what.split(' ').next()).collect();
        // A symbol begins with its name.
        let unknown: Vec<_> = names.iter().filter(|name| !symbols().any(|symbol| symbol.starts_with(**name))).collect();
        assert!(unknown.is_empty(), "{linking}: nobody has looked at {unknown:?}");
    }
}

/// The functions that the library got hold the limit, whatever addresses the driver's look-up gives.
#[test]
fn the_functions_that_it_gets_hold_the_limit() {
    for addresses in ["", "proc_address = 'other'\n"] {
        let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}{addresses}"));
        for linking in LINKINGS {
            let program = linking.program();
            let bare = run(&mut program.on(&gpu)).success();
            let region = Region::new(&gpu, 4 * GIB);
            let sliced = run(region.preload_into(&mut program.on(&gpu))).success();
            let expected = |bytes: u64| {
                format!(
                    "device count cudaErrorSymbolNotFound, malloc cudaErrorSymbolNotFound, \
                     info cudaErrorSymbolNotFound\n\
                     free {bytes} of {bytes}\n\
                     left 0, one byte more: 2, managed: 2, in order of a stream: 2 and 2\n\
                     two kernels ran\n"
                )
            };
            assert_eq!(said(&bare), expected(80 * GIB), "{linking}: {bare:?}");
            assert_eq!(said(&sliced), expected(4 * GIB), "{linking}: {sliced:?}");
            assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 4 * GIB), "{linking}");
        }
    }
}
