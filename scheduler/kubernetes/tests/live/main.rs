//! The scheduler against an API server, by HTTP.

mod faults;
mod kit;
mod rights;
mod scheduling;
