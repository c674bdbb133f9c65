//! Reads the simulated devices' own accounts throughout a run, from outside of all slices. Figures shown by the shim
//! would prove nothing.
//!
//! The memory of a slice is the sum over its processes, which are not read all at once. While one process frees and
//! another allocates, the sum can exceed every value that the slice really had. So a sum above the limit is read again
//! with all processes of the slice stopped. From time to time a random slice is read in this way in any case.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aliquot_harness::SimulatedGpu;
use rustix::process::Signal;

use crate::chance::Chance;
use crate::roster::{Member, Roster, group_of};
use crate::verdict::Verdict;

/// Time between two checks of memory.
const LOOK_INTERVAL: Duration = Duration::from_millis(4);
/// Checks of memory for each check of the tenants' progress.
const LOOKS_PER_PROGRESS: u64 = 25;
/// Checks of memory for each exact check of a random slice.
const LOOKS_PER_EXACT: u64 = 60;
/// An exact check is given up if the slice's processes have not stopped by then.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// The data for the observer's checks.
pub(crate) struct Watched {
    pub(crate) gpu: Arc<SimulatedGpu>,
    pub(crate) roster: Arc<Mutex<Roster>>,
    pub(crate) verdict: Arc<Verdict>,
    /// A tenant that waits longer than this in a call is a violation.
    pub(crate) wait_max: Duration,
}

/// The observer's thread. Dropping this ends it.
pub(crate) struct Observer {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    pub(crate) fn start(watched: Watched) -> Observer {
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stopped);
        let thread = thread::spawn(move || {
            let mut chance = Chance::of_round(watched.verdict.report().seed, 0);
            let mut look = 0u64;
            while !is_stopped.load(Ordering::Relaxed) {
                thread::sleep(LOOK_INTERVAL);
                look += 1;
                watched.look_at_memory();
                if look.is_multiple_of(LOOKS_PER_EXACT) {
                    watched.look_at_some_slice(&mut chance);
                }
                if look.is_multiple_of(LOOKS_PER_PROGRESS) {
                    watched.look_at_progress();
                }
            }
        });
        Observer { stopped, thread: Some(thread) }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been printed already; the assertion passes it on.
            assert!(thread.join().is_ok() || thread::panicking(), "the observer has panicked");
        }
    }
}

impl Watched {
    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes that each slice holds of each device, by the device's own accounts.
    fn held(&self, roster: &Roster) -> BTreeMap<(String, usize), u64> {
        let mut held = BTreeMap::new();
        for device in 0..self.gpu.config().devices.len() {
            for process in self.gpu.machine().device_use(device).processes {
                if process.memory_bytes == 0 {
                    continue;
                }
                if let Some(slice) = roster.slice_of(process.pid) {
                    *held.entry((slice.to_owned(), device)).or_default() += process.memory_bytes;
                }
            }
        }
        held
    }

    fn look_at_memory(&self) {
        let mut roster = self.roster();
        self.verdict.count(|effort| effort.looks += 1);
        let mut suspects: Vec<String> = Vec::new();
        for ((name, device), bytes) in self.held(&roster) {
            let entry = &roster.slices[&name];
            let is_over = entry.ceilings.iter().all(|ceiling| ceiling.device != device || bytes > ceiling.bytes);
            if is_over && !entry.excuse.limits && !entry.is_told_of {
                suspects.push(name);
            }
        }
        suspects.dedup();
        for name in suspects {
            self.look_exactly(&mut roster, &name);
        }
    }

    fn look_at_some_slice(&self, chance: &mut Chance) {
        let mut roster = self.roster();
        let names: Vec<String> = roster.slices.keys().cloned().collect();
        if !names.is_empty() {
            let name = &names[chance.below(names.len())];
            self.look_exactly(&mut roster, name);
        }
    }

    /// Checks one slice with all its processes stopped.
    fn look_exactly(&self, roster: &mut Roster, name: &str) {
        let stopped_here = |member: &&Member| !member.is_stopped;
        let entry = &roster.slices[name];
        entry.members.iter().filter(stopped_here).for_each(|member| member.signal(Signal::STOP));
        if self.have_stopped(roster, name) {
            let held = self.held(roster);
            self.judge(roster, name, &held);
        }
        let Some(entry) = roster.slices.get(name) else { return };
        entry.members.iter().filter(stopped_here).for_each(|member| member.signal(Signal::CONT));
    }

