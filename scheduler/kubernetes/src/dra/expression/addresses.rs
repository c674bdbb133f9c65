//! IP addresses and ranges of them: the libraries `kubernetes.net.ip` and `kubernetes.net.cidr` of Kubernetes.
//!
//! An IPv6 address that stands for an IPv4 address, or that has a zone, is no address here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cel::common::types::{CelBool, CelInt, CelString, Kind, Type};
use cel::{DeclarationError, Env, ExecutionError};

use super::values::{Held, Own, failed};

impl Held for IpAddr {
    const TYPE: &'static Type = &Type::simple_type(Kind::Opaque, "net.IP");
}

/// An address, and how many of its leading bits the addresses of the range have.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    address: IpAddr,
    bits: u8,
}

impl Held for Range {
    const TYPE: &'static Type = &Type::simple_type(Kind::Opaque, "net.CIDR");
}

fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(|address| !matches!(address, IpAddr::V6(of) if of.to_ipv4_mapped().is_some()))
}

impl Range {
    fn parse(text: &str) -> Option<Range> {
        let (address, bits) = text.rsplit_once('/')?;
        let address = parse_address(address)?;
        let is_number = bits.bytes().all(|byte| byte.is_ascii_digit()) && (bits.len() == 1 || !bits.starts_with('0'));
        let bits = bits.parse().ok().filter(|bits| is_number && *bits <= width(address))?;
        Some(Range { address, bits })
    }

    /// The first address of the range.
    fn start(self) -> IpAddr {
        let free = u32::from(width(self.address) - self.bits);
        match self.address {
            IpAddr::V4(of) => Ipv4Addr::from_bits(of.to_bits() & u32::MAX.checked_shl(free).unwrap_or(0)).into(),
            IpAddr::V6(of) => Ipv6Addr::from_bits(of.to_bits() & u128::MAX.checked_shl(free).unwrap_or(0)).into(),
        }
    }

    fn contains(self, address: IpAddr) -> bool {
        width(self.address) == width(address) && Range { address, bits: self.bits }.start() == self.start()
    }
}

/// The bits of an address.
fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(environment, fn ip: (CelString) -> Result<Own<IpAddr>>)?;
    cel::add_overload!(environment, fn is_ip: (CelString) -> CelBool, name = "isIP")?;
    cel::add_overload!(environment, fn is_canonical: (CelString) -> Result<CelBool>, name = "ip.isCanonical")?;
    cel::add_overload!(environment, fn text: (Own<IpAddr>) -> CelString, name = "string")?;
    cel::add_member_overload!(environment, fn family: (Own<IpAddr>) -> CelInt)?;
    cel::add_member_overload!(environment, fn is_unspecified: (Own<IpAddr>) -> CelBool)?;
    cel::add_member_overload!(environment, fn is_loopback: (Own<IpAddr>) -> CelBool)?;
    cel::add_member_overload!(environment, fn is_link_local_multicast: (Own<IpAddr>) -> CelBool)?;
    cel::add_member_overload!(environment, fn is_link_local_unicast: (Own<IpAddr>) -> CelBool)?;
    cel::add_member_overload!(environment, fn is_global_unicast: (Own<IpAddr>) -> CelBool)?;
    cel::add_overload!(environment, fn cidr: (CelString) -> Result<Own<Range>>)?;
    cel::add_overload!(environment, fn is_cidr: (CelString) -> CelBool, name = "isCIDR")?;
    cel::add_overload!(environment, fn text_of_range: (Own<Range>) -> CelString, name = "string")?;
    cel::add_member_overload!(environment, fn contains: (Own<Range>, Own<IpAddr>) -> CelBool, name = "containsIP")?;
    cel::add_member_overload!(environment, fn contains_text: (Own<Range>, CelString) -> Result<CelBool>,
        name = "containsIP")?;
    cel::add_member_overload!(environment, fn includes: (Own<Range>, Own<Range>) -> CelBool, name = "containsCIDR")?;
    cel::add_member_overload!(environment, fn includes_text: (Own<Range>, CelString) -> Result<CelBool>,
        name = "containsCIDR")?;
    cel::add_member_overload!(environment, fn address: (Own<Range>) -> Own<IpAddr>, name = "ip")?;
    cel::add_member_overload!(environment, fn masked: (Own<Range>) -> Own<Range>)?;
    cel::add_member_overload!(environment, fn prefix_length: (Own<Range>) -> CelInt)?;
    environment.add_type(IpAddr::TYPE.to_owned())?;
    environment.add_type(Range::TYPE.to_owned())
}

