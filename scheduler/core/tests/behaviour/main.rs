//! The scheduler as a whole: in situations that are known to go wrong elsewhere, and in worlds where anything may
//! happen.

mod complaints;
mod kit;
mod laws;
mod machines;
mod peers;
mod random;
mod situations;
mod world;
