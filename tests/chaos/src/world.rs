//! A node with slices in which tenants of several kinds are at work all the time.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aliquot_harness::wait::DEADLINE;
use aliquot_harness::{Client, HostProgram, MIB, Outcome, SimulatedGpu, artifacts};
use aliquot_proto::node::v1::{CreateSliceRequest, Part, PriorityClass, ResizeSliceRequest};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::churn::Churn;
use crate::counts::Counts;
use crate::manager::{Manager, Start};
use crate::mounts::Mount;
use crate::observer::{Observer, Watched};
use crate::rest::Baseline;
use crate::roster::Roster;
use crate::tenant::{Place, Recipe, Tenant};
use crate::verdict::{Stuck, Verdict};
use crate::wait;

/// Calls that a tenant must make to count as going on.
const CALLS_TO_GO_ON: u64 = 6;
/// Time between two checks for processes that have ended by themselves.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// What a context takes of its device, as on an H100.
pub(crate) const CONTEXT_BYTES: u64 = 536_128 << 10;
/// The machine. Contexts cost memory, but allocations are not rounded, so that a slice has exactly its limit. Memory is
/// there for contexts of a thousand processes. The chunk size is one with which a pool never takes more at a time than
/// the shim has charged before.
const MACHINE: &str = "context_memory = '536128KiB'\nallocation_block = '512B'\nreserved_memory = 0\npool_chunk = '2MiB'\n\
    [[device]]\nmemory = '1024GiB'\n[[device]]\nmemory = '1024GiB'\n";

/// A slice that exists all the time.
pub(crate) struct Standing {
    pub(crate) name: &'static str,
    pub(crate) devices: &'static [usize],
    pub(crate) request_percent: u32,
    pub(crate) limit_percent: u32,
    /// Memory beside that of its tenants' contexts.
    pub(crate) memory_mib: u64,
    pub(crate) priority: PriorityClass,
    pub(crate) tenants: fn() -> Vec<Recipe>,
}

/// The slice that faults damage.
pub(crate) const TARGET: &str = "target";
/// The standing slices. `steady` is always busy and limited to its request; `batch` may take all time that is left.
pub(crate) const STANDING: [Standing; 5] = [
    Standing {
        name: "steady",
        devices: &[0],
        request_percent: 30,
        limit_percent: 30,
        memory_mib: 64,
        priority: PriorityClass::Standard,
        tenants: || vec![Recipe::busy(), Recipe::grasping()],
    },
    Standing {
        name: "mixed",
        devices: &[0],
        request_percent: 20,
        limit_percent: 50,
        memory_mib: 48,
        priority: PriorityClass::LatencyCritical,
        tenants: || vec![Recipe::mixed(), Recipe::contained()],
    },
    Standing {
        name: "pair",
        devices: &[0, 1],
        request_percent: 10,
        limit_percent: 20,
        memory_mib: 32,
        priority: PriorityClass::Standard,
        tenants: || vec![Recipe::on_two_devices()],
    },
    Standing {
        name: TARGET,
        devices: &[1],
        request_percent: 30,
        limit_percent: 60,
        memory_mib: 64,
        priority: PriorityClass::Standard,
        tenants: || vec![Recipe::mixed(), Recipe::grasping()],
    },
    Standing {
        name: "batch",
        devices: &[0],
        request_percent: 10,
        limit_percent: 100,
        memory_mib: 32,
        priority: PriorityClass::Batch,
        tenants: || vec![Recipe::busy()],
    },
];

/// The slice of the first contexts of a world.
const FIRST: Standing = Standing {
    name: "first",
    devices: &[0, 1],
    request_percent: 1,
    limit_percent: 100,
    memory_mib: 2,
    priority: PriorityClass::Standard,
    tenants: || vec![Recipe::on_two_devices()],
};

impl Standing {
    /// The memory limit with contexts for its tenants and for `further` ones.
    pub(crate) fn limit_bytes(&self, further: usize) -> u64 {
        let contexts = (self.tenants)().len() + further;
        contexts as u64 * CONTEXT_BYTES + self.memory_mib * MIB
    }
}

