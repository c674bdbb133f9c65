//! Full file systems.

use std::fs;
use std::path::PathBuf;

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::manager::Start;
use crate::tenant::Recipe;
use crate::verdict::Stuck;
use crate::world::{TARGET, World};

pub(super) struct FullDisk {
    name: &'static str,
    /// Index in `World::mounts`.
    mount: usize,
    ballast: Option<PathBuf>,
}

impl FullDisk {
    /// The file system of the regions.
    pub(super) fn of_regions() -> FullDisk {
        FullDisk { name: "runtime directory full", mount: 0, ballast: None }
    }

    /// The file system of the checkpoint.
    pub(super) fn of_state() -> FullDisk {
        FullDisk { name: "state directory full", mount: 1, ballast: None }
    }
}

impl Fault for FullDisk {
    fn name(&self) -> &'static str {
        self.name
    }

    fn spares_the_manager(&self) -> bool {
        false
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        let Some(mounts) = &world.mounts else {
            return Ok(Injected::NotHere("this user cannot mount a file system".into()));
        };
        world.make_room(TARGET, 1)?;
        let filled = mounts[self.mount].fill();
        self.ballast = Some(filled.map_err(|error| Stuck(format!("the file system cannot be filled: {error}")))?);
        // Existing slices must keep working, also for new processes.
        world.start_tenant(TARGET, &Recipe::mixed());
        world.all_go_on()?;
        if chance.once_in(2) {
            world.manager.kill();
            world.try_manager(&Start::default())?;
            world.all_go_on()?;
        }
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        if let Some(ballast) = self.ballast.take() {
            fs::remove_file(&ballast)
                .map_err(|error| Stuck(format!("{} cannot be removed: {error}", ballast.display())))?;
        }
        world.see_to_a_manager()
    }
}
