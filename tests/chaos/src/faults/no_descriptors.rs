//! Processes that run out of file descriptors.

use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;

use aliquot_harness::tool;

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::manager::Start;
use crate::roster::Excuse;
use crate::tenant::{Recipe, Tenant};
use crate::verdict::Stuck;
use crate::world::{TARGET, World};

/// The command prefix that limits a program to `count` descriptors.
fn with_descriptors(count: usize) -> Vec<std::ffi::OsString> {
    vec![tool("prlimit", "util-linux").into(), format!("--nofile={count}:{count}").into()]
}

/// The manager gets barely enough descriptors to start, and then more clients and processes connect to it.
#[derive(Default)]
pub(super) struct OfTheManager {
    clients: Vec<UnixStream>,
    tenants: Vec<Tenant>,
}

impl Fault for OfTheManager {
    fn name(&self) -> &'static str {
        "manager without descriptors"
    }

    fn spares_the_manager(&self) -> bool {
        false
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        const CLIENTS: usize = 60;
        const TENANTS: usize = 20;
        world.make_room(TARGET, TENANTS)?;
        let has = world.manager.id().map_or(0, crate::rest::descriptors);
        world.manager.kill();
        let start = Start { wrapper: with_descriptors(has + chance.below(12)), ..Start::default() };
        if !world.try_manager(&start)? {
            return Ok(Injected::Done);
        }
        self.clients = (0..CLIENTS).filter_map(|_| UnixStream::connect(world.manager.socket()).ok()).collect();
        self.tenants = (0..TENANTS).map(|_| world.loose_tenant(TARGET, &Recipe::mixed())).collect();
        world.all_go_on()?;
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        self.clients.clear();
        self.tenants.clear();
        world.look_after();
        if world.manager.is_running() {
            // The manager must recover without a restart.
            world.until("the manager answers once it has descriptors again", |world| {
                Ok(world.manager.client().and_then(|mut client| client.node().ok()))
            })?;
        }
        world.restart_manager()
    }
}

/// Tenants with so few descriptors that the shim cannot open the region, the attach socket, or any file at all.
pub(super) struct OfTenants;

impl Fault for OfTenants {
    fn name(&self) -> &'static str {
        "tenants without descriptors"
    }

    fn spares_the_manager(&self) -> bool {
        true
    }

    fn excuses(&self) -> Vec<(&'static str, Excuse)> {
        // Calls fail where the driver itself cannot open a file. Limits must hold.
        vec![(TARGET, Excuse::TENANTS)]
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        const DESCRIPTORS: RangeInclusive<usize> = 4..=20;
        world.make_room(TARGET, DESCRIPTORS.count())?;
        for count in DESCRIPTORS {
            let mut recipe = if chance.once_in(2) { Recipe::grasping() } else { Recipe::mixed() };
            recipe.wrapper = with_descriptors(count);
            recipe.is_judged = false;
            world.start_tenant(TARGET, &recipe);
        }
        world.pause(chance.milliseconds(500..=1500));
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        world.tenants.retain(|tenant| tenant.recipe.is_judged);
        world.go_on(|slice| slice != TARGET)
    }
}
