//! Situations that schedulers are known by: what is allocated, taken back, displaced and moved, and what is left alone.

mod allocate;
mod consolidate;
mod elastic;
mod preempt;
mod reclaim;
mod stale_gangs;
