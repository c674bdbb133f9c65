//! Order of execution of streams, events, host functions and stream memory operations.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::{World, alone, together};

#[repr(align(4096))]
struct Page([AtomicU64; 512]);

static PAGE: Page = Page([const { AtomicU64::new(0) }; 512]);

/// Registers the page, and returns the address of its first word.
fn registered_word(driver: &Driver) -> CUdeviceptr {
    let start = (&raw const PAGE).cast_mut().cast::<c_void>();
    driver.cuMemHostRegister_v2(start, 4096, CU_MEMHOSTREGISTER_DEVICEMAP).ok();
    start as CUdeviceptr
}

#[test]
fn stream_memory_operations_v1_exist_only_if_configured() {
    const TEST: &str = "streams::stream_memory_operations_v1_exist_only_if_configured";
    const NO_MEMORY_BARRIER: c_uint = 1;
    let direct = |world: &World| world.start("program").finish();
    together(TEST, &["", "stream_mem_ops_v1 = true\n"], direct, |_| {
        let driver = Driver::with_context();
        let (stream, word) = (driver.stream(1), registered_word(&driver));
        let attributes = [92, 93, 94, 122, 123, 90, 91].map(|attribute| {
            let mut value = -1;
            driver.cuDeviceGetAttribute(&mut value, attribute, 0).ok();
            value
        });
        let is_there = attributes[0] == 1;
        let expected = if is_there { CUresult::SUCCESS } else { CUresult::NOT_SUPPORTED };
        let first = i32::from(is_there);
        assert_eq!(attributes, [first, first, first, 1, 1, 1, 1]);
        driver.cuStreamWriteValue64(stream, word, 1, NO_MEMORY_BARRIER).is(expected);
        driver.cuStreamWaitValue32(stream, word, 0, 0).is(expected);
        let mut write = CUstreamBatchMemOpParams {
            operation: 2,
            address: word,
            value64: 2,
            flags: NO_MEMORY_BARRIER,
            alias: 0,
            reserved: 0,
        };
        driver.cuStreamBatchMemOp(stream, 1, &mut write, 0).is(expected);
        driver.cuStreamBatchMemOp_v2(stream, 1, &mut write, 0).is(CUresult::INVALID_VALUE);
        driver.cuStreamWriteValue64_v2(stream, word, 3, NO_MEMORY_BARRIER).is(CUresult::INVALID_VALUE);
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(PAGE.0[0].load(Ordering::Acquire), if is_there { 2 } else { 0 });
    });
}

#[test]
fn values_are_written_and_waited_for_in_order() {
    alone("streams::values_are_written_and_waited_for_in_order", "", || {
        let driver = Driver::with_context();
        let (stream, function, word) = (driver.stream(1), driver.function(c"spin_ns"), registered_word(&driver));
        driver.cuStreamWaitValue64_v2(stream, word, 5, 0).ok();
        driver.cuStreamWriteValue32_v2(stream, word + 8, 77, 0).ok();
        driver.cuStreamQuery(stream).is(CUresult::NOT_READY);
        driver.spin(function, 1000, CUstream::NULL).ok();
        driver.cuStreamSynchronize(CUstream::NULL).ok();
        assert_eq!(PAGE.0[1].load(Ordering::Acquire), 0);
        PAGE.0[0].store(6, Ordering::Release);
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(PAGE.0[1].load(Ordering::Acquire), 77);
        driver.cuStreamWriteValue64_v2(stream, word + 4, 1, 0).is(CUresult::INVALID_VALUE);
        driver.cuStreamWriteValue32_v2(stream, word, 1, 8).is(CUresult::INVALID_VALUE);
        driver.cuStreamWriteValue32_v2(stream, 0x1000, 1, 0).is(CUresult::INVALID_VALUE);
        let operation = |operation, address, value64| CUstreamBatchMemOpParams {
            operation,
            address,
            value64,
            flags: 0,
            alias: 0,
            reserved: 0,
        };
        let mut batch = [operation(5, word, u64::MAX), operation(4, word, u64::MAX), operation(2, word + 8, 3)];
        driver.cuStreamBatchMemOp_v2(stream, 3, batch.as_mut_ptr(), 0).ok();
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!((PAGE.0[0].load(Ordering::Acquire), PAGE.0[1].load(Ordering::Acquire)), (u64::MAX, 3));
    });
}

