//! The measure that decides which queue's turn it is.

use std::cmp::Ordering;

use crate::decisions::fair_share::entitlement::Entitlement;

/// The greatest part of its entitlement that a queue holds, over all resources: max(held / entitled). The queue with
/// the least goes first.
#[derive(Clone, Copy, Debug)]
pub struct DominantShare {
    held: u64,
    of: u64,
}

impl DominantShare {
    /// The dominant share of a queue that holds `allocated`, by resource.
    #[must_use]
    pub fn new(allocated: &[u64], entitled: &[Entitlement]) -> Self {
        allocated.iter().zip(entitled).map(|(held, entitled)| Self::of(*held, entitled)).max().unwrap_or_default()
    }

    /// The share of one resource of which a queue holds this much.
    pub(crate) fn of(held: u64, entitled: &Entitlement) -> Self {
        Self { held, of: entitled.allocatable() }
    }

    /// Whether the queue holds more of some resource than it is entitled to.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.held > self.of
    }
}

impl Default for DominantShare {
    fn default() -> Self {
        Self { held: 0, of: 1 }
    }
}

impl Ord for DominantShare {
    fn cmp(&self, other: &Self) -> Ordering {
        // A queue that holds something without any entitlement comes after all other queues. 0 / 0 counts as 0.
        let unentitled = |share: &Self| share.of == 0 && share.held > 0;
        match (unentitled(self), unentitled(other)) {
            (true, true) => self.held.cmp(&other.held),
            (false, false) => {
                let product = |held: u64, of: u64| u128::from(held) * u128::from(of.max(1));
                product(self.held, other.of).cmp(&product(other.held, self.of))
            }
            (one, another) => one.cmp(&another),
        }
    }
}

impl PartialOrd for DominantShare {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for DominantShare {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for DominantShare {}
