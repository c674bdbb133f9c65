//! The limits of secrets in the contracts. Messages for people never contain their values.

use std::fmt;

use crate::{agent, scheduler};

/// Maximum length of a secret's value.
pub const SECRET_BYTES_MAX: usize = 64 << 10;
/// Maximum number of secrets of one job. All of them fit into one message of four MiB.
pub const JOB_SECRETS_MAX: usize = 16;
/// Maximum length of a secret's name.
const NAME_BYTES_MAX: usize = 63;

/// Whether this can be the name of a secret, and so of a file: 1 to 63 letters, digits, '-', '_' and '.', with a letter or
/// digit at the beginning.
#[must_use]
pub fn is_secret_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(is_of_name)
}

/// Whether a variable of this name can contain a secret: letters, digits and '_', and no digit at the beginning.
#[must_use]
pub fn is_secret_variable(text: &str) -> bool {
    text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A secret's value for a variable, without the line break that editors put at the end of a file; `None`: a variable
/// cannot have this value.
#[must_use]
pub fn secret_as_variable(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?;
    let text = text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
    (!text.contains('\0')).then_some(text)
}

impl fmt::Debug for agent::v1::Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("name", &self.name).field("variable", &self.variable).finish_non_exhaustive()
    }
}

impl fmt::Debug for scheduler::v1::SetSecretRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetSecretRequest").field("name", &self.name).field("queue", &self.queue).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_directory() {
        for name in ["hf-token", "a", "0", "id_rsa.pub", &"a".repeat(63)] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["", ".", "..", ".a", "-a", "a/b", "/a", "a b", "ä", "a\0", &"a".repeat(64)] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn a_variable_has_text_without_the_last_line_break() {
        assert_eq!(secret_as_variable(b"a\nb\n"), Some("a\nb"));
        assert_eq!(secret_as_variable(b"a\r\n"), Some("a"));
        assert_eq!(secret_as_variable(b""), Some(""));
        assert_eq!(secret_as_variable(b"a\0b"), None);
        assert_eq!(secret_as_variable(b"\xff"), None);
        assert!(is_secret_variable("HF_TOKEN2") && is_secret_variable("_"));
        assert!(!["", "2A", "A=B", "A-B", "A B"].into_iter().any(is_secret_variable));
    }

    #[test]
    fn no_message_for_people_has_the_value() {
        let value = b"sesame".to_vec();
        let of_job = agent::v1::Secret { name: "a".into(), value: value.clone(), variable: "A".into() };
        let of_user = scheduler::v1::SetSecretRequest { name: "a".into(), value, queue: String::new() };
        let process = agent::v1::Process { secrets: vec![of_job], ..agent::v1::Process::default() };
        for text in [format!("{process:?}"), format!("{process:#?}"), format!("{of_user:?}")] {
            assert!(text.contains("\"a\"") && !text.contains("sesame") && !text.contains("115"), "{text}");
        }
    }
}
