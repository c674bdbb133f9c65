//! A process in a slice: this test program, started again with an environment variable that makes it behave like the
//! shim.
//!
//! It claims a slot, and executes commands from its standard input. Each line is a command, which it answers with a
//! line. `attach` announces the slot on the attach socket, `reserve` charges memory.

use std::env;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::ledger::{self, Identity, SlotId};
use aliquot_abi::region::{
    ATTACH_SOCKET, Account, AttachMessage, LEDGER_FILE, LEDGER_FILE_BYTES, LIMITS_FILE, LIMITS_FILE_BYTES, Ledger,
    Limits,
};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket};

const REGION: &str = "ALIQUOT_TEST_TENANT_REGION";

/// Maps `T` from a file. The mapping lasts as long as the process.
fn map<T>(path: &Path, bytes: usize, protection: ProtFlags) -> &'static T {
    let write = protection.contains(ProtFlags::WRITE);
    let file = OpenOptions::new().read(true).write(write).open(path).unwrap();
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped, of a file that is as long as the
    // mapping and holds a `T`, which is integers and atomics.
    unsafe {
        mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0).unwrap().cast::<T>().as_ref().unwrap()
    }
}

/// The ledger of a region, as its processes map it.
pub(crate) fn ledger(region: &Path) -> &'static Ledger {
    map(&region.join(LEDGER_FILE), LEDGER_FILE_BYTES, ProtFlags::READ | ProtFlags::WRITE)
}

/// The limits of a region, as its processes map them.
pub(crate) fn limits(region: &Path) -> &'static Limits {
    map(&region.join(LIMITS_FILE), LIMITS_FILE_BYTES, ProtFlags::READ)
}

/// Sends bytes to the attach socket of a region.
pub(crate) fn say(region: &Path, bytes: &[u8]) {
    let fd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&fd, &SocketAddrUnix::new(region.join(ATTACH_SOCKET)).unwrap()).unwrap();
    send(&fd, bytes, SendFlags::NOSIGNAL).unwrap();
}

/// The message with which a process says that it has a slot.
pub(crate) fn attach_message(slot: SlotId) -> AttachMessage {
    AttachMessage {
        magic: AttachMessage::MAGIC,
        kind: AttachMessage::ATTACH,
        slot: slot.index as u32,
        generation: slot.generation,
        device: 0,
        reserved: 0,
    }
}

/// The identity of this process.
pub(crate) fn myself() -> Identity {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let start_time = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    use std::os::unix::fs::MetadataExt;
    Identity {
        pid: std::process::id(),
        start_time,
        pid_namespace: std::fs::metadata("/proc/self/ns/pid").unwrap().ino(),
    }
}

/// Not a test: the main function of the processes that [`Tenant`] starts.
#[test]
fn tenant_process() {
    let Some(region) = env::var_os(REGION) else { return };
    let region = Path::new(&region);
    let (ledger, limits) = (ledger(region), limits(region));
    let slot = ledger::claim(ledger, myself(), |_| true, |_| true).unwrap();
    let part = &ledger.slots[slot.index].devices[0];
    let answer = |text: &str| {
        println!("tenant: {text}");
        stdout().flush().unwrap();
    };
    answer(&format!("slot {} {}", slot.index, slot.generation));
    for line in stdin().lines().map(Result::unwrap) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["attach"] => say(region, &attach_message(slot).to_bytes()),
            ["ring"] => say(region, &AttachMessage { kind: AttachMessage::RING, ..attach_message(slot) }.to_bytes()),
            ["look"] => say(region, &AttachMessage { kind: AttachMessage::LOOK, ..attach_message(slot) }.to_bytes()),
            ["reserve", bytes] => {
                let limit = limits.devices[0].memory_limit_bytes.load(Ordering::Relaxed);
                answer(&reserve(&ledger.devices[0], &part.memory, bytes, limit));
                continue;
            }
            // Leaves the state of a process that was killed in the middle of a reservation, after the slice's account
            // was charged.
            ["doubt", bytes] => {
                let bytes: u64 = bytes.parse().unwrap();
                part.memory.fetch_add(ledger::OPERATION | bytes, Ordering::AcqRel);
                ledger.devices[0].used.fetch_add(bytes, Ordering::AcqRel);
            }
            ["reserve-host", bytes] => {
                let limit = match limits.host_memory_limit_bytes.load(Ordering::Relaxed) {
                    0 => u64::MAX,
                    limit => limit,
                };
                let host = &ledger.slots[slot.index].host_memory;
                answer(&reserve(&ledger.host, host, bytes, limit));
                continue;
            }
            ["copies", count, bytes, ns] => {
                for (counter, more) in [(&part.copies, count), (&part.copied_bytes, bytes), (&part.copy_ns, ns)] {
                    counter.fetch_add(more.parse().unwrap(), Ordering::Relaxed);
                }
            }
            ["throttled", ns] => part.throttled_ns.store(ns.parse().unwrap(), Ordering::Relaxed),
            ["wait"] => part.waiting.store(1, Ordering::Relaxed),
            ["exec"] => panic!("{}", Command::new(env::current_exe().unwrap()).args(env::args().skip(1)).exec()),
            _ => panic!("{line}"),
        }
        answer("done");
    }
}

/// A process in a slice; it is killed on drop.
pub(crate) struct Tenant {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    pub(crate) slot: SlotId,
}

impl Tenant {
    /// A process that has a slot in `region`, but has not announced it.
    pub(crate) fn silent(region: &str) -> Tenant {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["tenant::tenant_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(REGION, region)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut tenant = Tenant { child, stdin, stdout, slot: SlotId { index: 0, generation: 0 } };
        tenant.read_slot();
        tenant
    }

    /// A process that has a slot in `region`, and has announced it.
    pub(crate) fn start(region: &str) -> Tenant {
        let mut tenant = Tenant::silent(region);
        tenant.tell("attach");
        tenant
    }

    fn read_slot(&mut self) {
        let answer = self.read();
        let mut words = answer.split_whitespace().skip(1).map(|word| word.parse::<u32>().unwrap());
        self.slot = SlotId { index: words.next().unwrap() as usize, generation: words.next().unwrap() };
    }

    fn read(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the process in the slice has ended");
            // The line may begin with output of the test runner.
            if let Some((_, answer)) = line.split_once("tenant: ") {
                return answer.trim_end().into();
            }
        }
    }

    /// Sends a command, and returns the answer.
    pub(crate) fn tell(&mut self, what: &str) -> String {
        writeln!(self.stdin, "{what}").unwrap();
        self.read()
    }

    /// Lets the process exec this program again, which then claims a slot of its own.
    pub(crate) fn exec(&mut self) {
        writeln!(self.stdin, "exec").unwrap();
        self.read_slot();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL. It stays a zombie until the drop.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // The process may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reserves memory, and counts a refusal, as the shim does.
fn reserve(account: &Account, part: &AtomicU64, bytes: &str, limit: u64) -> String {
    let outcome = ledger::reserve(account, part, bytes.parse().unwrap(), limit);
    if outcome.is_err() {
        account.refused.fetch_add(1, Ordering::Relaxed);
    }
    format!("{outcome:?}")
}
