//! Strict decoding: a field that a type does not have is an error.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads `object` as a `T` and writes it again. A field that is missing then is one that `T` does not have: the real
/// server drops it with a warning, which points to a mistake of the client.
pub(super) fn strictly<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let known = serde_json::to_value(typed).map_err(|error| error.to_string())?;
    match unknown_field(object, &known, String::new()) {
        Some(path) => Err(format!("strict decoding error: unknown field {path:?}")),
        None => Ok(known),
    }
}

fn unknown_field(given: &Value, known: &Value, path: String) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match known.get(key) {
                Some(known) => unknown_field(value, known, path),
                // Null and empty values are left out when an object is written.
                None if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => None,
                None if value.as_object().is_some_and(serde_json::Map::is_empty) => None,
                None => Some(path),
            }
        }),
        (Value::Array(given), Value::Array(known)) => given
            .iter()
            .zip(known)
            .enumerate()
            .find_map(|(index, (given, known))| unknown_field(given, known, format!("{path}[{index}]"))),
        _ => None,
    }
}
