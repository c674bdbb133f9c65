//! Containers, run by podman.

use std::path::Path;
use std::process::Command;

use crate::{HostProgram, Outcome, Process, RootFs, run, tool};

/// An image made of a few files: a shell, host programs, and the libraries that they need. It knows nothing of GPUs
/// or of slices. It is removed when this is dropped.
pub struct Image {
    reference: String,
}

/// A container that runs in a process of a test. It is removed when this is dropped.
pub struct Container {
    name: String,
    /// `None` if it was not started.
    process: Option<Process>,
}

/// Makes podman work wherever tests run: without systemd and without the right to raise limits.
pub(crate) const GLOBAL_OPTIONS: [&str; 4] = ["--cgroup-manager", "cgroupfs", "--runtime", "runc"];
/// The same for each container: options of `podman run` and `podman create`.
pub const RUN_OPTIONS: [&str; 6] = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none"];

impl Image {
    /// An image with `programs` in `/bin`.
    #[must_use]
    pub fn with(programs: &[&HostProgram]) -> Image {
        Image::of(&RootFs::with(programs))
    }

    /// An image of this root file system. All its files are root's.
    #[must_use]
    pub fn of(root: &RootFs) -> Image {
        let archive = tempfile::NamedTempFile::new().expect("a temporary file");
        let packed = Command::new(tool("tar", "tar"))
            .args(["--owner=0", "--group=0", "-cf"])
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

    /// Loads the image in `archive`, which must hold exactly one.
    #[must_use]
    pub fn load(archive: &Path) -> Image {
        let loaded = run(podman().args(["load", "--quiet", "--input"]).arg(archive)).success().stdout;
        let reference =
            loaded.trim().strip_prefix("Loaded image: ").unwrap_or_else(|| panic!("podman said {loaded:?}"));
        Image { reference: reference.to_owned() }
    }

    /// Podman's name for the image.
    #[must_use]
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// Writes the image to `archive`, in the format that every container runtime reads.
    pub fn save(&self, archive: &Path) {
        let mut command = podman();
        command.args(["save", "--quiet", "--format", "docker-archive", "--output"]).arg(archive).arg(&self.reference);
        let _ = run(&mut command).success();
    }

    /// Starts a container of this image that runs `command`, with further `options` of `podman run`.
    #[must_use]
    pub fn start(&self, options: &[&str], command: &[&str]) -> Container {
        let (name, mut podman) = self.podman(&["run", "--rm"], options, command);
        Container { name, process: Some(Process::start(&mut podman)) }
    }

    /// Makes a container that does not run yet.
    #[must_use]
    pub fn create(&self, options: &[&str], command: &[&str]) -> Container {
        let (name, mut podman) = self.podman(&["create"], options, command);
        let _ = run(&mut podman).success();
        Container { name, process: None }
    }

    /// The name of a new container, and the podman command that makes it.
    fn podman(&self, how: &[&str], options: &[&str], command: &[&str]) -> (String, Command) {
        let name = format!("aliquot-test-{}-{}", std::process::id(), unique());
        let mut podman = podman();
        podman.args(how).args(["--name", &name]).args(RUN_OPTIONS).args(options).arg(&self.reference).args(command);
        (name, podman)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = podman().args(["image", "rm", "--force", &self.reference]).output();
    }
}

impl Container {
    /// Starts a container made by [`Image::create`].
    pub fn start(&mut self) {
        self.process = Some(Process::start(podman().args(["start", "--attach", &self.name])));
    }

    /// The process of `podman run`, whose output and exit status are the container's.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the container was started")
    }

    /// Starts a further process in the running container, as a login or a probe does, with further `options` of `podman
    /// exec`.
    #[must_use]
    pub fn exec(&self, options: &[&str], command: &[&str]) -> Process {
        Process::start(podman().arg("exec").args(options).arg(&self.name).args(command))
    }

    /// Waits for the container's end.
    #[must_use]
    pub fn wait(mut self) -> Outcome {
        self.process.take().expect("the container was started").wait()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = podman().args(["rm", "--force", "--ignore", "--time", "0", &self.name]).output();
    }
}

/// A podman command with the global options only: the caller adds the subcommand.
#[must_use]
pub fn podman() -> Command {
    let mut podman = Command::new(tool("podman", "podman runc"));
    podman.args(GLOBAL_OPTIONS);
    podman
}

fn unique() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
