//! Whose turn it is.

use std::cmp::Ordering;

use crate::decisions::fair_share::entitlement::Entitlement;

/// The greatest part that a queue holds of what it is entitled to, over all resources: the less, the sooner it is its
/// turn.
#[derive(Clone, Copy, Debug)]
pub struct DominantShare {
    held: u64,
    of: u64,
}

impl DominantShare {
    /// Of a queue that holds `allocated`, by resource.
    #[must_use]
    pub fn new(allocated: &[u64], entitled: &[Entitlement]) -> Self {
        allocated.iter().zip(entitled).map(|(held, entitled)| Self::of(*held, entitled)).max().unwrap_or_default()
    }

    /// Of one resource of which a queue holds so much.
    pub(crate) fn of(held: u64, entitled: &Entitlement) -> Self {
        Self { held, of: entitled.allocatable() }
    }

    /// Whether it holds more than it is entitled to of some resource.
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
        // Who holds something that it is not entitled to at all comes after everybody else; nothing of nothing is
        // nothing.
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
