//! The facts in `/proc` about processes.
//!
//! A process chooses the names in these files, and the names can hold any bytes, so nothing is assumed to be UTF-8. If
//! a main thread ends before the other threads, the memory and most namespaces are missing from the process's own
//! directory. Then the directory of one of the other threads is read.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aliquot_abi::ledger::Identity;

use crate::descriptors;

mod command;
mod slow;

pub(crate) use command::{CommandLine, command, command_later};
use slow::SlowReads;

/// Bytes read of `/proc/PID/stat`. The fields of [`Stat`] always lie within them.
const STAT_BYTES_MAX: usize = 1024;
/// Maximum bytes read of a list that a process can make arbitrarily long: its mappings, its mounts.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// A process of this machine, as the manager sees it and as the process sees itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessView {
    /// The pid in the manager's pid namespace.
    pub pid: u32,
    /// The pid in its own pid namespace.
    pub own_pid: u32,
    /// Inode number of its pid namespace; `None` if the manager may not read it.
    pub pid_namespace: Option<u64>,
    /// Field 22 of `/proc/PID/stat`, by the manager's clock.
    pub start_time: u64,
    /// Whether it is in the manager's time namespace; if not, it sees another start time.
    pub same_clock: bool,
}

impl ProcessView {
    /// Reads the process `pid`; `None` if it is gone.
    #[must_use]
    pub(crate) fn of(pid: u32) -> Option<ProcessView> {
        ProcessView::read(pid).ok().flatten()
    }

    /// Like [`ProcessView::of`], but returns errors of reading.
    ///
    /// # Errors
    /// Too few resources to read anything now. This does not mean that the process is gone.
    fn read(pid: u32) -> io::Result<Option<ProcessView>> {
        let Some(own_pid) = read_of(pid, "status")?.and_then(|status| own_pid_in(&status)) else { return Ok(None) };
        let Some(stat) = read_of(pid, "stat")?.and_then(|stat| Stat::parse(&stat)) else { return Ok(None) };
        let own_clock = || namespace(std::process::id(), "time");
        Ok(Some(ProcessView {
            pid,
            own_pid,
            pid_namespace: namespace(pid, "pid"),
            start_time: stat.start_time,
            same_clock: namespace(pid, "time").is_none_or(|clock| Some(clock) == own_clock()),
        }))
    }

    /// The identity of the process as a ledger would hold it, with 0 for unknown facts.
    #[must_use]
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            pid: self.own_pid,
            start_time: if self.same_clock { self.start_time } else { 0 },
            pid_namespace: self.pid_namespace.unwrap_or(0),
        }
    }

    /// Whether a ledger's identity names this process. Facts that the process could not find out about itself are 0
    /// there.
    #[must_use]
    pub(crate) fn is(&self, identity: Identity) -> bool {
        let agrees = |known: Option<u64>, said: u64| said == 0 || known.is_none_or(|known| known == said);
        self.own_pid == identity.pid
            && agrees(self.pid_namespace, identity.pid_namespace)
            && agrees(self.same_clock.then_some(self.start_time), identity.start_time)
    }
}

/// The process's pid in its own namespace, from the content of `/proc/PID/status`.
pub(crate) fn own_pid_in(status: &[u8]) -> Option<u32> {
    let status = String::from_utf8_lossy(status);
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

/// All processes of this machine.
///
/// # Errors
/// Too few resources to read them now. Then no process is known to be gone.
pub(crate) fn all() -> io::Result<Vec<ProcessView>> {
    list()?.filter_map(|pid| ProcessView::read(pid).transpose()).collect()
}

/// The content of a file of the process `pid`; `None` if the process is gone, or the file may not be read.
///
/// # Errors
/// Too few resources to read anything now.
fn read_of(pid: u32, file: &str) -> io::Result<Option<Vec<u8>>> {
    match fs::read(format!("/proc/{pid}/{file}")) {
        Err(error) if descriptors::is_want(&error) => Err(error),
        outcome => Ok(outcome.ok()),
    }
}

/// Whether the process `pid` that was started at `start_time` is known to be gone.
#[must_use]
pub(crate) fn is_gone(pid: u32, start_time: u64) -> bool {
    read_of(pid, "stat")
        .is_ok_and(|stat| stat.and_then(|stat| Stat::parse(&stat)).is_none_or(|stat| stat.start_time != start_time))
}

/// The fields of `/proc/PID/stat` that the manager uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Field 3: `R`, `S`, ...
    pub state: char,
    /// Field 4: the pid of the parent.
    pub parent: u32,
    /// Field 20: remaining threads. Counts the main thread as long as the process exists.
    pub threads: u32,
    /// Field 22: when the process was started, in clock ticks since boot.
    pub start_time: u64,
    /// Field 28: the start address of its stack, which differs for each program that it runs; 0 if the manager may not
    /// read it.
    pub start_stack: u64,
}

