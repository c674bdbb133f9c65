//! The device plugin on the test cluster: pods that ask for GPU shares by resources.

mod containers_of_a_pod;
mod decisions;
mod dialects;
mod health;
mod identity;
mod inventory;
mod real_containers;
mod refusals;
mod relay;
mod removal;
mod reports;
mod restarts;
mod scheduler;
mod stage;
