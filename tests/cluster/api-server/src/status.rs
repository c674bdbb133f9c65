//! The failures that the API server reports.

use std::fmt;

use serde_json::{Value, json};

/// A failure, as a `Status` object reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The HTTP status code.
    pub code: u16,
    /// The reason as one word, for programs.
    pub reason: &'static str,
    /// The reason as a sentence.
    pub message: String,
}

impl Failure {
    pub(super) fn bad_request(message: impl Into<String>) -> Failure {
        Failure { code: 400, reason: "BadRequest", message: message.into() }
    }

    pub(super) fn forbidden(path: &str) -> Failure {
        Failure { code: 403, reason: "Forbidden", message: format!("you have no right to {path}") }
    }

    pub(super) fn not_found(what: impl fmt::Display) -> Failure {
        Failure { code: 404, reason: "NotFound", message: format!("{what} not found") }
    }

    /// The client does not take any form in which the server could answer.
    pub(super) fn not_acceptable(message: String) -> Failure {
        Failure { code: 406, reason: "NotAcceptable", message }
    }

    pub(super) fn already_exists(what: impl fmt::Display) -> Failure {
        Failure { code: 409, reason: "AlreadyExists", message: format!("{what} already exists") }
    }

    pub(super) fn conflict(message: impl Into<String>) -> Failure {
        Failure { code: 409, reason: "Conflict", message: message.into() }
    }

    /// The history that a watch or a list asks for is no longer kept.
    pub(super) fn expired(message: impl Into<String>) -> Failure {
        Failure { code: 410, reason: "Expired", message: message.into() }
    }

    pub(super) fn unsupported_media_type(given: &str) -> Failure {
        let message = format!("the body of the request was in an unsupported format: {given:?}");
        Failure { code: 415, reason: "UnsupportedMediaType", message }
    }

    /// A part of an object is not valid; `path` names it.
    pub(super) fn invalid(path: impl fmt::Display, message: impl fmt::Display) -> Failure {
        Failure { code: 422, reason: "Invalid", message: format!("{path}: {message}") }
    }

    pub(super) fn method_not_allowed(method: &str) -> Failure {
        let message = format!("{method} is not supported for this resource");
        Failure { code: 405, reason: "MethodNotAllowed", message }
    }

    pub(super) fn too_many_requests(message: impl Into<String>) -> Failure {
        Failure { code: 429, reason: "TooManyRequests", message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> Failure {
        Failure { code: 500, reason: "InternalError", message: message.into() }
    }

    pub(super) fn unavailable() -> Failure {
        let message = "the server is currently unable to handle the request".to_owned();
        Failure { code: 503, reason: "ServiceUnavailable", message }
    }

    /// The failure as a `Status` object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Failure {}
