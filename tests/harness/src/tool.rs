//! Programs that must be on the machine.

use std::env;
use std::path::PathBuf;

/// The program `name`. Fails the test, naming the package to install, where it is missing.
#[track_caller]
#[must_use]
pub fn tool(name: &str, debian_package: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: apt-get install {debian_package}"))
}
