//! What queues are entitled to, as a function of amounts. Nothing here knows nodes or claims.
//!
//! [`divide`] divides one resource among siblings. [`entitlements`] does so for a tree of queues and all resources. A
//! scheduler then rounds unusable parts of shares to whole claims. [`DominantShare`] orders queues by the part of their
//! entitlement that they hold. [`DecayedUsage`](crate::DecayedUsage) remembers what they have used.

mod divide;
mod dominant_share;
mod entitlement;
mod hand_out;
mod whole_units;

pub use divide::{Demand, divide};
pub use dominant_share::DominantShare;
pub use entitlement::{Entitlement, QueueDemand, entitlements};
pub(crate) use whole_units::{RoundedQueue, RoundedUnit, round_up};
