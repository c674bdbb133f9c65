//! Small file systems that can be filled.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_harness::tool;

/// A mounted tmpfs. Dropping this unmounts it.
pub(crate) struct Mount {
    path: PathBuf,
}

impl Mount {
    /// Mounts a tmpfs at `path` with these options.
    ///
    /// # Errors
    /// The message of `mount`: for example, this user or this container may not mount.
    pub(crate) fn tmpfs(path: &Path, options: &str) -> Result<Mount, String> {
        let mut command = Command::new(tool("mount", "mount"));
        let output = command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).output();
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned());
        }
        Ok(Mount { path: path.to_owned() })
    }

    /// Fills the file system to the last byte. It stays full until the returned file is removed.
    pub(crate) fn fill(&self) -> std::io::Result<PathBuf> {
        let path = self.path.join("ballast");
        let mut file = File::create(&path)?;
        for piece in [1 << 16, 1] {
            let bytes = vec![0xa5; piece];
            loop {
                match file.write_all(&bytes) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily, because a child that is just being started may have files of the mount open for a moment.
        let _ = Command::new(tool("umount", "mount")).arg("--lazy").arg(&self.path).status();
    }
}
