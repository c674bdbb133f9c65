//! A container's view of its devices shows the slice and its own processes only, and is the same in every interface.

use std::process::Command;
use std::sync::atomic::Ordering;

use aliquot_abi::region::{SLOTS_MAX, Slot, owner};
use aliquot_harness::{
    EXACT_MEMORY, GIB, HostProgram, MIB, Node, Outcome, Part, Process, PythonEnvironment, Region, SimulatedGpu, run,
    wait,
};

/// Starts a program that holds `bytes` of the first device until it is dropped. `enter` may put it into a slice.
fn holder(gpu: &SimulatedGpu, bytes: u64, enter: impl FnOnce(&mut Command)) -> Process {
    let mut command = HostProgram::linked(gpu, "hold").on(gpu);
    command.arg(bytes.to_string());
    enter(&mut command);
    let mut process = Process::start(&mut command);
    process.wait_for("held\n");
    process
}

/// The slot of process `pid`.
fn slot_of(region: &Region, pid: u32) -> &Slot {
    let ledger = region.ledger();
    let is_its = |&slot: &usize| owner::pid(ledger.owners[slot].load(Ordering::Relaxed)) == pid;
    let slot = (1..SLOTS_MAX).find(is_its).expect("the process has a slot");
    &ledger.slots[slot]
}

/// Runs a Python program with `pynvml`, once in the region and once without the shim.
#[track_caller]
fn inside_and_outside(gpu: &SimulatedGpu, region: &Region, source: &str) -> (Outcome, Outcome) {
    let python = PythonEnvironment::get();
    let inside = run(region.preload_into(&mut python.program(gpu, source))).success();
    (inside, run(&mut python.program(gpu, source)).success())
}

/// Defines `show`, which prints a query's name and its answer or error.
const SHOW: &str = r#"
import sys
from pynvml import *

def show(name, ask):
    try:
        print(name, ask(), flush=True)
    except NVMLError as error:
        print(name, "refused:", error, flush=True)

def processes(listed):
    return sorted((process.pid, process.usedGpuMemory) for process in listed)

nvmlInit()
device = nvmlDeviceGetHandleByIndex(0)
"#;

#[test]
fn every_list_of_processes_holds_the_containers_own_and_no_others() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, 4 * GIB);
    let own = holder(&gpu, GIB, |command| {
        region.preload_into(command);
    });
    let other = holder(&gpu, 2 * GIB, |_| ());
    // As the manager would write it: the memory of the context.
    slot_of(&region, own.id()).devices[0].overhead_bytes.store(100 * MIB, Ordering::Relaxed);
    region.limits().devices[0].memory_overhead_bytes.store(100 * MIB, Ordering::Relaxed);
    let source = format!(
        "{SHOW}pids = [{}, {}]\n{}",
        own.id(),
        other.id(),
        r#"
show("compute v2", lambda: processes(nvmlDeviceGetComputeRunningProcesses_v2(device)))
show("compute v3", lambda: processes(nvmlDeviceGetComputeRunningProcesses_v3(device)))
for mode in range(5):
    show(f"details {mode}", lambda: processes(nvmlDeviceGetRunningProcessDetailList(device, nvmlProcessDetailList_v1, mode)))
show("details of a version unknown", lambda: nvmlDeviceGetRunningProcessDetailList(device, 0x7f000018, 0))
show("graphics", lambda: nvmlDeviceGetGraphicsRunningProcesses_v2(device) + nvmlDeviceGetGraphicsRunningProcesses_v3(device))
show("mps", lambda: nvmlDeviceGetMPSComputeRunningProcesses_v2(device) + nvmlDeviceGetMPSComputeRunningProcesses_v3(device))
show("accounting", lambda: nvmlDeviceGetAccountingMode(device))
show("accounting's pids", lambda: nvmlDeviceGetAccountingPids(device))
show("accounting's buffer", lambda: nvmlDeviceGetAccountingBufferSize(device))
for pid in pids:
    show("accounting of one", lambda: nvmlDeviceGetAccountingStats(device, pid).maxMemoryUsage)
memory = nvmlDeviceGetMemoryInfo(device)
show("memory", lambda: (memory.total, memory.free, memory.used))
bar1 = nvmlDeviceGetBAR1MemoryInfo(device)
show("bar1", lambda: (bar1.bar1Total, bar1.bar1Free, bar1.bar1Used))
show("name", lambda: nvmlSystemGetProcessName(processes(nvmlDeviceGetComputeRunningProcesses_v3(device))[0][0]))
"#
    );
    let (inside, outside) = inside_and_outside(&gpu, &region, &source);
    let used = GIB + 100 * MIB;
    let listed = format!("[({}, {used})]", own.id());
    let name = HostProgram::linked(&gpu, "hold");
    assert_eq!(
        inside.stdout,
        format!(
            "compute v2 {listed}\ncompute v3 {listed}\n\
             details 0 {listed}\ndetails 1 []\ndetails 2 []\ndetails 3 {listed}\ndetails 4 refused: Invalid Argument\n\
             details of a version unknown refused: Invalid Argument\n\
             graphics []\nmps []\n\
             accounting 0\naccounting's pids refused: Not Supported\naccounting's buffer refused: Not Supported\n\
             accounting of one refused: Not Supported\naccounting of one refused: Not Supported\n\
             memory ({total}, {free}, {used})\nbar1 ({total}, {total}, 0)\nname {}\n",
            name.path().display(),
            total = 4 * GIB,
            free = 4 * GIB - used,
        ),
        "{inside:?}"
    );
    // Without the shim all processes are listed, so the shim makes the difference.
    assert!(outside.stdout.contains(&other.id().to_string()), "{outside:?}");
    assert!(outside.stdout.contains("accounting 1\n"), "{outside:?}");
}

