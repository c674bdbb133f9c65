//! `cuGetProcAddress`.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::alone;

fn find(driver: &Driver, name: &core::ffi::CStr, version: c_int, flags: u64) -> (*mut c_void, c_uint) {
    let (mut found, mut status) = (core::ptr::null_mut(), 99);
    driver.cuGetProcAddress_v2(name.as_ptr(), &mut found, version, flags, &mut status).ok();
    (found, status)
}

#[test]
fn version_and_flags_choose_the_symbol() {
    alone("lookup::version_and_flags_choose_the_symbol", "", || {
        let driver = Driver::load();
        for (name, version, flags, symbol) in [
            (c"cuMemAlloc", 2000, 0, "cuMemAlloc"),
            (c"cuMemAlloc", 3010, 0, "cuMemAlloc"),
            (c"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
            (c"cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
            (c"cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
            (c"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
            (c"cuLaunchKernel", 12000, 0, "cuLaunchKernel"),
            (c"cuLaunchKernel", 12000, 1, "cuLaunchKernel"),
            (c"cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"),
            (c"cuLaunchKernel", 6050, 2, "cuLaunchKernel"),
            (c"cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"),
            (c"cuMemAlloc", 12000, 2, "cuMemAlloc_v2"),
        ] {
            assert_eq!(find(&driver, name, version, flags), (driver.symbol(symbol), 0), "{name:?} {version} {flags}");
        }
    });
}

#[test]
fn a_driver_may_give_other_addresses_than_it_exports() {
    alone("lookup::a_driver_may_give_other_addresses_than_it_exports", "proc_address = 'other'\n", || {
        let driver = Driver::load();
        let (found, status) = find(&driver, c"cuDriverGetVersion", 12000, 0);
        assert_eq!(status, 0);
        assert_ne!(found, driver.symbol("cuDriverGetVersion"));
        type GetVersion = unsafe extern "C" fn(*mut c_int) -> CUresult;
        let mut version = 0;
        // SAFETY: by the driver's answer this is that function, and the pointer is valid.
        unsafe { core::mem::transmute::<*mut c_void, GetVersion>(found)(&mut version) }.ok();
        assert_eq!(version, 13000);
        let (plain, _) = find(&driver, c"cuLaunchKernel", 12000, 1);
        assert_ne!(find(&driver, c"cuLaunchKernel", 12000, 2).0, plain);
    });
}

#[test]
fn a_missing_function_is_reported() {
    alone("lookup::a_missing_function_is_reported", "cuda_version = 12020", || {
        let driver = Driver::load();
        let null = core::ptr::null_mut();
        assert_eq!(find(&driver, c"cuNothing", 12000, 0), (null, 1));
        assert_eq!(find(&driver, c"", 0, 0), (null, 1));
        assert_eq!(find(&driver, c"cuMemAllocAsync", 11010, 0), (null, 2));
        // A driver of CUDA 12.2 does not have the functions of 12.5.
        assert_eq!(find(&driver, c"cuCtxCreate", 13000, 0).0, driver.symbol("cuCtxCreate_v3"));
        let mut found = driver.symbol("cuInit");
        driver.cuGetProcAddress(c"cuNothing".as_ptr(), &mut found, 12000, 0).is(CUresult::NOT_FOUND);
        assert!(found.is_null());
        driver.cuGetProcAddress(c"cuInit".as_ptr(), &mut found, 12000, 4).is(CUresult::INVALID_VALUE);
        driver.cuGetProcAddress(c"cuInit".as_ptr(), core::ptr::null_mut(), 12000, 0).is(CUresult::INVALID_VALUE);
        let mut version = 0;
        driver.cuDriverGetVersion(&mut version).ok();
        assert_eq!(version, 12020);
    });
}

#[test]
fn per_thread_look_up_gives_per_thread_functions_unless_told_otherwise() {
    alone("lookup::per_thread_look_up_gives_per_thread_functions_unless_told_otherwise", "", || {
        let driver = Driver::load();
        type LookUp = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> CUresult;
        // SAFETY: the symbol has the type of the function whose per-thread form it is.
        let look_up: LookUp = unsafe { core::mem::transmute(driver.symbol("cuGetProcAddress_v2_ptsz")) };
        for (flags, symbol) in [(0, "cuLaunchKernel_ptsz"), (1, "cuLaunchKernel"), (2, "cuLaunchKernel_ptsz")] {
            let (mut found, mut status) = (core::ptr::null_mut(), 99);
            // SAFETY: the arguments are what the function takes.
            unsafe { look_up(c"cuLaunchKernel".as_ptr(), &mut found, 12000, flags, &mut status) }.ok();
            assert_eq!((found, status), (driver.symbol(symbol), 0), "{flags}");
        }
    });
}
