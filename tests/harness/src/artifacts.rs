//! The libraries and programs under test, built when they are first asked for.
//!
//! They are built with the running test's profile and in its target directory, so `cargo test` and `cargo bench` test
//! the build that they name. The shim is always the release build, which the manager carries in every profile. Each
//! process runs cargo once for each artifact; cargo's lock on the target directory serialises concurrent builds.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::tool;

/// What tests run, but for the shim. All are built together, whichever is asked for: cargo builds a library again for each
/// choice of packages that needs other features of it, and that takes longer than the other programs.
const PACKAGES: [&str; 7] = [
    "aliquot-manager",
    "aliquot-cli",
    "aliquot-scheduler",
    "aliquot-kubectl",
    "aliquot-gpu-check",
    "aliquot-fake-cuda",
    "aliquot-fake-nvml",
];

/// The simulated GPU's `libcuda.so.1`.
pub fn fake_cuda() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("libaliquot_fake_cuda.so"))
}

/// The simulated GPU's `libcuda.so.1`, built in `target_dir` and linked with further arguments to the linker.
pub(crate) fn fake_cuda_linked_with(target_dir: &Path, link_arguments: &[String]) -> PathBuf {
    let file = "libaliquot_fake_cuda.so";
    let mut command = cargo("rustc", &["aliquot-fake-cuda"], "dev", target_dir);
    command.args(["--lib", "--"]).args(link_arguments.iter().map(|argument| format!("-Clink-arg={argument}")));
    run_cargo(command, &target_dir.join("debug").join(file))
}

/// The simulated GPU's `libnvidia-ml.so.1`.
pub fn fake_nvml() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("libaliquot_fake_nvml.so"))
}

/// The shim.
pub fn shim() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build(&["aliquot-shim"], "libaliquot_shim.so", "release"))
}

/// The shim for aarch64. Needs that Rust target (`rustup target add aarch64-unknown-linux-gnu`) and a linker for it.
pub fn shim_for_aarch64() -> &'static Path {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target_dir = target_dir();
        let linker = tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross");
        let mut command = cargo("build", &["aliquot-shim"], "release", &target_dir);
        command.args(["--target", TARGET]).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", linker);
        run_cargo(command, &target_dir.join(TARGET).join("release/libaliquot_shim.so"))
    })
}

/// The program `aliquot-manager`.
pub fn manager() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("aliquot-manager"))
}

/// A stand-in for another version of `aliquot-manager`. The shim that it carries differs from [`shim`] in one letter of
/// the compiler's note, which no program reads.
pub fn manager_with_another_shim() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let (manager, shim) = (fs::read(manager()).expect("the manager"), fs::read(shim()).expect("the shim"));
        let begin = position(&manager, &shim).expect("the manager carries the shim");
        let note = position(&shim, b"rustc version").expect("the shim says what compiled it");
        let made = scratch_dir("another-manager").join("aliquot-manager");
        // Written by another process (see `copy_program`), and under another name until it is complete.
        let make =
            r#"cp "$0" "$1.$$" && printf R | dd of="$1.$$" bs=1 seek="$2" conv=notrunc status=none && mv "$1.$$" "$1""#;
        let copied = Command::new(tool("sh", "dash"))
            .args(["-c", make])
            .args([self::manager(), &made])
            .arg((begin + note).to_string())
            .status();
        assert!(copied.is_ok_and(|status| status.success()), "cannot make {}", made.display());
        made
    })
}

fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// The program `aliquot`, with the simulated GPU's libraries beside it.
pub fn cli() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("aliquot"))
}

/// The program `aliquot-scheduler`.
pub fn scheduler() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("aliquot-scheduler"))
}

/// The program `kubectl-aliquot`.
pub fn kubectl_plugin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("kubectl-aliquot"))
}

/// The program `aliquot-gpu-check`.
pub fn gpu_check() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("aliquot-gpu-check"))
}

/// The root of the checkout.
pub(crate) fn workspace() -> &'static Path {
    let harness = Path::new(env!("CARGO_MANIFEST_DIR"));
    harness.ancestors().nth(2).expect("this package lies in tests/harness of the checkout")
}

/// A directory below the target directory for files that are made once and used by all tests.
pub(crate) fn scratch_dir(name: &str) -> PathBuf {
    let dir = target_dir().join("harness").join(name);
    fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("cannot make {}: {error}", dir.display()));
    dir
}

/// The directory of the running program's profile: cargo puts programs there, and tests into its subdirectory `deps`.
fn profile_dir() -> PathBuf {
    let program = env::current_exe().expect("a running program has a path");
    let dir = program.parent().expect("a program lies in a directory");
    let dir = if dir.ends_with("deps") { dir.parent().expect("deps lies in a directory") } else { dir };
    dir.to_owned()
}

fn target_dir() -> PathBuf {
    profile_dir().parent().expect("a profile's directory lies in the target directory").to_owned()
}

fn profile() -> &'static str {
    static PROFILE: OnceLock<String> = OnceLock::new();
    PROFILE.get_or_init(|| {
        let dir = profile_dir();
        let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // The only profile whose directory has a different name.
        if name == "debug" { "dev".to_owned() } else { name.to_owned() }
    })
}

fn built(file: &str) -> PathBuf {
    build(&PACKAGES, file, profile())
}

fn build(packages: &[&str], file: &str, profile: &str) -> PathBuf {
    let target_dir = target_dir();
    let built = target_dir.join(if profile == "dev" { "debug" } else { profile }).join(file);
    run_cargo(cargo("build", packages, profile, &target_dir), &built)
}

fn cargo(subcommand: &str, packages: &[&str], profile: &str, target_dir: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args([subcommand, "--quiet", "--profile", profile])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .arg("--target-dir")
        .arg(target_dir)
        .current_dir(workspace());
    command
}

/// Runs `command`, which makes `built`.
fn run_cargo(mut command: Command, built: &Path) -> PathBuf {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{errors}");
    assert!(built.is_file(), "{command:?} did not make {}", built.display());
    built.to_owned()
}
