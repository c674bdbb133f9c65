//! Programs that must be on the machine.

use std::env;
use std::path::PathBuf;

/// The path of the program `name`. If it is missing, fails the test and names the package to install.
#[track_caller]
#[must_use]
pub fn tool(name: &str, debian_package: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: apt-get install {debian_package}"))
}
