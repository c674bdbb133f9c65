//! The checkpoint is deleted, emptied or damaged while no manager runs.

use std::fs;

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::manager::Start;
use crate::verdict::Stuck;
use crate::world::{STANDING, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loss {
    Deleted,
    Emptied,
    Spoilt,
}

impl Loss {
    pub(super) const ALL: [Loss; 3] = [Loss::Deleted, Loss::Emptied, Loss::Spoilt];
}

impl Fault for Loss {
    fn name(&self) -> &'static str {
        match self {
            Loss::Deleted => "checkpoint deleted",
            Loss::Emptied => "checkpoint emptied",
            Loss::Spoilt => "checkpoint overwritten",
        }
    }

    fn spares_the_manager(&self) -> bool {
        false
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        world.manager.kill();
        let path = world.manager.checkpoint();
        let failed = |error| Stuck(format!("{} cannot be spoilt: {error}", path.display()));
        let sound = fs::read(&path).map_err(failed)?;
        match self {
            Loss::Deleted => fs::remove_file(&path),
            Loss::Emptied => fs::write(&path, ""),
            Loss::Spoilt => {
                let mut spoilt = sound.clone();
                for _ in 0..8 {
                    let at = chance.below(spoilt.len());
                    spoilt[at] = chance.number() as u8;
                }
                spoilt.truncate(spoilt.len() - chance.below(spoilt.len() / 2));
                fs::write(&path, spoilt)
            }
        }
        .map_err(failed)?;
        let outcome = world.manager.try_start(&Start::default())?;
        world.all_go_on()?;
        match outcome {
            Ok(()) => world.all_are_there()?,
            Err(said) => {
                if *self == Loss::Deleted || !said.contains(&path.display().to_string()) {
                    world.verdict.wrong(format!("the manager does not start: {said}"));
                }
                fs::write(&path, sound).map_err(failed)?;
            }
        }
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        world.see_to_a_manager()?;
        world.all_are_there()?;
        world.all_go_on()
    }
}

impl World {
    /// Checks that every standing slice exists, with its old region and without a problem.
    fn all_are_there(&mut self) -> Result<(), Stuck> {
        let slices = self.client()?.slices().map_err(|status| Stuck(status.message().to_owned()))?;
        for standing in &STANDING {
            let Some(slice) = slices.iter().find(|slice| slice.name == standing.name) else {
                return Err(Stuck(format!("slice {} is lost with the checkpoint", standing.name)));
            };
            let place = &self.places[standing.name];
            if !slice.problem.is_empty() || place.region.as_os_str() != slice.region_path.as_str() {
                return Err(Stuck(format!("slice {} is another one without its checkpoint: {slice:?}", standing.name)));
            }
        }
        Ok(())
    }
}
