//! Finds the slice that a process of this machine belongs to, even if the process hides it.
//!
//! It asks, in this order, only for facts that a process cannot choose:
//!
//! 1. whether it is attached (the attach thread holds a pidfd of it);
//! 2. the mounts that it sees: a container has its region mounted, and the region's name is a secret of 128 bits;
//! 3. its cgroup, if a container of the slice has that cgroup to itself, so that leaving the container's mount
//!    namespace does not help;
//! 4. its ancestors: an attached process, or the owner of a slice, which is `aliquot run`.
//!
//! The process's own memory and environment are never believed.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use aliquot_abi::region::LEDGER_FILE;

use crate::live::{AttachedSlot, LiveSlice};
use crate::procfs::{self, Mapped, Stat};
use crate::region::files::REGION_DIR;
use crate::slices::SliceId;

/// A process found in no slice is not examined again for this many looks, because an examination takes many system
/// calls.
const OUTSIDE_LOOKS: u32 = 8;
/// Maximum ancestors examined; no process in practice has more.
const ANCESTORS_MAX: usize = 64;

/// Identifies a process within one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessId {
    /// The pid in the manager's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

/// Whether and where a process belongs to a slice.
#[derive(Clone)]
pub(crate) enum Place {
    /// The process belongs to a slice.
    Inside {
        /// The slice that the process belongs to.
        slice: Arc<LiveSlice>,
        /// The slot with which the process attached; `None` if it has not.
        attached: Option<AttachedSlot>,
    },
    /// The process belongs to no slice.
    Outside,
}

/// Cache of results about processes that are not attached.
#[derive(Default)]
pub(crate) struct Attribution {
    /// Processes in a slice, with the slice's number.
    known: BTreeMap<ProcessId, u64>,
    /// Processes in no slice, and for how many more looks that is believed.
    outside: BTreeMap<ProcessId, u32>,
}

/// The slices and their processes at one moment.
pub(crate) struct Census<'a> {
    attribution: &'a mut Attribution,
    slices: BTreeMap<u64, Arc<LiveSlice>>,
    /// The attached processes by pid, with the numbers of their slices and their slots.
    members: BTreeMap<u32, (u64, AttachedSlot)>,
    host: HostMounts,
    /// Cgroups that containers have to themselves, with the numbers of their slices; computed on first use.
    containers: OnceCell<Vec<(String, u64)>>,
}

impl Attribution {
    /// Takes a census of the processes of `slices`.
    pub(crate) fn census(&mut self, slices: &[Arc<LiveSlice>]) -> Census<'_> {
        let member = |live: &Arc<LiveSlice>| {
            let number = live.number;
            live.processes().iter().map(|process| (process.pid, (number, process.slot))).collect::<Vec<_>>()
        };
        let census = Census {
            slices: slices.iter().map(|live| (live.number, Arc::clone(live))).collect(),
            members: slices.iter().flat_map(member).collect(),
            host: HostMounts::find(),
            containers: OnceCell::new(),
            attribution: self,
        };
        census.attribution.outside.retain(|_, looks| {
            *looks = looks.saturating_sub(1);
            *looks > 0
        });
        census.attribution.known.retain(|process, number| {
            census.slices.contains_key(number) && procfs::start_time(process.pid) == Some(process.start_time)
        });
        census
    }
}

