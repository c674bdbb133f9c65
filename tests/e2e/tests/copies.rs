//! Copies and memory sets are counted, whatever function makes them, and are never delayed.

use std::sync::atomic::Ordering;

use aliquot_abi::region::SlotDevice;
use aliquot_harness::{GIB, Part, PythonEnvironment, Region, SimulatedGpu, run};

/// The programs' beginning: a device, a stream, and memory on both sides. `expect` adds what a call should have moved.
const BEGIN: &str = r#"
from cuda.bindings import driver as cu

def check(answer):
    error, *values = answer
    assert error == cu.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values

copies = moved = 0

def expect(bytes, answer, count=1):
    global copies, moved
    check(answer)
    copies += count
    moved += bytes

check(cu.cuInit(0))
check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(0))))
stream = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
host = bytearray(1 << 20)
one = check(cu.cuMemAlloc(1 << 20))
two = check(cu.cuMemAlloc(1 << 20))
K = 1024
"#;

/// Every kind of copy and set once.
const EVERY_KIND: &str = r#"
expect(1 * K, cu.cuMemcpy(one, two, 1 * K))
expect(2 * K, cu.cuMemcpyHtoD(one, host, 2 * K))
expect(3 * K, cu.cuMemcpyDtoH(host, one, 3 * K))
expect(4 * K, cu.cuMemcpyDtoD(one, two, 4 * K))
expect(5 * K, cu.cuMemcpyAsync(one, two, 5 * K, stream))
expect(6 * K, cu.cuMemcpyHtoDAsync(one, host, 6 * K, stream))
expect(7 * K, cu.cuMemcpyDtoHAsync(host, one, 7 * K, stream))
expect(8 * K, cu.cuMemcpyDtoDAsync(one, two, 8 * K, stream))
context = check(cu.cuCtxGetCurrent())
expect(9 * K, cu.cuMemcpyPeer(one, context, two, context, 9 * K))
expect(10 * K, cu.cuMemcpyPeerAsync(one, context, two, context, 10 * K, stream))

def rows(kind):
    shape = kind()
    shape.srcMemoryType = shape.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    shape.srcDevice, shape.dstDevice = two, one
    shape.srcPitch = shape.dstPitch = 512
    shape.WidthInBytes, shape.Height = 100, 7
    return shape

flat, deep = rows(cu.CUDA_MEMCPY2D), rows(cu.CUDA_MEMCPY3D)
deep.srcHeight = deep.dstHeight = 8
deep.Depth = 3
expect(700, cu.cuMemcpy2D(flat))
expect(700, cu.cuMemcpy2DUnaligned(flat))
expect(700, cu.cuMemcpy2DAsync(flat, stream))
expect(2100, cu.cuMemcpy3D(deep))
expect(2100, cu.cuMemcpy3DAsync(deep, stream))
for size, plain, plain_rows, queued, queued_rows in (
    (1, cu.cuMemsetD8, cu.cuMemsetD2D8, cu.cuMemsetD8Async, cu.cuMemsetD2D8Async),
    (2, cu.cuMemsetD16, cu.cuMemsetD2D16, cu.cuMemsetD16Async, cu.cuMemsetD2D16Async),
    (4, cu.cuMemsetD32, cu.cuMemsetD2D32, cu.cuMemsetD32Async, cu.cuMemsetD2D32Async),
):
    expect(100 * size, plain(one, 1, 100))
    expect(100 * size, queued(one, 1, 100, stream))
    expect(30 * size, plain_rows(one, 64, 1, 10, 3))
    expect(30 * size, queued_rows(one, 64, 1, 10, 3, stream))
check(cu.cuStreamSynchronize(stream))
"#;

/// Arrays, other contexts, managed memory, and many copies in one call.
const ARRAYS_AND_BATCHES: &str = r#"
shape = cu.CUDA_ARRAY_DESCRIPTOR()
shape.Width, shape.Height, shape.Format, shape.NumChannels = 1024, 0, cu.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8, 1
first, second = check(cu.cuArrayCreate(shape)), check(cu.cuArrayCreate(shape))
expect(10, cu.cuMemcpyHtoA(first, 0, host, 10))
expect(20, cu.cuMemcpyAtoH(host, first, 0, 20))
expect(30, cu.cuMemcpyDtoA(first, 0, one, 30))
expect(40, cu.cuMemcpyAtoD(one, first, 0, 40))
expect(50, cu.cuMemcpyAtoA(second, 0, first, 0, 50))
expect(60, cu.cuMemcpyHtoAAsync(first, 0, host, 60, stream))
expect(70, cu.cuMemcpyAtoHAsync(host, first, 0, 70, stream))
context = check(cu.cuCtxGetCurrent())
peer = cu.CUDA_MEMCPY3D_PEER()
peer.srcMemoryType = peer.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
peer.srcDevice, peer.dstDevice, peer.srcContext, peer.dstContext = two, one, context, context
peer.srcPitch = peer.dstPitch = 64
peer.srcHeight = peer.dstHeight = 4
peer.WidthInBytes, peer.Height, peer.Depth = 10, 3, 2
expect(60, cu.cuMemcpy3DPeer(peer))
expect(60, cu.cuMemcpy3DPeerAsync(peer, stream))
managed = check(cu.cuMemAllocManaged(64 * K, cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))
there = cu.CUmemLocation()
there.type, there.id = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
expect(64 * K, cu.cuMemPrefetchAsync(managed, 64 * K, there, 0, stream))
attributes = cu.CUmemcpyAttributes()
attributes.srcAccessOrder = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
expect(700, cu.cuMemcpyBatchAsync([one, one], [two, two], [300, 400], 2, [attributes], [0], 1, stream), 2)

