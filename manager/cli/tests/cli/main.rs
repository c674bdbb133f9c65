//! The built `aliquot`, as a person or a script uses it.

mod demo;
mod doctor;
mod errors;
mod help;
mod run;
mod support;
mod usage;
