//! The device plugin beside the test cluster: pods that ask by resources.

mod containers_of_a_pod;
mod dialects;
mod health;
mod identity;
mod real_containers;
mod refusals;
mod restarts;
mod stage;
