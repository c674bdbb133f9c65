//! Addresses of this machine for servers of tests.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};

/// A loopback address for one server of a test. No other server of tests has it, so the server finds its ports free
/// after a restart.
#[must_use]
pub fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id().to_le_bytes();
    // 127.0.0.1 is left to other programs.
    Ipv4Addr::new(127, process[1] | 0x40, process[0], NEXT.fetch_add(1, Ordering::Relaxed))
}
