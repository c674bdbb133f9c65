//! URLs: the library `kubernetes.urls` of Kubernetes.
//!
//! A URL is absolute, or an absolute path. The rules are those of Go's package `net/url`: nothing is brought to a
//! normal form but the scheme, and characters that a URL should have escaped are allowed in paths and queries.

use std::collections::HashMap;
use std::net::Ipv6Addr;

use cel::common::types::{CelBool, CelList, CelMap, CelMapKey, CelString, Kind, Type};
use cel::common::value::Val;
use cel::{DeclarationError, Env, ExecutionError};

use super::values::{Held, Own, failed};

#[derive(Clone, Debug, PartialEq)]
struct Url {
    /// In small letters; empty: there is none.
    scheme: String,
    /// With the user, as given; `None`: there is none.
    user: Option<String>,
    /// With the port. An IPv6 address is in brackets.
    host: String,
    /// Escaped; empty: there is none.
    path: String,
    /// What follows a scheme without a slash.
    opaque: String,
    /// As it is written, with its escapes; `None`: there is no question mark.
    query: Option<String>,
    /// As it is written, with its escapes.
    fragment: String,
}

impl Held for Url {
    const TYPE: &'static Type = &Type::simple_type(Kind::Opaque, "kubernetes.URL");
}

/// What `url` takes, without a fragment: a `#` is a character of the path or of the query.
///
/// # Errors
/// The text is neither absolute nor an absolute path, or a part of it is no such part.
pub(super) fn check(text: &str) -> Result<(), String> {
    parse_parts(text, false).map(drop)
}

fn parse(text: &str) -> Result<Url, String> {
    check(text)?;
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    unescaped(fragment)?;
    Ok(Url { fragment: fragment.to_owned(), ..parse_parts(text, true)? })
}

/// `with_host`: what follows `//` at the start is a host.
fn parse_parts(text: &str, with_host: bool) -> Result<Url, String> {
    if text.chars().any(|of| of.is_ascii_control()) {
        return Err("it has a control character".to_owned());
    }
    let (scheme, rest) = split_scheme(text)?;
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query.to_owned())));
    let mut url = Url {
        scheme: scheme.to_ascii_lowercase(),
        user: None,
        host: String::new(),
        path: String::new(),
        opaque: String::new(),
        query,
        fragment: String::new(),
    };
    if text == "*" {
        url.path = "*".to_owned();
        return Ok(url);
    }
    if !rest.starts_with('/') {
        if scheme.is_empty() {
            return Err("it is neither absolute nor an absolute path".to_owned());
        }
        url.opaque = rest.to_owned();
        return Ok(url);
    }
    let has_host = !scheme.is_empty() || with_host && !rest.starts_with("///");
    let path = match rest.strip_prefix("//").filter(|_| has_host) {
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, of)| (Some(user), of));
            url.host = parse_host(&url.scheme, host)?;
            url.user = user.map(check_user).transpose()?;
            path
        }
        None => rest,
    };
    url.path = escaped_path(path)?;
    Ok(url)
}

/// The scheme, empty if there is none, and what follows it.
fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    let end = text.find(|of: char| !of.is_ascii_alphanumeric() && !"+-.".contains(of));
    match text.split_at(end.unwrap_or(text.len())) {
        ("", rest) if rest.starts_with(':') => Err("the scheme is missing".to_owned()),
        (scheme, rest) if scheme.starts_with(|of: char| of.is_ascii_alphabetic()) && rest.starts_with(':') => {
            Ok((scheme, &rest[1..]))
        }
        _ => Ok(("", text)),
    }
}

fn check_user(user: &str) -> Result<String, String> {
    if !user.chars().all(|of| of.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(of)) {
        return Err("the user has a character that no user has".to_owned());
    }
    unescaped(user)?;
    Ok(user.to_owned())
}

fn parse_host(scheme: &str, host: &str) -> Result<String, String> {
    let is_port = |text: &str| match text.strip_prefix(':') {
        Some(port) => port.bytes().all(|byte| byte.is_ascii_digit()),
        None => text.is_empty(),
    };
    if let Some(rest) = host.strip_prefix('[').filter(|rest| !rest.contains('[')) {
        let (address, port) = rest.rsplit_once(']').ok_or("the host has no closing bracket")?;
        let (address, zone) = match address.split_once("%25") {
            Some((address, zone)) => (address, format!("%{}", unescaped(zone)?)),
            None => (address, String::new()),
        };
        if address.parse::<Ipv6Addr>().is_err() || zone == "%" || !is_port(port) {
            return Err("the host is no IPv6 address with or without a port".to_owned());
        }
        return Ok(format!("[{address}{zone}]{port}"));
    }
    let first = host.find(':');
    let port = if matches!(scheme, "http" | "https") { first } else { host.rfind(':') };
    if !port.is_none_or(|at| is_port(&host[at..])) {
        return Err("the port is no number".to_owned());
    }
    let is_of_host = |of: char| !of.is_ascii() || of.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(of);
    let escapes_ascii = host.split('%').skip(1).any(|of| of.as_bytes().first().is_some_and(|first| *first < b'8'));
    if escapes_ascii || host.contains('[') || !host.chars().all(is_of_host) {
        return Err("the host has a character that no host has".to_owned());
    }
    unescaped(host)
}

