//! Conditions in the status of our own objects.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A condition, in the format of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The type of the condition, such as `Valid`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True` or `False`.
    pub status: String,
    /// The reason of the status, in one word.
    pub reason: String,
    /// The reason of the status, in a sentence.
    #[serde(default)]
    pub message: String,
    /// The time of the last change of the status.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
}

impl Condition {
    /// A condition that is true or false. Its time is that of the last change of its status: `before` are the
    /// conditions until now.
    pub(crate) fn new(
        type_: &str,
        is_so: bool,
        reason: &str,
        message: String,
        before: &[Condition],
        now: Timestamp,
    ) -> Condition {
        let status = if is_so { "True" } else { "False" };
        let same = before.iter().find(|before| before.type_ == type_ && before.status == status);
        let last_transition_time = match same {
            Some(same) => same.last_transition_time.clone(),
            None => now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        };
        Condition { type_: type_.into(), status: status.into(), reason: reason.into(), message, last_transition_time }
    }
}
