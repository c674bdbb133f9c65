//! NVIDIA's Python packages, and programs built on them, run unmodified: with the same answers as without the shim, and
//! with the slice's size in place of the device's.

use std::process::Command;

use aliquot_harness::debian::{self, Packages};
use aliquot_harness::{
    GIB, HostProgram, Outcome, Process, PythonEnvironment, Region, SimulatedGpu, run, tool, unchanged_in_a_slice,
};

/// Runs a Python program without a slice and in an unlimited slice, which must be alike, and then in a slice of 4 GiB.
#[track_caller]
fn in_4_gib(gpu: &SimulatedGpu, source: &str) -> (Outcome, Outcome) {
    let python = PythonEnvironment::get();
    let bare = unchanged_in_a_slice(gpu, || python.program(gpu, source)).success();
    let region = Region::new(gpu, 4 * GIB);
    let limited = run(region.preload_into(&mut python.program(gpu, source))).success();
    (bare, limited)
}

#[test]
fn cuda_bindings() {
    let source = r#"
from cuda.bindings import driver as cu

def check(answer):
    error, *values = answer
    assert error == cu.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values

check(cu.cuInit(0))
device = check(cu.cuDeviceGet(0))
context = check(cu.cuDevicePrimaryCtxRetain(device))
check(cu.cuCtxSetCurrent(context))
print("driver", check(cu.cuDriverGetVersion()), check(cu.cuDeviceGetName(96, device)).rstrip(b"\0"))
print("total", check(cu.cuDeviceTotalMem(device)))
print("info", *check(cu.cuMemGetInfo()))
held = check(cu.cuMemAlloc(3 << 30))
print("free", check(cu.cuMemGetInfo())[0])
print("2 GiB more:", cu.cuMemAlloc(2 << 30)[0].name)
check(cu.cuMemFree(held))
stream = check(cu.cuStreamCreate(0))
asynchronous = check(cu.cuMemAllocAsync(1 << 30, stream))
check(cu.cuMemFreeAsync(asynchronous, stream))
check(cu.cuStreamSynchronize(stream))
data = bytearray(range(256)) * 16
copy = bytearray(len(data))
memory = check(cu.cuMemAlloc(len(data)))
check(cu.cuMemcpyHtoD(memory, bytes(data), len(data)))
check(cu.cuMemcpyDtoH(copy, memory, len(copy)))
print("copied:", copy == data)
print("nonsense:", cu.cuMemFree(0xdead0000)[0].name, cu.cuCtxSetCurrent(0)[0].name)
"#;
    let gpu = SimulatedGpu::exact();
    let (bare, limited) = in_4_gib(&gpu, source);
    assert!(bare.stdout.contains("2 GiB more: CUDA_SUCCESS\n") && bare.stdout.contains("copied: True\n"), "{bare:?}");
    let all = 80 * GIB;
    let expected = bare
        .stdout
        .replace(&format!("total {all}"), &format!("total {}", 4 * GIB))
        .replace(&format!("info {all} {all}"), &format!("info {} {}", 4 * GIB, 4 * GIB))
        .replace(&format!("free {}", all - 3 * GIB), &format!("free {GIB}"))
        .replace("2 GiB more: CUDA_SUCCESS", "2 GiB more: CUDA_ERROR_OUT_OF_MEMORY");
    limited.assert_said(&expected);
}

#[test]
fn numba_cuda() {
    let source = r#"
import numpy
from numba import cuda

@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]

x = numpy.arange(4096, dtype=numpy.float32)
there = cuda.to_device(x)
out = cuda.device_array_like(there)
add[16, 256](there, there, out)
cuda.synchronize()
print("round trip:", bool((there.copy_to_host() == x).all()), out.shape)
print("signatures compiled:", len(add.signatures))
free, total = cuda.current_context().get_memory_info()
print("total", total)
try:
    cuda.device_array(5 << 30, dtype=numpy.uint8)
    print("5 GiB: granted")
except Exception as error:
    print("5 GiB:", "OUT_OF_MEMORY" if "OUT_OF_MEMORY" in str(error) else error)
stream = cuda.stream()
with stream.auto_synchronize():
    for _ in range(50):
        add[16, 256, stream](there, there, out)
print("done")
"#;
    let gpu = SimulatedGpu::new();
    let (bare, limited) = in_4_gib(&gpu, source);
    assert!(bare.stdout.starts_with("round trip: True (4096,)\nsignatures compiled: 1\n"), "{bare:?}");
    let expected = bare
        .stdout
        .replace(&format!("total {}", 80 * GIB), &format!("total {}", 4 * GIB))
        .replace("5 GiB: granted", "5 GiB: OUT_OF_MEMORY");
    assert_ne!(expected, bare.stdout);
    limited.assert_said(&expected);
}

