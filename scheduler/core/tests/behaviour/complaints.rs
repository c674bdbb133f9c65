//! Complaints of users about other schedulers, each as a test of what this scheduler guarantees.
//!
//! Some complaints are about what happens between a scheduler and machines, containers or other services. Then the test
//! is about the part that is decided here, and its comment says what that part guarantees.

mod capacity;
mod disruption;
mod handover;
