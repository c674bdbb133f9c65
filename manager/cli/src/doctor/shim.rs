//! Checks whether the shim can be preloaded, by trying it on a child.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use aliquot_manager::shim_image;

use super::finding::Finding;
use crate::embedded::runtime_base;
use crate::error::{Failure, Result};

const WHAT: &str = "shim";
const FILE: &str = "libaliquot-doctor.so";

/// Preloads the shim into a child of this program.
pub(super) fn finding() -> Finding {
    match preloaded_into_child() {
        Ok(bytes) => {
            Finding::ok(WHAT, format!("{} KiB, is preloaded into a child and the child runs", bytes.div_ceil(1024)))
        }
        Err(reason) => Finding::fail(
            WHAT,
            reason,
            "check that the directory is not mounted noexec, and that this is a glibc system",
        ),
    }
}

/// The shim's size in bytes.
fn preloaded_into_child() -> std::result::Result<usize, String> {
    let base = runtime_base().map_err(|failure| failure.message().to_owned())?;
    let in_base = |error: std::io::Error| format!("cannot be written below {}: {error}", base.display());
    let dir = tempfile::Builder::new().prefix("aliquot-doctor-").tempdir_in(&base).map_err(in_base)?;
    let library = dir.path().join(FILE);
    fs::write(&library, shim_image::bytes()).map_err(in_base)?;
    fs::set_permissions(&library, fs::Permissions::from_mode(0o555)).map_err(in_base)?;
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(exe).arg("doctor-probe").env("LD_PRELOAD", &library).output();
    let output = output.map_err(|error| format!("cannot start a child: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    match (output.status.success(), String::from_utf8_lossy(&output.stdout).contains(FILE)) {
        (true, true) if said.is_empty() => Ok(shim_image::bytes().len()),
        (true, true) => Err(format!("is preloaded into a child, and the child says: {said}")),
        (true, false) => Err(format!("the loader leaves it out: {said}")),
        (false, _) => Err(format!("the child with it ends with {}: {said}", output.status)),
    }
}

/// Runs in the child: prints which files are mapped into it.
pub(crate) fn probe() -> Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")
        .map_err(|error| Failure::new(format!("cannot read /proc/self/maps: {error}")))?;
    crate::output::print(&maps)
}
