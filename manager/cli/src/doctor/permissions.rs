//! Checks whether this user has the necessary permissions.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use aliquot_manager::file_system::{FileSystem, is_noexec};
use aliquot_manager::paths::Paths;
use nix::unistd::{AccessFlags, access};

use super::finding::Finding;
use super::manager::Manager;
use super::selinux;
use crate::access::remedy;
use crate::embedded::runtime_base;
use crate::server::NODE_MANAGER;

/// Findings about directories and device nodes that need permissions.
pub(super) fn findings(manager: &Manager) -> Vec<Finding> {
    // A manager of another version does not report where it keeps regions.
    let in_use = manager.node().map(|node| node.runtime_dir.as_str()).filter(|dir| !dir.is_empty());
    let own = Paths::of_this_user().runtime_dir;
    let runtime_directory = match in_use {
        Some(dir) => directory_in_use(Path::new(dir)),
        None => runtime_directory(&own),
    };
    let mut findings = vec![runtime_directory, embedded()];
    findings.extend(selinux::finding(Path::new("/"), in_use.map_or(&own, Path::new)));
    findings.extend(socket_file(manager.socket.clone()));
    findings.extend(device_nodes());
    findings
}

const RUNTIME_DIRECTORY: &str = "runtime directory";
const RUNTIME_DIRECTORY_REMEDY: &str =
    "mount a tmpfs there (the unit run-aliquot.mount does), or give aliquot-manager another one (runtime_dir)";

/// The directory in which the running manager keeps regions. That manager can write there.
fn directory_in_use(dir: &Path) -> Finding {
    let value = format!("{}, of the manager that runs", dir.display());
    on_file_system(RUNTIME_DIRECTORY, value, dir, RUNTIME_DIRECTORY_REMEDY)
}

/// The directory in which a manager of this user would keep regions.
fn runtime_directory(dir: &Path) -> Finding {
    const WHAT: &str = RUNTIME_DIRECTORY;
    let existing = dir.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("/"));
    if is_noexec(existing) {
        return Finding::warn(
            WHAT,
            format!("{} is on a file system that is mounted noexec: the shim cannot be loaded from it", dir.display()),
            "give aliquot-manager another one (runtime_dir), or mount a tmpfs there without noexec",
        );
    }
    match access(existing, AccessFlags::W_OK) {
        Ok(()) => {
            let can_be_made = if existing == dir { "" } else { " can be made" };
            on_file_system(WHAT, format!("{}{can_be_made}", dir.display()), existing, RUNTIME_DIRECTORY_REMEDY)
        }
        Err(error) => Finding::warn(
            WHAT,
            format!("{} cannot be written to: {error}", existing.display()),
            "set XDG_RUNTIME_DIR, or runtime_dir in the manager's configuration, to a directory of this user",
        ),
    }
}

/// The directory in which `aliquot run` keeps the region if it embeds a manager.
fn embedded() -> Finding {
    const WHAT: &str = "embedded manager";
    match runtime_base() {
        Ok(base) => on_file_system(
            WHAT,
            format!("keeps its files in {}", base.display()),
            &base,
            "mount /dev/shm without noexec, or set TMPDIR to a directory on a tmpfs",
        ),
        Err(failure) => {
            Finding::fail(WHAT, failure.message(), "set TMPDIR to a directory from which libraries can be loaded")
        }
    }
}

/// The finding that `value` is fine, unless regions in `dir` would be on a disk.
fn on_file_system(what: &'static str, value: String, dir: &Path, remedy: &str) -> Finding {
    match FileSystem::of(dir) {
        Ok(found) if found.is_memory() => Finding::ok(what, format!("{value} ({})", found.name())),
        Ok(found) => Finding::warn(
            what,
            format!("{value}, on {}: the driver cannot register its pages, shares are less exact", found.name()),
            remedy,
        ),
        Err(_) => Finding::ok(what, value),
    }
}

fn socket_file(socket: PathBuf) -> Option<Finding> {
    const WHAT: &str = "socket";
    let metadata = fs::metadata(&socket).ok()?;
    if !metadata.file_type().is_socket() {
        return Some(Finding::fail(
            WHAT,
            format!("{} is no socket", socket.display()),
            "remove it, or name another one with --socket",
        ));
    }
    Some(match access(&socket, AccessFlags::W_OK) {
        Ok(()) => Finding::ok(WHAT, format!("{} is open to this user", socket.display())),
        Err(error) => Finding::fail(WHAT, format!("{}: {error}", socket.display()), remedy(&socket, &NODE_MANAGER)),
    })
}

/// The driver's device nodes, if there are any.
fn device_nodes() -> Option<Finding> {
    const WHAT: &str = "/dev/nvidia*";
    let nodes: Vec<PathBuf> = fs::read_dir("/dev")
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("nvidia"))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_char_device()))
        .map(|entry| entry.path())
        .collect();
    if nodes.is_empty() {
        return None;
    }
    if !nodes.iter().any(|node| node == Path::new("/dev/nvidia-uvm")) {
        return Some(Finding::warn(
            WHAT,
            "/dev/nvidia-uvm is missing, so programs in containers cannot use CUDA".to_owned(),
            "nvidia-modprobe -u -c 0, as root; at each boot, the unit aliquot-manager.service does it",
        ));
    }
    let closed: Vec<_> =
        nodes.iter().filter(|node| access(node.as_path(), AccessFlags::R_OK | AccessFlags::W_OK).is_err()).collect();
    Some(match closed.as_slice() {
        [] => Finding::ok(WHAT, format!("{} nodes are open to this user", nodes.len())),
        [first, ..] => Finding::fail(
            WHAT,
            format!(
                "{} of {} nodes are closed to this user, {} among them",
                closed.len(),
                nodes.len(),
                first.display()
            ),
            "add this user to the nodes' group (often video or render), then log in again",
        ),
    })
}
