//! Builds the shim, so that the manager contains exactly the library that matches it.
//!
//! The shim is always built in the release profile, into a directory of its own: a manager of any profile contains the
//! same library, and this build does not wait for the lock of the outer build.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, error};

fn main() -> Result<(), Box<dyn error::Error>> {
    let workspace = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("..");
    for source in ["shim", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let target_dir = PathBuf::from(env::var("OUT_DIR")?).join("shim");
    let (host, target) = (env::var("HOST")?, env::var("TARGET")?);

    let mut cargo = Command::new(env::var("CARGO")?);
    cargo.args(["build", "--quiet", "--release", "--package", "aliquot-shim"]);
    cargo.arg("--manifest-path").arg(workspace.join("Cargo.toml")).arg("--target-dir").arg(&target_dir);
    let mut library = target_dir;
    if host != target {
        cargo.args(["--target", &target]);
        library.push(&target);
    }
    library.push("release/libaliquot_shim.so");
    // The wrappers and flags of the outer build (clippy, coverage, host programs) are not for the shim.
    for variable in
        ["RUSTC_WORKSPACE_WRAPPER", "RUSTC_WRAPPER", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR"]
    {
        cargo.env_remove(variable);
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(
            format!("building the shim failed: {status}; `cargo build --release -p aliquot-shim` shows why").into()
        );
    }
    println!("cargo::rustc-env=ALIQUOT_SHIM_PATH={}", library.display());
    Ok(())
}
