//! A thread that makes, resizes and removes slices throughout a run, by gRPC and by the command line.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use aliquot_harness::{Client, MIB, SimulatedGpu, artifacts};
use aliquot_proto::node::v1::{CreateSliceRequest, Part, ResizeSliceRequest, Slice};
use tonic::{Code, Status};

use crate::chance::Chance;
use crate::roster::Roster;
use crate::tenant::{Place, Recipe, Tenant};
use crate::verdict::{Stuck, Verdict};
use crate::wait;
use crate::world::CONTEXT_BYTES;

/// Prefix of the names of all slices that this thread makes.
pub(crate) const PREFIX: &str = "passing-";
/// The slice that is resized while its tenant runs.
const ELASTIC: &str = "passing-elastic";
/// Its memory beside its tenant's context.
const ELASTIC_MIB: [u64; 4] = [8, 16, 32, 48];

/// The thread. Dropping this ends it.
pub(crate) struct Churn {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether a refusal by the manager is a violation.
    is_judged: AtomicBool,
}

struct State {
    wanted: Wanted,
    is_idle: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Work,
    Rest,
    End,
}

struct Worker {
    shared: Arc<Shared>,
    gpu: Arc<SimulatedGpu>,
    roster: Arc<Mutex<Roster>>,
    verdict: Arc<Verdict>,
    socket: PathBuf,
    counts_dir: PathBuf,
    chance: Chance,
    made: u64,
    /// The tenant of the slice that is resized.
    elastic: Option<Tenant>,
}