#[test]
fn a_list_without_room_reports_the_size_it_needs() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, 4 * GIB);
    let own: Vec<Process> = (0..3)
        .map(|_| {
            holder(&gpu, MIB, |command| {
                region.preload_into(command);
            })
        })
        .collect();
    let source = format!(
        "{SHOW}{}",
        r#"
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")

class V1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]

def ask(name, room, kind, array=True):
    count = ctypes.c_uint(room)
    infos = (kind * (room + 1))()
    result = getattr(library, name)(device, ctypes.byref(count), infos if array else None)
    print(name, "with room for", room, "answers", result, "and", count.value, "filled", sum(1 for info in infos if info.pid))

for room in (0, 2, 3, 9):
    ask("nvmlDeviceGetComputeRunningProcesses", room, V1)
    ask("nvmlDeviceGetComputeRunningProcesses_v3", room, c_nvmlProcessInfo_v2_t)
ask("nvmlDeviceGetComputeRunningProcesses_v3", 9, c_nvmlProcessInfo_v2_t, False)
ask("nvmlDeviceGetGraphicsRunningProcesses", 0, V1)
print("no count:", library.nvmlDeviceGetComputeRunningProcesses_v3(device, None, None))
print("no device:", library.nvmlDeviceGetComputeRunningProcesses_v3(None, ctypes.byref(ctypes.c_uint(0)), None))
nvmlShutdown()
print("after the end:", library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(ctypes.c_uint(0)), None))
"#
    );
    // Only the region's processes exist, so the answers without the shim must be the same.
    let (inside, outside) = inside_and_outside(&gpu, &region, &source);
    assert!(inside.stdout.contains("_v3 with room for 0 answers 7 and 3 filled 0\n"), "{inside:?}");
    assert!(inside.stdout.contains("_v3 with room for 3 answers 0 and 3 filled 3\n"), "{inside:?}");
    // If there is not room for all processes, NVML fills nothing, but does not promise that. A caller must not look.
    let promised = |outcome: &Outcome| outcome.stdout.replace("and 3 filled 2\n", "and 3 filled 0\n");
    assert_eq!(promised(&inside), promised(&outside));
    drop(own);
}

