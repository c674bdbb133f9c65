//! The directory of a region is removed while its tenants run.

use std::fs;

use aliquot_abi::region::LIMITS_FILE;
use aliquot_harness::delete_at_once;

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::roster::Excuse;
use crate::verdict::Stuck;
use crate::world::{TARGET, World};

pub(super) struct LostRegion;

impl Fault for LostRegion {
    fn name(&self) -> &'static str {
        "region's directory deleted"
    }

    fn spares_the_manager(&self) -> bool {
        false
    }

    fn excuses(&self) -> Vec<(&'static str, Excuse)> {
        // Limits are judged: tenants that have mapped the region stay limited.
        vec![(TARGET, Excuse::TENANTS)]
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        let mut region = world.places[TARGET].region.clone();
        // Removes the region's directory, or in half of the cases its parent directory as well.
        if chance.once_in(2) {
            region.pop();
        }
        delete_at_once(&region);
        world.go_on(|slice| slice != TARGET)?;
        if chance.once_in(2) {
            world.restart_manager()?;
            world.go_on(|slice| slice != TARGET)?;
        }
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        let region = world.places[TARGET].region.clone();
        let told = world.until("a region that is gone is told of or made anew", |world| {
            // A manager that starts makes the region anew if no process uses the deleted one: tenants that have only
            // just begun may have ended without it.
            let is_made_anew = fs::metadata(region.join(LIMITS_FILE)).is_ok_and(|limits| limits.len() > 0);
            Ok((is_made_anew || !world.problem_of(TARGET)?.is_empty()).then_some(()))
        });
        if let Err(Stuck(what)) = told {
            world.verdict.wrong(what);
        }
        world.replace_target()
    }
}
