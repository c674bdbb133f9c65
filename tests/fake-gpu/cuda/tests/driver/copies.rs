//! Copies of every kind: they move the right bytes, in stream order, and refuse invalid parameters.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::alone;

/// `CUmemcpyAttributes`.
#[repr(C)]
struct Attributes(u32, [u32; 4], u32);

/// `CUmemcpy3DOperand`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Operand(u32, u64, [u64; 3]);

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
struct Operation(Operand, Operand, [u64; 3], u32, u32);

fn array(driver: &Driver, width: usize, height: usize) -> CUarray {
    let mut array = CUarray::NULL;
    let shape = CUDA_ARRAY_DESCRIPTOR { width, height, format: 2, num_channels: 1 };
    driver.cuArrayCreate_v2(&mut array, &shape).ok();
    array
}

fn read(driver: &Driver, address: CUdeviceptr, count: usize) -> Vec<u8> {
    let mut back = vec![0; count];
    driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, count).ok();
    back
}

#[test]
fn arrays_are_copied_byte_by_byte() {
    alone("copies::arrays_are_copied_byte_by_byte", "", || {
        let driver = Driver::with_context();
        let (stream, data) = (driver.stream(1), (0..64).collect::<Vec<u8>>());
        let (one, two, linear) = (array(&driver, 8, 4), array(&driver, 8, 4), driver.alloc(64));
        driver.cuMemcpyHtoA_v2(one, 0, data.as_ptr().cast(), 64).ok();
        driver.cuMemcpyHtoA_v2(one, 1, data.as_ptr().cast(), 64).is(CUresult::INVALID_VALUE);
        driver.cuMemcpyAtoA_v2(two, 8, one, 0, 40).ok();
        driver.cuMemcpyAtoD_v2(linear, two, 8, 40).ok();
        assert_eq!(read(&driver, linear, 40), data[..40]);
        driver.cuMemcpyDtoA_v2(two, 60, linear + 1, 4).ok();
        let mut back = [0_u8; 4];
        driver.cuMemcpyAtoHAsync_v2(back.as_mut_ptr().cast(), two, 60, 4, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(back, [1, 2, 3, 4]);
        driver.cuMemcpyHtoAAsync_v2(two, 0, data[10..].as_ptr().cast(), 2, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        driver.cuMemcpyAtoH(back.as_mut_ptr().cast(), two, 0, 2).ok();
        assert_eq!(back, [10, 11, 3, 4]);
        driver.cuMemcpyAtoD(16, two, 0, 2).is(CUresult::INVALID_VALUE);
        driver.cuMemcpyHtoA_v2(CUarray::NULL, 0, data.as_ptr().cast(), 1).is(CUresult::INVALID_HANDLE);
    });
}

#[test]
fn a_batch_is_carried_out_whole_or_not_at_all() {
    alone("copies::a_batch_is_carried_out_whole_or_not_at_all", "", || {
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let (source, target) = (driver.alloc(64), driver.alloc(64));
        driver.cuMemsetD8_v2(source, 1, 64).ok();
        driver.cuMemsetD8_v2(target, 0, 64).ok();
        let (mut targets, mut sources, mut sizes) = ([target, target + 60], [source, source], [4_usize, 8]);
        let mut attributes = Attributes(1, [0; 4], 0);
        let (mut first, mut failed) = (0_usize, 7_usize);
        let mut run = |sizes: &mut [usize; 2], first: &mut usize, failed: &mut usize, stream| {
            let attributes = (&raw mut attributes).cast();
            let (targets, sources) = (targets.as_mut_ptr(), sources.as_mut_ptr());
            driver.cuMemcpyBatchAsync(targets, sources, sizes.as_mut_ptr(), 2, attributes, first, 1, failed, stream)
        };
        run(&mut sizes, &mut first, &mut failed, stream).is(CUresult::INVALID_VALUE);
        assert_eq!((failed, read(&driver, target, 4)), (1, vec![0; 4]));
        sizes[1] = 4;
        run(&mut sizes, &mut first, &mut failed, CUstream::NULL).is(CUresult::INVALID_VALUE);
        run(&mut sizes, &mut 1, &mut failed, stream).is(CUresult::INVALID_VALUE);
        run(&mut sizes, &mut first, &mut failed, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!((failed, read(&driver, target + 60, 4)), (usize::MAX, vec![1; 4]));
        let mut wrong = Attributes(0, [0; 4], 0);
        driver
            .cuMemcpyWithAttributesAsync(target, source, 64, (&raw mut wrong).cast(), stream)
            .is(CUresult::INVALID_VALUE);
        driver.cuMemcpyWithAttributesAsync(target, source, 64, (&raw mut attributes).cast(), stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(read(&driver, target, 64), vec![1; 64]);
        // A source that is read during the call may be changed right after it.
        let (function, mut pinned) = (driver.function(c"spin_ns"), core::ptr::null_mut());
        driver.cuMemHostAlloc(&mut pinned, 64, 0).ok();
        driver.cuMemsetD8_v2(pinned as u64, 5, 64).ok();
        driver.cuCtxSynchronize().ok();
        driver.spin(function, 20_000_000, stream).ok();
        attributes.0 = 2;
        let attributes = (&raw mut attributes).cast();
        driver.cuMemcpyWithAttributesAsync(target, pinned as u64, 64, attributes, stream).ok();
        driver.cuStreamQuery(stream).ok();
        assert_eq!(read(&driver, target, 64), vec![5; 64]);
    });
}

#[test]
fn boxes_of_elements_are_copied_between_arrays_and_memory() {
    alone("copies::boxes_of_elements_are_copied_between_arrays_and_memory", "", || {
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let array = array(&driver, 8, 4);
        let memory = driver.alloc(64);
        for element in 0..32_u16 {
            driver.cuMemsetD16_v2(memory + 2 * u64::from(element), element, 1).ok();
        }
        driver.cuCtxSynchronize().ok();
        let in_array = Operand(2, array.0 as u64, [2, 1, 0]);
        // Rows of eight elements. Starts at the second element and copies two rows of three elements.
        let in_memory = Operand(1, memory + 2, [8, 0, 0]);
        let mut operation = Operation(in_memory, in_array, [3, 2, 1], 1, 0);
        let (pointer, mut failed) = ((&raw mut operation).cast::<c_void>(), 9);
        driver.cuMemcpy3DBatchAsync(1, pointer, &mut failed, 1, stream).is(CUresult::INVALID_VALUE);
        driver.cuMemcpy3DBatchAsync(1, pointer, &mut failed, 0, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        let mut back = [0_u16; 3];
        driver.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), array, 2 * (8 + 2), 6).ok();
        assert_eq!(back, [1, 2, 3]);
        driver.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), array, 2 * (16 + 2), 6).ok();
        assert_eq!((back, failed), ([9, 10, 11], usize::MAX));
        operation.2 = [7, 2, 1];
        let pointer = (&raw mut operation).cast::<c_void>();
        driver.cuMemcpy3DBatchAsync_v2(1, pointer, 0, stream).is(CUresult::INVALID_VALUE);
        operation.2 = [u64::MAX, u64::MAX, u64::MAX];
        let pointer = (&raw mut operation).cast::<c_void>();
        driver.cuMemcpy3DWithAttributesAsync(pointer, 0, stream).is(CUresult::INVALID_VALUE);
    });
}

#[test]
fn contexts_copy_from_one_to_the_other() {
    let pair = "[[device]]\nnvlink = [1]\n[[device]]";
    alone("copies::contexts_copy_from_one_to_the_other", pair, || {
        let driver = Driver::with_context();
        let (mut own, mut other) = (CUcontext::NULL, CUcontext::NULL);
        driver.cuCtxGetCurrent(&mut own).ok();
        let source = driver.alloc(64);
        driver.cuMemsetD8_v2(source, 3, 64).ok();
        driver.cuCtxSynchronize().ok();
        driver.cuDevicePrimaryCtxRetain(&mut other, 1).ok();
        driver.cuCtxSetCurrent(other).ok();
        let target = driver.alloc(64);
        // SAFETY: zeros and null pointers are valid in the structure.
        let mut copy: CUDA_MEMCPY3D = unsafe { core::mem::zeroed() };
        (copy.src_memory_type, copy.src_device, copy.src_pitch) = (2, source, 8);
        (copy.dst_memory_type, copy.dst_device, copy.dst_pitch) = (2, target, 8);
        (copy.width_in_bytes, copy.height, copy.depth) = (4, 8, 1);
        driver.cuMemcpy3DPeer(&CUDA_MEMCPY3D_PEER { copy }).is(CUresult::INVALID_CONTEXT);
        (copy.reserved0, copy.reserved1) = (own.0, other.0);
        let endless = CUDA_MEMCPY3D { width_in_bytes: usize::MAX, height: usize::MAX, depth: usize::MAX, ..copy };
        driver.cuMemcpy3DPeer(&CUDA_MEMCPY3D_PEER { copy: endless }).is(CUresult::INVALID_VALUE);
        let endless = CUDA_MEMCPY3D { height: usize::MAX, depth: usize::MAX, src_height: usize::MAX, ..copy };
        driver.cuMemcpy3DPeer(&CUDA_MEMCPY3D_PEER { copy: endless }).is(CUresult::INVALID_VALUE);
        driver.cuMemsetD8_v2(target, 0, 64).ok();
        driver.cuMemcpy3DPeer(&CUDA_MEMCPY3D_PEER { copy }).ok();
        driver.cuCtxSynchronize().ok();
        assert_eq!(read(&driver, target, 8), [3, 3, 3, 3, 0, 0, 0, 0]);
    });
}

#[test]
fn batches_of_managed_ranges_are_prefetched_and_discarded() {
    alone("copies::batches_of_managed_ranges_are_prefetched_and_discarded", "", || {
        let driver = Driver::with_context();
        let (stream, mut managed) = (driver.stream(1), 0);
        driver.cuMemAllocManaged(&mut managed, 8192, 1).ok();
        let (mut ranges, mut sizes) = ([managed, managed + 4096], [4096_usize, 4096]);
        let (mut place, mut first) = (CUmemLocation { kind: 1, id: 0 }, 0_usize);
        let (range, size) = (ranges.as_mut_ptr(), sizes.as_mut_ptr());
        driver.cuMemPrefetchBatchAsync(range, size, 2, &mut place, &mut first, 1, 0, stream).ok();
        driver.cuMemDiscardBatchAsync(range, size, 2, 0, stream).ok();
        driver.cuMemDiscardAndPrefetchBatchAsync(range, size, 2, &mut place, &mut first, 1, 0, stream).ok();
        driver.cuMemDiscardBatchAsync(range, size, 2, 0, CUstream::NULL).is(CUresult::INVALID_VALUE);
        place.id = 9;
        driver
            .cuMemPrefetchBatchAsync(range, size, 2, &mut place, &mut first, 1, 0, stream)
            .is(CUresult::INVALID_DEVICE);
        ranges[1] = driver.alloc(4096);
        let range = ranges.as_mut_ptr();
        driver.cuMemDiscardBatchAsync(range, size, 2, 0, stream).is(CUresult::INVALID_VALUE);
    });
}
