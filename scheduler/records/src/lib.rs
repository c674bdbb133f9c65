//! The format of what the engine must still know after a restart: its records as text. It is a contract of its own, apart
//! from the engine's types.
//!
//! Each record is a JSON object with a format number beside it. Unknown fields are ignored. A missing field gets its
//! smallest value, unless the record makes no sense without it. So fields can be added, and the number changes only
//! when an older program would misunderstand a record. All types are taken apart and built without `..`, so the
//! compiler reports every new field of the engine.

#![forbid(unsafe_code)]

mod alternatives;
mod claim;
mod constraints;
mod further;
mod memory;
mod node;
mod peers;
mod request;
mod words;

#[cfg(test)]
mod tests;

use aliquot_scheduler_engine::{ClaimKey, ClaimRecord, Generation, Memory, NodeRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;

use claim::ClaimForm;
use memory::MemoryForm;
use node::NodeForm;

/// The format in which every kind is written, and the newest that is read. All earlier formats are read, too: their
/// fields have the same meaning today. Format 2 added counted resources of nodes, terms of a node affinity, effects of
/// taints, and tolerations of more than one taint: a program that ignored these would place claims where they must not
/// go. For the same reason format 3 added affinity, anti-affinity and spread, format 4 further requests for devices,
/// and format 5 alternatives and preferred nodes.
const FORMAT: u32 = 5;

/// A record as text, with its format.
fn write<F: Serialize>(form: &F) -> (u32, String) {
    (FORMAT, serde_json::to_string(form).expect("forms are structs, lists, texts and numbers"))
}

fn read<F: DeserializeOwned>(format: i64, text: &str) -> Result<F, String> {
    if !(1..=i64::from(FORMAT)).contains(&format) {
        return Err(format!("it has format {format}, and this program knows 1 to {FORMAT}"));
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The record of a claim as text, with its format.
#[must_use]
pub fn write_claim(record: &ClaimRecord) -> (u32, String) {
    write(&ClaimForm::from(record))
}

/// The record of a claim.
///
/// # Errors
/// If this program does not know the format, or the text is no such record.
pub fn read_claim(format: i64, text: &str) -> Result<ClaimRecord, String> {
    read::<ClaimForm>(format, text).map(ClaimRecord::from)
}

/// The record of a node as text, with its format.
#[must_use]
pub fn write_node(record: &NodeRecord) -> (u32, String) {
    write(&NodeForm::from(record))
}

/// The record of a node.
///
/// # Errors
/// If this program does not know the format, or the text is no such record.
pub fn read_node(format: i64, text: &str) -> Result<NodeRecord, String> {
    read::<NodeForm>(format, text).map(NodeRecord::from)
}

/// What the engine remembers as text, with its format.
#[must_use]
pub fn write_memory(memory: &Memory) -> (u32, String) {
    write(&MemoryForm::from(memory))
}

/// What the engine remembered.
///
/// # Errors
/// If this program does not know the format, or the text is no memory.
pub fn read_memory(format: i64, text: &str) -> Result<Memory, String> {
    read::<MemoryForm>(format, text)?.try_into()
}

/// The key of a claim's record: the UID, and for a stray also the generation. It is a JSON list, because a UID can be
/// any text.
///
/// # Panics
/// Never: lists of texts and numbers can be written.
#[must_use]
pub fn write_claim_key(key: &ClaimKey) -> String {
    let ClaimKey { uid, stray } = key;
    let text = match stray {
        None => serde_json::to_string(&[uid.as_str()]),
        Some(Generation { term, number }) => serde_json::to_string(&(uid.as_str(), term, number)),
    };
    text.expect("lists of texts and numbers can be written")
}

/// The claim, or the stray, that a key names.
///
/// # Errors
/// If the text is no key.
pub fn read_claim_key(text: &str) -> Result<ClaimKey, String> {
    if let Ok([uid]) = serde_json::from_str::<[String; 1]>(text) {
        return Ok(ClaimKey { uid: uid.into(), stray: None });
    }
    match serde_json::from_str::<(String, u64, u64)>(text) {
        Ok((uid, term, number)) => Ok(ClaimKey { uid: uid.into(), stray: Some(Generation { term, number }) }),
        Err(error) => Err(format!("its key is none: {error}")),
    }
}

fn is_zero<N: Copy + Into<u64>>(number: &N) -> bool {
    (*number).into() == 0
}

/// Converts each entry of a list or set to its form.
fn forms<'a, T: 'a, F: From<&'a T>>(list: impl IntoIterator<Item = &'a T>) -> Vec<F> {
    list.into_iter().map(F::from).collect()
}

/// Converts each form back to its value.
fn values<F, T: From<F>, C: FromIterator<T>>(forms: Vec<F>) -> C {
    forms.into_iter().map(T::from).collect()
}
