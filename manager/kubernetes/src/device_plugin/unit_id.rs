//! Ids of units, and the CDI names that follow from them.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

/// The kind of CDI device that the node publishes slices as.
const CDI_KIND: &str = "aliquot.dev/slice";
/// The common beginning of the CDI names of containers' units. Slices of other origin have no such names.
const ALIAS_PREFIX: &str = "container-";
/// Bytes of the hash, so many that two containers of a node never have the same.
const HASH_BYTES: usize = 16;

/// The id of unit `number` of a device. Kubelet only counts ids. The id need not name the resource, because each
/// request is about one.
#[must_use]
pub(super) fn unit_id(device_uuid: &str, number: u64) -> String {
    format!("{device_uuid}::{number}")
}

/// The device that an id names.
#[must_use]
pub(super) fn device_of(id: &str) -> Option<&str> {
    id.rsplit_once("::").map(|(uuid, _)| uuid)
}

/// A CDI device that a slice has, or would have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CdiName(String);

impl CdiName {
    /// The device for these units. It is a function of the ids alone, so kubelet can be told it before the container is
    /// known.
    #[must_use]
    pub fn of_units(resource: &str, ids: &BTreeSet<String>) -> CdiName {
        let mut hash = Sha256::new();
        for text in std::iter::once(resource).chain(ids.iter().map(String::as_str)) {
            hash.update(text);
            hash.update([0]);
        }
        let digits: String = hash.finalize().iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
        CdiName::of_slice(&format!("{ALIAS_PREFIX}{digits}"))
    }

    /// The device of a slice with this name or alias.
    #[must_use]
    pub fn of_slice(name: &str) -> CdiName {
        CdiName(format!("{CDI_KIND}={name}"))
    }

    /// The device that has this fully qualified name.
    #[must_use]
    pub fn qualified(name: &str) -> CdiName {
        CdiName(name.to_owned())
    }

    /// The fully qualified name of the device.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The slice's alias for this device: the name without its kind.
    #[must_use]
    pub fn alias(&self) -> &str {
        self.0.split_once('=').map_or(self.0.as_str(), |(_, alias)| alias)
    }
}

/// Whether an alias is of a container's units. Only slices with such an alias are removed when their container is gone.
#[must_use]
pub(super) fn is_alias_of_units(alias: &str) -> bool {
    alias.starts_with(ALIAS_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-8f6a1c1e-0000-0000-0000-00000000000a";

    #[test]
    fn an_id_names_its_device_and_is_short_enough_for_kubelet() {
        let id = unit_id(UUID, u64::from(u32::MAX));
        assert_eq!(device_of(&id), Some(UUID));
        assert!(id.len() <= 63);
        assert_eq!(device_of("x"), None);
    }

    #[test]
    fn names_differ_with_the_resource_and_every_id() {
        let ids = |numbers: &[u64]| numbers.iter().map(|number| unit_id(UUID, *number)).collect::<BTreeSet<_>>();
        let name = CdiName::of_units("a/b", &ids(&[1, 2]));
        assert_eq!(name, CdiName::of_units("a/b", &ids(&[2, 1])));
        assert_ne!(name, CdiName::of_units("a/c", &ids(&[1, 2])));
        assert_ne!(name, CdiName::of_units("a/b", &ids(&[1])));
        assert_ne!(name, CdiName::of_units("a/b", &ids(&[12])));
        assert_eq!(name.as_str(), format!("aliquot.dev/slice={}", name.alias()));
        assert!(is_alias_of_units(name.alias()) && name.alias().len() <= 63);
    }
}
