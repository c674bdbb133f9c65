//! Events.

use k8s_openapi::api::core::v1::Event as CoreEvent;
use k8s_openapi::api::events::v1::Event;
use serde_json::Value;

use super::super::status::Failure;
use super::{name, require, typed};

const MAX_WORD: usize = 128;
const MAX_NOTE: usize = 1024;

pub(in super::super) fn validate(object: &Value, old: Option<&Value>) -> Result<(), Failure> {
    let event: Event = typed(object)?;
    let regarding = event.regarding.clone().unwrap_or_default();
    namespace(event.metadata.namespace.as_deref(), regarding.namespace.as_deref(), "regarding.namespace")?;
    if old.is_some() {
        return Ok(());
    }
    require(event.event_time.is_some(), "eventTime", || "required".into())?;
    let controller = event.reporting_controller.as_deref().unwrap_or_default();
    name::label_key(controller, "reportingController")?;
    word(controller, "reportingController")?;
    word(event.reporting_instance.as_deref().unwrap_or_default(), "reportingInstance")?;
    word(event.action.as_deref().unwrap_or_default(), "action")?;
    word(event.reason.as_deref().unwrap_or_default(), "reason")?;
    kind(event.type_.as_deref().unwrap_or_default())?;
    let note = event.note.as_deref().unwrap_or_default();
    require(note.len() <= MAX_NOTE, "note", || format!("must have at most {MAX_NOTE} characters, has {}", note.len()))
}

pub(in super::super) fn validate_core(object: &Value, _old: Option<&Value>) -> Result<(), Failure> {
    let event: CoreEvent = typed(object)?;
    let involved = event.involved_object.namespace.as_deref();
    namespace(event.metadata.namespace.as_deref(), involved, "involvedObject.namespace")
}

/// Checks the namespace of an event: it must be that of the event's object, or `default` if the object has none.
fn namespace(event: Option<&str>, about: Option<&str>, path: &str) -> Result<(), Failure> {
    let expected = about.filter(|namespace| !namespace.is_empty()).unwrap_or("default");
    require(event == Some(expected), path, || format!("does not match event.namespace: {event:?}"))
}

fn word(word: &str, path: &str) -> Result<(), Failure> {
    require(!word.is_empty() && word.len() <= MAX_WORD, path, || {
        format!("{word:?} must have 1 to {MAX_WORD} characters")
    })
}

fn kind(kind: &str) -> Result<(), Failure> {
    require(["Normal", "Warning"].contains(&kind), "type", || format!("{kind:?} must be Normal or Warning"))
}
