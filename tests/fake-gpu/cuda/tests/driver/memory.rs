//! Memory: contents are preserved, and allocations are counted.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::alone;

const SMALL: &str = "[[device]]\nmemory = '64MiB'";

#[test]
fn copies_and_sets_move_bytes() {
    alone("memory::copies_and_sets_move_bytes", "", || {
        let driver = Driver::with_context();
        let data = (0..4096_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>();
        let (one, two) = (driver.alloc(data.len()), driver.alloc(data.len()));
        let mut back = vec![0; data.len()];
        driver.cuMemcpyHtoD_v2(one, data.as_ptr().cast(), data.len()).ok();
        driver.cuMemcpyDtoD_v2(two, one, data.len()).ok();
        driver.cuMemcpy(back.as_mut_ptr() as CUdeviceptr, two, data.len()).ok();
        assert_eq!(back, data);
        driver.cuMemsetD32_v2(two + 4, 0x0102_0304, 2).ok();
        driver.cuMemsetD2D8_v2(two + 32, 16, 9, 3, 2).ok();
        driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), two, 64).ok();
        assert_eq!(back[..16], [0, 0, 0, 0, 4, 3, 2, 1, 4, 3, 2, 1, 3, 0, 0, 0]);
        assert_eq!((back[32..36].to_vec(), back[48..52].to_vec()), (vec![9, 9, 9, 0], vec![9, 9, 9, 0]));
        driver.cuMemcpyHtoD_v2(one + 1, data.as_ptr().cast(), data.len()).is(CUresult::INVALID_VALUE);
        driver.cuMemcpyHtoD_v2(0xdead_0000, data.as_ptr().cast(), 4).is(CUresult::INVALID_VALUE);
        driver.cuMemsetD32_v2(one + 1, 0, 1).is(CUresult::INVALID_VALUE);
        let (mut base, mut size) = (0, 0);
        driver.cuMemGetAddressRange_v2(&mut base, &mut size, one + 100).ok();
        assert_eq!((base, size), (one, data.len()));
        driver.cuMemFree_v2(one).ok();
        driver.cuMemFree_v2(one).is(CUresult::INVALID_VALUE);
        driver.cuMemFree_v2(two + 512).is(CUresult::INVALID_VALUE);
        driver.cuMemGetAddressRange_v2(&mut base, &mut size, one).is(CUresult::NOT_FOUND);
    });
}

#[test]
fn every_kind_is_counted_and_given_back() {
    alone("memory::every_kind_is_counted_and_given_back", SMALL, || {
        let driver = Driver::with_context();
        let (mut pitched, mut pitch, mut managed) = (0, 0, 0);
        driver.cuMemAllocPitch_v2(&mut pitched, &mut pitch, 700, 3, 4).ok();
        assert_eq!((pitch, driver.used()), (1024, 3072));
        driver.cuMemFree_v2(pitched).ok();
        driver.cuMemAllocManaged(&mut managed, 1000, 1).ok();
        assert_eq!(driver.used(), 1024);
        driver.cuMemFree_v2(managed).ok();
        let shape =
            CUDA_ARRAY3D_DESCRIPTOR { width: 100, height: 10, depth: 0, format: 0x20, num_channels: 4, flags: 0 };
        let mut array = CUarray::NULL;
        driver.cuArray3DCreate_v2(&mut array, &shape).ok();
        assert_eq!(driver.used(), 100 * 10 * 16_usize.next_multiple_of(16) / 512 * 512 + 512);
        driver.cuArrayDestroy(array).ok();
        driver.cuArrayDestroy(array).is(CUresult::INVALID_HANDLE);
        let mut mipmapped = CUmipmappedArray::NULL;
        let shape = CUDA_ARRAY3D_DESCRIPTOR { width: 64, height: 64, depth: 0, format: 1, num_channels: 1, flags: 0 };
        driver.cuMipmappedArrayCreate(&mut mipmapped, &shape, 3).ok();
        assert_eq!(driver.used(), (64 * 64 + 32 * 32 + 16 * 16_usize).next_multiple_of(512));
        driver.cuMipmappedArrayDestroy(mipmapped).ok();
        assert_eq!(driver.used(), 0);
        let mut address = 0;
        driver.cuMemAlloc_v2(&mut address, (64 << 20) + 1).is(CUresult::OUT_OF_MEMORY);
        driver.cuMemAlloc_v2(&mut address, 64 << 20).ok();
        driver.cuMemAlloc_v2(&mut address, 1).is(CUresult::OUT_OF_MEMORY);
    });
}

