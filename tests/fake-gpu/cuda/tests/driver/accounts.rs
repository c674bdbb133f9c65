//! Device memory taken by contexts, allocations, pools and stacks, as measured on an H100.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::{World, alone, say, together, wait_for_end};

const MEASURED: &str = "context_memory = '536128KiB'\ncontext_memory_unlisted = '5696KiB'\nallocation_block = '2MiB'\n\
                        pool_chunk = '32MiB'\n";
const CONTEXT_BYTES: usize = 536_128 << 10;
const MIB: usize = 1 << 20;

#[test]
fn part_of_a_contexts_memory_is_listed_for_no_process() {
    const TEST: &str = "accounts::part_of_a_contexts_memory_is_listed_for_no_process";
    let direct = |world: &World| {
        let mut player = world.start("program");
        player.hear("two contexts");
        let taken = world.machine().device_use(0);
        assert_eq!(
            (taken.memory_bytes, taken.processes[0].memory_bytes),
            (2 * CONTEXT_BYTES as u64, 2 * (530_432 << 10))
        );
        player.finish();
    };
    together(TEST, &[MEASURED], direct, |_| {
        let driver = Driver::with_context();
        let mut second = CUcontext::NULL;
        driver.cuCtxCreate_v2(&mut second, 0, 0).ok();
        say("two contexts", "");
        wait_for_end();
        driver.cuCtxDestroy_v2(second).ok();
        assert_eq!(driver.used(), CONTEXT_BYTES);
    });
}

#[test]
fn allocations_take_blocks() {
    alone("accounts::allocations_take_blocks", MEASURED, || {
        let driver = Driver::with_context();
        for (bytes, taken_mib) in [(1, 2), (MIB, 8), (MIB + 1, 16), (2 * MIB + 1, 32), (64 * MIB + 1, 528)] {
            let addresses = (0..8).map(|_| driver.alloc(bytes)).collect::<Vec<_>>();
            assert_eq!(driver.used(), CONTEXT_BYTES + taken_mib * MIB, "{bytes}");
            addresses.into_iter().for_each(|address| driver.cuMemFree_v2(address).ok());
            assert_eq!(driver.used(), CONTEXT_BYTES, "{bytes}");
        }
        let descriptor = CUDA_ARRAY_DESCRIPTOR { width: 100, height: 100, format: 0x20, num_channels: 1 };
        let mut array = CUarray::NULL;
        driver.cuArrayCreate_v2(&mut array, &descriptor).ok();
        assert_eq!(driver.used(), CONTEXT_BYTES + 2 * MIB);
        driver.cuArrayDestroy(array).ok();
    });
}

#[test]
fn pools_grow_by_chunks_and_shrink_at_a_synchronisation() {
    alone("accounts::pools_grow_by_chunks_and_shrink_at_a_synchronisation", MEASURED, || {
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let mut addresses = [0; 2];
        for (address, (bytes, taken_mib)) in addresses.iter_mut().zip([(MIB, 32), (100 * MIB, 128)]) {
            driver.cuMemAllocAsync(address, bytes, stream).ok();
            assert_eq!(driver.used(), CONTEXT_BYTES + taken_mib * MIB);
        }
        addresses.into_iter().for_each(|address| driver.cuMemFreeAsync(address, stream).ok());
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(driver.used(), CONTEXT_BYTES);
    });
}

#[test]
fn larger_stacks_take_memory_for_every_thread() {
    let configuration = format!("{MEASURED}[[device]]\nmemory = '8GiB'\n");
    alone("accounts::larger_stacks_take_memory_for_every_thread", &configuration, || {
        const STACK_LIMIT: c_uint = 0;
        let driver = Driver::with_context();
        let mut second = CUcontext::NULL;
        driver.cuCtxCreate_v2(&mut second, 0, 0).ok();
        driver.cuCtxSetLimit(STACK_LIMIT, 16384).ok();
        let taken = 2 * CONTEXT_BYTES + (4_055_040 << 10);
        assert_eq!(driver.used(), taken);
        driver.cuCtxSetLimit(STACK_LIMIT, 2048).ok();
        driver.cuCtxSetLimit(STACK_LIMIT, 16384).ok();
        assert_eq!(driver.used(), taken);
        driver.cuCtxSetLimit(STACK_LIMIT, 1 << 20).is(CUresult::OUT_OF_MEMORY);
        let mut bytes = 0;
        driver.cuCtxGetLimit(&mut bytes, STACK_LIMIT).ok();
        assert_eq!((bytes, driver.used()), (16384, taken));
        driver.cuCtxDestroy_v2(second).ok();
        assert_eq!(driver.used(), CONTEXT_BYTES);
    });
}

#[test]
fn freeing_waits_for_all_work_of_the_device() {
    alone("accounts::freeing_waits_for_all_work_of_the_device", "", || {
        let driver = Driver::with_context();
        let (spin, stream) = (driver.function(c"spin_ns"), driver.stream(1));
        let mut other = CUcontext::NULL;
        driver.cuCtxCreate_v2(&mut other, 0, 0).ok();
        let mut module = CUmodule::NULL;
        driver.cuModuleLoadData(&mut module, crate::library::PTX.as_ptr().cast()).ok();
        let (device, mut host) = (driver.alloc(100), core::ptr::null_mut());
        driver.cuMemHostAlloc(&mut host, 100, 0).ok();
        let mut page = vec![0_u8; 4096];
        let page = page.as_mut_ptr().cast::<c_void>();
        driver.cuMemHostRegister_v2(page, 4096, 0).ok();
        let frees: [&dyn Fn() -> CUresult; 4] = [
            &|| driver.cuMemFree_v2(device),
            &|| driver.cuMemFreeHost(host),
            &|| driver.cuMemHostUnregister(page),
            &|| driver.cuModuleUnload(module),
        ];
        for free in frees {
            // The kernel runs in a stream of another context.
            driver.spin(spin, 20_000_000, stream).ok();
            driver.cuStreamQuery(stream).is(CUresult::NOT_READY);
            free().ok();
            driver.cuStreamQuery(stream).ok();
        }
    });
}
