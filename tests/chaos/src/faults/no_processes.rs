//! A full pids cgroup: no process and no thread can be started in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use aliquot_harness::tool;

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::manager::Start;
use crate::tenant::Recipe;
use crate::verdict::Stuck;
use crate::wait;
use crate::world::World;

#[derive(Default)]
pub(super) struct NoProcesses {
    group: Option<Group>,
}

/// A cgroup. Dropping this removes it.
struct Group {
    parent: PathBuf,
    dir: PathBuf,
}

impl Group {
    /// Makes a cgroup that counts processes, with either version of cgroups.
    fn make() -> Result<Group, String> {
        let roots = [Path::new("/sys/fs/cgroup/pids"), Path::new("/sys/fs/cgroup")];
        let mut why = "no cgroup counts processes".to_owned();
        for parent in roots.into_iter().filter(|root| root.join("cgroup.procs").exists()) {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let dir = parent.join(format!("aliquot-chaos-{}-{number}", std::process::id()));
            match fs::create_dir(&dir) {
                Ok(()) => {}
                Err(error) => {
                    why = format!("{} cannot be made: {error}", dir.display());
                    continue;
                }
            }
            let group = Group { parent: parent.to_owned(), dir };
            if group.dir.join("pids.max").exists() {
                return Ok(group);
            }
        }
        Err(why)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Stuck> {
        let path = self.dir.join(file);
        fs::write(&path, text)
            .map_err(|error| Stuck(format!("{text:?} cannot be written to {}: {error}", path.display())))
    }

    fn current(&self) -> String {
        fs::read_to_string(self.dir.join("pids.current")).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Repeated, because a member may be starting another process or ending at this moment.
        let emptied = wait::until("the cgroup is empty", || {
            let members = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
            for member in members.lines() {
                // Fails if the member has ended.
                let _ = fs::write(self.parent.join("cgroup.procs"), member);
            }
            Ok(fs::remove_dir(&self.dir).ok())
        });
        if let Err(Stuck(what)) = emptied {
            eprintln!("{} is left behind: {what}", self.dir.display());
        }
    }
}

impl Fault for NoProcesses {
    fn name(&self) -> &'static str {
        "no processes, no threads"
    }

    fn spares_the_manager(&self) -> bool {
        false
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        let group = match Group::make() {
            Ok(group) => group,
            Err(why) => return Ok(Injected::NotHere(why)),
        };
        // Nobody else in this slice takes the room for its context.
        world.make_room("batch", 1)?;
        world.start_tenant("batch", &Recipe::new("forking", &["bytes=33554432", "kernel_ns=100000", "children=5"]));
        world.all_go_on()?;
        // The simulated driver starts a thread with the first work of a process, and does none without it.
        world.until("the forking tenant has launched", |world| {
            Ok(world.tenants.last().filter(|tenant| tenant.counts.read().launches > 0).map(|_| ()))
        })?;
        let forking = world.tenants.last().map(crate::tenant::Tenant::pid);
        for pid in forking.into_iter().chain(world.manager.id()) {
            group.write("cgroup.procs", &pid.to_string())?;
        }
        group.write("pids.max", &group.current())?;
        let procs = group.dir.join("cgroup.procs");
        let group = self.group.insert(group);
        world.all_go_on()?;
        if chance.once_in(2) {
            // A manager that can start only a few threads.
            world.manager.kill();
            group.write("pids.max", &(2 + chance.below(24)).to_string())?;
            let enter = r#"echo $$ > "$0" && exec "$@""#;
            let wrapper = [tool("sh", "dash").into(), "-c".into(), enter.into(), procs.into()];
            world.try_manager(&Start { wrapper: wrapper.into(), ..Start::default() })?;
            world.all_go_on()?;
        }
        world.pause(chance.milliseconds(500..=1500));
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        self.group = None;
        world.look_after();
        if world.manager.is_running() {
            world.until("the manager answers once it may have threads again", |world| {
                Ok(world.manager.client().and_then(|mut client| client.node().ok()))
            })?;
        }
        world.see_to_a_manager()
    }
}
