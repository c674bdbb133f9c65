//! Root file systems, assembled file by file.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{HostProgram, copy_program, tool};

/// A root file system with a shell and files that a test adds. It is removed when this is dropped.
pub struct RootFs {
    dir: TempDir,
}

impl RootFs {
    /// A root file system with a static busybox as `/bin/sh` and `/bin/env`, and without any C library.
    #[must_use]
    pub fn new() -> RootFs {
        let dir = tempfile::Builder::new()
            .prefix("aliquot-root-")
            // Every user of a container must be able to read its root directory.
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .expect("a temporary directory");
        let root = RootFs { dir };
        for dir in ["bin", "tmp", "proc", "sys", "dev", "run", "etc"] {
            fs::create_dir_all(root.at(dir)).expect("a directory of the root");
        }
        root.copy(&tool("busybox", "busybox-static"), "/bin/sh");
        symlink("sh", root.at("/bin/env")).expect("a link in the root");
        root
    }

    /// A root file system that also has `programs` in `/bin`, and this machine's libraries that they need.
    #[must_use]
    pub fn with(programs: &[&HostProgram]) -> RootFs {
        let root = RootFs::new();
        for program in programs {
            root.add_program(program);
            for library in libraries_of(program.path()) {
                root.copy(&library, &library.to_string_lossy());
            }
        }
        root
    }

    /// Puts a program into `/bin`, without the libraries that it needs.
    pub fn add_program(&self, program: &HostProgram) {
        let name = program.path().file_name().expect("a program has a name");
        self.copy(program.path(), &format!("/bin/{}", name.to_string_lossy()));
    }

    /// Puts a copy of this machine's `file` at `path`.
    pub fn copy(&self, file: &Path, path: &str) {
        let target = self.at(path);
        fs::create_dir_all(target.parent().expect("a file has a directory")).expect("a directory of the root");
        copy_program(file, &target);
    }

    /// Puts a file with the contents `text` at `path`.
    pub fn write(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap_or_else(|error| panic!("cannot write {path} in a root: {error}"));
    }

    /// Gives the file at `path` these permissions.
    pub fn set_mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.at(path), Permissions::from_mode(mode)).expect("the file's permissions");
    }

    /// The path of the root directory on this machine.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }
}

impl Default for RootFs {
    fn default() -> RootFs {
        RootFs::new()
    }
}

/// The libraries that `file` needs, the loader included, by the paths at which programs look for them.
#[must_use]
pub fn libraries_of(file: &Path) -> Vec<PathBuf> {
    let listed = Command::new(tool("ldd", "libc-bin")).arg(file).output().expect("ldd runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let paths = text.split_ascii_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).filter(|path| path.exists()).collect()
}
