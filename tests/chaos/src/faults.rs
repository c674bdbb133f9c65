//! What goes wrong, one kind in each file.

use crate::chance::Chance;
use crate::roster::Excuse;
use crate::verdict::Stuck;
use crate::world::World;

mod clocks;
mod crowd;
mod damaged_ledger;
mod deaths;
mod full_disk;
mod junk_messages;
mod lost_checkpoint;
mod lost_region;
mod no_descriptors;
mod no_processes;
mod stops;
mod stranger;

/// What an injection came to.
pub(crate) enum Injected {
    Done,
    /// It needs what this machine has not.
    NotHere(String),
}

/// Something that goes wrong with a node. What must hold all the while is the observer's, and what must be so afterwards
/// the rest's; a fault judges only what belongs to it.
pub(crate) trait Fault {
    /// Its name in the table.
    fn name(&self) -> &'static str;

    /// Whether the manager has to do whatever it is asked for meanwhile.
    fn spares_the_manager(&self) -> bool;

    /// The slices in which something may go wrong meanwhile. Others are not to be touched.
    fn excuses(&self) -> Vec<(&'static str, Excuse)> {
        Vec::new()
    }

    /// Lets it go wrong. All tenants are at work.
    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck>;

    /// Puts it right, as an administrator does.
    fn heal(&mut self, world: &mut World, chance: &mut Chance) -> Result<(), Stuck>;
}

/// How much of what comes in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scale {
    /// Processes of one slice that are there at once.
    pub(crate) at_once: usize,
    /// Processes of one slice that come and go.
    pub(crate) passing: usize,
}

/// All faults.
pub(crate) fn all(scale: Scale) -> Vec<Box<dyn Fault>> {
    let mut faults: Vec<Box<dyn Fault>> = vec![
        Box::new(deaths::OfTheManager),
        Box::new(deaths::OfTenants),
        Box::new(deaths::AtTheStart),
        Box::new(deaths::OfAll),
        Box::new(stops::OfTheManager),
        Box::new(stops::OfTenants::default()),
        Box::new(full_disk::FullDisk::of_regions()),
        Box::new(full_disk::FullDisk::of_state()),
        Box::new(no_descriptors::OfTheManager::default()),
        Box::new(no_descriptors::OfTenants),
        Box::new(no_processes::NoProcesses::default()),
        Box::new(lost_region::LostRegion),
        Box::new(crowd::AtOnce::of(scale.at_once)),
        Box::new(crowd::Passing::of(scale.passing)),
        Box::new(stranger::Stranger::default()),
        Box::new(junk_messages::JunkMessages::default()),
        Box::new(clocks::OfTenants),
        Box::new(clocks::OfTheManager),
    ];
    faults.extend(damaged_ledger::Damage::ALL.map(|damage| Box::new(damage) as Box<dyn Fault>));
    faults.extend(lost_checkpoint::Loss::ALL.map(|loss| Box::new(loss) as Box<dyn Fault>));
    faults
}
