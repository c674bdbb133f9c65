//! The checkout that this program was built from, for parts that it builds when they are first needed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Failure, Result};
use crate::output;

/// A checkout of this workspace, in whose target directory this program lies.
pub(crate) struct Checkout {
    workspace: PathBuf,
    target_dir: PathBuf,
    profile: String,
}

impl Checkout {
    /// `None` if `exe_dir` is not a directory that cargo builds a checkout of this workspace into.
    pub(crate) fn of(exe_dir: &Path) -> Option<Checkout> {
        let target_dir = exe_dir.parent()?;
        if !target_dir.join(".rustc_info.json").is_file() {
            return None;
        }
        let profile = match exe_dir.file_name()?.to_str()? {
            "debug" => "dev",
            name => name,
        };
        let manifest_dir = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let starts = [manifest_dir, Some(exe_dir.to_owned()), env::current_dir().ok()];
        let is_workspace = |dir: &&Path| {
            ["Cargo.toml", "manager/cli/Cargo.toml", "tests/fake-gpu/cuda/Cargo.toml"]
                .iter()
                .all(|file| dir.join(file).is_file())
        };
        let workspace = starts.iter().flatten().find_map(|start| start.ancestors().find(is_workspace))?.to_owned();
        Some(Checkout { workspace, target_dir: target_dir.to_owned(), profile: profile.to_owned() })
    }

    /// Builds packages with this program's profile, so that the results lie beside it. `what` names them in messages.
    pub(crate) fn build(&self, what: &str, packages: &[&str]) -> Result<()> {
        output::say(format_args!("Building {what}, which is not built yet …"));
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(&cargo)
            .args(["build", "--profile", &self.profile])
            .args(packages.iter().flat_map(|package| ["-p", package]))
            .arg("--target-dir")
            .arg(&self.target_dir)
            .current_dir(&self.workspace)
            // Cargo's output is progress and not a result.
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::new(format!("building {what} failed: cargo ended with {status}"))
                .hint("see the output of cargo above")),
            Err(error) => Err(Failure::new(format!("building {what} failed: cannot run {}: {error}", cargo.display()))
                .hint("install Rust from https://rustup.rs, or put cargo on the PATH")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_installed_program_builds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Checkout::of(dir.path()).is_none());
    }

    #[test]
    fn a_program_in_a_target_directory_finds_its_checkout() {
        let dir = tempfile::tempdir().unwrap();
        let exe_dir = dir.path().join("target/release");
        fs::create_dir_all(&exe_dir).unwrap();
        for file in
            ["Cargo.toml", "manager/cli/Cargo.toml", "tests/fake-gpu/cuda/Cargo.toml", "target/.rustc_info.json"]
        {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let checkout = Checkout::of(&exe_dir).unwrap();
        assert_eq!((checkout.profile.as_str(), checkout.target_dir), ("release", dir.path().join("target")));
    }
}
