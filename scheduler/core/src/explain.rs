//! Why something waits, what would change that, and why it was evicted.

mod amount;
mod pending;
mod reason;
mod shortage;

pub(crate) use amount::Amount;
pub use reason::{Bound, Holder, Protection, Reason, Share, Tier};
pub use shortage::{Exclusion, NodeCount, Shortage};
