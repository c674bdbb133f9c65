//! The address at which processes of other nodes reach this one.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

/// How long a connection to an address of this machine may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Addresses for documentation, which no machine has. The way to them is the way to other networks.
const ELSEWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// The address of this machine from which `scheduler` is reached.
///
/// On the scheduler's own machine this can be a loopback address, for example if the machine's name stands for one. If
/// the scheduler also listens at another address of the machine, other nodes can come from elsewhere, so it is that one.
/// Waits for the look-up of the scheduler's name.
pub(crate) fn local_address(scheduler: &str) -> Option<String> {
    let (local, scheduler) = way_to(scheduler)?;
    let is_scheduler_at = |address: IpAddr| {
        let at = SocketAddr::new(address, scheduler.port());
        TcpStream::connect_timeout(&at, CONNECT_PATIENCE).is_ok()
    };
    Some(for_others(local, other_addresses, is_scheduler_at).to_string())
}

fn for_others<I: IntoIterator<Item = IpAddr>>(
    local: IpAddr,
    others: impl FnOnce() -> I,
    is_scheduler_at: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    if !local.is_loopback() {
        return local;
    }
    others().into_iter().find(|other| is_scheduler_at(*other)).unwrap_or(local)
}

/// The address of this machine on the way to `to`, and the address of `to`. No packet is sent.
fn way_to(to: &str) -> Option<(IpAddr, SocketAddr)> {
    ["0.0.0.0:0", "[::]:0"].iter().find_map(|any| {
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(to).ok()?;
        Some((socket.local_addr().ok()?.ip().to_canonical(), socket.peer_addr().ok()?))
    })
}

/// The addresses of this machine that other machines may reach, the likeliest first: those on the way to other networks,
/// and then those of all interfaces.
fn other_addresses() -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = ELSEWHERE.iter().filter_map(|to| Some(way_to(to)?.0)).collect();
    let interfaces = getifaddrs().into_iter().flatten();
    let mut of_interfaces: Vec<IpAddr> = interfaces.filter_map(|interface| ip_address(&interface.address?)).collect();
    of_interfaces.sort_by_key(IpAddr::is_ipv6);
    found.extend(of_interfaces);
    found.retain(|address| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    });
    found
}

fn ip_address(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_loopback_address_is_told_only_if_nothing_else_works() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let others = || ["10.0.0.5", "10.1.0.5"].map(address);
        assert_eq!(for_others(address("10.2.0.5"), others, |_| true), address("10.2.0.5"));
        assert_eq!(for_others(LOOPBACK, others, |_| true), address("10.0.0.5"));
        assert_eq!(for_others(LOOPBACK, others, |other| other == address("10.1.0.5")), address("10.1.0.5"));
        assert_eq!(for_others(address("::1"), others, |_| false), address("::1"));
    }

    #[test]
    fn a_node_beside_its_scheduler_has_the_address_for_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let only_here = listener.local_addr().unwrap().to_string();
        assert_eq!(local_address(&only_here).as_deref(), Some("127.0.0.1"));
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let everywhere = format!("127.0.1.1:{}", listener.local_addr().unwrap().port());
        // A machine without a network has no other address.
        let others = other_addresses();
        let expected = others.iter().find(|other| other.is_ipv4()).copied().unwrap_or(LOOPBACK);
        assert_eq!(local_address(&everywhere), Some(expected.to_string()), "{others:?}");
    }
}