def operand(address):
    made = cu.CUmemcpy3DOperand()
    made.type = cu.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_POINTER
    made.op.ptr.ptr, made.op.ptr.rowLength, made.op.ptr.layerHeight = address, 64, 8
    return made

operation = cu.CUDA_MEMCPY3D_BATCH_OP()
operation.src, operation.dst = operand(two), operand(one)
operation.extent.width, operation.extent.height, operation.extent.depth = 10, 5, 2
operation.srcAccessOrder = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
expect(300, cu.cuMemcpy3DBatchAsync(3, [operation] * 3, 0, stream), 3)
check(cu.cuStreamSynchronize(stream))
"#;

const REFUSED_AND_CAPTURED: &str = r#"
# Refused: nothing moves.
assert cu.cuMemcpyDtoD(0, 0, 16)[0] != cu.CUresult.CUDA_SUCCESS
assert cu.cuMemcpyHtoDAsync(0, host, 16, stream)[0] != cu.CUresult.CUDA_SUCCESS
# Recorded: it moves when the graph is launched, which is a launch.
for mode in cu.CUstreamCaptureMode:
    check(cu.cuStreamBeginCapture(stream, mode))
    check(cu.cuMemcpyDtoDAsync(one, two, K, stream))
    check(cu.cuMemsetD8Async(one, 0, K, stream))
    graph = check(cu.cuStreamEndCapture(stream))
    assert check(cu.cuGraphGetNodes(graph))[1] == 2
    executable = check(cu.cuGraphInstantiate(graph, 0))
    check(cu.cuGraphLaunch(executable, stream))
    check(cu.cuStreamSynchronize(stream))
# An empty copy is one.
expect(0, cu.cuMemcpyDtoD(one, two, 0))
"#;

const END: &str = "print(copies, moved)\n";

/// The copies that the processes of a region have made on its part `part`: number, bytes, nanoseconds waited.
fn counted(region: &Region, part: usize) -> (u64, u64, u64) {
    let slots = region.ledger().slots.iter().map(|slot| &slot.devices[part]);
    slots.fold((0, 0, 0), |(copies, bytes, ns), SlotDevice { copies: more, copied_bytes, copy_ns, .. }| {
        let of = |counter: &aliquot_abi::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (copies + of(more), bytes + of(copied_bytes), ns + of(copy_ns))
    })
}

/// Runs a program that prints how many copies and bytes it expects to have been counted, and compares.
#[track_caller]
fn assert_counted(body: &str, variables: &[(&str, &str)]) -> u64 {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    let mut command = PythonEnvironment::get().program(&gpu, &format!("{BEGIN}{body}{END}"));
    let outcome = run(region.preload_into(command.envs(variables.iter().copied()))).success();
    let (copies, bytes, ns) = counted(&region, 0);
    outcome.assert_said(&format!("{copies} {bytes}\n"));
    assert!(copies > 0, "{outcome:?}");
    ns
}

#[test]
fn every_kind_of_copy_and_set_is_counted_with_its_bytes() {
    let waited_ns = assert_counted(EVERY_KIND, &[]);
    // 14 KiB at 25 GB/s between host and device alone take half a microsecond.
    assert!(waited_ns > 500, "{waited_ns}");
}

#[test]
fn the_forms_with_per_thread_streams_are_counted_too() {
    assert_counted(EVERY_KIND, &[("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "1")]);
}

#[test]
fn arrays_peers_prefetches_and_batches_are_counted() {
    assert_counted(ARRAYS_AND_BATCHES, &[]);
}

#[test]
fn refused_and_captured_copies_are_not_counted() {
    assert_counted(REFUSED_AND_CAPTURED, &[]);
}

#[test]
fn copies_pass_a_closed_gate() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    region.close_gate(0);
    let mut command = PythonEnvironment::get().program(&gpu, &format!("{BEGIN}{EVERY_KIND}{END}"));
    let outcome = run(region.preload_into(&mut command)).success();
    let (copies, bytes, _) = counted(&region, 0);
    outcome.assert_said(&format!("{copies} {bytes}\n"));
}

#[test]
fn copies_count_for_the_device_that_makes_them() {
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    let parts = [0, 1].map(|device| Part { device, memory_limit_bytes: GIB });
    let region = Region::with_parts(&gpu, &parts);
    let source = format!(
        "{BEGIN}{}",
        r#"
check(cu.cuMemsetD8(one, 0, 100))
check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(1))))
other = check(cu.cuMemAlloc(K))
check(cu.cuMemsetD8(other, 0, 10))
check(cu.cuMemsetD8(other, 0, 10))
"#
    );
    let _ = run(region.preload_into(&mut PythonEnvironment::get().program(&gpu, &source))).success();
    let (first, second) = (counted(&region, 0), counted(&region, 1));
    assert_eq!(((first.0, first.1), (second.0, second.1)), ((1, 100), (2, 20)));
}