impl Stat {
    /// The values for the process `pid`; `None` if it is gone.
    #[must_use]
    pub(crate) fn of(pid: u32) -> Option<Stat> {
        Stat::in_dir(&format!("/proc/{pid}"))
    }

    fn in_dir(dir: &str) -> Option<Stat> {
        // One read, because a look reads this file for each process on a device. `fs::read` makes four more system calls.
        let mut text = [0; STAT_BYTES_MAX];
        let read_bytes = File::open(format!("{dir}/stat")).ok()?.read(&mut text).ok()?;
        Stat::parse(text.get(..read_bytes)?)
    }

    /// Parses the file. The command's name is in parentheses and can hold any bytes, so fields are counted from the
    /// last parenthesis.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Stat> {
        let text = String::from_utf8_lossy(bytes);
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            start_time: field(22)?.parse().ok()?,
            start_stack: field(28)?.parse().ok()?,
        })
    }

    /// Whether the process has ended, and only its entry is left.
    #[must_use]
    pub(crate) fn has_ended(&self) -> bool {
        match self.state {
            'X' | 'x' => true,
            // The main thread can end before the others, which keep everything that the process holds.
            'Z' => self.threads <= 1,
            _ => false,
        }
    }
}

/// The directories of the remaining threads, if the main thread of `pid` has ended; otherwise none.
fn threads_left(pid: u32) -> impl Iterator<Item = String> {
    let is_dead = |stat: &Stat| matches!(stat.state, 'Z' | 'X' | 'x');
    let without_main = Stat::of(pid).filter(is_dead).map(|_| format!("/proc/{pid}/task"));
    let entries = without_main.and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.path().to_str().map(str::to_owned))
        .filter(move |dir| Stat::in_dir(dir).is_some_and(|stat| !is_dead(&stat)))
}

/// The result of `ask` in the directory of the process, or in that of a remaining thread if the main thread has ended.
fn ask<T>(pid: u32, ask: impl Fn(&str) -> Option<T>) -> Option<T> {
    ask(&format!("/proc/{pid}")).or_else(|| threads_left(pid).find_map(|dir| ask(&dir)))
}

/// Inode number of a process's namespace of this kind; `None` if the manager may not read it.
fn namespace(pid: u32, kind: &str) -> Option<u64> {
    ask(pid, |dir| fs::metadata(format!("{dir}/ns/{kind}")).ok().map(|namespace| namespace.ino()))
}

/// When a process was started: field 22 of `/proc/PID/stat`, in clock ticks since boot.
#[must_use]
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    Stat::of(pid).map(|stat| stat.start_time)
}

/// The user that a process runs as. The owner of its directory is root where the process is not dumpable.
#[must_use]
pub(crate) fn uid(pid: u32) -> Option<u32> {
    effective_uid_in(&fs::read(format!("/proc/{pid}/status")).ok()?)
}

/// The second of the real, effective, saved and file system users. The process's name in `status` may not be text.
fn effective_uid_in(status: &[u8]) -> Option<u32> {
    let status = String::from_utf8_lossy(status);
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The parent of a process.
#[must_use]
pub(crate) fn parent(pid: u32) -> Option<u32> {
    Stat::of(pid).map(|stat| stat.parent)
}

/// A file's identity, which no name can fake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The identity of the file at `path`; `None` if there is none.
    #[must_use]
    pub(crate) fn of(path: &Path) -> Option<FileId> {
        fs::metadata(path).ok().map(|file| FileId { device: file.dev(), inode: file.ino() })
    }
}

/// The file of the program that a process runs; `None` if the manager may not read it.
#[must_use]
pub(crate) fn program(pid: u32) -> Option<FileId> {
    ask(pid, |dir| FileId::of(&Path::new(dir).join("exe")))
}

/// Inode number of a process's mount namespace; `None` if the manager may not read it.
#[must_use]
pub(crate) fn mount_namespace(pid: u32) -> Option<u64> {
    namespace(pid, "mnt")
}