    /// Judges the memory that a slice holds, and lowers its ceilings to that amount. The slice's processes are still
    /// stopped: a running process could complete an operation that `held` does not show, and count it as complete.
    fn judge(&self, roster: &mut Roster, name: &str, held: &BTreeMap<(String, usize), u64>) {
        let Some(entry) = roster.slices.get_mut(name) else { return };
        self.verdict.count(|effort| effort.exact_looks += 1);
        let devices: Vec<usize> = entry.ceilings.iter().map(|ceiling| ceiling.device).collect();
        for ((_, device), &bytes) in held.iter().filter(|((slice, _), _)| slice == name) {
            if entry.excuse.limits || entry.is_told_of {
                continue;
            }
            let Some(ceiling) = entry.ceilings.iter().find(|ceiling| ceiling.device == *device) else {
                entry.is_told_of = true;
                self.verdict
                    .wrong(format!("slice {name} holds {bytes} bytes of device {device}, of which it has no part"));
                continue;
            };
            if bytes > ceiling.bytes && !entry.is_told_of {
                entry.is_told_of = true;
                let limit = ceiling.limit_bytes;
                let told = format!(
                    "slice {name} holds {bytes} bytes of device {device}, by the device's books; its limit is {limit}"
                );
                self.verdict.wrong(told);
            }
        }
        for device in devices {
            let bytes = held.get(&(name.to_owned(), device)).copied().unwrap_or(0);
            entry.lower_ceiling(device, bytes);
        }
    }

    /// Waits until every process of the slice that a device lists has stopped.
    fn have_stopped(&self, roster: &Roster, name: &str) -> bool {
        let begun = Instant::now();
        loop {
            let devices = 0..self.gpu.config().devices.len();
            let processes = devices.flat_map(|device| self.gpu.machine().device_use(device).processes);
            let mut of_slice = processes.filter(|process| roster.slice_of(process.pid) == Some(name));
            if of_slice.all(|process| has_stopped(process.pid)) {
                return true;
            }
            if begun.elapsed() > STOP_PATIENCE {
                return false;
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn look_at_progress(&self) {
        let mut roster = self.roster();
        let now = Instant::now();
        for (slice, entry) in &mut roster.slices {
            let excuse = entry.excuse;
            for member in &mut entry.members {
                let counted = member.counts.read();
                let waited = now.saturating_duration_since(member.changed);
                let is_judged = member.is_judged && !member.is_stopped;
                if counted.calls != member.last_calls || !is_judged || excuse.waits {
                    if is_judged && !excuse.waits {
                        self.verdict.count(|effort| effort.longest_wait = effort.longest_wait.max(waited));
                    }
                    (member.last_calls, member.changed) = (counted.calls, now);
                } else if waited > self.wait_max {
                    let told = format!(
                        "the tenant {:?} of slice {slice} has waited for {waited:.1?} in a call, its {}th: {}",
                        member.name,
                        counted.calls + 1,
                        whereabouts(member.pid)
                    );
                    self.verdict.wrong(told);
                    member.changed = now;
                }
                if counted.unexpected > 0 && is_judged && !excuse.calls && !member.is_told_of {
                    member.is_told_of = true;
                    let told = format!(
                        "{} of {} calls of the tenant {:?} of slice {slice} were answered otherwise than with success or a lack \
                         of memory, the last of them with {}",
                        counted.unexpected, counted.calls, member.name, counted.last_unexpected
                    );
                    self.verdict.wrong(told);
                }
            }
        }
    }
}

/// Whether all threads of a process have stopped, or the process has ended.
fn has_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { return true };
        let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
        matches!(state, Some('T' | 't' | 'Z' | 'X'))
    })
}

