//! Names of containers' slices.

use aliquot_node::{Consumer, Slice};
use sha2::{Digest, Sha256};

const NAME_BYTES_MAX: usize = 63;
const PREFIX: &str = "pod.";
/// Bytes of the hash that replaces the end of a name that is too long.
const HASH_BYTES: usize = 8;

/// `pod.NAMESPACE.POD.CONTAINER`, which is unique, because only a pod's name can contain a dot. A name that is too long
/// ends with a hash of the whole name.
#[must_use]
pub(super) fn slice_name(consumer: &Consumer) -> String {
    let name = format!("{PREFIX}{}.{}.{}", consumer.namespace, consumer.pod, consumer.container);
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let digits: String = Sha256::digest(&name).iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let kept: String = name.chars().take(NAME_BYTES_MAX - digits.len() - 1).collect();
    format!("{}-{digits}", kept.trim_end_matches(['.', '-']))
}

/// The container that a slice was made for. The slice's description names it, and the slice's name confirms it.
#[must_use]
pub(super) fn made_for(slice: &Slice) -> Option<Consumer> {
    let mut words = slice.content.description.splitn(3, '/').map(str::to_owned);
    let consumer = Consumer { namespace: words.next()?, pod: words.next()?, container: words.next()? };
    (slice_name(&consumer) == slice.content.name).then_some(consumer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(namespace: &str, pod: &str, container: &str) -> String {
        slice_name(&Consumer { namespace: namespace.into(), pod: pod.into(), container: container.into() })
    }

    #[test]
    fn names_say_whose_slice_it_is() {
        assert_eq!(name("team-a", "train-0", "main"), "pod.team-a.train-0.main");
    }

    #[test]
    fn long_names_are_short_enough_and_still_differ() {
        let long = "x".repeat(253);
        let found = name("team-a", &long, "main");
        assert!(found.len() <= 63 && found.starts_with("pod.team-a.xxx"), "{found}");
        assert_ne!(found, name("team-a", &long, "side"));
        let at_a_dot = name("team-a", &format!("{}.{}", "x".repeat(34), "y".repeat(99)), "main");
        assert!(
            at_a_dot.len() <= 63 && at_a_dot.starts_with("pod.team-a.xxx") && !at_a_dot.contains(".-"),
            "{at_a_dot}"
        );
    }

    #[test]
    fn a_slice_says_whose_it_is_unless_its_name_says_otherwise() {
        use crate::device_plugin::test_node::{device, slice_of};
        let consumer = Consumer { namespace: "team-a".into(), pod: "x".repeat(99), container: "main".into() };
        let mut slice = slice_of(&slice_name(&consumer), &device(0, 16), 10, 1 << 30);
        assert_eq!(made_for(&slice), None);
        slice.content.description = consumer.to_string();
        assert_eq!(made_for(&slice), Some(consumer));
        slice.content.name = "train".into();
        assert_eq!(made_for(&slice), None);
    }
}
