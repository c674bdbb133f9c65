//! Semantic versions: the library `kubernetes.Semver` of Kubernetes.

use std::cmp::Ordering;

use cel::common::types::{CelBool, CelInt, CelString, Kind, Type};
use cel::{DeclarationError, Env, ExecutionError};
use semver::Version as Numbers;

use super::values::{Held, Own, failed};

/// A semantic version. Versions that differ in build metadata only are equal.
#[derive(Clone, Debug)]
pub(super) struct Version(Numbers);

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        self.0.cmp_precedence(&other.0) == Ordering::Equal
    }
}

impl Held for Version {
    const TYPE: &'static Type = &Type::simple_type(Kind::Opaque, "kubernetes.Semver");
}

/// # Errors
/// The text is no semantic version. A number of it, also one in the pre-release, can be 2⁶⁴ - 1 at most.
pub(super) fn parse(text: &str) -> Result<Version, String> {
    let version = Numbers::parse(text).map_err(|error| format!("{text:?}: {error}"))?;
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    match version.pre.split('.').find(|part| !part.is_empty() && is_number(part) && part.parse::<u64>().is_err()) {
        Some(part) => Err(format!("{text:?}: {part} is too large")),
        None => Ok(Version(version)),
    }
}

/// Parses leniently: without a leading `v`, without leading zeros, and with zeros for a minor version and a patch that
/// are not there.
fn parse_leniently(text: &str) -> Result<Version, String> {
    let mut parts: Vec<String> = text.strip_prefix('v').unwrap_or(text).splitn(3, '.').map(without_zeros).collect();
    if parts.len() < 3 && parts.iter().any(|part| part.contains(['+', '-'])) {
        return Err(format!("{text:?}: a version with a pre-release or build metadata needs three numbers"));
    }
    parts.resize(3, "0".to_owned());
    parse(&parts.join("."))
}

/// A part of a version without leading zeros. It starts with a digit, except if it is one character long.
fn without_zeros(part: &str) -> String {
    let rest = part.trim_start_matches('0');
    let prefix = if rest.starts_with(|first: char| first.is_ascii_digit()) { "" } else { "0" };
    if part.len() > 1 { format!("{prefix}{rest}") } else { part.to_owned() }
}

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(environment, fn semver: (CelString) -> Result<Own<Version>>)?;
    cel::add_overload!(environment, fn semver_leniently: (CelString, CelBool) -> Result<Own<Version>>,
        name = "semver")?;
    cel::add_overload!(environment, fn is_semver: (CelString) -> CelBool)?;
    cel::add_overload!(environment, fn is_semver_leniently: (CelString, CelBool) -> CelBool, name = "isSemver")?;
    cel::add_member_overload!(environment, fn compare_to: (Own<Version>, Own<Version>) -> CelInt)?;
    cel::add_member_overload!(environment, fn is_greater_than: (Own<Version>, Own<Version>) -> CelBool)?;
    cel::add_member_overload!(environment, fn is_less_than: (Own<Version>, Own<Version>) -> CelBool)?;
    cel::add_member_overload!(environment, fn major: (Own<Version>) -> CelInt)?;
    cel::add_member_overload!(environment, fn minor: (Own<Version>) -> CelInt)?;
    cel::add_member_overload!(environment, fn patch: (Own<Version>) -> CelInt)?;
    environment.add_type(Version::TYPE.to_owned())
}

fn semver(text: &CelString<'_>) -> Result<Own<Version>, ExecutionError> {
    parse(text).map(Own).map_err(|error| failed("semver", error))
}

fn semver_leniently(text: &CelString<'_>, leniently: &CelBool) -> Result<Own<Version>, ExecutionError> {
    let parse = if *leniently.inner() { parse_leniently } else { parse };
    parse(text).map(Own).map_err(|error| failed("semver", error))
}

fn is_semver(text: &CelString<'_>) -> CelBool {
    parse(text).is_ok().into()
}

fn is_semver_leniently(text: &CelString<'_>, leniently: &CelBool) -> CelBool {
    semver_leniently(text, leniently).is_ok().into()
}

fn ordering(one: &Own<Version>, other: &Own<Version>) -> Ordering {
    one.0.0.cmp_precedence(&other.0.0)
}

fn compare_to(one: &Own<Version>, other: &Own<Version>) -> CelInt {
    (ordering(one, other) as i64).into()
}

fn is_greater_than(one: &Own<Version>, other: &Own<Version>) -> CelBool {
    ordering(one, other).is_gt().into()
}

fn is_less_than(one: &Own<Version>, other: &Own<Version>) -> CelBool {
    ordering(one, other).is_lt().into()
}

/// In Kubernetes, too, a number of 2⁶³ or more is negative here.
fn number(of: u64) -> CelInt {
    of.cast_signed().into()
}

fn major(of: &Own<Version>) -> CelInt {
    number(of.0.0.major)
}

fn minor(of: &Own<Version>) -> CelInt {
    number(of.0.0.minor)
}

fn patch(of: &Own<Version>) -> CelInt {
    number(of.0.0.patch)
}
