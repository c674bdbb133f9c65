//! The failure of a command, written for people: one line with the problem, and one with the remedy.

use std::fmt;
use std::process::ExitCode;

use crate::deadline;
use crate::quantity::QuantityError;
use crate::server::{NODE_MANAGER, Server};
use crate::table::printable;

/// Exit codes, for scripts.
pub(crate) mod exit {
    /// The exit code of a command that failed.
    pub(crate) const FAILED: u8 = 1;
    /// The command line is wrong.
    pub(crate) const USAGE: u8 = 2;
    /// `aliquot run` itself failed, before or beside the command that it runs.
    pub(crate) const RUN_FAILED: u8 = 125;
    /// The command of `aliquot run` was found but cannot be executed.
    pub(crate) const CANNOT_EXECUTE: u8 = 126;
    /// The command of `aliquot run` was not found.
    pub(crate) const NOT_FOUND: u8 = 127;

    /// The exit code that shells use for a program that was ended by this signal.
    pub(crate) const fn of_signal(signal: u8) -> u8 {
        128 + signal
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    exit: u8,
}

/// The result of a command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with the exit code [`exit::FAILED`].
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None, exit: exit::FAILED }
    }

    /// Adds what the user can do about the failure.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Failure {
        Failure { hint: Some(hint.into()), ..self }
    }

    /// Sets the exit code.
    pub(crate) fn exit(self, exit: u8) -> Failure {
        Failure { exit, ..self }
    }

    /// Whether the exit code only says that the command failed.
    pub(crate) fn is_general(&self) -> bool {
        self.exit == exit::FAILED || self.exit == exit::USAGE
    }

    /// The failure without the remedy.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The remedy, if it is known.
    pub(crate) fn remedy(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The exit code of this program.
    pub(crate) fn code(&self) -> ExitCode {
        self.exit.into()
    }
}

impl fmt::Display for Failure {
    /// The lines to print, without the final line end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", one_line(&self.message))?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {}", one_line(hint)),
            None => Ok(()),
        }
    }
}

/// An error with its causes.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The text on one line, and without control characters: a daemon's message can contain text of other users.
fn one_line(text: &str) -> String {
    printable(&text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; "))
}

/// An answer of the node manager that is no success.
impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Failure {
        of_status(&status, &NODE_MANAGER)
    }
}

/// The failure for an answer of `server`. Its messages already name problem and remedy. A hint is added only if the
/// daemon itself is the problem.
pub(crate) fn of_status(status: &tonic::Status, server: &Server) -> Failure {
    if let Some(failure) = deadline::failure(status) {
        return failure;
    }
    let (name, look) = (server.name, server.look);
    let failure = Failure::new(match status.message() {
        "" => format!("the {name} answers {}: {}", status.code(), status.code().description()),
        message => message.to_owned(),
    });
    // An answer of the daemon has no source; a broken connection has one.
    if std::error::Error::source(status).is_some() {
        return failure.hint(format!("check that a {name} runs and listens there: {look}"));
    }
    match status.code() {
        tonic::Code::Unavailable | tonic::Code::DeadlineExceeded => {
            failure.hint(format!("the {name} does not answer; see its log ({}) or run: {look}", server.log()))
        }
        tonic::Code::Unimplemented => {
            failure.hint(format!("the {name} is of another version; compare: {}", server.compare))
        }
        _ => failure,
    }
}

impl From<QuantityError> for Failure {
    fn from(error: QuantityError) -> Failure {
        Failure::new(error.to_string()).exit(exit::USAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_hint_are_one_line_each() {
        let failure = Failure::new("first\n\n  second\n").hint("do\nthis");
        assert_eq!(failure.to_string(), "error: first; second\nhint: do; this");
        assert_eq!(Failure::new("alone").to_string(), "error: alone");
    }

    #[test]
    fn a_message_steers_no_terminal() {
        assert_eq!(Failure::new("no job \u{1b}[2J").hint("\u{7}").to_string(), "error: no job ?[2J\nhint: ?");
    }

    #[test]
    fn the_daemon_that_answered_is_named() {
        let unavailable = tonic::Status::unavailable("");
        let said = of_status(&unavailable, &crate::server::SCHEDULER).to_string();
        assert!(said.contains("the scheduler does not answer") && said.contains("-u aliquot-scheduler"), "{said}");
    }

    #[test]
    fn the_manager_s_words_are_kept() {
        let failure = Failure::from(tonic::Status::not_found("no slice is called \"x\"; see: aliquot slice ls"));
        assert_eq!(failure.to_string(), "error: no slice is called \"x\"; see: aliquot slice ls");
        assert!(Failure::from(tonic::Status::unavailable("")).to_string().contains("aliquot doctor"));
    }
}