#[test]
fn nvidia_ml_py() {
    let source = r#"
import pynvml
pynvml.nvmlInit()
print("driver", pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion())
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    print(index, pynvml.nvmlDeviceGetName(device), pynvml.nvmlDeviceGetUUID(device))
    print("place", pynvml.nvmlDeviceGetPciInfo(device).busId)
    first = pynvml.nvmlDeviceGetMemoryInfo(device)
    second = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    print("memory", first.total, first.free, first.used)
    print("memory", second.total, second.free, second.used)
    print("processes", len(pynvml.nvmlDeviceGetComputeRunningProcesses(device)))
pynvml.nvmlShutdown()
try:
    pynvml.nvmlDeviceGetCount()
except pynvml.NVMLError as error:
    print(error)
"#;
    let gpu = SimulatedGpu::exact();
    let (bare, limited) = in_4_gib(&gpu, source);
    let memory = |bytes: u64| format!("memory {bytes} {bytes} 0\nmemory {bytes} {bytes} 0\n");
    assert!(bare.stdout.contains(&memory(80 * GIB)), "{bare:?}");
    limited.assert_said(&bare.stdout.replace(&memory(80 * GIB), &memory(4 * GIB)));
}

#[test]
fn nvitop() {
    let source = r#"
import nvitop
for device in nvitop.Device.all():
    print(device.index, device.name(), device.uuid())
    print("memory", device.memory_total(), device.memory_free(), device.memory_used())
    print("processes", len(device.processes()))
for device in nvitop.CudaDevice.all():
    print("cuda", device.cuda_index, device.memory_total())
"#;
    let gpu = SimulatedGpu::exact();
    let (bare, limited) = in_4_gib(&gpu, source);
    let memory = |bytes: u64| format!("memory {bytes} {bytes} 0\n");
    assert!(bare.stdout.contains(&memory(80 * GIB)), "{bare:?}");
    let expected = bare.stdout.replace(&(80 * GIB).to_string(), &(4 * GIB).to_string());
    limited.assert_said(&expected);
}

/// Tools that list the processes on a device show the container's own process with its memory, and no other.
#[test]
fn tools_show_the_containers_own_processes_only() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, 4 * GIB);
    let program = HostProgram::linked(&gpu, "hold");
    let mut own = program.on(&gpu);
    own.arg(GIB.to_string());
    let mut own = Process::start(region.preload_into(&mut own));
    let mut other = Process::start(program.on(&gpu).arg((2 * GIB).to_string()));
    own.wait_for("held\n");
    other.wait_for("held\n");
    let sources = [
        r#"
import gpustat
for device in gpustat.new_query():
    print(device.memory_total, device.memory_used, sorted((p["pid"], p["gpu_memory_usage"]) for p in device.processes))
"#,
        r#"
import nvitop
for device in nvitop.Device.all():
    processes = [(pid, process.gpu_memory() >> 20) for pid, process in device.processes().items()]
    print(device.memory_total() >> 20, device.memory_used() >> 20, sorted(processes))
"#,
        r#"
from pynvml import *
nvmlInit()
device = nvmlDeviceGetHandleByIndex(0)
memory = nvmlDeviceGetMemoryInfo(device)
processes = [(process.pid, process.usedGpuMemory >> 20) for process in nvmlDeviceGetComputeRunningProcesses(device)]
print(memory.total >> 20, memory.used >> 20, sorted(processes))
"#,
    ];
    for source in sources {
        let command = || PythonEnvironment::get().program(&gpu, source);
        run(region.preload_into(&mut command())).success().assert_said(&format!("4096 1024 [({}, 1024)]\n", own.id()));
        let outside = run(&mut command()).success();
        assert!(outside.stdout.contains(&other.id().to_string()), "{outside:?}");
    }
}

/// nvtop needs a terminal, which `script` provides.
#[test]
fn nvtop() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, 4 * GIB);
    let program = HostProgram::linked(&gpu, "hold");
    let mut own = program.on(&gpu);
    own.arg(GIB.to_string());
    let mut own = Process::start(region.preload_into(&mut own));
    let mut other = Process::start(program.on(&gpu).arg((2 * GIB).to_string()));
    own.wait_for("held\n");
    other.wait_for("held\n");
    // The package is in a component of the release that is not enabled by default.
    let unpacked = debian::unpacked(&Packages {
        suite: &debian::own_suite(),
        components: "main contrib",
        names: &["nvtop", "libdrm2", "libncurses6", "libtinfo6"],
    });
    let mut command = Command::new(tool("script", "bsdutils"));
    gpu.show_to(&mut command);
    let libraries = format!("{}/usr/lib/x86_64-linux-gnu", unpacked.display());
    // nvtop ends with its terminal, even if the test run ignores SIGHUP.
    command.args(["--quiet", "--return", "--command"]).arg(format!(
        "stty rows 40 columns 150; LD_LIBRARY_PATH={libraries}:$LD_LIBRARY_PATH exec env --default-signal=HUP {}/usr/bin/nvtop",
        unpacked.display()
    ));
    let mut drawn = Process::start(region.preload_into(command.arg("/dev/null").env("TERM", "xterm")));
    // The size of the slice, the memory in use, and the process that uses it.
    for shown in ["4.000Gi", "1.000Gi", &own.id().to_string()] {
        drawn.wait_for(shown);
    }
    let drawn = drawn.kill();
    assert!(!drawn.stdout.contains(&other.id().to_string()), "{drawn:?}");
    assert!(!drawn.stdout.contains("80.000Gi"), "{drawn:?}");
}
