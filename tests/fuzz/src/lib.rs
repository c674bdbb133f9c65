//! Fuzz targets for all our code outside the shim that reads bytes from other programs.
//!
//! A [target](targets) takes any bytes, and panics if the result of reading them breaks an invariant. `cargo test` runs
//! each target with its corpus and with mutations of it ([`mutator`]); `cargo fuzz` searches further, guided by
//! coverage: see README.md.

pub mod mutator;
pub mod targets;
