//! The vocabulary: values that describe requests, specifications, events, errors and dumps. No value knows a cluster.

pub(crate) mod allowance;
pub(crate) mod amount;
pub(crate) mod chunks;
pub(crate) mod claim;
pub(crate) mod counted;
pub(crate) mod device_request;
pub(crate) mod disruption_budget;
pub(crate) mod dump;
pub(crate) mod event;
pub(crate) mod mix;
pub(crate) mod namespace;
pub(crate) mod node_term;
pub(crate) mod not_enough;
pub(crate) mod peers;
pub(crate) mod pod_group;
pub(crate) mod priority;
pub(crate) mod protection;
pub(crate) mod quantity;
pub(crate) mod queue_spec;
pub(crate) mod request;
pub(crate) mod resource;
pub(crate) mod share;
pub(crate) mod slab;
pub(crate) mod spec;
pub(crate) mod step;
pub(crate) mod taint;
