//! A malicious other user of the machine.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::Command;

use aliquot_harness::{HostProgram, Process, copy_program};

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::verdict::Stuck;
use crate::world::World;

/// A user id that is probably not in use on the machine.
const USER: u32 = 61_973;

#[derive(Default)]
pub(super) struct Stranger {
    process: Option<Process>,
}

impl Fault for Stranger {
    fn name(&self) -> &'static str {
        "hostile neighbour of another user"
    }

    fn spares_the_manager(&self) -> bool {
        true
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Injected::NotHere("only root can become another user".into()));
        }
        // A copy in a directory that the other user can reach.
        let program = world.path().join("stranger");
        if !program.exists() {
            copy_program(HostProgram::new("stranger").path(), &program);
        }
        let mut command = Command::new(&program);
        command.arg(world.path()).args(world.manager.id().map(|pid| pid.to_string()));
        command.args(world.tenants.iter().map(|tenant| tenant.pid().to_string()));
        let process = Process::start(command.current_dir("/").uid(USER).gid(USER));
        let process = self.process.insert(process);
        world.until("the stranger has gone through all", |_| {
            if process.has_ended() {
                return Err(Stuck(format!("the stranger has ended: {}", process.errors())));
            }
            Ok(process.output().contains("gone through all").then_some(()))
        })?;
        world.pause(chance.milliseconds(500..=1500));
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        let Some(process) = self.process.take() else { return Ok(()) };
        let said = process.output();
        drop(process);
        // The program prints the same for each of its rounds and each slice, so duplicates are removed.
        let done = said.lines().filter(|line| !line.starts_with("gone through")).map(|line| {
            let (what, path) = line.rsplit_once(' ').unwrap_or((line, ""));
            format!("{what} {}", path.rsplit_once('/').map_or(path, |(_, name)| name))
        });
        for done in done.collect::<BTreeSet<_>>() {
            world.verdict.wrong(format!("another user {done}"));
        }
        world.all_go_on()
    }
}
