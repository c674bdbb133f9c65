//! What users of other schedulers have complained of, each as a test of what this one guarantees.
//!
//! Some of it happens between a scheduler and machines, containers or other services. There the test is about the part
//! that is decided here, and its comment says what that part guarantees.

mod capacity;
mod disruption;
mod handover;
