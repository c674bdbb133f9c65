//! Why something waits, what would change that, and why it was evicted.

mod amount;
mod pending;
mod reason;
mod share;
mod shortage;

pub(crate) use amount::Amount;
pub use reason::{Bound, Holder, Protection, Reason, Share, Tier};
pub(crate) use share::shares_then;
pub use shortage::{Exclusion, NodeCount, Shortage};
