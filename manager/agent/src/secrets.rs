//! The secrets of a job: files that only its user can read, in memory, as long as the job lives.
//!
//! The secrets come in the start command and go to the supervisor over its standard input. The supervisor writes them,
//! and removes them when nothing of the job runs any more. Each job has a memory file system of its own, which is as
//! large as its secrets and read-only. Where this process may mount none, the secrets are in the node manager's
//! directory, if that is in memory. The agent removes the secrets that a killed supervisor leaves behind.

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use aliquot_proto::agent::v1::Process;
use aliquot_proto::secret::{is_secret_name, is_secret_variable, secret_as_variable};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::instance::Number;
use crate::supervise::Credentials;

/// The variable that names the secrets' directory.
const DIRECTORY: &str = "ALIQUOT_SECRETS";
/// The path at which a container sees the secrets.
pub(crate) const IN_CONTAINER: &str = "/run/aliquot/secrets";
/// No program can be run from the file system, and no file in it gives rights.
const FLAGS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);
/// File systems keep files in pages of this size.
const PAGE_BYTES: usize = 4096;

/// The secrets of one job, to be written as files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Secrets {
    pub(crate) dir: PathBuf,
    uid: u32,
    gid: u32,
    files: Vec<SecretFile>,
}

#[derive(Clone, Serialize, Deserialize)]
struct SecretFile {
    name: String,
    /// The value in base 64.
    value: String,
}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The directory of an instance's secrets, within the directory of all secrets.
pub(crate) fn dir_of(secrets_dir: &Path, (term, number): Number) -> PathBuf {
    secrets_dir.join(format!("{term}-{number}"))
}

/// Takes the secrets out of `process`, and adds the variables that belong to them; `None` if it has none.
///
/// # Errors
/// A secret cannot be a file or a variable.
pub(crate) fn take(process: &mut Process, dir: PathBuf, user: &Credentials) -> Result<Option<Secrets>, String> {
    if process.secrets.is_empty() {
        return Ok(None);
    }
    let mut files = Vec::new();
    for secret in std::mem::take(&mut process.secrets) {
        let name = secret.name;
        if !is_secret_name(&name) {
            return Err(format!("{name:?} cannot be the name of a secret on this node"));
        }
        if !secret.variable.is_empty() {
            let value = secret_as_variable(&secret.value).filter(|_| is_secret_variable(&secret.variable));
            let value = value.ok_or_else(|| {
                format!(
                    "secret {name:?} cannot be the value of the variable {:?}: the secret is not text, or the name is not valid",
                    secret.variable
                )
            })?;
            process.environment.insert(secret.variable, value.to_owned());
        }
        files.push(SecretFile { name, value: STANDARD_NO_PAD.encode(&secret.value) });
    }
    let seen = if process.image.is_some() { IN_CONTAINER.into() } else { dir.to_string_lossy().into_owned() };
    process.environment.insert(DIRECTORY.to_owned(), seen);
    Ok(Some(Secrets { dir, uid: user.uid, gid: user.gid, files }))
}

impl Secrets {
    /// Writes the secrets as files into the directory of the job.
    ///
    /// # Errors
    /// The secrets cannot be kept in memory, or the files cannot be made. Then none of them is left.
    pub(crate) fn write(&self) -> Result<(), String> {
        let written = self.try_write();
        if written.is_err() {
            let _ = remove(&self.dir);
        }
        written
    }

    fn try_write(&self) -> Result<(), String> {
        let dir = &self.dir;
        let failed = |error: io::Error| format!("cannot keep the job's secrets in {}: {error}", dir.display());
        DirBuilder::new().mode(0o700).create(dir).map_err(failed)?;
        let is_mounted = self.mount().map_err(|errno| failed(errno.into()))?;
        if !is_mounted && !is_in_memory(dir).map_err(failed)? {
            return Err(format!(
                "this node keeps secrets in memory only, and {} is on a disk; run the node manager as root, or put its \
                 runtime directory on a tmpfs",
                dir.display()
            ));
        }
        for SecretFile { name, value } in &self.files {
            let value = STANDARD_NO_PAD.decode(value).map_err(|error| failed(io::Error::other(error)))?;
            let file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(dir.join(name));
            let written = file.and_then(|mut file| file.write_all(&value));
            written.and_then(|()| self.give(&dir.join(name), Some(self.uid))).map_err(failed)?;
        }
        // The directory stays the manager's: its owner could fill the memory.
        self.give(dir, None).and_then(|()| fs::set_permissions(dir, Permissions::from_mode(0o750))).map_err(failed)?;
        if is_mounted {
            let read_only = FLAGS | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            mount(None::<&str>, dir, None::<&str>, read_only, None::<&str>).map_err(|errno| failed(errno.into()))?;
        }
        Ok(())
    }

    /// Gives a file to the job, unless this process runs as the job's user already.
    fn give(&self, path: &Path, uid: Option<u32>) -> io::Result<()> {
        if geteuid().is_root() { chown(path, uid, Some(self.gid)) } else { Ok(()) }
    }

