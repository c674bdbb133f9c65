//! The scheduler against an API server, by HTTP.

mod claims;
mod faults;
mod figures;
mod kit;
mod objects;
mod peers;
mod rights;
mod scheduling;