#[test]
fn physical_memory_lives_as_long_as_handles_and_mappings() {
    alone("memory::physical_memory_lives_as_long_as_handles_and_mappings", SMALL, || {
        const PIECE: usize = 2 << 20;
        let driver = Driver::with_context();
        let location = CUmemLocation { kind: 1, id: 0 };
        let properties = CUmemAllocationProp {
            kind: 1,
            requested_handle_types: 0,
            location,
            win32_handle_meta_data: core::ptr::null_mut(),
            alloc_flags: [0; 8],
        };
        let (mut address, mut handle) = (0, 0);
        driver.cuMemAddressReserve(&mut address, 4 * PIECE, 0, 0, 0).ok();
        driver.cuMemCreate(&mut handle, 1000, &properties, 0).is(CUresult::INVALID_VALUE);
        driver.cuMemCreate(&mut handle, 128 << 20, &properties, 0).is(CUresult::OUT_OF_MEMORY);
        driver.cuMemCreate(&mut handle, PIECE, &properties, 0).ok();
        assert_eq!(driver.used(), PIECE);
        driver.cuMemMap(address, PIECE, 0, handle, 0).ok();
        driver.cuMemMap(address, PIECE, 0, handle, 0).is(CUresult::ALREADY_MAPPED);
        driver.cuMemMap(address + 2 * PIECE as u64, PIECE, 0, handle, 0).ok();
        driver.cuMemsetD8_v2(address, 7, 16).is(CUresult::INVALID_VALUE);
        let access = CUmemAccessDesc { location, flags: 3 };
        driver.cuMemSetAccess(address, PIECE, &access, 1).ok();
        driver.cuMemSetAccess(address + 2 * PIECE as u64, PIECE, &access, 1).ok();
        driver.cuMemsetD8_v2(address, 7, 16).ok();
        let mut back = [0_u8; 16];
        driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address + 2 * PIECE as u64, 16).ok();
        assert_eq!(back, [7; 16]);
        driver.cuMemRelease(handle).ok();
        driver.cuMemRelease(handle).is(CUresult::INVALID_VALUE);
        assert_eq!(driver.used(), PIECE);
        driver.cuMemUnmap(address, PIECE).ok();
        assert_eq!(driver.used(), PIECE);
        driver.cuMemAddressFree(address, 4 * PIECE).is(CUresult::INVALID_VALUE);
        driver.cuMemUnmap(address + 2 * PIECE as u64, PIECE).ok();
        assert_eq!(driver.used(), 0);
        driver.cuMemAddressFree(address, 4 * PIECE).ok();
    });
}

#[test]
fn a_stream_frees_memory_of_any_kind_when_it_gets_there() {
    alone("memory::a_stream_frees_memory_of_any_kind_when_it_gets_there", SMALL, || {
        const PIECE: usize = 2 << 20;
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let (linear, mut managed) = (driver.alloc(PIECE), 0);
        driver.cuMemAllocManaged(&mut managed, PIECE, 1).ok();
        let held = driver.hold(stream);
        for (address, left) in [(linear, 2 * PIECE), (managed, 2 * PIECE)] {
            driver.cuMemFreeAsync(address + 512, stream).is(CUresult::INVALID_VALUE);
            driver.cuMemFreeAsync(address, stream).ok();
            driver.cuMemFreeAsync(address, stream).is(CUresult::INVALID_VALUE);
            assert_eq!(driver.used(), left);
        }
        held.release();
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(driver.used(), 0);
    });
}

#[test]
fn pools_keep_what_is_freed_until_a_synchronisation() {
    alone("memory::pools_keep_what_is_freed_until_a_synchronisation", SMALL, || {
        const PIECE: usize = 2 << 20;
        let driver = Driver::with_context();
        let stream = driver.stream(0);
        let (mut pool, mut address) = (CUmemoryPool::NULL, 0);
        driver.cuDeviceGetDefaultMemPool(&mut pool, 0).ok();
        driver.cuMemAllocAsync(&mut address, 1000, stream).ok();
        assert_eq!(driver.used(), PIECE);
        let value = |attribute| {
            let mut bytes = 0_u64;
            driver.cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()).ok();
            bytes as usize
        };
        assert_eq!((value(5), value(7)), (PIECE, 1024));
        let mut threshold = u64::MAX;
        driver.cuMemPoolSetAttribute(pool, 4, (&raw mut threshold).cast()).ok();
        driver.cuMemFreeAsync(address, stream).ok();
        driver.cuMemFreeAsync(address, stream).is(CUresult::INVALID_VALUE);
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!((value(5), value(7), driver.used()), (PIECE, 0, PIECE));
        driver.cuMemPoolTrimTo(pool, 0).ok();
        assert_eq!(driver.used(), 0);
        driver.cuMemAllocAsync(&mut address, 80 << 20, stream).is(CUresult::OUT_OF_MEMORY);
    });
}
