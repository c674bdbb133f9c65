//! Checks that nothing of the tenants is left when all have ended: no byte in a ledger, no process, no file, nothing in
//! the manager.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aliquot_abi::ledger;
use aliquot_abi::region::{LEDGER_FILE, LEDGER_FILE_BYTES, Ledger, owner};
use aliquot_harness::{MIB, Mapped};
use aliquot_proto::node::v1::Slice;

use crate::chance::Chance;
use crate::churn::PREFIX;
use crate::verdict::Stuck;
use crate::wait;
use crate::world::{CONTEXT_BYTES, STANDING, World};

/// Descriptors that the manager may have in addition to those at its first rest: connections that are being closed, and
/// files that its threads open for a moment.
const DESCRIPTORS_SPARE: usize = 8;
/// Memory that the manager may have in addition to that at its first rest: its allocator keeps some.
const MEMORY_SPARE_BYTES: u64 = 48 * MIB;

/// A manager's resources at its first rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline {
    manager: u32,
    descriptors: usize,
    memory_bytes: u64,
}

impl World {
    /// Ends all tenants, and waits until nothing of them is left.
    pub(crate) fn rest(&mut self, chance: &mut Chance) -> Result<(), Stuck> {
        self.see_to_a_manager()?;
        self.churn.pause();
        self.tenants.clear();
        let begun = Instant::now();
        self.remove_what_passed()?;
        for standing in &STANDING {
            self.make_room(standing.name, 0)?;
            self.nothing_is_charged(standing.name)?;
        }
        self.no_process_is_left()?;
        self.no_file_is_left()?;
        self.nobody_is_accused()?;
        self.the_manager_has_not_grown()?;
        let took = begun.elapsed();
        self.verdict.count(|effort| effort.longest_rest = effort.longest_rest.max(took));
        self.all_can_be_had(STANDING[chance.below(STANDING.len())].name)
    }

    /// Removes the slices of `churn` whose removal the manager did not live to answer. Then checks that exactly the
    /// standing slices exist, without a problem.
    fn remove_what_passed(&mut self) -> Result<(), Stuck> {
        let mut client = self.client()?;
        let slices =
            client.slices().map_err(|status| Stuck(format!("slices cannot be listed: {}", status.message())))?;
        for slice in slices.iter().filter(|slice| slice.name.starts_with(PREFIX)) {
            let removed = client.remove(&slice.name, true);
            removed.map_err(|status| Stuck(format!("slice {} cannot be removed: {}", slice.name, status.message())))?;
        }
        let is_standing = |name: &String| STANDING.iter().any(|standing| standing.name == name);
        self.roster().slices.retain(|name, _| is_standing(name));
        let found: BTreeSet<&str> =
            slices.iter().map(|slice| slice.name.as_str()).filter(|name| !name.starts_with(PREFIX)).collect();
        let expected: BTreeSet<&str> = STANDING.iter().map(|standing| standing.name).collect();
        if found != expected {
            return Err(Stuck(format!("the node has the slices {found:?} instead of {expected:?}")));
        }
        let has_problem = |slice: &&Slice| !slice.problem.is_empty() && !slice.name.starts_with(PREFIX);
        if let Some(slice) = slices.iter().find(has_problem) {
            return Err(Stuck(format!("slice {} has a problem when all is over: {}", slice.name, slice.problem)));
        }
        Ok(())
    }

    fn nothing_is_charged(&mut self, slice: &'static str) -> Result<(), Stuck> {
        let mut left = String::new();
        let outcome = self.until(&format!("nothing of slice {slice} is charged any more"), |world| {
            left = world.charged(slice)?;
            Ok(left.is_empty().then_some(()))
        });
        outcome.map_err(|Stuck(what)| Stuck(format!("{what}: {left}; the manager: {}", self.manager.log())))
    }

    /// Describes the charges that a slice still has; empty: none.
    fn charged(&self, slice: &str) -> Result<String, Stuck> {
        let usage = match self.client()?.usage(slice) {
            Ok(usage) => usage,
            Err(status) => return Err(Stuck(format!("usage of {slice} is not told: {}", status.message()))),
        };
        let mut left = Vec::new();
        if !usage.processes.is_empty() {
            left.push(format!("the manager lists {} processes", usage.processes.len()));
        }
        for part in &usage.parts {
            let (used, overhead) = (part.memory_used_bytes, part.memory_overhead_bytes);
            if used + overhead > 0 {
                left.push(format!("the manager says {used} bytes, {overhead} of them beyond the ledger"));
            }
        }
        left.extend(self.ledger_of(slice)?);
        Ok(left.join(", "))
    }

    /// Describes the charges that are left in the ledger itself. Maps a copy, because the file can be shortened while
    /// it is mapped.
    fn ledger_of(&self, slice: &str) -> Result<Vec<String>, Stuck> {
        let copy = self.path().join("ledger-copy");
        // Not `fs::copy`, which would also copy the mode: other users must not be able to write to the copy.
        let read = fs::read(self.places[slice].region.join(LEDGER_FILE));
        let copied = read.and_then(|bytes| fs::write(&copy, &bytes).map(|()| bytes.len() as u64));
        let bytes = copied.map_err(|error| Stuck(format!("the ledger of {slice} cannot be read: {error}")))?;
        if bytes != LEDGER_FILE_BYTES as u64 {
            return Ok(vec![format!("its ledger has {bytes} bytes")]);
        }
        let ledger = Mapped::<Ledger>::open(&copy);
        let mut left = Vec::new();
        for (number, account) in ledger.devices.iter().chain([&ledger.host]).enumerate() {
            let used = ledger::used_bytes(account);
            if used > 0 {
                left.push(format!("account {number} of its ledger says {used} bytes"));
            }
        }
        let taken =
            ledger.owners.iter().filter(|word| owner::state(word.load(Ordering::Relaxed)) != owner::FREE).count();
        if taken > 0 {
            left.push(format!("{taken} slots of its ledger are taken"));
        }
        Ok(left)
    }

