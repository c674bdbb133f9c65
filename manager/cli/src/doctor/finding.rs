//! The result of a check: the state, and the remedy.

use serde_json::{Value, json};

use crate::output::{Colour, paint};
use crate::table::printable;

/// The state of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// It works as it should.
    Ok,
    /// It works in part, or is not needed for everything.
    Warn,
    /// It does not work and is needed.
    Fail,
}

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    /// The name of the check.
    pub(super) what: String,
    /// The state that was found.
    pub(super) status: Status,
    value: String,
    remedy: Option<String>,
}

impl Finding {
    /// A finding that it works.
    pub(super) fn ok(what: impl Into<String>, value: impl Into<String>) -> Finding {
        Finding { what: what.into(), status: Status::Ok, value: value.into(), remedy: None }
    }

    /// A finding that it should be looked at.
    pub(super) fn warn(what: impl Into<String>, value: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { what: what.into(), status: Status::Warn, value: value.into(), remedy: Some(remedy.into()) }
    }

    /// A finding that it does not work.
    pub(super) fn fail(what: impl Into<String>, value: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { what: what.into(), status: Status::Fail, value: value.into(), remedy: Some(remedy.into()) }
    }

    /// Lines for people, with the names padded to `width`.
    pub(super) fn text(&self, width: usize, colours: bool) -> String {
        let status = match self.status {
            Status::Ok => paint("ok  ", Colour::Green, colours),
            Status::Warn => paint("warn", Colour::Yellow, colours),
            Status::Fail => paint("FAIL", Colour::Red, colours),
        };
        let line = format!("{status}  {:width$}  {}\n", self.what, printable(&self.value));
        match &self.remedy {
            Some(remedy) => line + &format!("{:indent$}→ {remedy}\n", "", indent = width + "warn    ".len()),
            None => line,
        }
    }

    /// The same as JSON.
    pub(super) fn json(&self) -> Value {
        let status = match self.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        };
        json!({ "what": self.what, "status": status, "value": self.value, "remedy": self.remedy })
    }
}