impl Churn {
    /// Starts the thread. It does nothing until [`Churn::go_on`] is called.
    pub(crate) fn start(
        gpu: &Arc<SimulatedGpu>,
        roster: &Arc<Mutex<Roster>>,
        verdict: &Arc<Verdict>,
        socket: &Path,
        counts_dir: &Path,
        seed: u64,
    ) -> Churn {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { wanted: Wanted::Rest, is_idle: true }),
            changed: Condvar::new(),
            is_judged: AtomicBool::new(false),
        });
        let mut worker = Worker {
            shared: Arc::clone(&shared),
            gpu: Arc::clone(gpu),
            roster: Arc::clone(roster),
            verdict: Arc::clone(verdict),
            socket: socket.to_owned(),
            counts_dir: counts_dir.to_owned(),
            chance: Chance::of_round(seed, u64::MAX),
            made: 0,
            elastic: None,
        };
        let thread = thread::spawn(move || worker.work());
        Churn { shared, thread: Some(thread) }
    }

    pub(crate) fn go_on(&self) {
        self.want(Wanted::Work);
    }

    /// Pauses the thread, and returns when it is idle. Its slices are left behind if the manager did not answer.
    pub(crate) fn pause(&self) {
        self.want(Wanted::Rest);
        let mut state = self.shared.state();
        while !state.is_idle {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sets whether a refusal by the manager is a violation.
    pub(crate) fn judge(&self, is_judged: bool) {
        self.shared.is_judged.store(is_judged, Ordering::SeqCst);
    }

    fn want(&self, wanted: Wanted) {
        self.shared.state().wanted = wanted;
        self.shared.changed.notify_all();
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.want(Wanted::End);
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || thread::panicking(), "the thread that makes slices has panicked");
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `rest` and waits if the thread is to pause. Returns `false` when the thread is to end.
    fn may_work(&self, rest: impl FnOnce()) -> bool {
        let mut state = self.state();
        if state.wanted == Wanted::Work {
            return true;
        }
        drop(state);
        rest();
        state = self.state();
        state.is_idle = true;
        self.changed.notify_all();
        while state.wanted == Wanted::Rest {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_idle = false;
        state.wanted == Wanted::Work
    }
}

impl Worker {
    fn work(&mut self) {
        let shared = Arc::clone(&self.shared);
        while shared.may_work(|| self.rest()) {
            let outcome = match self.chance.below(8) {
                0 => self.by_command_line(),
                1..4 => self.pass(),
                _ => self.resize(),
            };
            if let Err(what) = outcome
                && self.shared.is_judged.load(Ordering::SeqCst)
            {
                self.verdict.wrong(format!("beside the fault the manager refused: {what}"));
            }
            thread::sleep(self.chance.milliseconds(10..=150));
        }
    }

    fn client(&self) -> Result<Client, String> {
        Client::connect(&self.socket).ok_or_else(|| "nobody listens".to_owned())
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create(&mut self, name: &str, device: usize, memory_bytes: u64) -> Result<Slice, String> {
        let core = 1 + self.chance.below(3) as u32;
        let part = Part {
            device_uuid: self.gpu.uuid(device),
            core_request_percent: core,
            core_limit_percent: 20,
            memory_limit_bytes: memory_bytes,
        };
        let request = CreateSliceRequest { name: name.into(), parts: vec![part], ..CreateSliceRequest::default() };
        let slice = self.client()?.create(request).map_err(|status| said(&format!("to make {name}"), &status))?;
        self.roster().add_slice(name, &[(device, memory_bytes)]);
        self.verdict.count(|effort| effort.slices_made += 1);
        Ok(slice)
    }

    fn remove(&mut self, name: &str) -> Result<(), String> {
        let removed = self.client()?.remove(name, true);
        self.roster().slices.remove(name);
        match removed {
            Err(status) if status.code() != Code::NotFound => Err(said(&format!("to remove {name}"), &status)),
            _ => Ok(()),
        }
    }

    fn tenant(&mut self, slice: &Slice, recipe: &Recipe) -> Tenant {
        self.verdict.count(|effort| effort.tenants += 1);
        let seed = self.chance.number();
        Tenant::start(&self.gpu, &self.roster, &self.counts_dir, &Place::of(slice), recipe, seed)
    }

    /// Makes a slice, lets a tenant work in it for a moment in half of the cases, and removes it.
    fn pass(&mut self) -> Result<(), String> {
        self.made += 1;
        let name = format!("{PREFIX}{}", self.made);
        let device = self.chance.below(2);
        let memory_bytes = CONTEXT_BYTES + (1 + self.chance.below(16) as u64) * MIB;
        let slice = self.create(&name, device, memory_bytes)?;
        let tenant = self.chance.once_in(2).then(|| self.tenant(&slice, &Recipe::mixed()));
        thread::sleep(self.chance.milliseconds(0..=200));
        // In half of the cases the tenant is killed first; otherwise it loses its slice while it runs.
        if self.chance.once_in(2) {
            drop(tenant);
            return self.remove(&name);
        }
        if let Some(tenant) = &tenant {
            // The tenant's limits are gone with the slice, and all its calls may be refused.
            self.roster().excuse(&tenant.place.name, crate::roster::Excuse::TENANTS);
        }
        let removed = self.client()?.remove(&name, true);
        drop(tenant);
        self.roster().slices.remove(&name);
        removed.map_err(|status| said(&format!("to remove {name}"), &status))
    }

    fn by_command_line(&mut self) -> Result<(), String> {
        self.made += 1;
        let name = format!("{PREFIX}{}", self.made);
        let run = |arguments: &[&str]| {
            let mut command = Command::new(artifacts::cli());
            let outcome = wait::run(command.arg("--socket").arg(&self.socket).args(arguments));
            let outcome = outcome.map_err(|Stuck(what)| what)?;
            if outcome.status.success() { Ok(()) } else { Err(format!("{outcome:?}")) }
        };
        run(&["slice", "create", &name, "--gpu-core", "1", "--gpu-memory", "4MiB"])?;
        self.verdict.count(|effort| effort.slices_made += 1);
        run(&["ps"])?;
        run(&["slice", "rm", &name])
    }

    /// Resizes one slice while its tenant runs.
    fn resize(&mut self) -> Result<(), String> {
        if let Some(said) = self.elastic.as_mut().and_then(Tenant::end_by_itself) {
            self.elastic = None;
            // Always a violation: no fault concerns this slice.
            self.verdict.wrong(format!("the tenant of the slice that is resized has ended: {said}"));
        }
        if self.elastic.is_none() {
            // Removes a slice that was left behind when the manager did not answer.
            self.remove(ELASTIC)?;
            let slice = self.create(ELASTIC, 1, CONTEXT_BYTES + ELASTIC_MIB[0] * MIB)?;
            self.elastic = Some(self.tenant(&slice, &Recipe::grasping()));
        }
        let bytes = CONTEXT_BYTES + ELASTIC_MIB[self.chance.below(ELASTIC_MIB.len())] * MIB;
        let part = Part { memory_limit_bytes: bytes, ..Part::default() };
        let request = ResizeSliceRequest { name: ELASTIC.into(), parts: vec![part], ..ResizeSliceRequest::default() };
        // Before the request: the manager may resize the slice and be killed before it answers.
        self.roster().may_grow(ELASTIC, bytes);
        self.client()?.resize(request).map_err(|status| said(&format!("to resize {ELASTIC}"), &status))?;
        self.roster().is_resized(ELASTIC, bytes);
        self.verdict.count(|effort| effort.resizes += 1);
        Ok(())
    }

    fn rest(&mut self) {
        self.elastic = None;
        // If the manager does not answer, `World::rest` removes the slice.
        let _ = self.remove(ELASTIC);
    }
}

fn said(what: &str, status: &Status) -> String {
    format!("{what}: {:?}: {}", status.code(), status.message())
}