#[test]
fn the_legacy_stream_waits_and_is_waited_for() {
    alone("streams::the_legacy_stream_waits_and_is_waited_for", "", || {
        let driver = Driver::with_context();
        let (blocking, free) = (driver.stream(0), driver.stream(1));
        let word = registered_word(&driver);
        driver.cuStreamWaitValue64_v2(blocking, word, 1, 0).ok();
        driver.cuStreamWriteValue32_v2(CUstream::NULL, word + 8, 1, 0).ok();
        driver.cuStreamWriteValue32_v2(free, word + 16, 1, 0).ok();
        driver.cuStreamSynchronize(free).ok();
        driver.cuStreamQuery(CUstream::NULL).is(CUresult::NOT_READY);
        assert_eq!((PAGE.0[1].load(Ordering::Acquire), PAGE.0[2].load(Ordering::Acquire)), (0, 1));
        PAGE.0[0].store(1, Ordering::Release);
        driver.cuStreamSynchronize(CU_STREAM_LEGACY).ok();
        assert_eq!(PAGE.0[1].load(Ordering::Acquire), 1);
        driver.cuStreamSynchronize(CU_STREAM_PER_THREAD).ok();
    });
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_and_call_driver(driver: *mut c_void) {
    // SAFETY: the test passes its driver, which outlives the call.
    let driver = unsafe { &*driver.cast::<Driver>() };
    let mut address = 0;
    driver.cuMemAlloc_v2(&mut address, 512).is(CUresult::NOT_PERMITTED);
    CALLS.fetch_add(1, Ordering::Release);
}

#[test]
fn host_functions_run_in_stream_order() {
    alone("streams::host_functions_run_in_stream_order", "", || {
        let driver = Driver::with_context();
        let (stream, event, function) = (driver.stream(1), driver.event(), driver.function(c"spin_ns"));
        let argument = (&raw const driver).cast_mut().cast();
        driver.spin(function, 2_000_000, stream).ok();
        driver.cuLaunchHostFunc(stream, Some(count_and_call_driver), argument).ok();
        driver.cuEventRecord(event, stream).ok();
        driver.cuEventSynchronize(event).ok();
        assert_eq!(CALLS.load(Ordering::Acquire), 1);
        driver.cuLaunchHostFunc(stream, None, argument).is(CUresult::INVALID_VALUE);
    });
}

#[test]
fn events_order_streams() {
    alone("streams::events_order_streams", "", || {
        let driver = Driver::with_context();
        let (first, second, event) = (driver.stream(1), driver.stream(1), driver.event());
        let word = registered_word(&driver);
        driver.cuEventQuery(event).ok();
        driver.cuStreamWaitValue64_v2(first, word, 1, 0).ok();
        driver.cuEventRecord(event, first).ok();
        driver.cuStreamWaitEvent(second, event, 0).ok();
        driver.cuStreamWriteValue32_v2(second, word + 8, 1, 0).ok();
        driver.cuEventQuery(event).is(CUresult::NOT_READY);
        driver.cuStreamQuery(second).is(CUresult::NOT_READY);
        PAGE.0[0].store(1, Ordering::Release);
        driver.cuStreamSynchronize(second).ok();
        driver.cuEventQuery(event).ok();
        let mut elapsed = 0.0;
        driver.cuEventElapsedTime(&mut elapsed, event, driver.event()).is(CUresult::INVALID_HANDLE);
    });
}
