//! Whose turn it is: weighted fair queueing in virtual time, below priorities.
//!
//! Each container has a virtual clock that advances by what it is charged, over its request. Who wants the device and
//! is furthest behind is next, where *behind* is measured in the middle of the lease that it would get: so a container
//! with long kernels is as far ahead of its share after a lease as it was behind before, and whenever one looks, it is
//! off by half a kernel at most.

use crate::container::{Container, ContainerId};
use crate::gang::Precedence;

/// A claim to the next lease. The least has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Claim {
    pub(crate) class: Class,
    pub(crate) precedence: Precedence,
    /// Virtual time in the middle of the lease.
    pub(crate) middle_ns: u64,
    pub(crate) container: ContainerId,
}

/// What goes before virtual time; the lesser goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Class {
    beyond_request: bool,
    rank: i64,
}

/// A container's class. Where all who want the device have the same priority, all are of one class: virtual time alone
/// is fairer.
pub(crate) fn class(container: &Container, same_priority: bool) -> Class {
    if same_priority {
        return Class { beyond_request: false, rank: 0 };
    }
    Class { beyond_request: container.guarantee.in_debt(), rank: -i64::from(container.share.priority) }
}

/// The claim of a container that holds no lease.
pub(crate) fn claim(container: &Container, same_priority: bool) -> Claim {
    Claim { precedence: container.precedence, ..claim_by_time(container, same_priority) }
}

/// The claim of a container that holds no lease, whether it is summoned or not.
pub(crate) fn claim_by_time(container: &Container, same_priority: bool) -> Claim {
    let half_ns = container.weighted_ns(container.expected_lease_ns / 2);
    Claim {
        class: class(container, same_priority),
        precedence: Precedence::None,
        middle_ns: container.virtual_ns.saturating_add(half_ns),
        container: container.id,
    }
}

/// The claim of the holder to another quantum of `quantum_ns`: the work that it has in flight is its own in any case.
pub(crate) fn renewal(holder: &Container, quantum_ns: u64, same_priority: bool) -> Claim {
    let ahead_ns = holder.weighted_ns(holder.expected_drain_ns.saturating_add(quantum_ns / 2));
    Claim {
        class: class(holder, same_priority),
        precedence: holder.precedence,
        middle_ns: holder.virtual_ns.saturating_add(ahead_ns),
        container: holder.id,
    }
}

/// The virtual time of the device: that of the container which is furthest behind among those that use or want it. It
/// never goes back.
#[derive(Debug, Default)]
pub(crate) struct VirtualClock {
    now_ns: u64,
}

impl VirtualClock {
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(crate) fn advance<'a>(&mut self, present: impl Iterator<Item = &'a Container>) {
        if let Some(least_ns) = present.map(|container| container.virtual_ns).min() {
            self.now_ns = self.now_ns.max(least_ns);
        }
    }

    /// Lets a container join those who contend. Time in which it did not want the device, or was kept away by its own
    /// limit, is no credit, but for half a lease: else a container with long leases would be put back each time that it
    /// wakes.
    pub(crate) fn admit(&self, container: &mut Container) {
        let credit_ns = container.weighted_ns(container.expected_lease_ns / 2);
        container.virtual_ns = container.virtual_ns.max(self.now_ns.saturating_sub(credit_ns));
    }
}
