//! The programs in a world's slices.

use std::ffi::OsString;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aliquot_harness::{HostProgram, Process, SimulatedGpu, tool};
use aliquot_proto::node::v1::Slice;

use crate::counts::Counts;
use crate::roster::Roster;

/// A kind of tenant: `tests/programs/tenant.c` with these arguments.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [&'static str],
    /// A command prefix: programs with arguments, each of which executes the rest of the command or waits for it.
    pub(crate) wrapper: Vec<OsString>,
    /// Libraries that are preloaded after the shim.
    pub(crate) preloaded: Vec<PathBuf>,
    /// Whether failed calls and long waits of the tenant are violations.
    pub(crate) is_judged: bool,
}

impl Recipe {
    pub(crate) fn new(name: &'static str, arguments: &'static [&'static str]) -> Recipe {
        Recipe { name, arguments, wrapper: Vec::new(), preloaded: Vec::new(), is_judged: true }
    }

    /// Keeps the device busy with kernels of 0.3 ms.
    pub(crate) fn busy() -> Recipe {
        Recipe::new("busy", &["kernel_ns=300000", "sync=32"])
    }

    /// Pieces of all recipes are whole blocks of the driver, of 2 to 32 MiB: nothing is rounded up, so slices are held
    /// to their limits exactly.
    ///
    /// Allocates and frees memory of every kind, and often asks for more than there is.
    pub(crate) fn grasping() -> Recipe {
        Recipe::new("grasping", &["bytes=33554432", "pause_us=2000"])
    }

    /// Allocates memory, launches kernels and waits for them.
    pub(crate) fn mixed() -> Recipe {
        Recipe::new("mixed", &["bytes=33554432", "kernel_ns=200000", "sync=4", "pause_us=4000", "children=200"])
    }

    /// Like [`Recipe::mixed`], but as the first process of a pid namespace, as in a container.
    pub(crate) fn contained() -> Recipe {
        let mut recipe = Recipe { name: "contained", ..Recipe::mixed() };
        if rustix::process::geteuid().is_root() {
            let unshare = tool("unshare", "util-linux").into_os_string();
            let options = ["--pid", "--fork", "--kill-child", "--mount-proc"].map(OsString::from);
            recipe.wrapper = iter::once(unshare).chain(options).collect();
        }
        recipe
    }

    /// Like [`Recipe::mixed`], but on two devices.
    pub(crate) fn on_two_devices() -> Recipe {
        Recipe::new(
            "on two devices",
            &["bytes=33554432", "kernel_ns=200000", "sync=4", "pause_us=4000", "devices=2", "children=300"],
        )
    }

    /// Allocates a little, launches short kernels, and ends after 6 steps.
    pub(crate) fn short() -> Recipe {
        Recipe::new("short", &["bytes=33554432", "kernel_ns=1000", "steps=6"])
    }
}

/// The environment of a tenant in a slice. The slice's files are not mapped here, because a fault that shortens them
/// would crash this process.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) region: PathBuf,
    shim: PathBuf,
    stand_in: PathBuf,
    devices: String,
}

impl Place {
    pub(crate) fn of(slice: &Slice) -> Place {
        let devices: Vec<&str> = slice.parts.iter().map(|part| part.device_uuid.as_str()).collect();
        Place {
            name: slice.name.clone(),
            region: slice.region_path.clone().into(),
            shim: slice.shim_path.clone().into(),
            stand_in: slice.stand_in_path.clone().into(),
            devices: devices.join(","),
        }
    }

    /// Makes `command` run in the slice, with `further` libraries after the shim and its stand-in. The programs of a
    /// command prefix run in the slice too.
    pub(crate) fn enter<'a>(&self, command: &'a mut Command, further: &[PathBuf]) -> &'a mut Command {
        let mut list = OsString::from(&self.shim);
        for library in iter::once(&self.stand_in).chain(further) {
            list.push(":");
            list.push(library);
        }
        command.env("LD_PRELOAD", list).env("CUDA_VISIBLE_DEVICES", &self.devices)
    }
}

/// A running tenant. Dropping this takes it off the roster and kills it.
pub(crate) struct Tenant {
    pub(crate) place: Place,
    pub(crate) recipe: Recipe,
    pub(crate) counts: Arc<Counts>,
    /// `None` once it has ended by itself.
    process: Option<Process>,
    pid: u32,
    roster: Arc<Mutex<Roster>>,
}

impl Tenant {
    /// Starts a tenant, with its file of counters in `counts_dir`.
    pub(crate) fn start(
        gpu: &SimulatedGpu,
        roster: &Arc<Mutex<Roster>>,
        counts_dir: &Path,
        place: &Place,
        recipe: &Recipe,
        seed: u64,
    ) -> Tenant {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let path = counts_dir.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        let counts = Arc::new(Counts::create(&path).expect("a file for a tenant's counts"));
        let program = HostProgram::linked(gpu, "tenant");
        let mut words = recipe.wrapper.iter().map(OsString::as_os_str).chain([program.path().as_os_str()]);
        let mut command = Command::new(words.next().expect("the program itself"));
        command.args(words).arg(counts.path()).args(recipe.arguments).arg(format!("seed={}", seed >> 1));
        gpu.show_to(&mut command);
        // The lock is held until the tenant is on the roster, so that the observer never misses it.
        let mut on_roster = roster.lock().unwrap_or_else(PoisonError::into_inner);
        let process = Process::start(place.enter(&mut command, &recipe.preloaded));
        on_roster.add(&place.name, recipe.name, process.id(), Arc::clone(&counts), recipe.is_judged);
        drop(on_roster);
        let pid = process.id();
        let (place, recipe, roster) = (place.clone(), recipe.clone(), Arc::clone(roster));
        Tenant { place, recipe, counts, process: Some(process), pid, roster }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// If the tenant has ended by itself, takes it off the roster and returns how it ended; an empty text if it was
    /// allowed to end.
    pub(crate) fn end_by_itself(&mut self) -> Option<String> {
        // `has_ended` reaps the process, and then another process can get its id. So the lock is held until it is off
        // the roster.
        let mut roster = self.roster.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = self.process.take_if(Process::has_ended)?;
        let may_end = roster.may_end(&self.place.name, self.pid);
        roster.remove(self.pid);
        let outcome = ended.wait();
        Some(if may_end { String::new() } else { format!("{}: {:?}", outcome.status, outcome.stderr) })
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // Removed first: the process is killed and reaped when the field `process` is dropped after this.
        self.roster.lock().unwrap_or_else(PoisonError::into_inner).remove(self.pid);
    }
}
