//! Runs rounds, with one fault in each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::chance::Chance;
use crate::faults::{self, Fault, Injected, Scale};
use crate::roster::Excuse;
use crate::verdict::{Report, Stuck, Verdict};
use crate::world::World;

/// Rounds between two measurements of shares.
const ROUNDS_PER_SHARES: u64 = 8;
/// Consecutive failures to start a world before the run gives up.
const STARTS_MAX: usize = 3;

/// The length of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// A number of rounds.
    Rounds(u64),
    /// A number of rounds for each fault.
    RoundsOfEach(u64),
    /// A time. The round in which it expires is played to its end.
    Time(Duration),
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The seed of all pseudo-random decisions.
    pub seed: u64,
    /// The length of the run.
    pub length: Length,
    /// The number of the first round. A number above 1 repeats a later part of the run with the same seed.
    pub first_round: u64,
    /// Only faults whose names contain this text are injected; empty: all faults.
    pub only: String,
    /// A tenant that waits longer than this in a call is a violation.
    pub wait_max: Duration,
    /// Number of simultaneous processes in one slice, for the fault with very many processes.
    pub processes_at_once: usize,
    /// Number of short processes in one slice in one round, for the fault with thousands of them.
    pub processes_passing: usize,
    /// Whether shares are measured in calm windows. This needs a machine with little other load.
    pub judges_shares: bool,
    /// When this is true, no further round begins.
    pub end: Arc<AtomicBool>,
}

impl Campaign {
    /// A run of `length` with all faults.
    #[must_use]
    pub fn new(seed: u64, length: Length) -> Campaign {
        Campaign {
            seed,
            length,
            first_round: 1,
            only: String::new(),
            wait_max: Duration::from_secs(60),
            processes_at_once: 900,
            processes_passing: 2000,
            judges_shares: true,
            end: Arc::default(),
        }
    }

    fn faults(&self) -> Vec<Box<dyn Fault>> {
        let scale = Scale { at_once: self.processes_at_once, passing: self.processes_passing };
        let mut faults = faults::all(scale);
        faults.retain(|fault| fault.name().contains(&self.only));
        faults
    }
}

/// The names of all faults.
#[must_use]
pub fn fault_names() -> Vec<&'static str> {
    faults::all(Scale { at_once: 0, passing: 0 }).iter().map(|fault| fault.name()).collect()
}

/// Performs the run. Violations are printed when they are found, and are in the report.
#[must_use]
pub fn run(campaign: &Campaign) -> Report {
    let verdict = Arc::new(Verdict::new(campaign.seed));
    let mut faults = campaign.faults();
    let begun = Instant::now();
    let rounds = match campaign.length {
        Length::Rounds(rounds) => rounds,
        Length::RoundsOfEach(rounds) => rounds * faults.len() as u64,
        Length::Time(_) => u64::MAX,
    };
    let mut world = None;
    for round in (campaign.first_round..).take(usize::try_from(rounds).unwrap_or(usize::MAX)) {
        let is_over = matches!(campaign.length, Length::Time(time) if begun.elapsed() >= time);
        if is_over || faults.is_empty() || campaign.end.load(Ordering::SeqCst) {
            break;
        }
        let at = order(campaign.seed, round, faults.len());
        let fault = &mut faults[at];
        verdict.begin(round, fault.name());
        let Some(at_work) = world.take().or_else(|| new_world(campaign, &verdict, round)) else { break };
        let (before, round_begun) = (verdict.violations(), Instant::now());
        let mut at_work: Box<World> = at_work;
        let mut chance = Chance::of_round(campaign.seed, round);
        if let Err(Stuck(what)) = play(fault.as_mut(), &mut at_work, &mut chance, campaign, round) {
            verdict.wrong(what);
        }
        println!("round {round}: {} ({:.1?})", fault.name(), round_begun.elapsed());
        if verdict.violations() == before {
            world = Some(at_work);
        } else {
            println!("the manager's last words: {}", at_work.manager.log());
            // New faults. Dropping the old ones ends everything that they have started.
            faults = campaign.faults();
        }
    }
    drop(world);
    verdict.report()
}

/// The index of the fault in a round. Each pass over the faults injects every fault once, in a new order.
fn order(seed: u64, round: u64, faults: usize) -> usize {
    let (pass, at) = ((round - 1) / faults as u64, (round - 1) % faults as u64);
    let mut order: Vec<usize> = (0..faults).collect();
    Chance::of_round(!seed, pass).shuffle(&mut order);
    order[at as usize]
}

fn new_world(campaign: &Campaign, verdict: &Arc<Verdict>, round: u64) -> Option<Box<World>> {
    for _ in 0..STARTS_MAX {
        match World::start(verdict, campaign.wait_max, campaign.seed ^ round) {
            Ok(world) => return Some(Box::new(world)),
            Err(Stuck(what)) => verdict.wrong(format!("a node does not begin to work: {what}")),
        }
    }
    None
}

fn play(
    fault: &mut dyn Fault,
    world: &mut World,
    chance: &mut Chance,
    campaign: &Campaign,
    round: u64,
) -> Result<(), Stuck> {
    world.roster().end_excuses();
    world.start_tenants()?;
    for (slice, excuse) in fault.excuses() {
        world.roster().excuse(slice, excuse);
    }
    world.churn.judge(fault.spares_the_manager());
    world.churn.go_on();
    match fault.inject(world, chance)? {
        Injected::NotHere(why) => world.verdict.skip(fault.name(), why),
        Injected::Done => world.pause(chance.milliseconds(100..=1000)),
    }
    fault.heal(world, chance)?;
    world.see_to_a_manager()?;
    for (slice, _) in fault.excuses() {
        world.roster().excuse(slice, Excuse::default());
    }
    world.all_go_on()?;
    world.rest(chance)?;
    if campaign.judges_shares && round.is_multiple_of(ROUNDS_PER_SHARES) {
        world.start_tenants()?;
        world.judge_shares()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_fault_comes_once_in_each_pass() {
        for seed in 0..20 {
            for pass in 0..3 {
                let faults: BTreeSet<usize> = (1..=23).map(|round| order(seed, pass * 23 + round, 23)).collect();
                assert_eq!(faults.len(), 23);
            }
        }
    }

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = fault_names().into_iter().collect();
        assert_eq!(names.len(), fault_names().len());
    }
}
