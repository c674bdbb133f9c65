//! The tables of functions, as data.

#[allow(clippy::wildcard_imports, reason = "the tables use all of the types")]
use aliquot_abi::{cuda::*, nvml::*};

/// A line of the driver's table.
pub(crate) struct Line {
    pub(crate) class: &'static str,
    pub(crate) symbol: &'static str,
    /// The symbol of the form with per-thread default streams.
    pub(crate) per_thread: Option<&'static str>,
    /// The name by which `cuGetProcAddress` knows it.
    pub(crate) name: &'static str,
    /// The first CUDA version whose callers get it.
    pub(crate) since: u32,
    /// Bytes of each argument.
    pub(crate) argument_bytes: Vec<usize>,
}

impl Line {
    /// The symbols of this line.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &'static str> {
        [Some(self.symbol), self.per_thread].into_iter().flatten()
    }
}

/// A line of NVML's table.
pub(crate) struct NvmlLine {
    pub(crate) class: &'static str,
    pub(crate) symbol: &'static str,
    /// Bytes of each argument.
    pub(crate) argument_bytes: Vec<usize>,
}

macro_rules! cuda_lines {
    ($($class:ident $policy:ident : $symbol:ident $(| $per_thread:ident)? = $name:ident @ $since:literal
        ($($argument:ident : $type:ty),* $(,)?);)*) => {
        /// Every line of the driver's table.
        pub(crate) fn cuda() -> Vec<Line> {
            vec![$(Line {
                class: stringify!($class),
                symbol: stringify!($symbol),
                per_thread: [$(stringify!($per_thread))?].first().copied(),
                name: stringify!($name),
                since: $since,
                argument_bytes: vec![$(size_of::<$type>()),*],
            }),*]
        }
    };
}

macro_rules! nvml_lines {
    ($($class:ident $policy:ident : $symbol:ident ($($argument:ident : $type:ty),* $(,)?);)*) => {
        /// Every line of NVML's table.
        pub(crate) fn nvml() -> Vec<NvmlLine> {
            vec![$(NvmlLine {
                class: stringify!($class),
                symbol: stringify!($symbol),
                argument_bytes: vec![$(size_of::<$type>()),*],
            }),*]
        }
    };
}

aliquot_abi::cuda_api!(cuda_lines);
aliquot_abi::nvml_api!(nvml_lines);