impl Census<'_> {
    /// The slice of a process, if it has one.
    pub(crate) fn place(&mut self, process: ProcessId) -> Place {
        let (number, attached) = match self.member(process.pid) {
            Some((number, slot)) => (Some(number), Some(slot)),
            None => (self.number_of(process), None),
        };
        match number.and_then(|number| self.slices.get(&number)) {
            Some(slice) => Place::Inside { slice: Arc::clone(slice), attached },
            None => Place::Outside,
        }
    }

    /// The number of the slice that a process is attached to, and its slot. A process that attaches after the census and
    /// then makes a context waits for a look which may have begun between the two: this look must count it.
    fn member(&mut self, pid: u32) -> Option<(u64, AttachedSlot)> {
        if let Some(member) = self.members.get(&pid) {
            return Some(*member);
        }
        let member = self.slices.values().find_map(|live| Some((live.number, live.slot_of(pid)?)))?;
        self.members.insert(pid, member);
        Some(member)
    }

    /// The number of the slice that a process belongs to, for a process that is not attached.
    fn number_of(&mut self, process: ProcessId) -> Option<u64> {
        if let Some(number) = self.attribution.known.get(&process) {
            return Some(*number);
        }
        if self.attribution.outside.contains_key(&process) {
            return None;
        }
        let itself = self.by_mounts(process.pid).or_else(|| self.by_cgroup(process.pid));
        // Ancestors come last: a container that is started from within a slice does not belong to that slice.
        let found = match itself {
            Some(number) => Some(Belonging { number, lasts: true }),
            None => self.by_ancestors(process.pid),
        };
        match &found {
            Some(Belonging { number, lasts: true }) => _ = self.attribution.known.insert(process, *number),
            Some(Belonging { lasts: false, .. }) => {}
            None => _ = self.attribution.outside.insert(process, OUTSIDE_LOOKS),
        }
        found.map(|found| found.number)
    }

    fn by_mounts(&self, pid: u32) -> Option<u64> {
        // A process on the host may have any region mounted somewhere, so its mounts prove nothing.
        if self.host.are_of(procfs::mount_namespace(pid)?) {
            return None;
        }
        let whose = |mount: &str| self.slices.values().find(|live| is_mount_of(mount, live.id));
        procfs::find_mount(pid, |mount| whose(mount).map(|live| live.number))
    }

    fn by_cgroup(&self, pid: u32) -> Option<u64> {
        let cgroups = procfs::cgroups(pid)?;
        let mut containers = self.containers.get_or_init(|| self.find_containers()).iter();
        containers.find(|(container, _)| is_within(&cgroups, container)).map(|(_, number)| *number)
    }

    fn find_containers(&self) -> Vec<(String, u64)> {
        let mut containers: BTreeMap<String, u64> = BTreeMap::new();
        for (&pid, (number, _)) in &self.members {
            if let Some(cgroups) = procfs::cgroups(pid)
                && !containers.contains_key(&cgroups)
                && self.by_mounts(pid) == Some(*number)
            {
                containers.insert(cgroups, *number);
            }
        }
        if !containers.is_empty() {
            // Where containers get no cgroup of their own, they share one with host processes.
            let is_on_host = |pid: &u32| procfs::mount_namespace(*pid).is_some_and(|of| self.host.are_of(of));
            for cgroups in procfs::pids().filter(is_on_host).filter_map(procfs::cgroups) {
                containers.retain(|container, _| !is_within(&cgroups, container));
            }
        }
        containers.into_iter().collect()
    }

    fn by_ancestors(&self, pid: u32) -> Option<Belonging> {
        let mut pid = pid;
        for _ in 0..ANCESTORS_MAX {
            if let Some((number, _)) = self.members.get(&pid) {
                return Some(Belonging { number: *number, lasts: true });
            }
            let stat = Stat::of(pid)?;
            let owns = |live: &&Arc<LiveSlice>| {
                live.owner.is_some_and(|owner| owner.pid == pid && owner.start_time == stat.start_time)
            };
            let mut owned = self.slices.values().filter(owns);
            match (owned.next(), owned.next()) {
                (Some(live), None) => return Some(Belonging { number: live.number, lasts: false }),
                // The ancestor owns several slices, so which one is meant is unknown.
                (Some(_), Some(_)) => return None,
                _ => {}
            }
            if stat.parent == 0 {
                return None;
            }
            pid = stat.parent;
        }
        None
    }
}

/// The slice that a process was found to belong to.
struct Belonging {
    /// The number of the slice.
    number: u64,
    /// Whether the result may be cached. An owner found among the ancestors is not cached: it can come to own another
    /// slice, or the process can be reparented.
    lasts: bool,
}

/// The pids of the processes that use the region of slice `id`: processes that have its ledger mapped, processes of
/// containers in which it is mounted, and processes of the host that do not tell. The manager, which maps the ledgers
/// of all slices, is none of them.
///
/// # Errors
/// The processes cannot be listed.
pub(crate) fn users_of(id: SliceId) -> io::Result<Vec<u32>> {
    let host = HostMounts::find();
    // The second path is that of older managers, which made no directory around the region.
    let ledgers = [format!("/{id}/{REGION_DIR}/{LEDGER_FILE}"), format!("/{id}/{LEDGER_FILE}")];
    let uses = |pid: &u32| {
        let is_elsewhere = procfs::mount_namespace(*pid).is_none_or(|of| !host.are_of(of));
        let has_mount = || procfs::find_mount(*pid, |mount| is_mount_of(mount, id).then_some(())).is_some();
        (is_elsewhere && has_mount()) || ledgers.iter().any(|ledger| may_use(procfs::maps(*pid, ledger), is_elsewhere))
    };
    let manager = std::process::id();
    Ok(procfs::list()?.filter(|pid| *pid != manager).filter(uses).collect())
}

/// Whether a process may use a region, by whether it maps the region's ledger. A process that does not tell may; but
/// one `is_elsewhere`, in a container that does not have the region, must not keep others from removing theirs.
fn may_use(ledger: Mapped, is_elsewhere: bool) -> bool {
    match ledger {
        Mapped::Yes => true,
        Mapped::Silent => !is_elsewhere,
        // A manager that is not root may read no other user's list, and all regions would seem to be in use.
        Mapped::No | Mapped::Ending | Mapped::Unknown => false,
    }
}

/// The mount namespaces of the host: that of process 1, and the manager's own, which differs where its service unit
/// hides parts of the file system.
struct HostMounts {
    namespaces: [Option<u64>; 2],
}

impl HostMounts {
    fn find() -> HostMounts {
        HostMounts { namespaces: [1, std::process::id()].map(procfs::mount_namespace) }
    }

    /// Whether `namespace` is a host namespace.
    fn are_of(&self, namespace: u64) -> bool {
        self.namespaces.contains(&Some(namespace))
    }
}

