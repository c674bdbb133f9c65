//! Configurations of admission webhooks.

use serde_json::Value;

use super::super::status::Failure;
use super::{require, unique};

pub(in super::super) fn validate(object: &Value, _: Option<&Value>) -> Result<(), Failure> {
    let webhooks = object["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    unique(webhooks.iter().map(|webhook| webhook["name"].to_string()), "webhooks")?;
    for webhook in webhooks {
        let name = webhook["name"].as_str().unwrap_or_default();
        require(name.split('.').count() >= 3, "webhooks.name", || {
            format!("{name:?} should be a domain with at least three segments separated by dots")
        })?;
        let side_effects = webhook["sideEffects"].as_str().unwrap_or_default();
        require(["None", "NoneOnDryRun"].contains(&side_effects), "webhooks.sideEffects", || {
            format!("{side_effects:?} must be None or NoneOnDryRun")
        })?;
        let versions = webhook["admissionReviewVersions"].as_array().is_some_and(|of| of.iter().any(|of| of == "v1"));
        require(versions, "webhooks.admissionReviewVersions", || "must include v1".into())?;
        let seconds = webhook["timeoutSeconds"].as_i64().unwrap_or(10);
        require((1..=30).contains(&seconds), "webhooks.timeoutSeconds", || {
            format!("{seconds} must be between 1 and 30 seconds")
        })?;
        let rules = webhook["rules"].as_array().into_iter().flatten();
        for operation in rules.flat_map(|rule| rule["operations"].as_array().into_iter().flatten()) {
            require(["CREATE", "UPDATE"].contains(&operation.as_str().unwrap_or_default()), "webhooks.rules", || {
                format!("{operation} is not reviewed by this server")
            })?;
        }
    }
    Ok(())
}
