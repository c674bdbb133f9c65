//! The scheduler against an API server, by HTTP.

mod faults;
mod kit;
mod objects;
mod rights;
mod scheduling;
