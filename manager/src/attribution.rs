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
use std::sync::Arc;

use aliquot_abi::region::LEDGER_FILE;

use crate::live::{Attached, LiveSlice};
use crate::procfs::{self, Mapped, Stat};
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
    own_mount_namespace: Option<u64>,
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
            own_mount_namespace: procfs::mount_namespace(std::process::id()),
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
        let found = self.by_mounts(process.pid).or_else(|| self.by_cgroup(process.pid)).or_else(|| {
            // Last: a container that is started from within a slice is not of that slice.
            self.by_ancestors(process.pid)
        });
        if let Some(number) = found {
            self.attribution.known.insert(process, number);
        } else {
            self.attribution.outside.insert(process, OUTSIDE_LOOKS);
        }
        found
    }

    fn by_mounts(&self, pid: u32) -> Option<u64> {
        // On the host itself any region may be mounted somewhere.
        if procfs::mount_namespace(pid)? == self.own_mount_namespace? {
            return None;
        }
        let mounts = procfs::mounts(pid)?;
        self.slices.values().find(|live| has_region(&mounts, live.id)).map(|live| live.number)
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
            let on_host = procfs::pids().filter(|pid| procfs::mount_namespace(*pid) == self.own_mount_namespace);
            for cgroups in on_host.filter_map(procfs::cgroups) {
                containers.retain(|container, _| !is_within(&cgroups, container));
            }
        }
        containers.into_iter().collect()
    }

    fn by_ancestors(&self, pid: u32) -> Option<u64> {
        let mut pid = pid;
        for _ in 0..ANCESTORS_MAX {
            if let Some((number, _)) = self.members.get(&pid) {
                return Some(*number);
            }
            let stat = Stat::of(pid)?;
            let owns = |live: &&Arc<LiveSlice>| {
                live.owner.is_some_and(|owner| owner.pid == pid && owner.start_time == stat.start_time)
            };
            let mut owned = self.slices.values().filter(owns);
            match (owned.next(), owned.next()) {
                (Some(live), None) => return Some(live.number),
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

/// The pids of the processes that use the region of slice `id`: those that have its ledger mapped, and those of containers in
/// which it is mounted.
#[must_use]
pub(crate) fn users_of(id: SliceId) -> Vec<u32> {
    let own_namespace = procfs::mount_namespace(std::process::id());
    let ledger = format!("/{id}/{LEDGER_FILE}");
    let uses = |pid: &u32| {
        let is_elsewhere = || procfs::mount_namespace(*pid) != own_namespace;
        procfs::maps(*pid, &ledger) == Mapped::Yes
            || (is_elsewhere() && procfs::mounts(*pid).is_some_and(|mounts| has_region(&mounts, id)))
    };
    procfs::pids().filter(uses).collect()
}

/// Whether the region of slice `id` is among `mounts`, as `/proc/PID/mountinfo` lists them: field 4 is what of its file system
/// is mounted, field 5 where.
pub(crate) fn has_region(mounts: &str, id: SliceId) -> bool {
    let id = id.to_string();
    let names = |path: &str| path.split('/').any(|name| name == id);
    mounts.lines().any(|line| line.split(' ').skip(3).take(2).any(names))
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
        let mounts = |name: &str| {
            format!(
                "22 1 0:20 / /proc rw - proc proc rw\n\
                 31 22 0:25 /aliquot/slices/{name} /run/aliquot/slices/{name} ro,nosuid - tmpfs tmpfs rw\n"
            )
        };
        assert!(has_region(&mounts(&id.to_string()), id));
        assert!(has_region(&format!("31 22 0:25 /x/{id}/ledger//deleted /y rw - tmpfs tmpfs rw"), id));
        assert!(!has_region(&mounts(&format!("{id}0")), id));
        assert!(!has_region(&mounts("x"), id));
        // Anywhere else it says nothing.
        assert!(!has_region(&format!("31 22 0:25 / / rw - tmpfs /{id} rw"), id));
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
