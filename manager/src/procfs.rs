//! What `/proc` says about processes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use aliquot_abi::ledger::Identity;

/// A process of this machine, as the manager sees it and as it sees itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessView {
    /// In the manager's pid namespace.
    pub pid: u32,
    /// In its own pid namespace.
    pub own_pid: u32,
    /// Inode number of its pid namespace; `None` where the manager may not look.
    pub pid_namespace: Option<u64>,
    /// Field 22 of `/proc/PID/stat`, by this process's clock.
    pub start_time: u64,
    /// Whether it counts time as the manager does; it sees another start time if not.
    pub same_clock: bool,
}

impl ProcessView {
    /// Looks at the process `pid`; `None` if it is gone.
    #[must_use]
    pub(crate) fn of(pid: u32) -> Option<ProcessView> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let own_pid =
            status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()?;
        let clock = |of: &str| fs::metadata(format!("/proc/{of}/ns/time")).ok().map(|namespace| namespace.ino());
        Some(ProcessView {
            pid,
            own_pid,
            pid_namespace: fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|namespace| namespace.ino()),
            start_time: start_time(pid)?,
            same_clock: clock(&pid.to_string()).is_none_or(|namespace| Some(namespace) == clock("self")),
        })
    }

    /// Whether this is the process that a ledger names so. What a process could not find out about itself is 0 there.
    #[must_use]
    pub(crate) fn is(&self, identity: Identity) -> bool {
        let agrees = |known: Option<u64>, said: u64| said == 0 || known.is_none_or(|known| known == said);
        self.own_pid == identity.pid
            && agrees(self.pid_namespace, identity.pid_namespace)
            && agrees(self.same_clock.then_some(self.start_time), identity.start_time)
    }
}

/// All processes.
pub(crate) fn all() -> impl Iterator<Item = ProcessView> {
    pids().filter_map(ProcessView::of)
}

/// What `/proc/PID/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Field 3: `R`, `S`, ...
    pub state: char,
    /// Field 4.
    pub parent: u32,
    /// Field 22: when the process was started, in clock ticks since boot.
    pub start_time: u64,
    /// Field 28: where its stack begins, which is another address in each program that it runs; 0 where the manager may not look.
    pub start_stack: u64,
}

impl Stat {
    /// Of the process `pid`; `None` if it is gone.
    #[must_use]
    pub(crate) fn of(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The command's name is in parentheses and can hold any character: fields are counted after the last one.
    pub(crate) fn parse(text: &str) -> Option<Stat> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            start_time: field(22)?.parse().ok()?,
            start_stack: field(28)?.parse().ok()?,
        })
    }

    /// Whether it has ended, and only its entry is left.
    #[must_use]
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// When a process was started: field 22 of `/proc/PID/stat`, in clock ticks since boot.
#[must_use]
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    Stat::of(pid).map(|stat| stat.start_time)
}

/// The command line of a process, or its name in brackets; empty if it is gone.
#[must_use]
pub(crate) fn command(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = line
        .split(|&byte| byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let text = match words.is_empty() {
        true => fs::read_to_string(format!("/proc/{pid}/comm"))
            .map(|name| format!("[{}]", name.trim_end()))
            .unwrap_or_default(),
        false => words.join(" "),
    };
    // It ends up in terminals and logs, and was written by whoever runs in the container.
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(COMMAND_CHARS_MAX).collect()
}

const COMMAND_CHARS_MAX: usize = 256;

/// The user that a process runs as.
#[must_use]
pub(crate) fn uid(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|process| process.uid())
}

/// The parent of a process.
#[must_use]
pub(crate) fn parent(pid: u32) -> Option<u32> {
    Stat::of(pid).map(|stat| stat.parent)
}

/// The name of a process's program, as the kernel keeps it: 15 bytes at most; empty if it is gone.
#[must_use]
pub(crate) fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim_end().into()).unwrap_or_default()
}

/// Inode number of a process's mount namespace; `None` where the manager may not look.
#[must_use]
pub(crate) fn mount_namespace(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/mnt")).ok().map(|namespace| namespace.ino())
}

/// The mounts that a process sees, as the kernel lists them.
#[must_use]
pub(crate) fn mounts(pid: u32) -> Option<String> {
    fs::read(format!("/proc/{pid}/mountinfo")).ok().map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// The cgroups that a process is in, as the kernel lists them.
#[must_use]
pub(crate) fn cgroups(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()
}

/// The pids of all processes.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a file is mapped by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// The process has no memory any more: it is ending.
    Ending,
    /// The manager may not look.
    Unknown,
}

/// Whether the process `pid` maps a file whose path ends with `path_end`.
#[must_use]
pub(crate) fn maps(pid: u32, path_end: &str) -> Mapped {
    match fs::read(format!("/proc/{pid}/maps")) {
        Ok(text) if text.is_empty() => Mapped::Ending,
        Ok(text) => mapped_in(&String::from_utf8_lossy(&text), path_end),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Mapped::Unknown,
        // Its entry is gone.
        Err(_) => Mapped::Ending,
    }
}

/// A file that was removed has a word behind its path.
pub(crate) fn mapped_in(maps: &str, path_end: &str) -> Mapped {
    let is_it = |line: &str| line.strip_suffix(" (deleted)").unwrap_or(line).ends_with(path_end);
    if maps.lines().any(is_it) { Mapped::Yes } else { Mapped::No }
}

/// This machine's name.
#[must_use]
pub(crate) fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().into()).unwrap_or_default()
}

/// Random at each boot of the machine.
#[must_use]
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().into()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_s_name_does_not_confuse() {
        let text = "12 (a) b (c) R 1 12 12 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1 1 1 1 99";
        let stat = Stat { state: 'R', parent: 1, start_time: 4711, start_stack: 99 };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("12 (a"), None);
        assert!(!stat.has_ended() && Stat { state: 'Z', ..stat }.has_ended());
    }

    #[test]
    fn a_mapped_file_is_found_by_the_end_of_its_path() {
        let maps = "7f00-7f01 rw-s 00000000 00:18 7 /run/aliquot/slices/0a/ledger\n7f02-7f03 r--p 0 00:00 0\n";
        assert_eq!(mapped_in(maps, "/0a/ledger"), Mapped::Yes);
        assert_eq!(mapped_in(&maps.replace("ledger", "ledger (deleted)"), "/0a/ledger"), Mapped::Yes);
        assert_eq!(mapped_in(maps, "/0b/ledger"), Mapped::No);
        let own = std::env::current_exe().unwrap();
        assert_eq!(super::maps(std::process::id(), own.to_str().unwrap()), Mapped::Yes);
        assert_eq!(super::maps(u32::MAX, "x"), Mapped::Ending);
    }

    #[test]
    fn this_process_is_itself_and_no_other() {
        let me = ProcessView::of(std::process::id()).unwrap();
        let identity =
            Identity { pid: me.own_pid, start_time: me.start_time, pid_namespace: me.pid_namespace.unwrap() };
        assert!(me.is(identity));
        assert!(me.is(Identity { pid_namespace: 0, ..identity }));
        assert!(!me.is(Identity { start_time: identity.start_time + 1, ..identity }));
        assert!(!me.is(Identity { pid_namespace: 1, ..identity }));
        assert!(!me.is(Identity { pid: identity.pid + 1, ..identity }));
        assert!(all().any(|process| process == me));
        assert!(!command(std::process::id()).is_empty());
    }
}
