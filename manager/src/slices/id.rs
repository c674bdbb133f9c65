//! The permanent id of a slice.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a slice permanently: 128 random bits, written as 32 hexadecimal digits. The region's directory has this
/// name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SliceId(u128);

impl SliceId {
    /// The id with these bits.
    #[must_use]
    pub fn from_random(bits: u128) -> SliceId {
        SliceId(bits)
    }

    /// Parses an id, written as 32 hexadecimal digits; `None` if the text is not an id.
    #[must_use]
    pub fn parse(text: &str) -> Option<SliceId> {
        let canonical = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if canonical { u128::from_str_radix(text, 16).ok().map(SliceId) } else { None }
    }

    /// The number that the region's files contain.
    #[must_use]
    pub fn region_id(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for SliceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SliceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl From<SliceId> for String {
    fn from(id: SliceId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for SliceId {
    type Error = String;

    fn try_from(text: String) -> Result<SliceId, String> {
        SliceId::parse(&text).ok_or_else(|| format!("{text:?} is not a slice id"))
    }
}
