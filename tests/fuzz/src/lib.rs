//! Fuzz targets: everything of ours that reads bytes which somebody else wrote, as far as it is not the shim's.
//!
//! A [target](targets) takes any bytes and panics if what is made of them breaks an invariant. `cargo test` runs each
//! with its corpus and with mutations of it ([`mutator`]); `cargo fuzz` searches further, guided by coverage: see
//! README.md.

pub mod mutator;
pub mod targets;
