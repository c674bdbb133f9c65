//! Which slice a process of this machine belongs to, whether it wants to be known or not.
//!
//! What is asked, in this order, is what a process cannot choose by itself:
//!
//! 1. whether it is attached (the attach thread holds a pidfd of it);
//! 2. the mounts that it sees: a container has its region mounted, and the region's name is a secret of 128 bits;
//! 3. its cgroup, where that is one that a container of the slice has to itself, so that leaving the container's mount
//!    namespace does not help;
//! 4. its ancestors: an attached process, or the owner of a slice, which is `aliquot run`.
//!
//! Nothing of the process's own memory or environment is believed.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use aliquot_abi::region::LEDGER_FILE;

use crate::live::{Attached, LiveSlice};
use crate::procfs::{self, Mapped, Stat};
use crate::region::files::REGION_DIR;
use crate::slices::SliceId;

/// A process that is in no slice is taken to stay so for as many looks: to find out takes many questions to the kernel.
const OUTSIDE_LOOKS: u32 = 8;
/// Ancestors that are looked at: more than any process has in practice.
const ANCESTORS_MAX: usize = 64;

/// Names a process for as long as this boot lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessId {
    /// In the manager's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

/// Where a process belongs.
#[derive(Clone)]
pub(crate) enum Place {
    /// Into a slice.
    Inside {
        /// The slice.
        slice: Arc<LiveSlice>,
        /// The process as it attached; `None` if it has not.
        attached: Option<Attached>,
    },
    /// Into none.
    Outside,
}

/// What was found out about processes that are not attached, so that it is found out once.
#[derive(Default)]
pub(crate) struct Attribution {
    /// Numbers of the slices that they belong to.
    known: BTreeMap<ProcessId, u64>,
    /// Those in no slice, and for how many looks that is believed.
    outside: BTreeMap<ProcessId, u32>,
}

/// The slices and their processes at one moment.
pub(crate) struct Census<'a> {
    attribution: &'a mut Attribution,
    slices: BTreeMap<u64, Arc<LiveSlice>>,
    members: BTreeMap<u32, (u64, Attached)>,
    host: HostMounts,
    /// Cgroups that containers have to themselves, with the numbers of their slices; found out when first asked for.
    containers: OnceCell<Vec<(String, u64)>>,
}

impl Attribution {
    /// Looks at the processes of `slices`.
    pub(crate) fn census(&mut self, slices: &[Arc<LiveSlice>]) -> Census<'_> {
        let member = |live: &Arc<LiveSlice>| {
            let number = live.number;
            live.processes().iter().map(|process| (process.pid, (number, process.clone()))).collect::<Vec<_>>()
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
    /// Where a process belongs.
    pub(crate) fn place(&mut self, process: ProcessId) -> Place {
        let (number, attached) = match self.members.get(&process.pid) {
            Some((number, attached)) => (Some(*number), Some(attached.clone())),
            None => (self.number_of(process), None),
        };
        match number.and_then(|number| self.slices.get(&number)) {
            Some(slice) => Place::Inside { slice: Arc::clone(slice), attached },
            None => Place::Outside,
        }
    }

    /// The number of the slice that a process belongs to which is not attached.
    fn number_of(&mut self, process: ProcessId) -> Option<u64> {
        if let Some(number) = self.attribution.known.get(&process) {
            return Some(*number);
        }
        if self.attribution.outside.contains_key(&process) {
            return None;
        }
        let itself = self.by_mounts(process.pid).or_else(|| self.by_cgroup(process.pid));
        // Last: a container that is started from within a slice is not of that slice.
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
        // On the host itself any region may be mounted somewhere.
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
        for (number, member) in self.members.values() {
            if let Some(cgroups) = procfs::cgroups(member.pid)
                && !containers.contains_key(&cgroups)
                && self.by_mounts(member.pid) == Some(*number)
            {
                containers.insert(cgroups, *number);
            }
        }
        if !containers.is_empty() {
            // Where containers get no cgroup of their own, they share one with processes of the host.
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
                // One that has several slices: which of them is not known.
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

/// Which slice a process was found to belong to.
struct Belonging {
    /// The slice's number.
    number: u64,
    /// It need not be found out again. That a slice is tied to an ancestor says it of what runs today: the ancestor can
    /// come to own another slice as well, or the process to be adopted by somebody else.
    lasts: bool,
}

/// The pids of the processes that use the region of slice `id`: those that have its ledger mapped, and those of
/// containers in which it is mounted.
///
/// # Errors
/// The processes cannot be listed.
pub(crate) fn users_of(id: SliceId) -> io::Result<Vec<u32>> {
    let host = HostMounts::find();
    // The second as managers made it that had no directory around the region.
    let ledgers = [format!("/{id}/{REGION_DIR}/{LEDGER_FILE}"), format!("/{id}/{LEDGER_FILE}")];
    let uses = |pid: &u32| {
        let is_elsewhere = || procfs::mount_namespace(*pid).is_none_or(|of| !host.are_of(of));
        ledgers.iter().any(|ledger| procfs::maps(*pid, ledger) == Mapped::Yes)
            || (is_elsewhere() && procfs::find_mount(*pid, |mount| is_mount_of(mount, id).then_some(())).is_some())
    };
    Ok(procfs::list()?.filter(uses).collect())
}

/// The mount namespaces of the host: that of its first process, and the manager's own, which is another where its
/// service keeps parts of the file system from it.
struct HostMounts {
    namespaces: [Option<u64>; 2],
}

impl HostMounts {
    fn find() -> HostMounts {
        HostMounts { namespaces: [1, std::process::id()].map(procfs::mount_namespace) }
    }

    /// Whether `namespace` is one of them.
    fn are_of(&self, namespace: u64) -> bool {
        self.namespaces.contains(&Some(namespace))
    }
}

/// Whether `mount` is of the region of slice `id`: a line of `/proc/PID/mountinfo`, in which field 4 is what of its
/// file system is mounted, and field 5 where.
pub(crate) fn is_mount_of(mount: &str, id: SliceId) -> bool {
    let id = id.to_string();
    mount.split(' ').skip(3).take(2).any(|path| path.split('/').any(|name| name == id))
}

/// Whether a process with `cgroups` is in those of `container`, or below them: lines of `hierarchy:controllers:path`.
pub(crate) fn is_within(cgroups: &str, container: &str) -> bool {
    let paths = |text: &str| -> BTreeMap<String, String> {
        let line = |line: &str| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
        };
        text.lines().filter_map(line).collect()
    };
    let (cgroups, container) = (paths(cgroups), paths(container));
    // In the root of each hierarchy is everybody.
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
    use super::*;

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
        // Anywhere else it says nothing.
        assert!(!is_mount_of(&format!("31 22 0:25 / / rw - tmpfs /{id} rw"), id));
    }

    #[test]
    fn this_process_and_the_first_one_are_on_the_host() {
        let host = HostMounts::find();
        assert!(host.are_of(procfs::mount_namespace(std::process::id()).unwrap()));
        assert!(procfs::mount_namespace(1).is_none_or(|first| host.are_of(first)));
        assert!(!host.are_of(0));
    }

    #[test]
    fn a_cgroup_holds_those_below_it_and_the_root_says_nothing() {
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
