//! The scheduler against an API server, by HTTP.

mod absent;
mod both_drivers;
mod chaos;
mod claims;
mod elastic_gpus;
mod extended_resources;
mod extender;
mod extender_tls;
mod faults;
mod figures;
mod kit;
mod kubectl;
mod objects;
mod other_drivers;
mod owners;
mod peers;
mod pod_groups;
mod readiness;
mod remembered;
mod reports;
mod rights;
mod scheduling;
mod suspension;
mod telemetry;
mod webhook;
