//! The libraries and programs under test, built when they are first asked for.
//!
//! They are built with the profile and in the target directory of the running test, so that `cargo test` and `cargo
//! bench` test what they say; the shim is always the release build, which is what the manager carries in every profile.
//! Each process asks cargo once; processes that ask at once are kept apart by cargo's lock on the target directory.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The simulated GPU's `libcuda.so.1`.
pub fn fake_cuda() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("aliquot-fake-cuda", "libaliquot_fake_cuda.so", profile()))
}

/// The simulated GPU's `libnvidia-ml.so.1`.
pub fn fake_nvml() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("aliquot-fake-nvml", "libaliquot_fake_nvml.so", profile()))
}

/// The shim.
pub fn shim() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("aliquot-shim", "libaliquot_shim.so", "release"))
}

/// The program `aliquot-manager`.
pub fn manager() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("aliquot-manager", "aliquot-manager", profile()))
}

/// The program `aliquot`, with the simulated GPU's libraries beside it.
pub fn cli() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        fake_cuda();
        fake_nvml();
        build("aliquot-cli", "aliquot", profile())
    })
}

/// The checkout.
pub(crate) fn workspace() -> &'static Path {
    let harness = Path::new(env!("CARGO_MANIFEST_DIR"));
    harness.ancestors().nth(2).expect("this package lies in tests/harness of the checkout")
}

/// Where what is made once for all tests is kept: below the target directory.
pub(crate) fn scratch_dir(name: &str) -> PathBuf {
    let dir = target_dir().join("harness").join(name);
    std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("cannot make {}: {error}", dir.display()));
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
        // The one profile whose directory has another name.
        if name == "debug" { "dev".to_owned() } else { name.to_owned() }
    })
}

fn build(package: &str, file: &str, profile: &str) -> PathBuf {
    let target_dir = target_dir();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--package", package, "--profile", profile, "--target-dir"])
        .arg(&target_dir)
        .current_dir(workspace())
        .output()
        .unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "building {package} failed:\n{errors}");
    let built = target_dir.join(if profile == "dev" { "debug" } else { profile }).join(file);
    assert!(built.is_file(), "building {package} did not make {}", built.display());
    built
}
