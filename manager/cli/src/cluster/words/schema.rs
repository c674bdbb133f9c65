//! The JSON Schema of a job's words: for editors, and for programs that write jobs.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::values::{MountWord, Priority, Restart, SecretWord, Times};
use super::{Count, Indices, JobId, JobWords, Text};
use crate::priority::Priority as PriorityClass;
use crate::quantity::{Bytes, CorePercent, Span, Thousandths};

/// The schema of a file for `aliquot submit`.
pub(crate) fn json_schema() -> Value {
    let mut schema = schemars::schema_for!(JobWords);
    if let Some(Value::Object(words)) = schema.get_mut("properties") {
        // That a word may be left out is said by its absence from "required".
        words.values_mut().filter_map(Value::as_object_mut).for_each(|word| drop(word.remove("default")));
    }
    schema.to_value()
}

macro_rules! schemas {
    ($($value:ty => $schema:tt,)*) => {$(
        impl JsonSchema for $value {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($value).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

schemas! {
    Text => { "type": "string", "minLength": 1 },
    Count => { "type": "integer", "minimum": 1, "maximum": 4_294_967_295_u32 },
    Times => { "type": "integer", "minimum": 0, "maximum": 4_294_967_295_u32 },
    Priority => { "type": "integer", "minimum": i32::MIN, "maximum": i32::MAX },
    PriorityClass => { "type": "string", "enum": ["latency-critical", "standard", "batch"] },
    JobId => { "type": "integer", "minimum": 1 },
    Restart => { "type": "string", "enum": ["always", "never"] },
    MountWord => { "type": "string", "pattern": "^(~|/[^:,]*)(:/[^:,]*)?(:r[ow])?$", "examples": ["/data:/data:ro"] },
    SecretWord => {
        "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}(:[A-Za-z_][A-Za-z0-9_]*)?$",
        "examples": ["hf-token", "hf-token:HF_TOKEN"],
    },
    CorePercent => { "anyOf": [
        { "type": "integer", "minimum": 1, "maximum": 100 },
        { "type": "string", "pattern": "^[0-9]+%?$" },
    ] },
    Bytes => { "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(B|[KMGT]i|[KMGT]iB|[kKMGT]B)$", "examples": ["8GiB"] },
    Thousandths => { "anyOf": [
        { "type": "number", "exclusiveMinimum": 0, "multipleOf": 0.001 },
        { "type": "string", "pattern": "^[0-9]+(\\.[0-9]{1,3})?$" },
    ] },
    Span => { "type": "string", "pattern": "^([0-9]+[smhd])+$", "examples": ["30s", "1h30m"] },
    Indices => { "anyOf": [
        { "type": "string", "pattern": "^[0-9]+(-[0-9]+)?(, *[0-9]+(-[0-9]+)?)*$", "examples": ["0-99", "1,3,5-7"] },
        { "type": "integer", "minimum": 0 },
        { "type": "array", "items": { "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string" }] } },
    ] },
}

/// One value, or a list of them.
pub(super) fn many<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let one = T::json_schema(generator);
    json_schema!({ "anyOf": [one.clone(), { "type": "array", "items": one }, { "type": "null" }] })
}

/// Names and values.
pub(super) fn pairs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } })
}

/// The same, where a name may stand alone.
pub(super) fn pairs_or_null(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean", "null"] } })
}
