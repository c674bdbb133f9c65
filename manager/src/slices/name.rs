//! What a slice may be called. The name stands in file names, host names, CDI device names and metric labels.

/// Characters that a name may have.
const NAME_CHARS_MAX: usize = 63;

/// Why a name cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is too long.
    #[error("the slice name {name:?} has {found} characters; at most {NAME_CHARS_MAX} are allowed")]
    TooLong {
        /// The name.
        name: String,
        /// Its length.
        found: usize,
    },
    /// It is not made as it should be.
    #[error(
        "the slice name {name:?} is not valid: use lower-case letters, digits, '-' and '.', with a letter or digit at \
         both ends and beside each '.'"
    )]
    Malformed {
        /// The name.
        name: String,
    },
}

/// Checks a name.
pub(super) fn check(name: &str) -> Result<(), NameError> {
    let found = name.chars().count();
    if found > NAME_CHARS_MAX {
        return Err(NameError::TooLong { name: name.into(), found });
    }
    let ends = |label: &str, at: Option<char>| !label.is_empty() && at.is_some_and(|end| end != '-');
    let label = |label: &str| {
        ends(label, label.chars().next())
            && ends(label, label.chars().last())
            && label.chars().all(|letter| matches!(letter, 'a'..='z' | '0'..='9' | '-'))
    };
    if name.split('.').all(label) { Ok(()) } else { Err(NameError::Malformed { name: name.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels_joined_by_dots() {
        for name in ["a", "train-1", "0", "a.b", "x--y", &"a".repeat(63)] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", "-a", "a-", "A", "a b", "a/b", "..", "a..b", ".a", "a.-b", "a_b", "é", "a\n", &"a".repeat(64)]
        {
            assert!(check(name).is_err(), "{name}");
        }
    }
}
