//! The names of the driver, its devices, claims and their slices.

use std::fmt;

use aliquot_node::{Device, Devices};

pub use aliquot_api_server::slice_config::DRIVER;

/// The name of the capacity for a device's time, in percent.
pub(super) const CORE: &str = "core";

/// The name of the capacity for a device's memory, in bytes.
pub(super) const MEMORY: &str = "memory";

/// The beginning of the names of claims' slices.
const SLICE_PREFIX: &str = "claim-";
/// Maximum length of a slice's name.
const SLICE_NAME_MAX: usize = 63;
/// Maximum length of the suffix that numbers the slices of a claim: a dot and a number. A claim has at most 32
/// requests.
const SLICE_NUMBER_MAX: usize = 3;
/// Maximum length of a claim's UID.
const UID_MAX: usize = SLICE_NAME_MAX - SLICE_PREFIX.len() - SLICE_NUMBER_MAX;

/// A device's name in its pool: its UUID as a DNS label. `None` for a UUID that cannot be written as one.
#[must_use]
pub fn device_name(uuid: &str) -> Option<String> {
    let name = uuid.to_ascii_lowercase();
    is_label(&name).then_some(name)
}

/// The device of that name.
#[must_use]
pub(super) fn device_of<'node>(devices: &'node Devices, name: &str) -> Option<&'node Device> {
    devices.devices.iter().find(|device| device_name(&device.uuid).as_deref() == Some(name))
}

/// A claim's UID. It becomes part of file and slice names, so it is checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClaimUid(String);

/// A text that is no UID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the claim's uid is {0:?}, which is not 1 to {max} lower-case letters, digits and '-'",
    max = UID_MAX
)]
pub struct ClaimUidError(String);

impl ClaimUid {
    /// Takes a text for a UID that can be part of a file's name.
    ///
    /// # Errors
    /// The text is not a UID.
    pub fn parse(text: &str) -> Result<ClaimUid, ClaimUidError> {
        if text.len() <= UID_MAX && is_label(text) {
            Ok(ClaimUid(text.into()))
        } else {
            Err(ClaimUidError(text.into()))
        }
    }

    /// The UID as Kubernetes writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the claim's slice, if the claim has only one.
    #[must_use]
    pub fn slice_name(&self) -> String {
        format!("{SLICE_PREFIX}{}", self.0)
    }

    /// The name of the slice of this number, if the claim has several.
    #[must_use]
    pub fn numbered_slice_name(&self, number: usize) -> String {
        format!("{}.{number}", self.slice_name())
    }

    /// The claim whose slice has this name; `None` if the name is not of a claim's slice.
    #[must_use]
    pub fn of_slice(name: &str) -> Option<ClaimUid> {
        let rest = name.strip_prefix(SLICE_PREFIX)?;
        // A UID contains no dot.
        let (uid, number) = rest.split_once('.').unwrap_or((rest, "0"));
        number.parse::<usize>().ok()?;
        ClaimUid::parse(uid).ok()
    }
}

impl fmt::Display for ClaimUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ClaimUid {
    type Error = ClaimUidError;

    fn try_from(text: String) -> Result<ClaimUid, ClaimUidError> {
        ClaimUid::parse(&text)
    }
}

impl From<ClaimUid> for String {
    fn from(uid: ClaimUid) -> String {
        uid.0
    }
}

/// Whether a text is a DNS label (RFC 1123).
#[must_use]
pub(super) fn is_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_their_uuids() {
        let name = device_name("GPU-00010203-0405-0607-0809-0A0b0c0d0e0f");
        assert_eq!(name.as_deref(), Some("gpu-00010203-0405-0607-0809-0a0b0c0d0e0f"));
        assert_eq!(device_name("MIG-GPU-00010203/1/0"), None);
        assert_eq!(device_name(""), None);
    }

    #[test]
    fn what_could_lead_a_file_name_astray_is_no_uid() {
        let longest = "a".repeat(54);
        for text in ["3f0c1d2e-0000-4000-8000-000000000001", "a", longest.as_str()] {
            assert_eq!(ClaimUid::parse(text).map(|uid| uid.slice_name().len()), Ok(6 + text.len()));
            assert_eq!(ClaimUid::parse(text).map(|uid| uid.numbered_slice_name(31).len()), Ok(9 + text.len()));
        }
        let too_long = "a".repeat(55);
        for text in ["", "..", "a/b", "-a", "a-", "A", "a b", "a.json", too_long.as_str()] {
            assert_eq!(ClaimUid::parse(text), Err(ClaimUidError(text.into())));
        }
    }

    #[test]
    fn a_slice_s_name_says_whose_it_is() {
        let uid = ClaimUid::parse("3f0c1d2e-0000-4000-8000-000000000001").unwrap();
        for name in [uid.slice_name(), uid.numbered_slice_name(0), uid.numbered_slice_name(31)] {
            assert_eq!(ClaimUid::of_slice(&name).as_ref(), Some(&uid), "{name}");
        }
        for name in ["train", "claim-", "claim-a.b", "claim-a.", "claim-a.1.2", "pod.claim-a.1", "claim-A"] {
            assert_eq!(ClaimUid::of_slice(name), None, "{name}");
        }
    }
}
