//! What command lines print: tables, colours, and amounts as people read them.

#![forbid(unsafe_code)]

pub mod human;
pub mod look;
pub mod points;
pub mod table;
