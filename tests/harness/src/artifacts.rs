//! The libraries and programs under test, built when they are first asked for.
//!
//! They are built with the running test's profile and in its target directory, so `cargo test` and `cargo bench` test
//! the build that they name. The shim is always the release build, which the manager carries in every profile. Each
//! process runs cargo once for all programs; cargo's lock on the target directory serialises concurrent builds.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock};

use crate::tool;

/// The programs that tests run. They are always built together with the simulated GPU's libraries: cargo builds a
/// library again for each choice of packages that needs other features of it, and that takes longer than building the
/// other programs.
const PROGRAMS: [&str; 5] = ["aliquot-manager", "aliquot", "aliquot-scheduler", "kubectl-aliquot", "aliquot-gpu-check"];
/// The packages of these programs and libraries.
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
    let mut command = cargo("rustc", "dev", target_dir);
    command
        .args(["--package", "aliquot-fake-cuda", "--lib", "--"])
        .args(link_arguments.iter().map(|argument| format!("-Clink-arg={argument}")));
    run_cargo(&mut command);
    existing(target_dir.join("debug").join(file))
}

/// The simulated GPU's `libnvidia-ml.so.1`.
pub fn fake_nvml() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("libaliquot_fake_nvml.so"))
}

/// The shim's release build for this machine.
pub fn shim() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target_dir = target_dir();
        run_cargo(cargo("build", "release", &target_dir).args(["--package", "aliquot-shim"]));
        existing(target_dir.join("release/libaliquot_shim.so"))
    })
}

/// The shim for aarch64. Needs that Rust target (`rustup target add aarch64-unknown-linux-gnu`) and a linker for it.
pub fn shim_for_aarch64() -> &'static Path {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target_dir = target_dir();
        let linker = tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross");
        let mut command = cargo("build", "release", &target_dir);
        command.args(["--package", "aliquot-shim", "--target", TARGET]);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", linker);
        run_cargo(&mut command);
        existing(target_dir.join(TARGET).join("release/libaliquot_shim.so"))
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

/// The file `file` among the programs and libraries, which are built when the first of them is asked for.
fn built(file: &str) -> PathBuf {
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        let profile = profile();
        let mut command = cargo("build", profile, &target_dir());
        if profile == "dev" {
            // With these packages and a test, cargo chooses the features that it chooses for `cargo test --workspace`,
            // which has built all libraries that are needed here. The shim has a build of its own.
            command.args(["--workspace", "--exclude", "aliquot-shim", "--test", "rules"]);
            command.arg("--lib").args(PROGRAMS.iter().flat_map(|program| ["--bin", program]));
        } else {
            // A measured build must have the features of the shipped build.
            command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
        }
        run_cargo(&mut command);
    });
    existing(profile_dir().join(file))
}

fn cargo(subcommand: &str, profile: &str, target_dir: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([subcommand, "--quiet", "--profile", profile, "--target-dir"]).arg(target_dir);
    command.current_dir(workspace());
    // Cargo gives a running test variables about its package, and build scripts of libraries (such as `ring`) read the
    // same ones. If they were inherited, cargo would rebuild such a library, and all that uses it, for each package
    // with tests.
    let is_about_the_package =
        |name: &str| name == "OUT_DIR" || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_about_the_package) {
            command.env_remove(name);
        }
    }
    command
}

fn run_cargo(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{errors}");
}

/// A file that a build has made.
fn existing(file: PathBuf) -> PathBuf {
    assert!(file.is_file(), "the build did not make {}", file.display());
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library whose build script is run again when the name of a package in cargo's environment changes. The script
    /// notes each run in the file `runs`.
    fn library_that_reads_the_package(dir: &Path) {
        let manifest = "[package]\nname = 'reads-the-package'\nedition = '2024'\n[workspace]\n";
        let script = r#"
            use std::{fs::OpenOptions, io::Write};

            fn main() {
                println!("cargo::rerun-if-env-changed=CARGO_PKG_NAME");
                let mut runs = OpenOptions::new().create(true).append(true).open("runs").unwrap();
                writeln!(runs, "run").unwrap();
            }
        "#;
        fs::create_dir(dir.join("src")).unwrap();
        for (file, text) in [("Cargo.toml", manifest), ("build.rs", script), ("src/lib.rs", "")] {
            fs::write(dir.join(file), text).unwrap();
        }
    }

    #[test]
    fn a_build_for_a_test_is_the_build_of_a_shell() {
        let dir = tempfile::tempdir().unwrap();
        library_that_reads_the_package(dir.path());
        let target_dir = dir.path().join("target");
        let build = |command: &mut Command| {
            let output = command.arg("--manifest-path").arg(dir.path().join("Cargo.toml")).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        build(&mut cargo("build", "dev", &target_dir));
        build(cargo("build", "dev", &target_dir).env_remove("CARGO_PKG_NAME"));
        assert_eq!(fs::read_to_string(dir.path().join("runs")).unwrap(), "run\n");
    }
}
