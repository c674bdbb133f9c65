//! Numbers of launches, by kind.

use core::ops::Add;

/// Numbers of launches: kernels in the lower 48 bits, graphs above them. The sum and the difference of two such words
/// are such words again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Launches(pub(super) u64);

impl Launches {
    const GRAPH: u64 = 1 << 48;

    /// No launch of either kind.
    pub(super) const NONE: Launches = Launches(0);

    pub(crate) fn new(kernels: u32, graphs: u32) -> Launches {
        Launches(u64::from(kernels) + u64::from(graphs) * Launches::GRAPH)
    }

    /// One launch of that kind.
    pub(crate) fn one(is_graph: bool) -> Launches {
        Launches(if is_graph { Launches::GRAPH } else { 1 })
    }

    /// The launches after `before`. None if `before` is the greater number: threads that put markers at the same time
    /// may store their counts in another order.
    pub(super) fn since(self, before: Launches) -> Launches {
        let since = self.0.wrapping_sub(before.0);
        if since >> 63 == 0 { Launches(since) } else { Launches::NONE }
    }

    /// The launches without `later`, which are included in them.
    pub(super) fn before(self, later: Launches) -> Launches {
        Launches(self.0.wrapping_sub(later.0))
    }

    pub(super) fn kernels(self) -> u64 {
        self.0 % Launches::GRAPH
    }

    pub(super) fn graphs(self) -> u64 {
        self.0 / Launches::GRAPH
    }

    pub(crate) fn count(self) -> u64 {
        self.kernels() + self.graphs()
    }
}

impl Add for Launches {
    type Output = Launches;

    fn add(self, other: Launches) -> Launches {
        Launches(self.0.wrapping_add(other.0))
    }
}