/// The first result of `find` among the mounts that a process sees, one per line in the kernel's format.
pub(crate) fn find_mount<T>(pid: u32, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mounts = ask(pid, |dir| File::open(format!("{dir}/mountinfo")).ok())?;
    find_line(BufReader::new(mounts), find).ok().flatten()
}

/// The cgroups of a process, in the kernel's format.
#[must_use]
pub(crate) fn cgroups(pid: u32) -> Option<String> {
    fs::read(format!("/proc/{pid}/cgroup")).ok().map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// The first result of `find` among the lines of `list`.
///
/// # Errors
/// The list cannot be read, or is too long.
fn find_line<T>(list: impl BufRead, find: impl Fn(&str) -> Option<T>) -> io::Result<Option<T>> {
    let mut list = list.take(LIST_BYTES_MAX);
    let mut line = Vec::new();
    while list.read_until(b'\n', &mut line)? > 0 {
        if let Some(found) = find(String::from_utf8_lossy(&line).trim_end_matches('\n')) {
            return Ok(Some(found));
        }
        line.clear();
    }
    if list.limit() == 0 { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(None) }
}

/// The pids of all processes; none if `/proc` cannot be listed.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    list().into_iter().flatten()
}

/// The pids of all processes.
///
/// # Errors
/// `/proc` cannot be listed just now.
pub(crate) fn list() -> io::Result<impl Iterator<Item = u32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// Whether a file is mapped by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// The file is mapped.
    Yes,
    /// The file is not mapped.
    No,
    /// The process has no memory any more, because it is ending.
    Ending,
    /// The manager may not read the list, or the list is too long.
    Unknown,
    /// The list did not come in time: a thread of the process holds the lock that its readers need.
    Silent,
}

/// Whether the process `pid` maps a file whose path ends with `path_end`. Waits only briefly for its list.
#[must_use]
pub(crate) fn maps(pid: u32, path_end: &str) -> Mapped {
    static READS: SlowReads = SlowReads::new(Duration::from_secs(1), 64);
    maps_by(&READS, pid, {
        let path_end = path_end.to_owned();
        move || maps_at_last(pid, &path_end)
    })
}

fn maps_by(reads: &'static SlowReads, pid: u32, read: impl FnOnce() -> Mapped + Send + 'static) -> Mapped {
    let answer = Arc::new(OnceLock::new());
    reads.ask(pid, &answer, read);
    answer.get().copied().unwrap_or(Mapped::Silent)
}

/// Like [`maps`], but waits as long as it takes.
fn maps_at_last(pid: u32, path_end: &str) -> Mapped {
    let maps_in = |dir: &str| {
        let maps = File::open(format!("{dir}/maps")).and_then(|maps| mapped_in(BufReader::new(maps), path_end));
        match maps {
            Ok(mapped) => mapped,
            Err(error) => match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::FileTooLarge => Mapped::Unknown,
                _ if descriptors::is_want(&error) => Mapped::Unknown,
                // The process is gone.
                _ => Mapped::Ending,
            },
        }
    };
    let is_known = |dir: &str| Some(maps_in(dir)).filter(|mapped| *mapped != Mapped::Ending);
    ask(pid, is_known).unwrap_or(Mapped::Ending)
}

/// Whether a file whose path ends with `path_end` is in `maps`, a list in the kernel's format. The kernel appends a
/// word to the path of a removed file.
///
/// # Errors
/// The list cannot be read to its end.
pub(crate) fn mapped_in(mut maps: impl BufRead, path_end: &str) -> io::Result<Mapped> {
    if maps.fill_buf()?.is_empty() {
        return Ok(Mapped::Ending);
    }
    let is_it = |line: &str| line.strip_suffix(" (deleted)").unwrap_or(line).ends_with(path_end).then_some(());
    Ok(find_line(maps, is_it)?.map_or(Mapped::No, |()| Mapped::Yes))
}

/// This machine's host name, from the kernel.
#[must_use]
pub(crate) fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().into()).unwrap_or_default()
}

