//! Decides which container is next: by class, then by weighted fair queueing in virtual time.
//!
//! Each container has a virtual clock that advances by its charges over its weight. Of the containers that want the
//! device, the one furthest behind is next. Containers are compared by their virtual time in the middle of the lease
//! that they would get. So after a lease a container with long kernels is as far ahead of its share as it was behind
//! before, and it is never off by more than half a kernel.

use crate::container::{Container, ContainerId};
use crate::gang::Precedence;

/// A container that contends for the next lease. The least contender wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Contender {
    pub(crate) class: Class,
    pub(crate) precedence: Precedence,
    /// Virtual time in the middle of the lease.
    pub(crate) middle_ns: u64,
    pub(crate) container: ContainerId,
}

/// The part of a contender that is compared before virtual time; the lesser goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Class {
    beyond_request: bool,
    rank: i64,
}

/// A container's class. If all contending containers have the same priority, all are in one class, because virtual time
/// alone is fairer.
pub(crate) fn class(container: &Container, same_priority: bool) -> Class {
    if same_priority {
        return Class { beyond_request: false, rank: 0 };
    }
    Class { beyond_request: container.guarantee.in_debt(), rank: -i64::from(container.share.priority) }
}

/// A container that holds no lease, as a contender.
pub(crate) fn contender(container: &Container, same_priority: bool) -> Contender {
    Contender { precedence: container.precedence, ..contender_by_time(container, same_priority) }
}

/// The same contender without the precedence of summoned containers.
pub(crate) fn contender_by_time(container: &Container, same_priority: bool) -> Contender {
    let half_ns = container.weighted_ns(container.expected_lease_ns / 2);
    Contender {
        class: class(container, same_priority),
        precedence: Precedence::None,
        middle_ns: container.virtual_ns.saturating_add(half_ns),
        container: container.id,
    }
}

/// The holder as a contender for another quantum of `quantum_ns`. Its work in flight counts too, because the holder
/// pays for it in any case.
pub(crate) fn renewal(holder: &Container, quantum_ns: u64, same_priority: bool) -> Contender {
    let ahead_ns = holder.weighted_ns(holder.expected_drain_ns.saturating_add(quantum_ns / 2));
    Contender {
        class: class(holder, same_priority),
        precedence: holder.precedence,
        middle_ns: holder.virtual_ns.saturating_add(ahead_ns),
        container: holder.id,
    }
}

/// The virtual time of the device: that of the container furthest behind among the containers that use or want it. It
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

    /// Lets a container join the contenders. Time in which it did not want the device, or was kept away by its own
    /// limit, gives no credit beyond half a lease. Without that half, a container with long leases would be set back
    /// each time it wakes.
    pub(crate) fn admit(&self, container: &mut Container) {
        let credit_ns = container.weighted_ns(container.expected_lease_ns / 2);
        container.virtual_ns = container.virtual_ns.max(self.now_ns.saturating_sub(credit_ns));
    }
}
