//! Processes of a node that are stopped for a while with SIGSTOP.

use rustix::process::Signal;

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::roster::Excuse;
use crate::verdict::Stuck;
use crate::world::World;

/// The manager is stopped: its process exists, but does not react to tenants.
pub(super) struct OfTheManager;

impl Fault for OfTheManager {
    fn name(&self) -> &'static str {
        "manager stopped for a while"
    }

    fn spares_the_manager(&self) -> bool {
        false
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        world.manager.signal(Signal::STOP);
        world.pause(chance.milliseconds(0..=3000));
        world.all_go_on()?;
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        world.manager.signal(Signal::CONT);
        world.until("the manager answers again", |world| {
            Ok(world.manager.client().and_then(|mut client| client.node().ok()))
        })?;
        world.all_go_on()
    }
}

/// Some tenants are stopped at any point: in a launch, with work on the device, or between a reservation and the
/// driver's answer.
#[derive(Default)]
pub(super) struct OfTenants {
    stopped: Vec<u32>,
}

impl Fault for OfTenants {
    fn name(&self) -> &'static str {
        "tenants stopped for a while"
    }

    fn spares_the_manager(&self) -> bool {
        true
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        self.stopped = world.tenants.iter().filter(|_| chance.once_in(2)).map(|tenant| tenant.pid()).collect();
        // A simulated device, unlike a real one, never finishes the work of a stopped process. The slice pays for that
        // work, so the other processes of the slice may wait.
        for tenant in world.tenants.iter().filter(|tenant| self.stopped.contains(&tenant.pid())) {
            world.roster().excuse(&tenant.place.name, Excuse { waits: true, ..Excuse::default() });
        }
        for &pid in &self.stopped {
            world.set_stopped(pid, true);
        }
        // No other slice may wait for the stopped processes.
        world.all_go_on()?;
        world.pause(chance.milliseconds(0..=2000));
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        for pid in self.stopped.drain(..) {
            world.set_stopped(pid, false);
        }
        world.roster().end_excuses();
        world.all_go_on()
    }
}
