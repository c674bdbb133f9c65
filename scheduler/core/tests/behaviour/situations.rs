//! Situations that schedulers are known for: what is allocated, taken back, displaced and moved, and what is left
//! alone.

mod allocate;
mod alternatives;
mod consolidate;
mod elastic;
mod evictions_refused;
mod guarantees;
mod indivisible;
mod mixed_gangs;
mod models;
mod one_plan;
mod own_and_others;
mod peers;
mod preempt;
mod reclaim;
mod refused;
mod stale_gangs;
mod starting;
mod undecided;
mod unfit;
mod withdrawn;
