//! Very many processes in one slice.

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::tenant::{Recipe, Tenant};
use crate::verdict::Stuck;
use crate::world::{TARGET, World};

/// Very many simultaneous processes.
pub(super) struct AtOnce {
    count: usize,
    tenants: Vec<Tenant>,
}

impl AtOnce {
    pub(super) fn of(count: usize) -> AtOnce {
        AtOnce { count, tenants: Vec::new() }
    }
}

impl Fault for AtOnce {
    fn name(&self) -> &'static str {
        "very many processes at once"
    }

    fn spares_the_manager(&self) -> bool {
        // Hundreds of processes on a few processors: it may answer late.
        false
    }

    fn inject(&mut self, world: &mut World, _: &mut Chance) -> Result<Injected, Stuck> {
        // Together the processes ask for more memory than the slice has beside their contexts.
        let mut recipe = Recipe::new("one of many", &["bytes=33554432", "pause_us=4000000"]);
        // Each process must go on, but on a machine with few processors there is no bound on when.
        recipe.is_judged = false;
        world.make_room(TARGET, self.count)?;
        for _ in 0..self.count {
            self.tenants.push(world.loose_tenant(TARGET, &recipe));
            world.look_after();
        }
        let mut waiting = self.count;
        let outcome = world.until("each of very many processes has asked for memory", |_| {
            for tenant in &mut self.tenants {
                if tenant.end_by_itself().is_some() {
                    return Err(Stuck("one of very many processes has ended by itself".into()));
                }
            }
            waiting = self.tenants.iter().filter(|tenant| tenant.counts.read().calls < 4).count();
            Ok((waiting == 0).then_some(()))
        });
        outcome.map_err(|Stuck(what)| Stuck(format!("{what}: {waiting} of {} have not", self.count)))?;
        let failed: Vec<u64> = self
            .tenants
            .iter()
            .map(|tenant| tenant.counts.read())
            .filter(|it| it.unexpected > 0)
            .map(|it| it.last_unexpected)
            .collect();
        if !failed.is_empty() {
            world.verdict.wrong(format!(
                "of very many processes {} had calls that failed, the first with {}",
                failed.len(),
                failed[0]
            ));
        }
        world.all_go_on()?;
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        self.tenants.clear();
        world.all_go_on()
    }
}

/// Very many short processes, one after another.
pub(super) struct Passing {
    count: usize,
}

impl Passing {
    pub(super) fn of(count: usize) -> Passing {
        Passing { count }
    }
}

impl Fault for Passing {
    fn name(&self) -> &'static str {
        "thousands of short processes"
    }

    fn spares_the_manager(&self) -> bool {
        // Hundreds of processes on a few processors: it may answer late.
        false
    }

    fn inject(&mut self, world: &mut World, _: &mut Chance) -> Result<Injected, Stuck> {
        const TOGETHER: usize = 24;
        let mut running: Vec<Tenant> = Vec::new();
        let mut recipe = Recipe::short();
        // These processes end by themselves.
        recipe.is_judged = false;
        world.make_room(TARGET, TOGETHER)?;
        let (mut started, mut ended) = (0, 0);
        let outcome = world.until("all of very many short processes have ended", |world| {
            while started < self.count && running.len() < TOGETHER {
                running.push(world.loose_tenant(TARGET, &recipe));
                started += 1;
            }
            let mut failed = None;
            running.retain_mut(|tenant| {
                let has_ended = tenant.end_by_itself().is_some();
                if has_ended {
                    let counted = tenant.counts.read();
                    if counted.calls == 0 || counted.unexpected > 0 {
                        failed = Some(counted);
                    }
                }
                !has_ended
            });
            if let Some(counted) = failed {
                world.verdict.wrong(format!("a short process did not get through: {counted:?}"));
            }
            ended = started - running.len();
            Ok((ended == self.count).then_some(()))
        });
        outcome.map_err(|Stuck(what)| Stuck(format!("{what}: {ended} of {} have", self.count)))?;
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        world.all_go_on()
    }
}
