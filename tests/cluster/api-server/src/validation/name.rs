//! Names: the allowed characters and lengths.

use super::super::status::Failure;
use super::require;

/// A label as in DNS: lower-case letters, digits and dashes, at most 63 of them.
pub(in super::super) fn label(name: &str, path: &str) -> Result<(), Failure> {
    require(is_label(name, 63), path, || {
        format!(
            "{name:?} must be at most 63 lower case letters, digits or '-', and begin and end with one of the former"
        )
    })
}

/// Labels with dots between them, at most 253 characters.
pub(in super::super) fn subdomain(name: &str, path: &str) -> Result<(), Failure> {
    subdomain_of(name, 253, path)
}

/// The name of a driver: a subdomain of at most 63 characters.
pub(in super::super) fn driver(name: &str, path: &str) -> Result<(), Failure> {
    subdomain_of(name, 63, path)
}

fn subdomain_of(name: &str, limit: usize, path: &str) -> Result<(), Failure> {
    let holds = name.len() <= limit && name.split('.').all(|part| is_label(part, limit));
    require(holds, path, || format!("{name:?} must be a DNS subdomain of at most {limit} characters"))
}

/// The name of a pool: subdomains with slashes between them.
pub(super) fn pool(name: &str, path: &str) -> Result<(), Failure> {
    require(!name.is_empty() && name.len() <= 253, path, || format!("{name:?} must have 1 to 253 characters"))?;
    name.split('/').try_for_each(|part| subdomain(part, path))
}

/// The name of an attribute or a capacity: an identifier as in C of at most 32 characters, with or without a domain.
pub(super) fn qualified(name: &str, path: &str) -> Result<(), Failure> {
    let id = match name.split_once('/') {
        Some((domain, id)) => {
            driver(domain, path)?;
            id
        }
        None => name,
    };
    let mut characters = id.chars();
    let begins = characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
    let holds = begins && id.len() <= 32 && characters.all(|c| c.is_ascii_alphanumeric() || c == '_');
    require(holds, path, || format!("{name:?} must be a C identifier of at most 32 characters, after a domain or not"))
}

/// The key of a label or of a taint.
pub(in super::super) fn label_key(key: &str, path: &str) -> Result<(), Failure> {
    let name = match key.split_once('/') {
        Some((prefix, name)) => {
            subdomain(prefix, path)?;
            name
        }
        None => key,
    };
    require(!name.is_empty() && is_label_value(name), path, || format!("{key:?} is not a qualified name"))
}

/// The value of a label or of a taint.
pub(in super::super) fn label_value(value: &str, path: &str) -> Result<(), Failure> {
    require(is_label_value(value), path, || {
        format!(
            "{value:?} must be at most 63 letters, digits, '-', '_' or '.', and begin and end with one of the first two"
        )
    })
}

/// A UUID in its normal form.
pub(super) fn uid(uid: &str, path: &str) -> Result<(), Failure> {
    let groups: Vec<&str> = uid.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let hexadecimal = uid.chars().all(|c| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c));
    require(lengths == [8, 4, 4, 4, 12] && hexadecimal, path, || format!("{uid:?} is not a UUID in lower case"))
}

fn is_label(name: &str, limit: usize) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !name.is_empty()
        && name.len() <= limit
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || c == '-')
}

fn is_label_value(value: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    value.is_empty()
        || (value.len() <= 63
            && value.starts_with(edge)
            && value.ends_with(edge)
            && value.chars().all(|c| edge(c) || "-_.".contains(c)))
}
