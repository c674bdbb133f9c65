//! The output of command lines: tables, colours, and amounts in a form for people.

#![forbid(unsafe_code)]

pub mod human;
pub mod look;
pub mod number;
pub mod points;
pub mod queue_resources;
pub mod table;
