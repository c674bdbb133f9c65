//! The observer's data: the processes of each slice, the amounts that each slice may hold, and the present excuses.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::counts::Counts;

/// An effect of a fault on a slice that is no violation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Excuse {
    /// The memory limit is not judged: a tenant has written false figures into the slice's ledger.
    pub(crate) limits: bool,
    /// Calls of the slice's tenants may fail.
    pub(crate) calls: bool,
    /// The slice's tenants may wait, or end.
    pub(crate) waits: bool,
}

impl Excuse {
    pub(crate) const ALL: Excuse = Excuse { limits: true, calls: true, waits: true };
    pub(crate) const TENANTS: Excuse = Excuse { limits: false, calls: true, waits: true };
}

#[derive(Default)]
pub(crate) struct Roster {
    pub(crate) slices: BTreeMap<String, Entry>,
}

pub(crate) struct Entry {
    pub(crate) ceilings: Vec<Ceiling>,
    pub(crate) members: Vec<Member>,
    pub(crate) excuse: Excuse,
    /// Whether it was reported in this round that the slice holds too much. One report for each round is enough.
    pub(crate) is_told_of: bool,
}

/// How much a slice may hold of a device, by the device's own figures.
#[derive(Clone, Debug)]
pub(crate) struct Ceiling {
    pub(crate) device: usize,
    /// The limit that the manager has confirmed.
    pub(crate) limit_bytes: u64,
    /// The most that may be seen. After a resize to less this is above the limit, until less has been seen.
    pub(crate) bytes: u64,
    /// For each member, its process id and the number of its calls when the last resize was confirmed. An operation
    /// that was allowed before the resize is complete two calls later.
    pub(crate) since: Vec<(u32, u64)>,
}

/// A tenant. It leads its own process group.
pub(crate) struct Member {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) counts: Arc<Counts>,
    /// Whether a fault has stopped it.
    pub(crate) is_stopped: bool,
    /// Whether its calls and waits are judged.
    pub(crate) is_judged: bool,
    pub(crate) last_calls: u64,
    /// When its progress was last seen.
    pub(crate) changed: Instant,
    pub(crate) is_told_of: bool,
}

impl Roster {
    pub(crate) fn add_slice(&mut self, name: &str, limits: &[(usize, u64)]) {
        let ceiling =
            |&(device, bytes): &(usize, u64)| Ceiling { device, limit_bytes: bytes, bytes, since: Vec::new() };
        let entry = Entry {
            ceilings: limits.iter().map(ceiling).collect(),
            members: Vec::new(),
            excuse: Excuse::default(),
            is_told_of: false,
        };
        self.slices.insert(name.to_owned(), entry);
    }

    pub(crate) fn add(&mut self, slice: &str, name: &str, pid: u32, counts: Arc<Counts>, is_judged: bool) {
        let member = Member {
            pid,
            name: name.to_owned(),
            counts,
            is_stopped: false,
            is_judged,
            last_calls: 0,
            changed: Instant::now(),
            is_told_of: false,
        };
        if let Some(entry) = self.slices.get_mut(slice) {
            entry.members.push(member);
        }
    }

    /// Must be called before the process is reaped, because afterwards another process can get its id.
    pub(crate) fn remove(&mut self, pid: u32) {
        for entry in self.slices.values_mut() {
            entry.members.retain(|member| member.pid != pid);
        }
    }

    pub(crate) fn excuse(&mut self, slice: &str, excuse: Excuse) {
        if let Some(entry) = self.slices.get_mut(slice) {
            entry.excuse = excuse;
        }
    }

    /// Ends all excuses. Waiting times are counted anew from now.
    pub(crate) fn end_excuses(&mut self) {
        for entry in self.slices.values_mut() {
            entry.excuse = Excuse::default();
            entry.is_told_of = false;
            entry.members.iter_mut().for_each(|member| member.changed = Instant::now());
        }
    }

    /// Whether a tenant may end by itself without a violation.
    pub(crate) fn may_end(&self, slice: &str, pid: u32) -> bool {
        let Some(entry) = self.slices.get(slice) else { return true };
        entry.excuse.waits || entry.members.iter().any(|member| member.pid == pid && !member.is_judged)
    }

