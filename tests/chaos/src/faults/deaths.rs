//! Processes of a node that are killed at random moments.

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::tenant::Recipe;
use crate::verdict::Stuck;
use crate::world::{STANDING, TARGET, World};

/// The manager is killed, and started again some time later.
pub(super) struct OfTheManager;

impl Fault for OfTheManager {
    fn name(&self) -> &'static str {
        "manager killed"
    }

    fn spares_the_manager(&self) -> bool {
        false
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        world.make_room(TARGET, 1)?;
        world.pause(chance.milliseconds(0..=300));
        world.manager.kill();
        // No tenant may wait for the manager, and a tenant that starts now must find its limits.
        world.start_tenant(TARGET, &Recipe::mixed());
        world.all_go_on()?;
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, chance: &mut Chance) -> Result<(), Stuck> {
        world.manager.start()?;
        // The manager is killed again soon after its start.
        world.pause(chance.milliseconds(0..=100));
        world.restart_manager()
    }
}

/// Tenants are killed one after the other, and each is replaced.
pub(super) struct OfTenants;

impl Fault for OfTenants {
    fn name(&self) -> &'static str {
        "tenants killed at any moment"
    }

    fn spares_the_manager(&self) -> bool {
        true
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        const KILLS: usize = 16;
        for _ in 0..KILLS {
            world.look_after();
            if world.tenants.is_empty() {
                break;
            }
            let tenant = world.tenants.swap_remove(chance.below(world.tenants.len()));
            let (slice, recipe) = (tenant.place.name.clone(), tenant.recipe.clone());
            drop(tenant);
            world.pause(chance.milliseconds(0..=20));
            world.start_tenant(&slice, &recipe);
            world.pause(chance.milliseconds(0..=80));
        }
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        world.all_go_on()
    }
}

/// Processes are killed while they start.
pub(super) struct AtTheStart;

impl Fault for AtTheStart {
    fn name(&self) -> &'static str {
        "processes killed at their start"
    }

    fn spares_the_manager(&self) -> bool {
        true
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        const STARTS: usize = 40;
        for _ in 0..STARTS {
            let standing = &STANDING[chance.below(STANDING.len())];
            let tenant = world.loose_tenant(standing.name, &Recipe::grasping());
            // The kill comes at any time from before the loader runs to well into the program.
            std::thread::sleep(chance.milliseconds(0..=30));
            drop(tenant);
        }
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        world.all_go_on()
    }
}

/// All processes of the node are killed at once.
pub(super) struct OfAll;

impl Fault for OfAll {
    fn name(&self) -> &'static str {
        "all killed at once"
    }

    fn spares_the_manager(&self) -> bool {
        false
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        world.pause(chance.milliseconds(0..=300));
        if chance.once_in(2) {
            world.manager.kill();
            world.tenants.clear();
        } else {
            world.tenants.clear();
            world.manager.kill();
        }
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        world.manager.start()?;
        world.start_tenants()
    }
}