/// The drivers from 535.43 to 535.86 have longer elements. They know protected memory, but not yet the list of details.
#[test]
fn entries_are_as_long_as_the_first_drivers_of_r535_make_them() {
    let gpu = SimulatedGpu::new();
    gpu.hide_nvml_function("nvmlDeviceGetRunningProcessDetailList");
    let region = Region::new(&gpu, 4 * GIB);
    let own = [MIB, 2 * MIB].map(|bytes| {
        holder(&gpu, bytes, |command| {
            region.preload_into(command);
        })
    });
    let source = format!(
        "{SHOW}{}",
        r#"
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")

class Long(c_nvmlProcessInfo_v2_t):
    _fields_ = [("protected", ctypes.c_ulonglong)]

def ask(name, kind):
    infos, count = (kind * 2)(), ctypes.c_uint(2)
    result = getattr(library, name)(device, ctypes.byref(count), infos)
    print(result, sorted((info.usedGpuMemory, info.pid) for info in infos))

ask("nvmlDeviceGetComputeRunningProcesses_v2", c_nvmlProcessInfo_v2_t)
ask("nvmlDeviceGetComputeRunningProcesses_v3", Long)
"#
    );
    let inside = run(region.preload_into(&mut PythonEnvironment::get().program(&gpu, &source))).success();
    let line = format!("0 [({MIB}, {}), ({}, {})]\n", own[0].id(), 2 * MIB, own[1].id());
    inside.assert_said(&line.repeat(2));
}

#[test]
fn utilisation_is_the_containers_own_relative_to_its_limit() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, 4 * GIB);
    let own = holder(&gpu, MIB, |command| {
        region.preload_into(command);
    });
    region.limits().devices[0].core_limit_percent.store(40, Ordering::Relaxed);
    // As the manager writes it: 30 % of the device, a third of it by this process.
    region.limits().counters[0].used_permille.store(300, Ordering::Relaxed);
    slot_of(&region, own.id()).devices[0].used_permille.store(100, Ordering::Relaxed);
    // Another container keeps the device busy.
    let mut command = HostProgram::linked(&gpu, "busy").on(&gpu);
    let mut other = Process::start(command.args(["100000", "0"]));
    other.wait_for("busy\n");
    wait::until_true("the device is seen busy", || gpu.machine().device_use(0).utilization_percent > 50);
    let source = format!(
        "{SHOW}{}",
        r#"
import time
rates = nvmlDeviceGetUtilizationRates(device)
show("rates", lambda: (rates.gpu, rates.memory))
show("samples", lambda: [sample.sampleValue.uiVal for sample in nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, 0)[1]])
show("processes", lambda: [(sample.pid, sample.smUtil) for sample in nvmlDeviceGetProcessUtilization(device, 0)])
show("processes", lambda: [(sample.pid, sample.smUtil) for sample in nvmlDeviceGetProcessesUtilizationInfo(device, 0)])
stamp = lambda: nvmlDeviceGetProcessUtilization(device, 0)[0].timeStamp / 1e6
show("stamped", lambda: "now" if abs(stamp() - time.time()) < 60 else stamp())
show("since the future", lambda: nvmlDeviceGetProcessUtilization(device, 2**63))
show("since the future", lambda: nvmlDeviceGetProcessesUtilizationInfo(device, 2**63))
"#
    );
    let (inside, _) = inside_and_outside(&gpu, &region, &source);
    let process = format!("[({}, 25)]", own.id());
    assert_eq!(
        inside.stdout,
        format!(
            "rates (75, 75)\nsamples [75]\nprocesses {process}\nprocesses {process}\nstamped now\n\
             since the future refused: Not Found\nsince the future refused: Not Found\n"
        ),
        "{inside:?}"
    );
    // Without the shim the other process is listed once it has worked in the last second.
    wait::until_true("the other one is seen outside", || {
        let outside = run(&mut PythonEnvironment::get().program(&gpu, &source)).success();
        outside.stdout.contains(&format!("({}, ", other.id()))
    });
}

