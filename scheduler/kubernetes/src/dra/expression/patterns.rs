//! Regular expressions: `matches` of CEL, and the library `kubernetes.regex` of Kubernetes.
//!
//! Patterns are those of RE2, whose classes `\d`, `\s` and `\w` and whose word boundary know ASCII only.

use std::collections::HashMap;
use std::sync::LazyLock;

use cel::common::types::{CelBool, CelInt, CelList, CelString};
use cel::common::value::Val;
use cel::{DeclarationError, Env, ExecutionError};
use parking_lot::Mutex;
use regex::Regex;

use super::values::failed;

/// The name of `matches` here. CEL's crate has another function of that name, whose classes are Unicode's.
pub(super) const MATCHES: &str = "@matches";
/// So many patterns are kept compiled, as an expression is evaluated for each device.
const KEPT_MAX: usize = 256;

static KEPT: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);

/// # Errors
/// The text is no pattern.
pub(super) fn compiled(pattern: &str) -> Result<Regex, regex::Error> {
    if let Some(regex) = KEPT.lock().get(pattern) {
        return Ok(regex.clone());
    }
    let regex = Regex::new(&translated(pattern))?;
    let mut kept = KEPT.lock();
    if kept.len() >= KEPT_MAX {
        kept.clear();
    }
    kept.insert(pattern.to_owned(), regex.clone());
    Ok(regex)
}

/// A pattern of RE2 as the crate for regular expressions has it.
fn translated(pattern: &str) -> String {
    let mut translated = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find('\\') {
        translated.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(escaped) = rest.chars().next() else {
            translated.push('\\');
            break;
        };
        rest = &rest[escaped.len_utf8()..];
        match escaped {
            'd' => translated.push_str("[0-9]"),
            'D' => translated.push_str("[^0-9]"),
            's' => translated.push_str(r"[\t\n\f\r ]"),
            'S' => translated.push_str(r"[^\t\n\f\r ]"),
            'w' => translated.push_str("[0-9A-Za-z_]"),
            'W' => translated.push_str("[^0-9A-Za-z_]"),
            'b' => translated.push_str(r"(?-u:\b)"),
            'Q' => {
                let (literal, after) = rest.split_once(r"\E").unwrap_or((rest, ""));
                translated.push_str(&regex::escape(literal));
                rest = after;
            }
            other => translated.extend(['\\', other]),
        }
    }
    translated + rest
}

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(environment, fn matches: (CelString, CelString) -> Result<CelBool>, name = MATCHES)?;
    cel::add_member_overload!(environment, fn matches: (CelString, CelString) -> Result<CelBool>, name = MATCHES)?;
    cel::add_member_overload!(environment, fn find: (CelString, CelString) -> Result<CelString>)?;
    cel::add_member_overload!(environment, fn find_all: (CelString, CelString) -> Result<CelList>)?;
    cel::add_member_overload!(environment, fn find_some: (CelString, CelString, CelInt) -> Result<CelList>,
        name = "findAll")
}

fn matches(text: &CelString<'_>, pattern: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    let pattern = compiled(pattern).map_err(|error| failed("matches", error))?;
    Ok(pattern.is_match(text).into())
}

/// The first match; empty: there is none.
fn find(text: &CelString<'_>, pattern: &CelString<'_>) -> Result<CelString<'static>, ExecutionError> {
    let pattern = compiled(pattern).map_err(|error| failed("find", error))?;
    Ok(pattern.find(text).map_or("", |found| found.as_str()).to_owned().into())
}

fn find_all(text: &CelString<'_>, pattern: &CelString<'_>) -> Result<CelList<'static>, ExecutionError> {
    find_some(text, pattern, &CelInt::from(-1))
}

/// The first matches. A negative number means all.
fn find_some(text: &CelString<'_>, pattern: &CelString<'_>, max: &CelInt) -> Result<CelList<'static>, ExecutionError> {
    let pattern = compiled(pattern).map_err(|error| failed("findAll", error))?;
    let max = usize::try_from(*max.inner()).unwrap_or(usize::MAX);
    let found = pattern.find_iter(text).take(max).map(|found| CelString::from(found.as_str().to_owned()));
    Ok(found.map(|found| Box::new(found) as Box<dyn Val>).collect::<Vec<_>>().into())
}