    /// Raises the ceilings to a larger limit. Must be called before the manager is asked for it.
    pub(crate) fn may_grow(&mut self, slice: &str, bytes: u64) {
        for ceiling in self.ceilings(slice) {
            ceiling.limit_bytes = ceiling.limit_bytes.max(bytes);
            ceiling.bytes = ceiling.bytes.max(bytes);
        }
    }

    /// Records a limit that the manager has confirmed.
    pub(crate) fn is_resized(&mut self, slice: &str, bytes: u64) {
        let Some(entry) = self.slices.get_mut(slice) else { return };
        let since = entry.members.iter().map(|member| (member.pid, member.counts.read().calls)).collect::<Vec<_>>();
        for ceiling in &mut entry.ceilings {
            ceiling.limit_bytes = bytes;
            ceiling.bytes = ceiling.bytes.max(bytes);
            ceiling.since.clone_from(&since);
        }
    }

    fn ceilings(&mut self, slice: &str) -> impl Iterator<Item = &mut Ceiling> {
        self.slices.get_mut(slice).into_iter().flat_map(|entry| &mut entry.ceilings)
    }

    /// The slice whose tenant leads the group of process `pid`.
    pub(crate) fn slice_of(&self, pid: u32) -> Option<&str> {
        let group = group_of(pid)?;
        let is_of = |entry: &Entry| entry.members.iter().any(|member| member.pid == group);
        self.slices.iter().find(|(_, entry)| is_of(entry)).map(|(name, _)| name.as_str())
    }

    /// Stops or continues a tenant with its whole process group.
    pub(crate) fn set_stopped(&mut self, pid: u32, is_stopped: bool) {
        for member in self.slices.values_mut().flat_map(|entry| &mut entry.members) {
            if member.pid == pid {
                member.signal(if is_stopped { Signal::STOP } else { Signal::CONT });
                member.is_stopped = is_stopped;
                member.changed = Instant::now();
            }
        }
    }
}

impl Entry {
    /// Lowers the ceiling to the amount that was seen with all processes stopped, but not below the limit. Does so only
    /// when the operations under way at the confirmation of the limit are complete.
    pub(crate) fn lower_ceiling(&mut self, device: usize, held_bytes: u64) {
        let members = &self.members;
        let is_done = |&(pid, calls): &(u32, u64)| {
            let member = members.iter().find(|member| member.pid == pid);
            member.is_none_or(|member| member.counts.read().calls >= calls + 2)
        };
        for ceiling in self.ceilings.iter_mut().filter(|ceiling| ceiling.device == device) {
            ceiling.since.retain(|since| !is_done(since));
            if ceiling.since.is_empty() {
                ceiling.bytes = ceiling.limit_bytes.max(ceiling.bytes.min(held_bytes));
            }
        }
    }
}

impl Member {
    pub(crate) fn signal(&self, signal: Signal) {
        // The process is not reaped while it is on the roster, so its id cannot have been reused. It may have ended.
        if let Some(group) = as_pid(self.pid) {
            let _ = kill_process_group(group, signal);
        }
    }
}

/// The process group of a process. Kernel threads have group 0, which no tenant has.
pub(crate) fn group_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name is in parentheses and can contain any character.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(2)?.parse().ok()
}

pub(crate) fn as_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn after_a_resize_a_slice_keeps_what_it_has_and_gets_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counts");
        let counts = Arc::new(Counts::create(&path).unwrap());
        let mut roster = Roster::default();
        roster.add_slice("a", &[(0, 64)]);
        roster.add("a", "tenant", std::process::id(), counts, true);
        roster.is_resized("a", 16);
        let seen = |roster: &mut Roster, held: u64| {
            let entry = roster.slices.get_mut("a").unwrap();
            entry.lower_ceiling(0, held);
            entry.ceilings[0].bytes
        };
        // An operation that was allowed before the resize may still complete.
        assert_eq!(seen(&mut roster, 40), 64);
        let tenant = OpenOptions::new().write(true).open(&path).unwrap();
        tenant.write_all_at(&2u64.to_ne_bytes(), 0).unwrap();
        assert_eq!([50, 40, 60, 10].map(|held| seen(&mut roster, held)), [50, 40, 40, 16]);
        roster.may_grow("a", 32);
        assert_eq!(seen(&mut roster, 10), 32);
    }
}
