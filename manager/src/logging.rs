//! Log lines, to standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::{Config, LogFormat};

/// Begins to log as `config` says.
///
/// # Errors
/// The level is none.
pub(crate) fn start(config: &Config) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(&config.log_level)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Whoever logged first in this process keeps doing so.
    let _ = match config.log_format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    Ok(())
}