/// An id that is random for each boot of the machine.
#[must_use]
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().into()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::{BufRead, BufReader};
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    use super::program as program_of;
    use super::*;

    #[test]
    fn a_command_s_name_does_not_confuse() {
        let text = b"12 (a) \xd0 (c) R 1 12 12 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 4711 1 1 1 1 1 99";
        let stat = Stat { state: 'R', parent: 1, threads: 3, start_time: 4711, start_stack: 99 };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse(b"12 (a"), None);
        assert_eq!(own_pid_in(b"Name:\t\xd0\nNSpid:\t12\t7\n"), Some(7));
        assert_eq!(effective_uid_in(b"Name:\t\xd0\nUid:\t1000\t7\t0\t7\n"), Some(7));
    }

    #[test]
    fn a_list_of_mappings_that_does_not_come_is_not_waited_for() {
        static READS: SlowReads = SlowReads::new(Duration::from_secs(2), 8);
        let (hang, hung) = std::sync::mpsc::channel::<()>();
        let read = move || {
            // Until the test ends.
            let _ = hung.recv();
            Mapped::No
        };
        assert_eq!(maps_by(&READS, 1, read), Mapped::Silent);
        // Another process answers, and this one is not even asked again.
        assert_eq!(maps_by(&READS, 2, || Mapped::No), Mapped::No);
        assert_eq!(maps_by(&READS, 1, || Mapped::No), Mapped::Silent);
        drop(hang);
    }

    #[test]
    fn a_process_ends_with_its_last_thread() {
        let stat = |state, threads| Stat { state, threads, parent: 1, start_time: 1, start_stack: 0 };
        assert!(stat('Z', 1).has_ended() && stat('Z', 0).has_ended() && stat('X', 2).has_ended());
        assert!(!stat('Z', 2).has_ended() && !stat('S', 1).has_ended());
    }

    #[test]
    fn a_process_whose_name_is_not_text_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        // A longer name in two-byte letters, as it looks when the kernel cuts it at 15 bytes.
        let program = dir.path().join(OsStr::from_bytes(b"\xd0\xb0\xd0"));
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let mut command = Command::new(&program);
        command.args(["-c", "echo ready; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        // The parent continues before the kernel has set the new program's name.
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(fs::read(format!("/proc/{pid}/comm")).unwrap().starts_with(b"\xd0\xb0\xd0"));
        let stat = Stat::of(pid).unwrap();
        assert_eq!((stat.parent, ProcessView::of(pid).unwrap().own_pid), (std::process::id(), pid));
        assert!(all().unwrap().iter().any(|process| process.pid == pid) && cgroups(pid).is_some());
        assert_eq!(program_of(pid), FileId::of(Path::new("/bin/sh")));
        assert_eq!(maps(pid, "/no/such/file"), Mapped::No);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!((Stat::of(pid), maps(pid, "/no/such/file")), (None, Mapped::Ending));
    }

    #[test]
    fn a_mapped_file_is_found_by_the_end_of_its_path() {
        let maps = "7f00-7f01 rw-s 00000000 00:18 7 /run/aliquot/slices/0a/ledger\n7f02-7f03 r--p 0 00:00 0\n";
        let mapped_in = |maps: &str, path_end| mapped_in(maps.as_bytes(), path_end).unwrap();
        assert_eq!(mapped_in(maps, "/0a/ledger"), Mapped::Yes);
        assert_eq!(mapped_in(&maps.replace("ledger", "ledger (deleted)"), "/0a/ledger"), Mapped::Yes);
        assert_eq!(mapped_in(maps, "/0b/ledger"), Mapped::No);
        assert_eq!(mapped_in("", "/0b/ledger"), Mapped::Ending);
        let own = std::env::current_exe().unwrap();
        assert_eq!(super::maps(std::process::id(), own.to_str().unwrap()), Mapped::Yes);
        assert_eq!(super::maps(u32::MAX, "x"), Mapped::Ending);
    }

    #[test]
    fn a_list_without_end_is_given_up() {
        let endless = || BufReader::new(io::repeat(b'x'));
        assert_eq!(mapped_in(endless(), "/ledger").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        // A match before the limit still counts.
        let maps = BufReader::new(b"7f00-7f01 r--p 0 00:00 0 /0a/ledger\n".chain(io::repeat(b'x')));
        assert_eq!(mapped_in(maps, "/0a/ledger").unwrap(), Mapped::Yes);
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
        assert!(all().unwrap().contains(&me));
        assert!(!is_gone(me.pid, me.start_time) && is_gone(me.pid, me.start_time + 1) && is_gone(u32::MAX, 1));
        assert!(!command(std::process::id()).text().is_empty());
    }
}
