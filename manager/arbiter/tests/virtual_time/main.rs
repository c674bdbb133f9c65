//! The arbiter controls simulated devices in virtual time; each run is reproducible from its seed.

mod alone;
mod chance;
mod collectives;
mod hostile;
mod hosts;
mod latency;
mod process;
mod random;
mod shares;
mod starvation;
mod world;
