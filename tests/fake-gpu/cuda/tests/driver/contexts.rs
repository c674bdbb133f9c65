//! Contexts: their end, and the objects that end with them.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::alone;

/// Makes a new context, which becomes current.
fn context(driver: &Driver) -> CUcontext {
    let mut context = CUcontext::NULL;
    driver.cuCtxCreate_v2(&mut context, 0, 0).ok();
    context
}

#[test]
fn host_memory_is_freed_and_unregistered_with_its_context() {
    alone("contexts::host_memory_is_freed_and_unregistered_with_its_context", "", || {
        let driver = Driver::load();
        driver.cuInit(0).ok();
        let first = context(&driver);
        let mut pages = vec![0_u8; 10_000];
        let registered = pages.as_mut_ptr().cast::<c_void>();
        let mut allocated = core::ptr::null_mut();
        driver.cuMemHostAlloc(&mut allocated, 10_000, 8).is(CUresult::INVALID_VALUE);
        driver.cuMemHostAlloc(&mut allocated, 0, 0).is(CUresult::INVALID_VALUE);
        driver.cuMemHostAlloc(&mut allocated, 10_000, 1 | 4).ok();
        // Start and size need not be aligned.
        driver.cuMemHostRegister_v2(registered.wrapping_byte_add(3), 5000, 0).ok();
        driver.cuMemHostRegister_v2(registered, 10_000, 0).is(CUresult::HOST_MEMORY_ALREADY_REGISTERED);
        driver.cuMemFreeHost(registered.wrapping_byte_add(3)).is(CUresult::INVALID_VALUE);
        driver.cuMemHostUnregister(allocated).is(CUresult::HOST_MEMORY_NOT_REGISTERED);
        let mut flags = 0;
        driver.cuMemHostGetFlags(&mut flags, allocated).ok();
        assert_eq!(flags, 1 | 2 | 4);
        driver.cuCtxDestroy_v2(first).ok();
        context(&driver);
        driver.cuMemFreeHost(allocated).is(CUresult::INVALID_VALUE);
        driver.cuMemHostRegister_v2(registered, 10_000, 0).ok();
        driver.cuMemHostUnregister(registered).ok();
        driver.cuMemAllocHost_v2(&mut allocated, 100).ok();
        driver.cuMemFreeHost(allocated).ok();
        driver.cuMemFreeHost(allocated).is(CUresult::INVALID_VALUE);
    });
}

#[test]
fn the_last_detachment_destroys_a_context_with_all_it_holds() {
    alone("contexts::the_last_detachment_destroys_a_context_with_all_it_holds", "", || {
        let driver = Driver::with_context();
        let mut primary = CUcontext::NULL;
        driver.cuCtxGetCurrent(&mut primary).ok();
        driver.cuCtxDetach(primary).is(CUresult::INVALID_CONTEXT);
        let own = context(&driver);
        let mut attached = CUcontext::NULL;
        driver.cuCtxAttach(&mut attached, 1).is(CUresult::INVALID_VALUE);
        driver.cuCtxAttach(&mut attached, 0).ok();
        assert_eq!(attached, own);
        driver.alloc(512);
        driver.cuCtxDetach(primary).is(CUresult::INVALID_CONTEXT);
        driver.cuCtxDetach(own).ok();
        assert_eq!(driver.used(), 512);
        driver.cuCtxDetach(own).ok();
        driver.cuCtxDetach(own).is(CUresult::INVALID_CONTEXT);
        let mut current = CUcontext::NULL;
        driver.cuCtxGetCurrent(&mut current).ok();
        assert_eq!((current, driver.used()), (primary, 0));
    });
}
