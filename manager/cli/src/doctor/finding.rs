//! What was found: how it is, and what to do.

use serde_json::{Value, json};

use crate::output::{Colour, paint};
use crate::table::printable;

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// It works.
    Ok,
    /// It works in part, or is not needed for everything.
    Warn,
    /// It does not work and is needed.
    Fail,
}

/// A thing that was looked at.
#[derive(Debug)]
pub(super) struct Finding {
    /// What was looked at.
    pub(super) what: String,
    /// How it is.
    pub(super) status: Status,
    value: String,
    remedy: Option<String>,
}

impl Finding {
    /// It works.
    pub(super) fn ok(what: impl Into<String>, value: impl Into<String>) -> Finding {
        Finding { what: what.into(), status: Status::Ok, value: value.into(), remedy: None }
    }

    /// It is worth a look.
    pub(super) fn warn(what: impl Into<String>, value: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { what: what.into(), status: Status::Warn, value: value.into(), remedy: Some(remedy.into()) }
    }

    /// It does not work.
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

    /// The same for a program.
    pub(super) fn json(&self) -> Value {
        let status = match self.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        };
        json!({ "what": self.what, "status": status, "value": self.value, "remedy": self.remedy })
    }
}
