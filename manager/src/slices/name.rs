//! Checks names of slices. A name appears in file names, host names, CDI device names and metric labels.

use std::fmt;

/// Maximum characters of a name.
const NAME_CHARS_MAX: usize = 63;

/// A name quoted in a message. A client can send any text of any length.
pub(super) struct Quoted<'name>(pub(super) &'name str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(NAME_CHARS_MAX + 1) {
            None => write!(f, "{:?}", self.0),
            Some((end, _)) => write!(f, "{:?} ({} characters)", format!("{}…", &self.0[..end]), self.0.chars().count()),
        }
    }
}

/// Why a name cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is too long.
    #[error("the slice name {} has {found} characters; at most {NAME_CHARS_MAX} are allowed", Quoted(name))]
    TooLong {
        /// The name that was requested.
        name: String,
        /// Its length, in characters.
        found: usize,
    },
    /// It contains invalid characters, or an invalid label.
    #[error(
        "the slice name {} is not valid: use lower-case letters, digits, '-' and '.', with a letter or digit at \
         both ends and beside each '.'",
        Quoted(name)
    )]
    Malformed {
        /// The name that was requested.
        name: String,
    },
}

/// Checks the length and the characters of a name.
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
    fn a_name_of_any_length_is_a_short_message() {
        assert_eq!(Quoted("train").to_string(), "\"train\"");
        assert_eq!(Quoted(&"ä".repeat(64)).to_string(), format!("\"{}\"", "ä".repeat(64)));
        assert_eq!(Quoted(&"ä".repeat(5000)).to_string(), format!("\"{}…\" (5000 characters)", "ä".repeat(64)));
        assert!(check(&"a".repeat(5000)).unwrap_err().to_string().len() < 200);
    }

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
