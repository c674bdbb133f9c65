//! Errors of configurations and state files.

use std::io;
use std::path::PathBuf;

/// An error on opening or joining a machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {path}: {source}", path = path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The configuration is not valid.
    #[error("the configuration {path} is not valid: {reason}", path = path.display())]
    Invalid {
        /// The path of the file.
        path: PathBuf,
        /// The key, its value, and the allowed values.
        reason: String,
    },
    /// A file of the shared state cannot be used.
    #[error("cannot use the state file {path}: {source}", path = path.display())]
    State {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The state file belongs to a machine with other devices and is in use by processes.
    #[error("the state file {path} is in use by a machine with another configuration: end its processes or set another `state`", path = path.display())]
    OtherMachine {
        /// The path of the file.
        path: PathBuf,
    },
    /// All records are taken.
    #[error("the machine has {PROCESSES_MAX} processes already, which is the most it can have", PROCESSES_MAX = crate::PROCESSES_MAX)]
    Full,
}
