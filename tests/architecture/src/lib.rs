//! Checks imports: between the crates of the workspace ([`crates`]), and between the layers of one crate ([`layers`]).
//! The rules themselves are in `tests/rules.rs`.

#![forbid(unsafe_code)]

pub mod crates;
pub mod layers;
mod paths;
