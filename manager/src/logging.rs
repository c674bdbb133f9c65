//! Logging to standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};

use crate::config::{Config, LogFormat};

/// Why the configured log level cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogLevelError {
    /// A word is not a level. The filter itself would take it for a module of the program, and log nothing else.
    #[error("log_level is {level:?}, and {word:?} is no level; {USE}")]
    NoLevel {
        /// The level as it was given.
        level: String,
        /// The word that is no level.
        word: String,
    },
    /// The text is not a valid filter.
    #[error("log_level is {level:?}: {source}; {USE}")]
    NoFilter {
        /// The filter as it was given.
        level: String,
        /// The parser's error, which names the wrong part.
        source: ParseError,
    },
}

const USE: &str = "use off, error, warn, info, debug, trace, or a filter such as info,aliquot_manager::attach=debug";

/// Starts logging as `config` says.
///
/// # Errors
/// The level is invalid.
pub(crate) fn start(config: &Config) -> Result<(), LogLevelError> {
    let filter = filter(&config.log_level)?;
    // The log may be a pipe whose reader is gone, or a file on a full disk. The library would report that to standard
    // error, too, and panic when it cannot.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    // An error means that this process logs already; then the existing logger stays.
    let _ = match config.log_format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    Ok(())
}

/// Parses a level or filter.
///
/// # Errors
/// `level` is neither.
pub(crate) fn filter(level: &str) -> Result<EnvFilter, LogLevelError> {
    let filter = EnvFilter::try_new(level).map_err(|source| LogLevelError::NoFilter { level: level.into(), source })?;
    // A word with '=' or '[' was parsed as a filter.
    let mut words = level.split(',').map(str::trim).filter(|word| !word.contains(['=', '[', ']']));
    match words.find(|word| word.is_empty() || word.parse::<LevelFilter>().is_err()) {
        Some(word) => Err(LogLevelError::NoLevel { level: level.into(), word: word.into() }),
        None => Ok(filter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for level in ["info", "WARN", "off", "info,aliquot_manager::attach=debug", "warn,[{slice=a}]=trace"] {
            assert!(filter(level).is_ok(), "{level}");
        }
        for (level, word) in
            [("xx", "xx"), ("", ""), ("info,debgu", "debgu"), ("info,", ""), ("aliquot_manager", "aliquot_")]
        {
            let error = filter(level).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("use off, error"), "{error}");
        }
        assert!(matches!(filter("aliquot_manager=xx"), Err(LogLevelError::NoFilter { .. })));
    }
}
