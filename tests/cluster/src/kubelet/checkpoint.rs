//! The state that a kubelet keeps over a restart.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A file that is always replaced as a whole.
#[derive(Debug)]
pub(super) struct Checkpoint {
    file: PathBuf,
}

impl Checkpoint {
    pub(super) fn at(file: PathBuf) -> Checkpoint {
        Checkpoint { file }
    }

    /// The last written value, or the default.
    pub(super) fn read<T: DeserializeOwned + Default>(&self) -> T {
        match fs::read(&self.file) {
            Ok(text) => serde_json::from_slice(&text).expect("a kubelet reads its own checkpoint"),
            Err(_) => T::default(),
        }
    }

    pub(super) fn write<T: Serialize>(&self, state: &T) {
        let text = serde_json::to_vec(state).expect("a kubelet's state is written as JSON");
        let new = self.file.with_extension("new");
        fs::write(&new, text).and_then(|()| fs::rename(&new, &self.file)).expect("a file for the checkpoint");
    }

    pub(super) fn path(&self) -> &Path {
        &self.file
    }
}
