//! The manager seen by its users: over its socket, with processes in its slices, with and without failures.

mod any_words;
mod at_once;
mod bad_days;
mod clients;
mod configuration;
mod damage;
mod descriptors;
mod events;
mod killed;
mod lost_files;
mod metrics;
mod node;
mod owners;
mod processes;
mod restarts;
mod slices;
mod tenant;
