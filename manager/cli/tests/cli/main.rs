//! The built `aliquot`, as a person or a script uses it.

mod demo;
mod doctor;
mod errors;
mod exec;
mod help;
mod run;
mod stopped;
mod support;
mod usage;
