//! The checks of the API server. The limits are those of Kubernetes 1.34 and later.

pub(super) mod claim;
pub(super) mod class;
pub(super) mod event;
pub(super) mod name;
pub(super) mod pod;
pub(super) mod slice;
pub(super) mod webhook;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::status::Failure;

/// The most bytes of opaque parameters, and of a driver's data about a device.
const MAX_EXTENSION_BYTES: usize = 10 * 1024;

/// An object as a Rust type, after it has passed its resource's schema.
fn typed<T: DeserializeOwned>(object: &Value) -> Result<T, Failure> {
    T::deserialize(object).map_err(|error| Failure::bad_request(error.to_string()))
}

/// Fails unless `holds`.
fn require(holds: bool, path: &str, message: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::invalid(path, message())) }
}

fn at_most(length: usize, limit: usize, path: &str) -> Result<(), Failure> {
    require(length <= limit, path, || format!("too many: {length}, must have at most {limit} items"))
}

/// Fails if two items have the same key.
fn unique<T: Ord>(keys: impl Iterator<Item = T>, path: &str) -> Result<(), Failure> {
    let mut keys: Vec<T> = keys.collect();
    let count = keys.len();
    keys.sort();
    keys.dedup();
    require(keys.len() == count, path, || "duplicate value".to_owned())
}

/// Checks data that only a driver understands: it must be a JSON object, and not too large.
fn extension(value: &Value, path: &str) -> Result<(), Failure> {
    require(value.is_object(), path, || "must be a valid JSON object".to_owned())?;
    let length = value.to_string().len();
    require(length <= MAX_EXTENSION_BYTES, path, || format!("must have at most {MAX_EXTENSION_BYTES} bytes"))
}
