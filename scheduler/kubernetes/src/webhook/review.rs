//! What the API server and its webhooks tell each other: `admission.k8s.io/v1`.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};

/// The body of a review, as the API server sends it (`AdmissionReview` of `admission.k8s.io/v1`).
#[derive(Debug, Deserialize)]
pub(super) struct Review {
    pub(super) request: Option<Request>,
}

/// An object that is to be made or changed.
#[derive(Debug, Deserialize)]
pub(super) struct Request {
    pub(super) uid: String,
    pub(super) resource: ResourceName,
    #[serde(default)]
    pub(super) object: Value,
}

/// Which resource an object is of.
#[derive(Debug, Deserialize)]
pub(super) struct ResourceName {
    pub(super) resource: String,
}

/// What is said about an object.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// Why it is refused; `None`: it is not.
    pub(super) refused: Option<Refused>,
    /// What the author of the object should know.
    pub(super) warnings: Vec<String>,
    /// What is filled in.
    pub(super) patch: Option<Patch>,
}

/// Why an object is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// In one word, for metrics.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Answer {
    pub(super) fn refused(reason: &'static str, message: impl Into<String>) -> Answer {
        Answer { refused: Some(Refused { reason, message: message.into() }), ..Answer::default() }
    }

    /// The outcome and the reason, as metrics name them.
    pub(super) fn words(&self) -> (&'static str, &'static str) {
        match self {
            Answer { refused: Some(refused), .. } => ("refused", refused.reason),
            Answer { patch: Some(_), .. } => ("changed", "none"),
            Answer { warnings, .. } if !warnings.is_empty() => ("warned", "unknown-name"),
            Answer { .. } => ("allowed", "none"),
        }
    }

    pub(super) fn response(self, uid: &str) -> Response {
        let mut response = json!({"uid": uid, "allowed": self.refused.is_none()});
        if let Some(Refused { message, .. }) = self.refused {
            response["status"] = json!({"code": 422, "reason": "Invalid", "message": message});
        }
        if !self.warnings.is_empty() {
            response["warnings"] = self.warnings.into();
        }
        if let Some(patch) = self.patch {
            response["patchType"] = "JSONPatch".into();
            response["patch"] = json!(ByteString(json!(patch).to_string().into_bytes()));
        }
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        (StatusCode::OK, [(CONTENT_TYPE, "application/json")], review.to_string()).into_response()
    }
}