/// A node with its slices and tenants. Dropping this ends all its processes and removes all its files.
pub(crate) struct World {
    pub(crate) gpu: Arc<SimulatedGpu>,
    pub(crate) roster: Arc<Mutex<Roster>>,
    pub(crate) verdict: Arc<Verdict>,
    // Fields are dropped in this order: first the thread that starts tenants, then the tenants, and last the manager.
    pub(crate) churn: Churn,
    pub(crate) tenants: Vec<Tenant>,
    _observer: Observer,
    pub(crate) places: BTreeMap<&'static str, Place>,
    pub(crate) manager: Manager,
    pub(crate) baseline: Option<Baseline>,
    /// `None` if this user may not mount file systems.
    pub(crate) mounts: Option<[Mount; 2]>,
    pub(crate) dir: TempDir,
    seed: u64,
}

impl World {
    /// Starts a node with its slices and their tenants.
    pub(crate) fn start(verdict: &Arc<Verdict>, wait_max: Duration, seed: u64) -> Result<World, Stuck> {
        let gpu = Arc::new(SimulatedGpu::with(MACHINE));
        let dir = tempfile::Builder::new()
            .prefix("aliquot-chaos-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir_in("/dev/shm")
            .expect("a directory in /dev/shm");
        for name in ["run", "state", "cdi", "counts"] {
            fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        let mut manager = Manager::prepare(dir.path(), &gpu);
        let mounts = [(manager.runtime_dir(), "size=96m,mode=755"), (manager.state_dir(), "size=1m,mode=700")];
        let mounts = mounts.map(|(path, options)| Mount::tmpfs(&path, options));
        let mounts = match mounts {
            [Ok(runtime), Ok(state)] => Some([runtime, state]),
            _ => None,
        };
        manager.start()?;
        let roster = Arc::new(Mutex::new(Roster::default()));
        let churn = Churn::start(&gpu, &roster, verdict, &manager.socket(), &dir.path().join("counts"), seed);
        let watched =
            Watched { gpu: Arc::clone(&gpu), roster: Arc::clone(&roster), verdict: Arc::clone(verdict), wait_max };
        let mut world = World {
            gpu,
            roster,
            verdict: Arc::clone(verdict),
            churn,
            tenants: Vec::new(),
            _observer: Observer::start(watched),
            places: BTreeMap::new(),
            manager,
            baseline: None,
            mounts,
            dir,
            seed,
        };
        world.create_slice(&FIRST)?;
        world.show_contexts()?;
        for standing in &STANDING {
            world.create_slice(standing)?;
        }
        world.remove_first()?;
        world.start_tenants()?;
        world.churn.go_on();
        Ok(world)
    }

    /// Makes a standing slice that does not exist.
    pub(crate) fn create_slice(&mut self, standing: &'static Standing) -> Result<(), Stuck> {
        let limit_bytes = standing.limit_bytes(0);
        let part = |&device: &usize| Part {
            device_uuid: self.gpu.uuid(device),
            core_request_percent: standing.request_percent,
            core_limit_percent: standing.limit_percent,
            memory_limit_bytes: limit_bytes,
        };
        let request = CreateSliceRequest {
            name: standing.name.into(),
            parts: standing.devices.iter().map(part).collect(),
            priority_class: standing.priority.into(),
            ..CreateSliceRequest::default()
        };
        let created = self.client()?.create(request);
        let slice =
            created.map_err(|status| Stuck(format!("slice {} cannot be made: {}", standing.name, status.message())))?;
        self.places.insert(standing.name, Place::of(&slice));
        let limits: Vec<(usize, u64)> = standing.devices.iter().map(|&device| (device, limit_bytes)).collect();
        self.roster().add_slice(standing.name, &limits);
        Ok(())
    }

    /// Gives a standing slice room for the contexts of `further` tenants, until the end of the round.
    pub(crate) fn make_room(&self, slice: &str, further: usize) -> Result<(), Stuck> {
        let standing = World::standing(slice);
        let limit_bytes = standing.limit_bytes(further);
        if self.roster().slices[slice].ceilings.iter().all(|ceiling| ceiling.limit_bytes == limit_bytes) {
            return Ok(());
        }
        let part = Part { memory_limit_bytes: limit_bytes, ..Part::default() };
        let parts = vec![part; standing.devices.len()];
        self.roster().may_grow(slice, limit_bytes);
        let request = ResizeSliceRequest { name: slice.into(), parts, ..ResizeSliceRequest::default() };
        let resized = self.client()?.resize(request);
        resized.map_err(|status| Stuck(format!("slice {slice} cannot be resized: {}", status.message())))?;
        self.roster().is_resized(slice, limit_bytes);
        Ok(())
    }

    /// Starts all tenants that are missing, and waits until all are at work.
    pub(crate) fn start_tenants(&mut self) -> Result<(), Stuck> {
        for standing in &STANDING {
            self.start_tenants_of(standing.name);
        }
        self.all_go_on()
    }

    /// Starts the tenants of one slice that are missing.
    pub(crate) fn start_tenants_of(&mut self, slice: &str) {
        let standing = STANDING.iter().find(|standing| standing.name == slice);
        let mut missing = standing.map(|standing| (standing.tenants)()).unwrap_or_default();
        for tenant in self.tenants.iter().filter(|tenant| tenant.place.name == slice) {
            if let Some(at) = missing.iter().position(|recipe| recipe.name == tenant.recipe.name) {
                missing.remove(at);
            }
        }
        for recipe in missing {
            self.start_tenant(slice, &recipe);
        }
    }

    /// Makes a context on each device. Until one is there, nobody knows what a context takes, so it is not charged
    /// before it is made: see `shim/README.md`. All later ones are charged, and no slice may exceed its limit by them.
    fn show_contexts(&self) -> Result<(), Stuck> {
        let counts = Counts::create(&self.dir.path().join("counts").join(FIRST.name));
        let counts = counts.map_err(|error| Stuck(format!("no file for counts: {error}")))?;
        let shown = self.run_in(FIRST.name, "tenant", &[&counts.path().to_string_lossy(), "devices=2", "steps=1"])?;
        if shown.status.success() { Ok(()) } else { Err(Stuck(format!("no first contexts: {shown:?}"))) }
    }

    /// Removes the slice of the first contexts. The others know by now what a context takes.
    fn remove_first(&mut self) -> Result<(), Stuck> {
        let removed = self.client()?.remove(FIRST.name, true);
        removed.map_err(|status| Stuck(format!("slice {} cannot be removed: {}", FIRST.name, status.message())))?;
        self.roster().slices.remove(FIRST.name);
        self.places.remove(FIRST.name);
        Ok(())
    }

    /// Starts one more tenant in a slice.
    pub(crate) fn start_tenant(&mut self, slice: &str, recipe: &Recipe) {
        let tenant = self.loose_tenant(slice, recipe);
        self.tenants.push(tenant);
    }

    /// Like [`World::start_tenant`], but the caller keeps the tenant.
    pub(crate) fn loose_tenant(&mut self, slice: &str, recipe: &Recipe) -> Tenant {
        let counts_dir = self.dir.path().join("counts");
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.verdict.count(|effort| effort.tenants += 1);
        Tenant::start(&self.gpu, &self.roster, &counts_dir, &self.places[slice], recipe, self.seed)
    }

    /// Kills all tenants of a slice.
    pub(crate) fn end_tenants_of(&mut self, slice: &str) {
        self.tenants.retain(|tenant| tenant.place.name != slice);
    }

    /// Waits until every tenant that is judged and not stopped has made some more calls.
    pub(crate) fn all_go_on(&mut self) -> Result<(), Stuck> {
        self.go_on(|_| true)
    }

    /// Like [`World::all_go_on`], for the tenants of the slices that `of` selects.
    pub(crate) fn go_on(&mut self, of: impl Fn(&str) -> bool) -> Result<(), Stuck> {
        let calls = |world: &World| -> BTreeMap<u32, u64> {
            let roster = world.roster();
            let members = roster.slices.iter().filter(|(name, entry)| of(name) && !entry.excuse.waits);
            let members = members.flat_map(|(_, entry)| &entry.members);
            let judged = members.filter(|member| member.is_judged && !member.is_stopped);
            judged.map(|member| (member.pid, member.counts.read().calls)).collect()
        };
        let before = calls(self);
        let begun = Instant::now();
        loop {
            self.look_after();
            let now = calls(self);
            let waiting: Vec<u32> = before
                .iter()
                .filter(|(pid, before)| now.get(*pid).is_some_and(|now| now < &(**before + CALLS_TO_GO_ON)))
                .map(|(&pid, _)| pid)
                .collect();
            if waiting.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > DEADLINE {
                let log = self.manager.log();
                return Err(Stuck(format!("the tenants {waiting:?} do not go on; the manager: {log}")));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Lets time pass, and watches for processes that end by themselves.
    pub(crate) fn pause(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.look_after();
            std::thread::sleep(LOOK_INTERVAL.min(end.saturating_duration_since(Instant::now())));
        }
    }

    /// Waits until `look` returns a value.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut World) -> Result<Option<T>, Stuck>,
    ) -> Result<T, Stuck> {
        wait::until(what, || {
            self.look_after();
            look(self)
        })
    }

    /// Reports processes that have ended by themselves. Ended tenants are started again by [`World::start_tenants`].
    pub(crate) fn look_after(&mut self) {
        if let Some(said) = self.manager.end_by_itself() {
            self.verdict.wrong(format!("the manager has ended by itself: {said}"));
            self.manager.kill();
        }
        let verdict = &self.verdict;
        self.tenants.retain_mut(|tenant| match tenant.end_by_itself() {
            None => true,
            Some(said) => {
                if !said.is_empty() {
                    let (name, slice) = (tenant.recipe.name, &tenant.place.name);
                    verdict.wrong(format!("the tenant {name:?} of slice {slice} has ended: {said}"));
                }
                false
            }
        });
    }

    pub(crate) fn client(&self) -> Result<Client, Stuck> {
        self.manager.client().ok_or_else(|| Stuck(format!("the manager does not listen: {}", self.manager.log())))
    }

    /// Stops or continues a tenant.
    pub(crate) fn set_stopped(&self, pid: u32, is_stopped: bool) {
        self.roster().set_stopped(pid, is_stopped);
    }

    pub(crate) fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the manager and starts it again as usual.
    pub(crate) fn restart_manager(&mut self) -> Result<(), Stuck> {
        self.manager.kill();
        self.manager.start()
    }

    /// Lets a stopped manager go on, and starts one where none runs.
    pub(crate) fn see_to_a_manager(&mut self) -> Result<(), Stuck> {
        self.look_after();
        self.manager.signal(Signal::CONT);
        if self.manager.is_running() { Ok(()) } else { self.manager.start() }
    }

    /// Starts the manager when it may refuse to start. Checks that it then says why. Returns whether it runs.
    pub(crate) fn try_manager(&mut self, start: &Start) -> Result<bool, Stuck> {
        match self.manager.try_start(start)? {
            Ok(()) => Ok(true),
            Err(said) => {
                if said.is_empty() || said.contains("panicked at") {
                    self.verdict.wrong(format!("the manager does not start and does not say why: {said:?}"));
                }
                Ok(false)
            }
        }
    }

    /// Runs the command line `aliquot` on this node.
    pub(crate) fn aliquot(&self, arguments: &[&str]) -> Result<Outcome, Stuck> {
        wait::run(Command::new(artifacts::cli()).arg("--socket").arg(self.manager.socket()).args(arguments))
    }

    /// Runs a program of `tests/programs` in a slice.
    pub(crate) fn run_in(&self, slice: &str, program: &str, arguments: &[&str]) -> Result<Outcome, Stuck> {
        let mut command = HostProgram::linked(&self.gpu, program).on(&self.gpu);
        command.args(arguments);
        wait::run(self.places[slice].enter(&mut command, &[]))
    }

    /// The problem that the manager reports for a slice; empty: none.
    pub(crate) fn problem_of(&self, slice: &str) -> Result<String, Stuck> {
        let slices = self
            .client()?
            .slices()
            .map_err(|status| Stuck(format!("slices cannot be listed: {}", status.message())))?;
        let found = slices.into_iter().find(|found| found.name == slice);
        found.map(|found| found.problem).ok_or_else(|| Stuck(format!("slice {slice} is gone")))
    }

    /// Ends the tenants of [`TARGET`], removes the slice as an administrator would, and makes it again.
    pub(crate) fn replace_target(&mut self) -> Result<(), Stuck> {
        self.end_tenants_of(TARGET);
        let removed = self.until("a spoilt slice can be removed", |world| {
            let outcome = world.aliquot(&["slice", "rm", TARGET])?;
            // The removal is refused until the manager has noticed the end of all the slice's processes.
            Ok((outcome.status.success() || !outcome.stderr.contains("is in use by")).then_some(outcome))
        })?;
        if !removed.status.success() {
            return Err(Stuck(format!("a spoilt slice cannot be removed: {removed:?}")));
        }
        self.create_slice(World::standing(TARGET))?;
        self.start_tenants_of(TARGET);
        self.all_go_on()
    }

    pub(crate) fn standing(name: &str) -> &'static Standing {
        STANDING.iter().find(|standing| standing.name == name).expect("a standing slice")
    }

    /// The directory of all regions.
    pub(crate) fn regions(&self) -> PathBuf {
        self.manager.runtime_dir().join("slices")
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}
