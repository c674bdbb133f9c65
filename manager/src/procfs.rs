//! What `/proc` says about processes.

use std::fs;
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
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| ProcessView::of(entry.file_name().to_str()?.parse().ok()?))
}

/// When a process was started: field 22 of `/proc/PID/stat`, in clock ticks since boot.
#[must_use]
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    start_time_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The command's name is in parentheses and can hold any character: fields are counted after the last one.
fn start_time_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
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
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
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
        let stat = "12 (a) b (c) R 1 12 12 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1";
        assert_eq!(start_time_in(stat), Some(4711));
        assert_eq!(start_time_in("12 (a"), None);
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
