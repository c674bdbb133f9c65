//! What queues are entitled to, as a function of amounts: nothing here knows nodes or claims.
//!
//! [`divide`] shares one resource among siblings, [`entitlements`] does so for a tree of queues and all resources, a
//! scheduler then rounds to whole claims what nobody could use otherwise,
//! [`DominantShare`] orders queues by what they hold of it, and [`DecayedUsage`](crate::DecayedUsage) remembers what
//! they have used.

mod divide;
mod dominant_share;
mod entitlement;
mod hand_out;
mod whole_units;

pub use divide::{Demand, divide};
pub use dominant_share::DominantShare;
pub use entitlement::{Entitlement, QueueDemand, entitlements};
pub(crate) use whole_units::{RoundedQueue, round_up};
