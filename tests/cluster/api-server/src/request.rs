//! Requests: the resource and the operation, from the path and the query.

use std::collections::BTreeMap;

use hyper::Uri;

use super::resource::Resource;
use super::status::Failure;

/// The parts of a path.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) resource: &'static Resource,
    /// `None` for all namespaces, and for objects without a namespace.
    pub(super) namespace: Option<String>,
    /// `None` for all objects.
    pub(super) name: Option<String>,
    pub(super) status: bool,
    /// The subresource on which the request acts.
    pub(super) subresource: Option<Subresource>,
}

/// A subresource that only accepts requests, or forwards a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subresource {
    Binding,
    Eviction,
    PortForward,
}

impl Subresource {
    pub(super) fn name(self) -> &'static str {
        match self {
            Subresource::Binding => "binding",
            Subresource::Eviction => "eviction",
            Subresource::PortForward => "portforward",
        }
    }
}

impl Address {
    pub(super) fn parse(path: &str) -> Result<Address, Failure> {
        let unknown = || Failure::not_found(format!("the server could not find the requested resource: {path}"));
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(unknown()),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some((*name).to_owned()), None),
            [plural, name, subresource] => (*plural, Some((*name).to_owned()), Some(*subresource)),
            _ => return Err(unknown()),
        };
        let resource = Resource::find(group, version, plural).ok_or_else(unknown)?;
        let of_pods = resource.group.is_empty() && resource.plural == "pods";
        let (status, subresource) = match subresource {
            None => (false, None),
            Some("status") if resource.has_status => (true, None),
            Some("binding") if of_pods => (false, Some(Subresource::Binding)),
            Some("eviction") if of_pods => (false, Some(Subresource::Eviction)),
            Some("portforward") if of_pods => (false, Some(Subresource::PortForward)),
            Some(_) => return Err(unknown()),
        };
        let placed = if resource.namespaced { name.is_none() || namespace.is_some() } else { namespace.is_none() };
        if placed { Ok(Address { resource, namespace, name, status, subresource }) } else { Err(unknown()) }
    }
}

/// The parameters of a request.
#[derive(Debug)]
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    pub(super) fn of(uri: &Uri) -> Query {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect(),
        )
    }

    /// The value of a parameter; empty if it was not given.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        ["1", "true"].contains(&self.text(name))
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }
}

/// Decodes a text with percent-encoding.
fn decode(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        let hexadecimal = |bytes: &mut std::str::Bytes<'_>| {
            let digits = [bytes.next()?, bytes.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()
        };
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => hexadecimal(&mut bytes).unwrap_or(b'%'),
            byte => byte,
        });
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
