//! Clocks that are wrong or jump. The machine's own clock is not changed: tenants get time namespaces, or a preloaded
//! library that returns wrong times.

use std::fs;
use std::path::Path;

use aliquot_harness::{HostProgram, tool};

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::manager::Start;
use crate::verdict::Stuck;
use crate::world::{STANDING, World};

/// Tenants whose clocks are ahead, are behind, or jump at each reading.
pub(super) struct OfTenants;

impl Fault for OfTenants {
    fn name(&self) -> &'static str {
        "clocks of tenants wrong and jumping"
    }

    fn spares_the_manager(&self) -> bool {
        true
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        let jumping = HostProgram::library("jumping_clock").path().to_owned();
        for standing in &STANDING {
            world.end_tenants_of(standing.name);
            for mut recipe in (standing.tenants)() {
                match chance.below(3) {
                    0 => recipe.preloaded.push(jumping.clone()),
                    1 => recipe.wrapper.extend(with_clock(chance.below(1_000_000) as i64)),
                    // The kernel allows no offset that would put the clock before the machine's start.
                    _ => recipe.wrapper.extend(with_clock(-(chance.below(uptime_seconds().max(1)) as i64))),
                }
                world.start_tenant(standing.name, &recipe);
            }
        }
        world.all_go_on()?;
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        world.tenants.clear();
        world.start_tenants()
    }
}

/// The command prefix that runs a program with its monotonic clock ahead by `seconds`. Empty if the kernel has no time
/// namespaces or this user is not root.
fn with_clock(seconds: i64) -> Vec<std::ffi::OsString> {
    if !Path::new("/proc/self/ns/time").exists() || !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let clocks = [format!("--monotonic={seconds}"), format!("--boottime={seconds}")].map(Into::into);
    let unshare = [tool("unshare", "util-linux").into(), "--time".into(), "--fork".into()];
    unshare.into_iter().chain(clocks).collect()
}

fn uptime_seconds() -> usize {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    // Whole seconds, minus one to be safe.
    uptime.split('.').next().and_then(|seconds| seconds.parse::<usize>().ok()).unwrap_or(0).saturating_sub(1)
}

/// The manager's wall clock jumps, as when an administrator sets the machine's clock.
pub(super) struct OfTheManager;

impl Fault for OfTheManager {
    fn name(&self) -> &'static str {
        "wall clock of the manager jumping"
    }

    fn spares_the_manager(&self) -> bool {
        false
    }

    fn inject(&mut self, world: &mut World, _: &mut Chance) -> Result<Injected, Stuck> {
        let jumping = HostProgram::library("jumping_clock").path().to_owned();
        world.manager.kill();
        let environment = vec![("LD_PRELOAD", jumping.into()), ("JUMPING_CLOCK", "wall".into())];
        let started = world.manager.try_start(&Start { environment, ..Start::default() })?;
        if let Err(said) = started {
            return Err(Stuck(format!("the manager does not start with a clock that jumps: {said}")));
        }
        world.all_go_on()?;
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        world.restart_manager()
    }
}