/// State and system call of each thread in a process group, from /proc.
fn whereabouts(group: u32) -> String {
    let processes = names_in("/proc").into_iter().filter_map(|name| name.parse().ok());
    let of_group = processes.filter(|&pid| group_of(pid) == Some(group));
    let lines = of_group.flat_map(|pid| {
        names_in(&format!("/proc/{pid}/task")).into_iter().map(move |thread| {
            let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/task/{thread}/{name}")).unwrap_or_default();
            let stat = read("stat");
            let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next()).unwrap_or('?');
            format!("thread {thread} of {pid} {state} in system call {:?}", read("syscall").trim_end())
        })
    });
    lines.collect::<Vec<_>>().join("; ")
}

fn names_in(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use aliquot_harness::{EXACT_MEMORY, HostProgram, MIB, Process, wait};

    use super::*;
    use crate::counts::Counts;

    /// Checks that the observer reports `expected` for a tenant that runs without the shim, but stands on the roster
    /// with a slice of `limit_bytes`.
    fn said_of(arguments: &[&str], limit_bytes: u64, wait_max: Duration, expected: &str, spoil: impl FnOnce(&Process)) {
        let gpu = Arc::new(SimulatedGpu::with(&format!("{EXACT_MEMORY}pool_chunk = '2MiB'\n")));
        let dir = tempfile::tempdir().unwrap();
        let counts = Arc::new(Counts::create(&dir.path().join("counts")).unwrap());
        let mut command = HostProgram::linked(&gpu, "tenant").on(&gpu);
        let process = Process::start(command.arg(counts.path()).args(arguments));
        let (roster, verdict) = (Arc::new(Mutex::new(Roster::default())), Arc::new(Verdict::new(1)));
        roster.lock().unwrap().add_slice("watched", &[(0, limit_bytes)]);
        roster.lock().unwrap().add("watched", "tenant", process.id(), Arc::clone(&counts), true);
        wait::until_true("the tenant is at work", || counts.read().calls > 100);
        spoil(&process);
        let watched = Watched { gpu, roster: Arc::clone(&roster), verdict: Arc::clone(&verdict), wait_max };
        let observer = Observer::start(watched);
        wait::until_true("it is told of", || verdict.violations() > 0);
        drop(observer);
        roster.lock().unwrap().remove(process.id());
        let found = verdict.report().violations;
        assert!(found[0].what.contains(expected), "{found:?}");
    }

    #[test]
    fn memory_above_the_limit_is_told_of() {
        let for_ever = Duration::from_secs(3600);
        said_of(&["bytes=16777216"], 4 * MIB, for_ever, "its limit is 4194304", |_| {});
    }

    #[test]
    fn a_tenant_that_waits_too_long_is_told_of() {
        let soon = Duration::from_millis(300);
        // The killed process makes no more calls.
        said_of(&["kernel_ns=1000"], MIB, soon, "has waited for", |process| process.signal(Signal::KILL));
    }

    #[test]
    fn a_call_that_fails_is_told_of() {
        let for_ever = Duration::from_secs(3600);
        // A launch fails in a context whose device is lost.
        let gpu = SimulatedGpu::exact();
        let dir = tempfile::tempdir().unwrap();
        let counts = Arc::new(Counts::create(&dir.path().join("counts")).unwrap());
        let mut command = HostProgram::linked(&gpu, "tenant").on(&gpu);
        let process = Process::start(command.arg(counts.path()).arg("kernel_ns=1000"));
        wait::until_true("the tenant is at work", || counts.read().calls > 100);
        gpu.machine().set_lost(0, true);
        let (roster, verdict) = (Arc::new(Mutex::new(Roster::default())), Arc::new(Verdict::new(1)));
        roster.lock().unwrap().add_slice("watched", &[(0, MIB)]);
        roster.lock().unwrap().add("watched", "tenant", process.id(), counts, true);
        let gpu = Arc::new(gpu);
        let observer = Observer::start(Watched { gpu, roster, verdict: Arc::clone(&verdict), wait_max: for_ever });
        wait::until_true("it is told of", || verdict.violations() > 0);
        drop(observer);
        assert!(verdict.report().violations[0].what.contains("were answered otherwise"));
    }
}