/// Whether `mount` shows the region of slice `id`. `mount` is a line of `/proc/PID/mountinfo`: field 4 is the mounted
/// root within its file system, and field 5 the mount point.
pub(crate) fn is_mount_of(mount: &str, id: SliceId) -> bool {
    let id = id.to_string();
    mount.split(' ').skip(3).take(2).any(|path| path.split('/').any(|name| name == id))
}

/// Whether a process with `cgroups` is in the cgroups of `container`, or below them. Both are lines of
/// `hierarchy:controllers:path`.
pub(crate) fn is_within(cgroups: &str, container: &str) -> bool {
    let paths = |text: &str| -> BTreeMap<String, String> {
        let line = |line: &str| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
        };
        text.lines().filter_map(line).collect()
    };
    let (cgroups, container) = (paths(cgroups), paths(container));
    // Every process is in the root of each hierarchy, so the root proves nothing.
    container.values().any(|path| path != "/")
        && container.iter().all(|(hierarchy, path)| {
            let below = |found: &String| {
                path == "/"
                    || found.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            cgroups.get(hierarchy).is_some_and(below)
        })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use aliquot_abi::ledger::Identity;

    use super::*;
    use crate::inventory::DeviceUuid;
    use crate::live::Attached;
    use crate::region::files::RegionDirs;

    #[test]
    fn a_process_that_attaches_during_a_look_is_in_its_slice() {
        let dir = tempfile::tempdir().unwrap();
        let mut slice = crate::checkpoint::tests::slice(1);
        slice.parts[0].device = DeviceUuid::new("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        let region = RegionDirs::prepare(dir.path()).unwrap().create(&slice).unwrap();
        let live = Arc::new(LiveSlice::new(&slice, region));
        let pid = std::process::id();
        let process = ProcessId { pid, start_time: procfs::start_time(pid).unwrap() };
        let mut attribution = Attribution::default();
        let mut census = attribution.census(std::slice::from_ref(&live));
        assert!(matches!(census.place(process), Place::Outside));
        let identity = Identity { pid, start_time: process.start_time, pid_namespace: 0 };
        let slot = AttachedSlot { index: 1, generation: 1, identity };
        let since = SystemTime::now();
        live.set_processes(vec![Attached { pid, own_pid: pid, slot, command: procfs::command(pid), since }]);
        assert!(matches!(census.place(process), Place::Inside { attached: Some(found), .. } if found == slot));
    }

    #[test]
    fn a_process_of_the_host_that_does_not_tell_may_use_any_region() {
        let of_host = |mapped| may_use(mapped, false);
        assert!(of_host(Mapped::Yes) && of_host(Mapped::Silent));
        assert!(![Mapped::No, Mapped::Ending, Mapped::Unknown].into_iter().any(of_host));
        assert!(may_use(Mapped::Yes, true) && !may_use(Mapped::Silent, true));
    }

    #[test]
    fn a_region_is_known_by_its_name_among_the_mounts() {
        let id = SliceId::from_random(0xab);
        let mount = |name: &str| {
            format!("31 22 0:25 /aliquot/slices/{name} /run/aliquot/slices/{name} ro,nosuid - tmpfs tmpfs rw")
        };
        assert!(is_mount_of(&mount(&id.to_string()), id));
        assert!(is_mount_of(&format!("31 22 0:25 /x/{id}/ledger//deleted /y rw - tmpfs tmpfs rw"), id));
        assert!(!is_mount_of(&mount(&format!("{id}0")), id));
        assert!(!is_mount_of(&mount("x"), id));
        assert!(!is_mount_of("22 1 0:20 / /proc rw - proc proc rw", id));
        // The name in any other field proves nothing.
        assert!(!is_mount_of(&format!("31 22 0:25 / / rw - tmpfs /{id} rw"), id));
    }

    #[test]
    fn this_process_and_pid_1_are_on_the_host() {
        let host = HostMounts::find();
        assert!(host.are_of(procfs::mount_namespace(std::process::id()).unwrap()));
        assert!(procfs::mount_namespace(1).is_none_or(|first| host.are_of(first)));
        assert!(!host.are_of(0));
    }

    #[test]
    fn a_cgroup_contains_its_descendants_and_the_root_proves_nothing() {
        let container = "0::/kube/pod1/c1\n";
        assert!(is_within("0::/kube/pod1/c1\n", container));
        assert!(is_within("0::/kube/pod1/c1/inner\n", container));
        assert!(!is_within("0::/kube/pod1/c10\n", container));
        assert!(!is_within("0::/kube/pod1\n", container));
        assert!(!is_within("0::/\n", "0::/\n"));
        // With several hierarchies all must agree.
        let container = "4:memory:/c1\n2:cpu:/\n0::/\n";
        assert!(is_within("4:memory:/c1/x\n2:cpu:/y\n0::/\n", container));
        assert!(!is_within("4:memory:/\n2:cpu:/c1\n0::/\n", container));
        assert!(!is_within("0::/\n", container));
    }
}
