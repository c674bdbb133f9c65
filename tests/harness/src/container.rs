//! Containers, run by podman.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{HostProgram, Outcome, Process, run, tool};

/// An image made from a few files of this machine: a shell, host programs, and the libraries that they need. It knows
/// nothing of GPUs or of slices. It is removed when this is dropped.
pub struct Image {
    reference: String,
}

/// A container that runs in a process of a test. It is removed when this is dropped.
pub struct Container {
    name: String,
    /// `None` once it was waited for.
    process: Option<Process>,
}

/// What makes podman work wherever tests run: without systemd, without the right to raise limits.
const GLOBAL_OPTIONS: [&str; 4] = ["--cgroup-manager", "cgroupfs", "--runtime", "runc"];
const RUN_OPTIONS: [&str; 6] = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none"];

impl Image {
    /// An image with `programs` in `/bin`.
    #[must_use]
    pub fn with(programs: &[&HostProgram]) -> Image {
        let root = tempfile::tempdir().expect("a temporary directory");
        let libraries: BTreeSet<PathBuf> = programs.iter().flat_map(|program| libraries_of(program.path())).collect();
        for dir in ["bin", "tmp", "proc", "sys", "dev", "run", "etc"] {
            fs::create_dir_all(root.path().join(dir)).expect("a directory of the image");
        }
        copy(&tool("busybox", "busybox-static"), &root.path().join("bin/sh"));
        for program in programs {
            copy(
                program.path(),
                &root.path().join("bin").join(program.path().file_name().expect("a program has a name")),
            );
        }
        for library in &libraries {
            copy(library, &root.path().join(library.strip_prefix("/").expect("an absolute path")));
        }
        let archive = tempfile::NamedTempFile::new().expect("a temporary file");
        let packed = Command::new(tool("tar", "tar"))
            .arg("-cf")
            .arg(archive.path())
            .arg("-C")
            .arg(root.path())
            .arg(".")
            .status();
        assert!(packed.is_ok_and(|status| status.success()), "packing the image's files failed");
        let reference = format!("localhost/aliquot-test-{}:{}", std::process::id(), unique());
        let _ = run(podman().args(["import", "--quiet"]).arg(archive.path()).arg(&reference)).success();
        Image { reference }
    }

    /// Starts a container of this image that runs `command`, with further `options` of `podman run`.
    #[must_use]
    pub fn start(&self, options: &[&str], command: &[&str]) -> Container {
        let name = format!("aliquot-test-{}-{}", std::process::id(), unique());
        let mut podman = podman();
        podman
            .args(["run", "--rm", "--name", &name])
            .args(RUN_OPTIONS)
            .args(options)
            .arg(&self.reference)
            .args(command);
        Container { name, process: Some(Process::start(&mut podman)) }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = podman().args(["image", "rm", "--force", &self.reference]).output();
    }
}

impl Container {
    /// The process of `podman run`, whose output and exit status are the container's.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the container was not waited for")
    }

    /// Waits for the container's end.
    #[must_use]
    pub fn wait(mut self) -> Outcome {
        self.process.take().expect("the container was not waited for").wait()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = podman().args(["rm", "--force", "--ignore", "--time", "0", &self.name]).output();
    }
}

fn podman() -> Command {
    let mut podman = Command::new(tool("podman", "podman runc"));
    podman.args(GLOBAL_OPTIONS);
    podman
}

/// The libraries that `file` needs, the loader included, by the paths at which programs look for them.
#[must_use]
pub fn libraries_of(file: &Path) -> Vec<PathBuf> {
    let listed = Command::new(tool("ldd", "libc-bin")).arg(file).output().expect("ldd runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let paths = text.split_ascii_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).filter(|path| path.exists()).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("a file has a directory")).expect("a directory of the image");
    fs::copy(from, to).unwrap_or_else(|error| panic!("cannot copy {} into the image: {error}", from.display()));
}

fn unique() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
