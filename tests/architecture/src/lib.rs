//! Which code may know which, as rules that a machine checks: crates among each other ([`crates`]), and layers within a
//! crate ([`layers`]). The rules themselves are in the tests.

#![forbid(unsafe_code)]

pub mod crates;
pub mod layers;
mod paths;
