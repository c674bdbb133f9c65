//! The built `aliquot`, used as by a person or a script.

mod cluster;
mod demo;
mod doctor;
mod errors;
mod exec;
mod help;
mod run;
mod stopped;
mod support;
mod usage;
