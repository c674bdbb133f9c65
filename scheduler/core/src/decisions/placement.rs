//! Decides where a claim should be placed.
//!
//! An [`Engine`] asks a [`Policy`] for a bid on each node that fits ([`fits`]) and takes the least bid. Of equal bids,
//! it takes the node that was added first. Bids are kept for each class of request and computed anew only where
//! something has changed, so the cost of a decision depends on what has changed and not on the size of the cluster.

mod candidates;
mod class_bids;
mod devices;
mod engine;
mod filter;
mod fitting;
mod fragmentation;
mod index;
mod kinds;
mod members;
mod misfit;
mod misses;
mod node_table;
mod peer_wishes;
mod policies;
mod policy;
mod rank;
mod room;
mod several;

pub use crate::state::mix_counter::MixCounter;
pub use crate::vocabulary::dump::DumpedMixCounter;
pub use crate::vocabulary::mix::Mix;
pub use candidates::Roomy;
pub(crate) use devices::tightest;
pub use engine::{Engine, Placement};
pub use filter::fits;
pub(crate) use filter::has_room;
pub(crate) use fitting::{fitting_devices, fitting_for};
pub use fragmentation::Fragmentation;
pub use members::{GroupScope, MemberNodes};
pub use misfit::Misfit;
pub(crate) use misfit::admits;
pub(crate) use peer_wishes::PeerWishes;
pub use policies::{
    BestFit, Binpack, DotProduct, ExpectedWaste, FragmentationGradient, GpuClustering, GpuPacking, HostPrice, Random,
    Spread, TurnoverWeights, Weights,
};
pub use policy::{Bid, Choice, Fork, NodeChange, Policy, Selection};
pub(crate) use rank::surcharge;
pub(crate) use room::parts;
pub use room::room;
pub(crate) use several::{crowded_out, still_fits};