fn ip(text: &CelString<'_>) -> Result<Own<IpAddr>, ExecutionError> {
    parse_address(text).map(Own).ok_or_else(|| failed("ip", format!("{:?} is no IP address", text.inner())))
}

fn is_ip(text: &CelString<'_>) -> CelBool {
    parse_address(text).is_some().into()
}

fn is_canonical(text: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok((ip(text)?.0.to_string() == text.inner()).into())
}

fn text(of: &Own<IpAddr>) -> CelString<'static> {
    of.0.to_string().into()
}

fn family(of: &Own<IpAddr>) -> CelInt {
    (if of.0.is_ipv4() { 4 } else { 6 }).into()
}

fn is_unspecified(of: &Own<IpAddr>) -> CelBool {
    of.0.is_unspecified().into()
}

fn is_loopback(of: &Own<IpAddr>) -> CelBool {
    of.0.is_loopback().into()
}

fn is_link_local_multicast(of: &Own<IpAddr>) -> CelBool {
    match of.0 {
        IpAddr::V4(of) => of.octets()[..3] == [224, 0, 0],
        IpAddr::V6(of) => of.segments()[0] & 0xff0f == 0xff02,
    }
    .into()
}

fn is_link_local(of: IpAddr) -> bool {
    match of {
        IpAddr::V4(of) => of.is_link_local(),
        IpAddr::V6(of) => of.is_unicast_link_local(),
    }
}

fn is_link_local_unicast(of: &Own<IpAddr>) -> CelBool {
    is_link_local(of.0).into()
}

fn is_global_unicast(of: &Own<IpAddr>) -> CelBool {
    let is_special = of.0.is_unspecified() || of.0.is_loopback() || of.0.is_multicast() || is_link_local(of.0);
    (!is_special && of.0 != IpAddr::V4(Ipv4Addr::BROADCAST)).into()
}

fn cidr(text: &CelString<'_>) -> Result<Own<Range>, ExecutionError> {
    Range::parse(text).map(Own).ok_or_else(|| failed("cidr", format!("{:?} is no CIDR", text.inner())))
}

fn is_cidr(text: &CelString<'_>) -> CelBool {
    Range::parse(text).is_some().into()
}

fn text_of_range(of: &Own<Range>) -> CelString<'static> {
    format!("{}/{}", of.0.address, of.0.bits).into()
}

fn contains(range: &Own<Range>, address: &Own<IpAddr>) -> CelBool {
    range.0.contains(address.0).into()
}

fn contains_text(range: &Own<Range>, address: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok(contains(range, &ip(address)?))
}

fn includes(range: &Own<Range>, other: &Own<Range>) -> CelBool {
    (range.0.bits <= other.0.bits && range.0.contains(other.0.address)).into()
}

fn includes_text(range: &Own<Range>, other: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok(includes(range, &cidr(other)?))
}

fn address(of: &Own<Range>) -> Own<IpAddr> {
    Own(of.0.address)
}

fn masked(of: &Own<Range>) -> Own<Range> {
    Own(Range { address: of.0.start(), bits: of.0.bits })
}

fn prefix_length(of: &Own<Range>) -> CelInt {
    i64::from(of.0.bits).into()
}
