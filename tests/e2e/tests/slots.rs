//! Slots: the memory that they cost, and processes that find none free.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use aliquot_abi::region::{LEDGER_BACKED_BYTES, LEDGER_FILE, NO_SLOT, SLOTS_BACKED, owner};
use aliquot_harness::{EXACT_MEMORY, GIB, HostProgram, MIB, Node, Process, Region, SimulatedGpu, Slice, wait};

/// The program's output without a slot: a launch has no gate to wait at and gets `CUDA_ERROR_NOT_PERMITTED`.
const REFUSED: &str = "memory: 2, launch: 800\n";

/// The start time of this process, in clock ticks since boot.
fn own_start_time() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

fn hold(gpu: &SimulatedGpu, preload: impl Fn(&mut Command)) -> Process {
    let mut command = HostProgram::linked(gpu, "hold").on(gpu);
    preload(command.arg(MIB.to_string()));
    let mut holder = Process::start(&mut command);
    holder.wait_for("held");
    holder
}

fn start_without_slot(gpu: &SimulatedGpu, preload: impl Fn(&mut Command)) -> Process {
    let mut command = HostProgram::linked(gpu, "without_slot").on(gpu);
    preload(&mut command);
    let mut process = Process::start(&mut command);
    process.wait_for(REFUSED);
    process
}

/// The first line that a process without a slot writes to standard error. That is a pipe, because the shim writes to
/// nothing else.
fn explanation(gpu: &SimulatedGpu, preload: impl Fn(&mut Command)) -> String {
    let mut command = HostProgram::linked(gpu, "without_slot").on(gpu);
    preload(&mut command);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().and_then(|()| child.wait()).unwrap();
    line
}

/// The test process itself is the living owner of all slots but one.
#[test]
fn a_process_without_a_slot_is_refused_until_one_is_free() {
    let gpu = SimulatedGpu::with("mode = 'instant'\n");
    let region = Region::new(&gpu, 8 * MIB);
    let ledger = region.ledger();
    let own_namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
    for index in NO_SLOT + 2..ledger.owners.len() {
        ledger.start_times[index].store(own_start_time(), Ordering::Relaxed);
        ledger.slots[index].pid_namespace.store(own_namespace, Ordering::Relaxed);
        ledger.owners[index].store(owner::word(owner::ATTACHED, 1, std::process::id()), Ordering::Relaxed);
    }
    let preload = |command: &mut Command| _ = region.preload_into(command);
    let holder = hold(&gpu, preload);
    let mut late = start_without_slot(&gpu, preload);
    assert_eq!(region.used_bytes(0), MIB);
    let explanation = explanation(&gpu, preload);
    assert!(explanation.starts_with("aliquot: the slice has too many processes"), "{explanation:?}");
    let _ = holder.kill();
    late.wait_for("held");
    assert_eq!(region.used_bytes(0), MIB);
    let owner = ledger.owners[NO_SLOT + 1].load(Ordering::Relaxed);
    assert_eq!((owner::state(owner), owner::pid(owner)), (owner::ATTACHED, late.id()));
}

fn ledger_file(slice: &Slice) -> PathBuf {
    slice.region_dir().join(LEDGER_FILE)
}

fn memory_bytes(file: &Path) -> u64 {
    fs::metadata(file).unwrap().blocks() * 512
}

#[test]
fn a_slice_takes_memory_for_the_slots_that_it_uses() {
    const MORE: usize = 3;
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}mode = 'instant'\n"));
    let mut node = Node::start(&gpu);
    let slice = node.slice("small", 50, GIB);
    let preload = |command: &mut Command| _ = slice.preload_into(command);
    let mut holders: Vec<Process> = (0..3).map(|_| hold(&gpu, preload)).collect();
    // Reading the ledger must not allocate pages for unused slots: not by a manager that starts, answers, audits and
    // sweeps, and not by a process that seeks a slot.
    node.kill();
    node.restart();
    wait::until_true("the manager knows them", || node.client().usage("small").unwrap().processes.len() == 3);
    assert_eq!(memory_bytes(&ledger_file(&slice)), LEDGER_BACKED_BYTES as u64);
    const { assert!(LEDGER_BACKED_BYTES < 256 << 10) };
    // Each process beyond the first slots takes a page.
    holders.extend((3..SLOTS_BACKED - 1 + MORE).map(|_| hold(&gpu, preload)));
    assert_eq!(memory_bytes(&ledger_file(&slice)), (LEDGER_BACKED_BYTES + MORE * 4096) as u64);
    drop(holders);
    wait::until_true("all is given back", || slice.used_bytes(0) == 0);
}

/// A mounted file system, unmounted on drop.
struct Mounted(PathBuf);

impl Mounted {
    /// `None` if this user may not mount.
    fn tmpfs(at: &Path, options: &str) -> Option<Mounted> {
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).status();
        status.is_ok_and(|status| status.success()).then(|| Mounted(at.into()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_file_system_ends_no_process() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}mode = 'instant'\n"));
    let node = Node::start(&gpu);
    let slices = node.runtime_dir().join("slices");
    let Some(_mounted) = Mounted::tmpfs(&slices, "size=1m,mode=711") else { return };
    let slice = node.slice("full", 50, GIB);
    let mut rest = File::create(slices.join(".rest")).unwrap();
    while rest.write_all(&[0; 4096]).is_ok() {}
    let preload = |command: &mut Command| _ = slice.preload_into(command);
    let mut holders: Vec<Process> = (1..SLOTS_BACKED).map(|_| hold(&gpu, preload)).collect();
    let mut late = start_without_slot(&gpu, preload);
    let _ = holders.remove(0).kill();
    late.wait_for("held");
}
