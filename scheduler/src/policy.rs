//! Policies by name.

use aliquot_scheduler_core::placement::{
    BestFit, Binpack, DotProduct, ExpectedWaste, FragmentationGradient, GpuClustering, GpuPacking, Mix, Policy, Random,
    Spread, Weights,
};
use clap::ValueEnum;

/// A placement policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// The placement that makes the least unusable for the expected work.
    #[default]
    Default,
    /// Fragmentation gradient descent, as published.
    Fgd,
    /// Best fit, as published with FGD.
    BestFit,
    /// The dot product of vector packing, as published with FGD.
    DotProduct,
    /// Devices in use first, as published with FGD.
    GpuPacking,
    /// Tasks of a sort together, as published with FGD.
    GpuClustering,
    /// The fullest node.
    Binpack,
    /// The emptiest node.
    Spread,
    /// Any node.
    Random,
}

impl PolicyName {
    /// Reads the name of a policy, such as `best-fit`.
    ///
    /// # Errors
    /// A sentence that says what it must be.
    pub fn named(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| {
            let names = Self::value_variants().iter().filter_map(Self::to_possible_value);
            let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
            format!("it must be one of {}", names.join(", "))
        })
    }

    /// The policy, for a mix of expected tasks. Only [`PolicyName::Random`] has a use for the seed.
    #[must_use]
    pub fn make(self, mix: &Mix, seed: u64) -> Box<dyn Policy> {
        match self {
            Self::Default => Box::new(ExpectedWaste::new(mix, Weights::default())),
            Self::Fgd => Box::new(FragmentationGradient::new(mix)),
            Self::BestFit => Box::new(BestFit),
            Self::DotProduct => Box::new(DotProduct),
            Self::GpuPacking => Box::new(GpuPacking),
            Self::GpuClustering => Box::new(GpuClustering),
            Self::Binpack => Box::new(Binpack),
            Self::Spread => Box::new(Spread),
            Self::Random => Box::new(Random::new(seed)),
        }
    }
}
