//! Why a command has failed.

use std::fmt::{self, Display, Formatter};

use aliquot_terminal::table::printable;

/// Why a command has failed, in one sentence with the remedy.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// A failure for this reason.
    #[must_use]
    pub fn new(why: impl Into<String>) -> Failure {
        Failure(why.into())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.0))
    }
}

impl std::error::Error for Failure {}
