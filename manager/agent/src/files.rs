//! The agent's directories, and its files of JSON.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Makes `dir` and its missing parents, closed to other users.
pub(crate) fn create_private_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Makes `dir`, which other users can pass through but cannot list.
pub(crate) fn create_passage(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o711).create(dir)?;
    // Set afterwards, so that this process's umask does not matter.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o711))
}

/// Writes `value` to the file `path`, durably.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    aliquot_durable::replace(path, &serde_json::to_vec(value)?)
}

/// Reads the value in the file `path`; `None` if there is no such file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            io::Error::new(ErrorKind::InvalidData, format!("{} cannot be understood: {error}", path.display()))
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        assert_eq!(read_json::<u64>(&path).unwrap(), None);
        write_json(&path, &7_u64).unwrap();
        write_json(&path, &8_u64).unwrap();
        assert_eq!(read_json::<u64>(&path).unwrap(), Some(8));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_not_understood_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        fs::write(&path, "{").unwrap();
        assert!(read_json::<u64>(&path).unwrap_err().to_string().contains("state.json"));
    }
}
