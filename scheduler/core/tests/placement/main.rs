//! Placement: engine, policies, devices, topology, and how near to the optimum it comes.

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