/// Two GPUs and an instance of a third, selected by index, by UUID, and in another order than the machine's.
#[test]
fn each_device_has_its_own_limit_however_it_is_named_and_ordered() {
    const MIG: &str = "MIG-01234567-89ab-cdef-0123-456789abcdef";
    let gpu = SimulatedGpu::with(&format!(
        "[[device]]\nmemory = '4GiB'\n[[device]]\nmemory = '4GiB'\n[[device]]\nmemory = '4GiB'\nuuid = '{MIG}'\n"
    ));
    let parts = [1, 2, 3].map(|number| Part { device: number as usize - 1, memory_limit_bytes: number * GIB });
    let region = Region::with_parts(&gpu, &parts);
    let program = HostProgram::linked(&gpu, "devices");
    let totals = |visible: Option<&str>| {
        let mut command = program.on(&gpu);
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        let outcome = run(region.preload_into(&mut command)).success();
        let total = |line: &str| line.split(['l', ',']).nth(1).and_then(|total| total.trim().parse::<u64>().ok());
        outcome.stdout.lines().map(|line| total(line).unwrap_or_else(|| panic!("{line}")) / GIB).collect::<Vec<_>>()
    };
    assert_eq!(totals(None), [1, 2, 3]);
    assert_eq!(totals(Some("2,0")), [3, 1]);
    assert_eq!(totals(Some(&gpu.uuid(1))), [2]);
    assert_eq!(totals(Some(&format!("{MIG},{}", gpu.uuid(0)))), [3, 1]);

    // A new region: without a manager, memory of ended programs stays charged.
    let region = Region::with_parts(&gpu, &parts);
    let own = holder(&gpu, GIB, |command| {
        region.preload_into(command.env("CUDA_VISIBLE_DEVICES", MIG));
    });
    let source = format!(
        "{SHOW}{}",
        r#"
for index in range(nvmlDeviceGetCount()):
    device = nvmlDeviceGetHandleByIndex(index)
    memory = nvmlDeviceGetMemoryInfo(device)
    listed = [(p.pid, p.gpuInstanceId) for p in nvmlDeviceGetComputeRunningProcesses(device)]
    show("device", lambda: (nvmlDeviceGetUUID(device)[:4], memory.total >> 30, memory.used >> 30, listed))
show("attributes", lambda: nvmlDeviceGetAttributes_v2(device).memorySizeMB)
"#
    );
    let (inside, _) = inside_and_outside(&gpu, &region, &source);
    assert_eq!(
        inside.stdout,
        format!(
            "device ('GPU-', 1, 0, [])\ndevice ('GPU-', 2, 0, [])\ndevice ('MIG-', 3, 1, [({}, 3)])\nattributes 3072\n",
            own.id()
        )
    );
}

#[test]
fn a_device_outside_the_slice_shows_no_process_and_no_free_memory() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}[[device]]\n[[device]]\n"));
    let region = Region::with_parts(&gpu, &[Part { device: 1, memory_limit_bytes: GIB }]);
    let other = holder(&gpu, GIB, |_| ());
    let source = format!(
        "{SHOW}{}",
        r#"
memory = nvmlDeviceGetMemoryInfo(device)
show("memory", lambda: (memory.total >> 30, memory.free, memory.used >> 30))
show("processes", lambda: nvmlDeviceGetComputeRunningProcesses(device))
show("busy", lambda: nvmlDeviceGetUtilizationRates(device).gpu)
show("who was busy", lambda: nvmlDeviceGetProcessUtilization(device, 0))
"#
    );
    let (inside, outside) = inside_and_outside(&gpu, &region, &source);
    inside.assert_said("memory (80, 0, 80)\nprocesses []\nbusy 0\nwho was busy refused: Not Found\n");
    assert!(outside.stdout.contains("memory (80, 84825604096, 1)\n"), "{outside:?}");
    drop(other);
}

/// CUDA's and NVML's figures, the list of processes and the manager's answers agree while processes allocate and free,
/// and when they have ended.
#[test]
fn all_views_agree_under_load() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("viewed", 100, GIB);
    let holders = [100 * MIB, 150 * MIB].map(|bytes| {
        holder(&gpu, bytes, |command| {
            slice.preload_into(command);
        })
    });
    let racer = HostProgram::linked(&gpu, "racer");
    // Runs longer than all looks below; killed earlier.
    let load: Vec<Process> = [3, 7, 11]
        .map(|mebibytes: u64| {
            let mut command = racer.on(&gpu);
            command.args([(mebibytes * MIB).to_string(), "1000000000".to_owned()]);
            Process::start(slice.preload_into(&mut command))
        })
        .into();
    let source = format!(
        "{SHOW}{}",
        r#"
import os, time
from cuda.bindings import driver as cu

def check(answer):
    error, *values = answer
    assert error == cu.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values

check(cu.cuInit(0))
check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(0))))
total = check(cu.cuDeviceTotalMem(0))
seen = set()
looks = 0
while looks < 200 or len(seen) < 2:
    first = nvmlDeviceGetMemoryInfo(device)
    free, of = check(cu.cuMemGetInfo())
    second = nvmlDeviceGetMemoryInfo(device, version=nvmlMemory_v2)
    assert first.total == second.total == of == total == 1 << 30, (first.total, second.total, of, total)
    listed = [used for pid, used in processes(nvmlDeviceGetComputeRunningProcesses(device))]
    # One after another is read: what one has freed meanwhile, the next one can have. So not the sum, but each has a bound.
    assert {100 << 20, 150 << 20} <= set(listed) and max(listed) <= total - (250 << 20), listed
    assert 0 <= free <= total - (250 << 20), free
    seen.add(second.used)
    looks += 1
