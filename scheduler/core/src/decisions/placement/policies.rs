//! The placement policies of this crate.

mod best_fit;
mod clustering;
mod dot_product;
mod expected_waste;
mod fgd;
mod gpu_packing;
mod least_free;
mod random;
mod sigmoid;

pub use best_fit::BestFit;
pub use clustering::GpuClustering;
pub use dot_product::DotProduct;
pub use expected_waste::{ExpectedWaste, HostPrice, TurnoverWeights, Weights};
pub use fgd::FragmentationGradient;
pub use gpu_packing::GpuPacking;
pub use least_free::{Binpack, Spread};
pub use random::Random;