    /// Finds processes that were started in a slice by the region's path in their environment.
    fn no_process_is_left(&mut self) -> Result<(), Stuck> {
        let mut left = Vec::new();
        let outcome = self.until("no process of a tenant is left", |world| {
            left = processes_that_know(&world.regions());
            Ok(left.is_empty().then_some(()))
        });
        outcome.map_err(|Stuck(what)| Stuck(format!("{what}: {left:?}")))
    }

    /// Checks that regions and CDI files are exactly those of the standing slices.
    fn no_file_is_left(&mut self) -> Result<(), Stuck> {
        let mut left = String::new();
        let outcome = self.until("no file of a slice that is gone is left", |world| {
            let expected = |of: &dyn Fn(&str) -> String| -> BTreeSet<String> {
                STANDING.iter().map(|standing| of(standing.name)).collect()
            };
            let region = |name: &str| {
                // Each region lies in a directory named by the slice's id.
                let around = world.places[name].region.parent();
                around.and_then(Path::file_name).map(|id| id.to_string_lossy().into_owned()).unwrap_or_default()
            };
            let regions = (names_in(&world.regions()), expected(&region));
            let is_of_slice = |name: &String| name.starts_with("aliquot.dev-slice-");
            let cdi = names_in(&world.manager.cdi_dir()).into_iter().filter(is_of_slice).collect::<BTreeSet<_>>();
            let cdi = (cdi, expected(&|name| format!("aliquot.dev-slice-{name}.json")));
            left = format!("regions and CDI files are {regions:?} and {cdi:?}, each found and expected");
            Ok((regions.0 == regions.1 && cdi.0 == cdi.1).then_some(()))
        });
        outcome.map_err(|Stuck(what)| Stuck(format!("{what}: {left}")))
    }

    /// Waits until the audit reports no process: no tenant gets past its slice in these tests.
    fn nobody_is_accused(&mut self) -> Result<(), Stuck> {
        let mut accused = Vec::new();
        let outcome = self.until("no process is accused of anything", |world| {
            let found = world.client()?.findings().map_err(|status| Stuck(status.message().to_owned()))?;
            accused = found.findings;
            Ok(accused.is_empty().then_some(()))
        });
        outcome.map_err(|Stuck(what)| Stuck(format!("{what}: {accused:?}")))
    }

    fn the_manager_has_not_grown(&mut self) -> Result<(), Stuck> {
        let Some(manager) = self.manager.id() else { return Ok(()) };
        let found = || Baseline { manager, descriptors: descriptors(manager), memory_bytes: resident_bytes(manager) };
        let Some(baseline) = self.baseline.filter(|baseline| baseline.manager == manager) else {
            self.baseline = Some(found());
            return Ok(());
        };
        let outcome = wait::until("the manager has no more descriptors than at first", || {
            Ok((found().descriptors <= baseline.descriptors + DESCRIPTORS_SPARE).then_some(()))
        });
        outcome.map_err(|Stuck(what)| {
            Stuck(format!("{what}: {} at first, now {}", baseline.descriptors, found().descriptors))
        })?;
        let (before, now) = (baseline.memory_bytes, found().memory_bytes);
        if now > before + MEMORY_SPARE_BYTES {
            self.verdict.wrong(format!("the manager's memory has grown from {before} to {now} bytes"));
            self.baseline = Some(found());
        }
        Ok(())
    }

    /// Checks that a slice in which nothing runs gives exactly all its memory beside a context.
    fn all_can_be_had(&mut self, slice: &'static str) -> Result<(), Stuck> {
        let limit_bytes = World::standing(slice).limit_bytes(0) - CONTEXT_BYTES;
        let outcome = self.run_in(slice, "exact", &[&limit_bytes.to_string()])?;
        let expected = format!("free: {limit_bytes}\none byte more than all: 2\n");
        if !outcome.status.success() || !outcome.stdout.starts_with(&expected) {
            self.verdict.wrong(format!("slice {slice} does not give exactly its {limit_bytes} bytes: {outcome:?}"));
        }
        Ok(())
    }
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The processes whose environment contains `path`.
fn processes_that_know(path: &Path) -> Vec<String> {
    let path = path.as_os_str().as_encoded_bytes();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let knows = |pid: &String| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(path.len()).any(|window| window == path)
    };
    processes.filter_map(|entry| entry.file_name().into_string().ok()).filter(knows).collect()
}

pub(crate) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_ascii_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Time between the end of other work and the measurement of shares, so that debts are paid.
pub(crate) const CALM: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use aliquot_harness::Process;

    use super::*;

    #[test]
    fn a_process_that_is_left_is_found_by_its_environment() {
        let dir = tempfile::tempdir().unwrap();
        assert!(processes_that_know(dir.path()).is_empty());
        let process =
            Process::start(Command::new("sleep").arg("600").env("LD_PRELOAD_OF_TEST", dir.path().join("shim.so")));
        // Until it executes the program, the child is a copy of this process with this process's environment.
        let found = wait::until("the process is found", || {
            Ok((processes_that_know(dir.path()) == [process.id().to_string()]).then_some(()))
        });
        assert!(found.is_ok());
    }

    #[test]
    fn the_managers_figures_are_those_of_the_kernel() {
        let own = std::process::id();
        assert!(descriptors(own) >= 3 && resident_bytes(own) > MIB);
    }
}
