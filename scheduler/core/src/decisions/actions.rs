//! The actions for units that do not fit into free room: other claims are moved or evicted.
//!
//! *Consolidate* moves claims so that free room comes together in one place. *Reclaim* takes back from queues above
//! their fair share. *Preempt* takes from units of lower priority in the same queue, and together with these also
//! what reclaim may take. In all cases the same set of entitled units
//! ([`Entitled`](crate::decisions::entitled::Entitled)) decides which units may be taken, so actions never go round in
//! circles.

mod best_set;
mod bounds;
mod consolidate;
mod context;
mod evict;
mod evicting;
mod finder;
mod frontier;
mod givers;
mod least_disruption;
mod leeway;
mod memory;
mod pass;
mod preempt;
mod protection;
mod reclaim;
mod relieve;
mod search;
mod selection;
mod stale;
mod takes;
mod victims;
mod waiting;

pub(crate) use context::Context;
pub(crate) use memory::{SearchMemory, Unfinished};
pub(crate) use pass::{actions, make_way, pass};
pub(crate) use protection::MinRuntime;
pub(crate) use relieve::relieve;
pub(crate) use stale::evict_stale;
pub(crate) use waiting::{Waiting, fails_to_start};
