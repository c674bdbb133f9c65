//! The form of objects in an answer: whole, or their metadata only, as the client's `Accept` says.

use serde_json::{Value, json};

use super::status::Failure;

/// The group and version of metadata without the rest of the object.
const META: &str = "meta.k8s.io/v1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    /// `PartialObjectMetadata`, for single objects and for those of a watch.
    Metadata,
    /// `PartialObjectMetadataList`.
    MetadataList,
}

impl Form {
    /// The first form of the header that the server has.
    pub(super) fn of(accept: &str) -> Result<Form, Failure> {
        if accept.trim().is_empty() {
            return Ok(Form::Whole);
        }
        accept.split(',').find_map(Form::of_clause).ok_or_else(|| {
            Failure::not_acceptable("only the following media types are accepted: application/json".to_owned())
        })
    }

    fn of_clause(clause: &str) -> Option<Form> {
        let mut parts = clause.split(';').map(str::trim);
        if !["application/json", "application/*", "*/*"].contains(&parts.next()?) {
            return None;
        }
        let mut kind = None;
        let (mut group, mut version) = ("", "");
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "as" => kind = Some(value),
                "g" => group = value,
                "v" => version = value,
                _ => {}
            }
        }
        match kind {
            None => Some(Form::Whole),
            Some(_) if format!("{group}/{version}") != META => None,
            Some("PartialObjectMetadata") => Some(Form::Metadata),
            Some("PartialObjectMetadataList") => Some(Form::MetadataList),
            Some(_) => None,
        }
    }

    /// An object or a list in this form.
    pub(super) fn answer(self, object: Value) -> Result<Value, Failure> {
        let is_list = object["items"].is_array();
        match self {
            _ if object["kind"] == "Status" => Ok(object),
            Form::Whole => Ok(object),
            Form::Metadata if is_list => {
                let message = "you requested PartialObjectMetadata, but the requested object is a list";
                Err(Failure::not_acceptable(message.to_owned()))
            }
            Form::Metadata => Ok(metadata_of(&object)),
            Form::MetadataList if is_list => {
                let items: Vec<Value> = object["items"].as_array().into_iter().flatten().map(metadata_of).collect();
                let kind = "PartialObjectMetadataList";
                Ok(json!({"kind": kind, "apiVersion": META, "metadata": object["metadata"], "items": items}))
            }
            Form::MetadataList => {
                let message = "you requested PartialObjectMetadataList, but the requested object is not a list";
                Err(Failure::not_acceptable(message.to_owned()))
            }
        }
    }

    /// The object of an event. The real server sends it whole if it cannot give it the form that was asked for.
    pub(super) fn event(self, object: Value) -> Value {
        match self {
            Form::Metadata => metadata_of(&object),
            Form::Whole | Form::MetadataList => object,
        }
    }
}

fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": object["metadata"]})
}
