//! Small file systems, which can be full.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_harness::tool;

/// A file system in memory, which is unmounted when this is dropped.
pub(crate) struct Mount {
    path: PathBuf,
}

impl Mount {
    /// Mounts one at `path`, with these options.
    ///
    /// # Errors
    /// This user may not, or there is no such right in this container.
    pub(crate) fn tmpfs(path: &Path, options: &str) -> Result<Mount, String> {
        let mut command = Command::new(tool("mount", "mount"));
        let output = command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).output();
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned());
        }
        Ok(Mount { path: path.to_owned() })
    }

    /// Fills it to the last byte. It is full until what this returns is removed.
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
        // Lazily: a child that is just being started may have files of it open for a moment.
        let _ = Command::new(tool("umount", "mount")).arg("--lazy").arg(&self.path).status();
    }
}
