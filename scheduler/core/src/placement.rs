//! Where a claim should go.
//!
//! An [`Engine`] asks a [`Policy`] for a bid on each node that fits ([`fits`]) and takes the least; among equal bids the node that was added
//! first. Bids are kept per class of request and made anew only where something has changed, so a decision costs what has changed and
//! not what there is.

mod best_fit;
mod clustering;
mod devices;
mod dot_product;
mod engine;
mod expected_waste;
mod fgd;
mod filter;
mod fixed_point;
mod fragmentation;
mod gpu_packing;
mod hosts;
mod index;
mod kinds;
mod least_free;
mod mix;
mod packing_prices;
mod policy;
mod random;
mod scarcity;
mod sigmoid;
mod waste;

pub use best_fit::BestFit;
pub use clustering::GpuClustering;
pub use dot_product::DotProduct;
pub use engine::{Engine, Placement};
pub use expected_waste::{ExpectedWaste, Weights};
pub use fgd::FragmentationGradient;
pub use filter::{Misfit, fits};
pub use fragmentation::Fragmentation;
pub use gpu_packing::GpuPacking;
pub use hosts::HostPrice;
pub use least_free::{Binpack, Spread};
pub use mix::Mix;
pub use policy::{Bid, Choice, NodeChange, Policy, Selection};
pub use random::Random;
