//! The faults, one kind in each file.

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

/// The result of an injection.
pub(crate) enum Injected {
    Done,
    /// This machine lacks something that the fault needs.
    NotHere(String),
}

/// A fault of a node. `observer` has the checks that hold throughout, and `rest` those that hold afterwards. A fault
/// has only its own checks.
pub(crate) trait Fault {
    /// The fault's name in the table.
    fn name(&self) -> &'static str;

    /// Whether the manager must still fulfil every request during the fault.
    fn spares_the_manager(&self) -> bool;

    /// The slices that the fault may affect. All other slices must be unaffected.
    fn excuses(&self) -> Vec<(&'static str, Excuse)> {
        Vec::new()
    }

    /// Injects the fault, while all tenants are at work.
    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck>;

    /// Repairs the node as an administrator would.
    fn heal(&mut self, world: &mut World, chance: &mut Chance) -> Result<(), Stuck>;
}

/// The number of processes in the faults with many processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scale {
    /// Simultaneous processes of one slice.
    pub(crate) at_once: usize,
    /// Short processes of one slice.
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