/// A path with all escaped that must be. One that is escaped already stays as it is.
fn escaped_path(path: &str) -> Result<String, String> {
    let is_plain =
        |of: u8, more: &[u8]| of.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&of) || more.contains(&of);
    let text = unescaped_bytes(path)?;
    if path.bytes().all(|of| is_plain(of, b"!'()*[]%")) {
        return Ok(path.to_owned());
    }
    let escape = |of: &u8| if is_plain(*of, b"") { char::from(*of).to_string() } else { format!("%{of:02X}") };
    Ok(text.iter().map(escape).collect())
}

fn unescaped_bytes(text: &str) -> Result<Vec<u8>, String> {
    let mut rest = text.as_bytes().iter();
    let mut unescaped = Vec::with_capacity(text.len());
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            unescaped.push(*byte);
            continue;
        }
        let mut digit = || char::from(*rest.next()?).to_digit(16);
        let [Some(high), Some(low)] = [digit(), digit()] else {
            return Err("a percent sign is not followed by two hexadecimal digits".to_owned());
        };
        unescaped.push((high * 16 + low) as u8);
    }
    Ok(unescaped)
}

fn unescaped(text: &str) -> Result<String, String> {
    unescaped_bytes(text).map(|of| String::from_utf8_lossy(&of).into_owned())
}

impl Url {
    fn host_and_port(&self) -> (&str, &str) {
        let after_address = self.host.rfind(']').unwrap_or(0);
        let (host, port) = match self.host[after_address..].rfind(':') {
            Some(at) => (&self.host[..after_address + at], &self.host[after_address + at + 1..]),
            None => (self.host.as_str(), ""),
        };
        (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port)
    }

    /// The values of each key. What is no key with or without a value is left out.
    fn query(&self) -> HashMap<String, Vec<String>> {
        let mut values: HashMap<String, Vec<String>> = HashMap::new();
        let pairs = self.query.iter().flat_map(|query| query.split('&'));
        for pair in pairs.filter(|pair| !pair.is_empty() && !pair.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = |of: &str| unescaped(&of.replace('+', " "));
            if let (Ok(key), Ok(value)) = (text(key), text(value)) {
                values.entry(key).or_default().push(value);
            }
        }
        values
    }
}

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(environment, fn url: (CelString) -> Result<Own<Url>>)?;
    cel::add_overload!(environment, fn is_url: (CelString) -> CelBool, name = "isURL")?;
    cel::add_member_overload!(environment, fn get_scheme: (Own<Url>) -> CelString)?;
    cel::add_member_overload!(environment, fn get_host: (Own<Url>) -> CelString)?;
    cel::add_member_overload!(environment, fn get_hostname: (Own<Url>) -> CelString)?;
    cel::add_member_overload!(environment, fn get_port: (Own<Url>) -> CelString)?;
    cel::add_member_overload!(environment, fn get_escaped_path: (Own<Url>) -> CelString)?;
    cel::add_member_overload!(environment, fn get_query: (Own<Url>) -> CelMap)?;
    environment.add_type(Url::TYPE.to_owned())
}

fn url(text: &CelString<'_>) -> Result<Own<Url>, ExecutionError> {
    parse(text).map(Own).map_err(|error| failed("url", format!("{:?} is no URL: {error}", text.inner())))
}

fn is_url(text: &CelString<'_>) -> CelBool {
    check(text).is_ok().into()
}

fn get_scheme(of: &Own<Url>) -> CelString<'static> {
    of.0.scheme.clone().into()
}

fn get_host(of: &Own<Url>) -> CelString<'static> {
    of.0.host.clone().into()
}

fn get_hostname(of: &Own<Url>) -> CelString<'static> {
    of.0.host_and_port().0.to_owned().into()
}

fn get_port(of: &Own<Url>) -> CelString<'static> {
    of.0.host_and_port().1.to_owned().into()
}

fn get_escaped_path(of: &Own<Url>) -> CelString<'static> {
    of.0.path.clone().into()
}

fn get_query(of: &Own<Url>) -> CelMap<'static> {
    let boxed = |text: String| Box::new(CelString::from(text)) as Box<dyn Val>;
    let list = |values: Vec<String>| CelList::from(values.into_iter().map(boxed).collect::<Vec<_>>());
    let entry = |(key, values)| (CelMapKey::String(CelString::from(key)), Box::new(list(values)) as Box<dyn Val>);
    of.0.query().into_iter().map(entry).collect::<HashMap<CelMapKey<'static>, Box<dyn Val>>>().into()
}
