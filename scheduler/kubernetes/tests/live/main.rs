//! The scheduler against an API server, by HTTP.

mod faults;
mod figures;
mod kit;
mod objects;
mod peers;
mod rights;
mod scheduling;
