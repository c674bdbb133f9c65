//! The check's node manager: `aliquot-manager` as an ordinary user's daemon, with its own directory.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::bail;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};
use tempfile::TempDir;

use crate::children;

const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A directory on a memory file system, because the device can write only into such files, from which libraries can be
/// loaded; if there is none, the directory for temporary files.
pub(crate) fn runtime_base() -> PathBuf {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let candidates = user.into_iter().chain(["/dev/shm", "/run"].map(PathBuf::from));
    candidates.into_iter().find(|dir| is_usable(dir)).unwrap_or_else(std::env::temp_dir)
}

/// Whether `dir` is on a memory file system and libraries can be loaded from it.
fn is_usable(dir: &Path) -> bool {
    is_in_memory(dir)
        && access(dir, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
        && statvfs(dir).is_ok_and(|file_system| !file_system.flags().contains(FsFlags::ST_NOEXEC))
}

/// Whether `dir` is on a memory file system, whose pages the device can write into.
pub(crate) fn is_in_memory(dir: &Path) -> bool {
    statfs(dir).is_ok_and(|file_system| file_system.filesystem_type() == TMPFS_MAGIC)
}

/// A node manager. Dropping this ends it.
pub(crate) struct Manager {
    child: Child,
    socket: PathBuf,
    _dir: TempDir,
}

impl Manager {
    /// Starts `program` with these additional environment variables and this configuration file, and waits until it
    /// answers.
    pub(crate) fn start(
        program: &Path,
        environment: &[(OsString, OsString)],
        configuration: &str,
    ) -> anyhow::Result<Manager> {
        let dir = tempfile::Builder::new().prefix("aliquot-check-").tempdir_in(runtime_base())?;
        let (socket, log) = (dir.path().join("manager.sock"), dir.path().join("log"));
        let file = dir.path().join("manager.toml");
        std::fs::write(&file, configuration)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&file);
        command.arg("--runtime-dir").arg(dir.path().join("run")).arg("--state-dir").arg(dir.path().join("state"));
        command.arg("--socket").arg(&socket).args(["--cdi-dir", "off"]).stdin(Stdio::null());
        command.envs(environment.iter().cloned());
        command.stdout(File::create(&log)?).stderr(File::options().append(true).open(&log)?);
        let child = children::start(&mut command)?;
        let mut manager = Manager { child, socket, _dir: dir };
        let deadline = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(&manager.socket).is_err() {
            let ended = manager.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let how = ended.map_or("it does not serve its socket".to_owned(), |status| status.to_string());
                bail!(
                    "the node manager does not start: {how}; it says:\n{said}\nIf it needs another directory, set TMPDIR"
                );
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(manager)
    }

    /// The manager's socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        children::end(&mut self.child, STOP_TIMEOUT);
    }
}
