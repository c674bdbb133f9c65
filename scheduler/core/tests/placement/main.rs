//! Placement: engine, policies, devices, topology, and the distance from the optimum.

mod alternatives;
mod cases;
mod constraints;
mod devices;
mod engine;
mod groups;
mod optimum;
mod packings;
mod peer_preferences;
mod preferences;
mod several;
mod topology;
