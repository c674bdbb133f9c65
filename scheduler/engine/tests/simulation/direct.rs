//! A wire that changes nothing.

use aliquot_scheduler_engine::{Command, Observation};

use super::world::Wire;

pub(crate) struct Direct;

impl Wire for Direct {
    fn carry_to_node(&mut self, _now_ms: u64, command: Command) -> Command {
        command
    }

    fn carry_to_engine(&mut self, observation: Observation) -> Option<Observation> {
        Some(observation)
    }
}