print("looked 200 times, and it has changed", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.001)

def at_rest():
    info = nvmlDeviceGetMemoryInfo(device)
    listed = sum(used for pid, used in processes(nvmlDeviceGetComputeRunningProcesses(device)))
    return info.used, info.total - info.free, listed, total - check(cu.cuMemGetInfo())[0]

# The manager may still be writing down what it saw while there was load: the next look puts that right.
end = time.monotonic() + 100
while set(seen := at_rest()) != {250 << 20} and time.monotonic() < end:
    time.sleep(0.02)
print("at rest:", *seen)
"#
    );
    let requests = tempfile::tempdir().expect("a directory");
    let request = requests.path().join("load has ended");
    let mut command = PythonEnvironment::get().program(&gpu, &source);
    let mut viewer = Process::start(slice.preload_into(command.arg(&request)));
    viewer.wait_for("looked 200 times, and it has changed\n");
    for process in load {
        assert_eq!(process.kill().signal(), Some(9));
    }
    let held = 250 * MIB;
    wait::until_true("the manager tells what is held", || {
        let usage = node.client().usage("viewed").expect("usage");
        let told: u64 = usage.processes.iter().flat_map(|process| &process.memory_used_bytes).sum();
        told == held && usage.parts[0].memory_used_bytes == held && slice.used_bytes(0) == held
    });
    std::fs::write(&request, "").expect("the request");
    let outcome = viewer.wait().success();
    outcome.assert_said(&format!("looked 200 times, and it has changed\nat rest: {held} {held} {held} {held}\n"));
    drop(holders);
}

/// Each container sees the manager's figures about its own contexts and device time.
#[test]
fn a_container_sees_the_managers_figures_about_itself() {
    const CONTEXT_BYTES: u64 = 64 * MIB;
    let gpu = SimulatedGpu::with(&format!("context_memory = {CONTEXT_BYTES}\nallocation_block = '512B'\n"));
    let node = Node::start(&gpu);
    let (busy, idle) = (node.slice("busy", 30, GIB), node.slice("idle", 30, GIB));
    let mut command = HostProgram::linked(&gpu, "busy").on(&gpu);
    let mut at_work = Process::start(busy.preload_into(command.args(["500000", "0"])));
    at_work.wait_for("busy\n");
    let at_rest = holder(&gpu, MIB, |command| {
        idle.preload_into(command);
    });
    let source = format!(
        "{SHOW}{}",
        r#"
import time
pid, held, least, most = map(int, sys.argv[1:])

def look():
    memory = nvmlDeviceGetMemoryInfo(device)
    listed = processes(nvmlDeviceGetComputeRunningProcesses(device))
    rate = nvmlDeviceGetUtilizationRates(device).gpu
    try:
        busy = [sample.pid for sample in nvmlDeviceGetProcessUtilization(device, 0) if sample.smUtil]
    except NVMLError_NotFound:
        busy = []
    return memory.used == held, listed == [(pid, held)], least <= rate <= most, busy == ([pid] if least else []), (memory.used, listed, rate, busy)

# What is told is of the last second, and told a few times in each.
end = time.monotonic() + 100
while not all((seen := look())[:4]) and time.monotonic() < end:
    time.sleep(0.02)
print("seen" if all(seen[:4]) else seen)
"#
    );
    // The busy slice uses all that its limit allows, so it shows about 100 %. The other does nothing.
    for (slice, pid, held, least, most) in
        [(&busy, at_work.id(), CONTEXT_BYTES, 80, 100), (&idle, at_rest.id(), CONTEXT_BYTES + MIB, 0, 0)]
    {
        let mut command = PythonEnvironment::get().program(&gpu, &source);
        command.args([u64::from(pid), held, least, most].map(|number| number.to_string()));
        run(slice.preload_into(&mut command)).success().assert_said("seen\n");
    }
}