    /// Mounts a file system for exactly these files. Returns `false` if this process may not.
    fn mount(&self) -> nix::Result<bool> {
        let pages = |file: &SecretFile| file.value.len().div_ceil(PAGE_BYTES).max(1) + 1;
        let bytes = self.files.iter().map(pages).sum::<usize>() * PAGE_BYTES;
        let options = format!("size={bytes},nr_inodes={},mode=0700", self.files.len() + 2);
        let mounted = |options: &str| mount(Some("secrets"), &self.dir, Some("tmpfs"), FLAGS, Some(options));
        // Kernels before 6.4 do not know that memory can be kept out of the swap space, and some refuse it.
        match mounted(&format!("{options},noswap")).or_else(|_| mounted(&options)) {
            Ok(()) => Ok(true),
            Err(Errno::EPERM | Errno::EACCES) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

fn is_in_memory(dir: &Path) -> io::Result<bool> {
    Ok(statfs(dir)?.filesystem_type() == TMPFS_MAGIC)
}

/// Removes the secrets of a job, if there are any. A process that still has them mounted finds no files any more.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    // If nothing is mounted, both calls fail, which is no error.
    let _ = mount(None::<&str>, dir, None::<&str>, FLAGS | MsFlags::MS_REMOUNT, None::<&str>);
    for entry in entries {
        fs::remove_file(entry?.path())?;
    }
    let _ = umount2(dir, MntFlags::MNT_DETACH);
    fs::remove_dir(dir)
}

/// Removes the secrets of all instances except those for which `is_left` is true.
pub(crate) fn remove_others(secrets_dir: &Path, is_left: impl Fn(&Path) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(secrets_dir)? {
        let dir = entry?.path();
        if !is_left(&dir) {
            remove(&dir)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use aliquot_proto::agent::v1::{Image, Secret};

    use super::*;

    fn process() -> Process {
        let secret = |name: &str, variable: &str| Secret {
            name: name.into(),
            value: format!("value of {name}\n").into_bytes(),
            variable: variable.into(),
        };
        Process { secrets: vec![secret("token", "TOKEN"), secret("key", "")], ..Process::default() }
    }

    #[test]
    fn the_process_keeps_the_variables_and_not_the_values() {
        let mut of_job = process();
        let user = Credentials::of_this_process();
        let secrets = take(&mut of_job, "/run/x/1-2".into(), &user).unwrap().unwrap();
        let value = |name: &str| of_job.environment[name].clone();
        assert_eq!((value("ALIQUOT_SECRETS"), value("TOKEN")), ("/run/x/1-2".to_owned(), "value of token".to_owned()));
        assert!(of_job.secrets.is_empty() && of_job.environment.len() == 2);
        assert!(!format!("{secrets:?}").contains(&STANDARD_NO_PAD.encode("value of")), "{secrets:?}");
        let mut of_image = Process { image: Some(Image::default()), ..process() };
        take(&mut of_image, "/run/x/1-2".into(), &user).unwrap();
        assert_eq!(of_image.environment["ALIQUOT_SECRETS"], IN_CONTAINER);
        assert!(take(&mut of_image, "/run/x/1-2".into(), &user).unwrap().is_none(), "it has none any more");
    }

    #[test]
    fn what_is_no_file_or_variable_is_refused() {
        let refused = |change: fn(&mut Secret)| {
            let mut process = process();
            change(&mut process.secrets[0]);
            take(&mut process, "/d".into(), &Credentials::of_this_process()).unwrap_err()
        };
        assert!(refused(|secret| secret.name = "../../etc/passwd".into()).contains("../../etc/passwd"));
        assert!(refused(|secret| secret.value = vec![0]).contains("\"TOKEN\""));
        assert!(refused(|secret| secret.variable = "A=B".into()).contains("\"A=B\""));
    }

    #[test]
    fn files_are_the_users_alone_and_gone_when_removed() {
        // In memory, wherever the tests' other files are.
        let parent = tempfile::tempdir_in("/dev/shm").unwrap();
        let dir = dir_of(parent.path(), (1, 2));
        let secrets = take(&mut process(), dir.clone(), &Credentials::of_this_process()).unwrap().unwrap();
        secrets.write().unwrap();
        assert_eq!(fs::read_to_string(dir.join("token")).unwrap(), "value of token\n");
        let of_file = fs::metadata(dir.join("key")).unwrap();
        assert_eq!((of_file.mode() & 0o7777, of_file.uid()), (0o400, geteuid().as_raw()));
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o750);
        assert!(is_in_memory(&dir).unwrap());
        remove_others(parent.path(), |left| left == dir).unwrap();
        assert!(dir.join("key").exists());
        remove_others(parent.path(), |_| false).unwrap();
        assert!(!dir.exists());
        remove(&dir).unwrap();
    }
}
