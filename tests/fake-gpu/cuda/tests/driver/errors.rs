//! Calls that the driver refuses, and their error codes.

use std::os::unix::process::ExitStatusExt;

use aliquot_abi::cuda::*;
use aliquot_fake_machine::{Config, Machine};

use crate::library::{Driver, Expect};
use crate::scenario::{World, alone, say, together};

#[test]
fn nothing_works_before_initialisation() {
    alone("errors::nothing_works_before_initialisation", "", || {
        let driver = Driver::load();
        let (mut count, mut address, mut context) = (0, 0, CUcontext::NULL);
        driver.cuDeviceGetCount(&mut count).is(CUresult::NOT_INITIALIZED);
        driver.cuMemAlloc_v2(&mut address, 512).is(CUresult::NOT_INITIALIZED);
        driver.cuCtxGetCurrent(&mut context).is(CUresult::NOT_INITIALIZED);
        driver.cuStreamSynchronize(CUstream::NULL).is(CUresult::NOT_INITIALIZED);
        driver.cuInit(1).is(CUresult::INVALID_VALUE);
        driver.cuInit(0).ok();
        driver.cuInit(0).ok();
    });
}

#[test]
fn calls_without_context_or_with_bad_arguments() {
    alone("errors::calls_without_context_or_with_bad_arguments", "", || {
        let driver = Driver::load();
        driver.cuInit(0).ok();
        let (mut address, mut device, mut context) = (0, 0, CUcontext::NULL);
        driver.cuMemAlloc_v2(&mut address, 512).is(CUresult::INVALID_CONTEXT);
        driver.cuCtxSynchronize().is(CUresult::INVALID_CONTEXT);
        driver.cuDeviceGet(&mut device, 1).is(CUresult::INVALID_DEVICE);
        driver.cuDeviceGet(&mut device, -1).is(CUresult::INVALID_DEVICE);
        driver.cuDeviceGet(core::ptr::null_mut(), 0).is(CUresult::INVALID_VALUE);
        driver.cuCtxCreate_v2(&mut context, 0x8000, 0).is(CUresult::INVALID_VALUE);
        driver.cuCtxCreate_v2(&mut context, 0, 0).ok();
        driver.cuMemAlloc_v2(&mut address, 0).is(CUresult::INVALID_VALUE);
        driver.cuMemAlloc_v2(core::ptr::null_mut(), 512).is(CUresult::INVALID_VALUE);
        driver.cuMemAlloc_v2(&mut address, 81 << 30).is(CUresult::OUT_OF_MEMORY);
        driver.cuMemAlloc_v2(&mut address, usize::MAX).is(CUresult::OUT_OF_MEMORY);
        let mut value = 0;
        driver.cuDeviceGetAttribute(&mut value, 9999, 0).is(CUresult::INVALID_VALUE);
        driver.cuDeviceGetAttribute(&mut value, 75, 0).ok();
        assert_eq!(value, 9);
        let mut table = core::ptr::null();
        driver.cuGetExportTable(&mut table, &CUuuid { bytes: [0; 16] }).is(CUresult::NOT_FOUND);
    });
}

#[test]
fn contexts_on_a_lost_device_fail_until_it_is_back() {
    alone("errors::contexts_on_a_lost_device_fail_until_it_is_back", "", || {
        let driver = Driver::with_context();
        let machine = Machine::open(Config::from_env().expect("a valid configuration")).expect("a machine");
        let mut address = 0;
        machine.set_lost(0, true);
        driver.cuMemAlloc_v2(&mut address, 512).is(CUresult::UNKNOWN);
        driver.cuCtxSynchronize().is(CUresult::UNKNOWN);
        machine.set_lost(0, false);
        driver.cuMemAlloc_v2(&mut address, 512).ok();
        driver.cuCtxSynchronize().ok();
    });
}

#[test]
fn handles_of_another_kind_or_age() {
    alone("errors::handles_of_another_kind_or_age", "", || {
        let driver = Driver::with_context();
        let (stream, event) = (driver.stream(0), driver.event());
        driver.cuStreamSynchronize(CUstream(event.0)).is(CUresult::INVALID_HANDLE);
        driver.cuEventQuery(CUevent(stream.0)).is(CUresult::INVALID_HANDLE);
        driver
            .cuStreamSynchronize(CUstream(core::ptr::without_provenance_mut(0x1234_5678)))
            .is(CUresult::INVALID_HANDLE);
        driver.cuCtxSetCurrent(CUcontext(stream.0)).is(CUresult::INVALID_CONTEXT);
        driver.cuStreamDestroy_v2(stream).ok();
        driver.cuStreamDestroy_v2(stream).is(CUresult::INVALID_HANDLE);
        driver.cuStreamQuery(stream).is(CUresult::INVALID_HANDLE);
        driver.cuEventDestroy_v2(event).ok();
        driver.cuEventRecord(event, CUstream::NULL).is(CUresult::INVALID_HANDLE);
        let function = driver.function(c"plain");
        let none = core::ptr::null_mut();
        driver.cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, CUstream::NULL, none, none).is(CUresult::INVALID_VALUE);
        driver.cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, CUstream::NULL, none, none).is(CUresult::INVALID_VALUE);
        driver
            .cuLaunchKernel(CUfunction::NULL, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, none, none)
            .is(CUresult::INVALID_HANDLE);
    });
}

#[test]
fn a_context_ends_with_all_it_holds() {
    alone("errors::a_context_ends_with_all_it_holds", "context_memory = '3MiB'", || {
        let driver = Driver::load();
        driver.cuInit(0).ok();
        let (mut first, mut second, mut current) = (CUcontext::NULL, CUcontext::NULL, CUcontext::NULL);
        driver.cuCtxCreate_v2(&mut first, 0, 0).ok();
        assert_eq!(driver.used(), 3 << 20);
        driver.cuCtxCreate_v2(&mut second, 0, 0).ok();
        let (address, stream, event) = (driver.alloc(1 << 20), driver.stream(0), driver.event());
        assert_eq!(driver.used(), 7 << 20);
        driver.cuCtxDestroy_v2(second).ok();
        driver.cuCtxGetCurrent(&mut current).ok();
        assert_eq!(current, first);
        assert_eq!(driver.used(), 3 << 20);
        driver.cuMemFree_v2(address).is(CUresult::INVALID_VALUE);
        driver.cuStreamDestroy_v2(stream).is(CUresult::CONTEXT_IS_DESTROYED);
        driver.cuEventQuery(event).is(CUresult::CONTEXT_IS_DESTROYED);
        driver.cuCtxDestroy_v2(second).is(CUresult::INVALID_CONTEXT);
        driver.cuCtxPushCurrent_v2(second).is(CUresult::INVALID_CONTEXT);
        driver.cuCtxGetApiVersion(second, &mut 0).is(CUresult::INVALID_CONTEXT);
    });
}

#[test]
fn using_a_stream_of_a_destroyed_context_ends_the_process() {
    const TEST: &str = "errors::using_a_stream_of_a_destroyed_context_ends_the_process";
    let direct = |world: &World| {
        for use_of_it in ["context", "capture", "launch"] {
            let mut player = world.start(use_of_it);
            player.hear("alive");
            let status = player.child.wait().expect("the process ends");
            assert_eq!(status.signal(), Some(libc::SIGSEGV), "{use_of_it}");
        }
    };
    together(TEST, &[""], direct, |use_of_it| {
        let driver = Driver::with_context();
        let (spin, mut gone) = (driver.function(c"spin_ns"), CUcontext::NULL);
        driver.cuCtxCreate_v2(&mut gone, 0, 0).ok();
        let stream = driver.stream(0);
        driver.cuCtxDestroy_v2(gone).ok();
        say("alive", "");
        match use_of_it {
            "context" => driver.cuStreamGetCtx(stream, &mut gone),
            "capture" => driver.cuStreamIsCapturing(stream, &mut 0),
            _ => driver.spin(spin, 1, stream),
        };
    });
}

#[test]
fn handles_are_given_out_again() {
    alone("errors::handles_are_given_out_again", "", || {
        let driver = Driver::with_context();
        let (mut first, mut second) = (CUcontext::NULL, CUcontext::NULL);
        let (stream, event) = (driver.stream(0), driver.event());
        driver.cuStreamDestroy_v2(stream).ok();
        driver.cuEventDestroy_v2(event).ok();
        driver.cuStreamQuery(stream).is(CUresult::INVALID_HANDLE);
        assert_eq!((driver.stream(1), driver.event()), (stream, event));
        let mut flags = 0;
        driver.cuStreamGetFlags(stream, &mut flags).ok();
        assert_eq!(flags, 1);
        driver.cuCtxCreate_v2(&mut first, 0, 0).ok();
        driver.cuCtxDestroy_v2(first).ok();
        driver.cuCtxCreate_v2(&mut second, 0, 0).ok();
        assert_eq!(second, first);
    });
}

#[test]
fn primary_contexts_are_counted() {
    alone("errors::primary_contexts_are_counted", "", || {
        let driver = Driver::with_context();
        let (mut again, mut flags, mut active) = (CUcontext::NULL, 0, 0);
        driver.cuDevicePrimaryCtxRetain(&mut again, 0).ok();
        driver.alloc(1 << 20);
        driver.cuDevicePrimaryCtxRelease_v2(0).ok();
        driver.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active).ok();
        assert_eq!(active, 1);
        driver.cuDevicePrimaryCtxReset_v2(0).ok();
        driver.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active).ok();
        assert_eq!(active, 0);
        driver.cuCtxSynchronize().is(CUresult::CONTEXT_IS_DESTROYED);
        driver.cuDevicePrimaryCtxRelease_v2(0).is(CUresult::INVALID_CONTEXT);
        driver.cuDevicePrimaryCtxRetain(&mut again, 0).ok();
        assert_eq!(driver.used(), 0);
    });
}

#[test]
fn images_are_told_apart() {
    alone("errors::images_are_told_apart", "", || {
        let driver = Driver::with_context();
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        driver.cuModuleLoadData(&mut module, c"no ptx at all".as_ptr().cast()).is(CUresult::INVALID_PTX);
        driver.cuModuleLoadData(&mut module, c"\x01\x02\x03\x04".as_ptr().cast()).is(CUresult::INVALID_IMAGE);
        driver.cuModuleLoad(&mut module, c"/no/such/file".as_ptr()).is(CUresult::FILE_NOT_FOUND);
        driver.cuModuleLoadData(&mut module, crate::library::PTX.as_ptr().cast()).ok();
        driver.cuModuleGetFunction(&mut function, module, c"absent".as_ptr()).is(CUresult::NOT_FOUND);
        let (mut address, mut bytes) = (0, 0);
        driver.cuModuleGetGlobal_v2(&mut address, &mut bytes, module, c"table".as_ptr()).ok();
        assert_eq!((bytes, driver.used()), (64, 512));
        driver.cuModuleGetFunction(&mut function, module, c"plain".as_ptr()).ok();
        let (mut offset, mut size) = (0, 0);
        driver.cuFuncGetParamInfo(function, 1, &mut offset, &mut size).ok();
        assert_eq!((offset, size), (8, 8));
        driver.cuFuncGetParamInfo(function, 2, &mut offset, &mut size).is(CUresult::INVALID_VALUE);
        driver.cuModuleUnload(module).ok();
        driver.cuModuleUnload(module).is(CUresult::INVALID_HANDLE);
        assert_eq!(driver.used(), 0);
        let mut fatbin = [0_u32; 16];
        fatbin[0] = 0xBA55_ED50;
        driver.cuModuleLoadData(&mut module, fatbin.as_ptr().cast()).ok();
        driver.cuModuleGetFunction(&mut function, module, c"anything".as_ptr()).ok();
    });
}

#[test]
fn a_bad_configuration_is_no_device() {
    let direct = |world: &World| world.start("alone").finish();
    together("errors::a_bad_configuration_is_no_device", &["timeslice_us = 0"], direct, |_| {
        Driver::load().cuInit(0).is(CUresult::NO_DEVICE);
    });
}

#[test]
fn visible_devices_are_chosen_as_the_driver_does() {
    const TEST: &str = "errors::visible_devices_are_chosen_as_the_driver_does";
    let devices = "[[device]]\nname = 'a'\n[[device]]\nname = 'b'\n[[device]]\nname = 'c'\n";
    // Values of CUDA_VISIBLE_DEVICES, and the devices that are then visible.
    let cases =
        [("2,0", "ca"), ("1,7,0", "b"), ("GPU-b0,GPU-a1", "ba"), ("0,0", ""), ("", ""), ("-1", ""), ("GPU-", "")];
    let direct = |world: &World| {
        for (visible, names) in cases {
            world.start_with(names, &[("CUDA_VISIBLE_DEVICES", visible)]).finish();
        }
    };
    together(TEST, &[devices], direct, |names| {
        let driver = Driver::load();
        driver.cuInit(0).is(if names.is_empty() { CUresult::NO_DEVICE } else { CUresult::SUCCESS });
        for (ordinal, expected) in names.bytes().enumerate() {
            let mut name = [0; 8];
            driver.cuDeviceGetName(name.as_mut_ptr(), 8, ordinal as c_int).ok();
            assert_eq!(name[0] as u8, expected);
        }
    });
}

#[test]
fn a_process_sees_one_instance_of_a_gpu_in_mig_mode_and_no_gpu_beside_it() {
    const TEST: &str = "errors::a_process_sees_one_instance_of_a_gpu_in_mig_mode_and_no_gpu_beside_it";
    let instance = |profile: &str| format!("{{ profile = '{profile}', memory = '1GiB', sm_count = 8 }}");
    let devices =
        format!("[[device]]\nname = 'a'\nmig = [{}, {}]\n[[device]]\nname = 'b'\n", instance("x"), instance("y"));
    let cases = [
        ("1", "b"),
        ("0", ""),
        ("GPU-a1", ""),
        ("MIG-83", "a MIG x"),
        ("MIG-92,MIG-83", "a MIG y"),
        ("1,MIG-83", "a MIG x"),
    ];
    let direct = |world: &World| {
        for (visible, seen) in cases {
            world.start_with(seen, &[("CUDA_VISIBLE_DEVICES", visible)]).finish();
        }
    };
    together(TEST, &[&devices], direct, |seen| {
        let driver = Driver::load();
        if seen.is_empty() {
            return driver.cuInit(0).is(CUresult::NO_DEVICE);
        }
        driver.cuInit(0).ok();
        let (mut count, mut name) = (0, [0; 16]);
        driver.cuDeviceGetCount(&mut count).ok();
        driver.cuDeviceGetName(name.as_mut_ptr(), 16, 0).ok();
        let name = name.map(|byte| byte as u8);
        assert_eq!((count, &name[..=seen.len()]), (1, [seen.as_bytes(), b"\0"].concat().as_slice()));
    });
}

#[test]
fn a_too_wide_array_is_refused_before_memory_is_checked() {
    let name = "errors::a_too_wide_array_is_refused_before_memory_is_checked";
    alone(name, "[[device]]\nmemory = '64MiB'", || {
        const LAYERED: c_uint = 1;
        let driver = Driver::with_context();
        let create = |width, height, depth, flags| {
            let descriptor = CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format: 0x20, num_channels: 4, flags };
            let (mut array, mut levels) = (CUarray::NULL, CUmipmappedArray::NULL);
            let plain = driver.cuArray3DCreate_v2(&mut array, &descriptor);
            (plain, driver.cuMipmappedArrayCreate(&mut levels, &descriptor, 1))
        };
        let (refused, too_much) = (CUresult::INVALID_VALUE, CUresult::OUT_OF_MEMORY);
        assert_eq!(create(131_072, 65_536, 0, 0), (too_much, refused));
        assert_eq!(create(32_768, 32_768, 0, 0), (too_much, too_much));
        assert_eq!(create(131_073, 1, 0, 0), (refused, refused));
        assert_eq!(create(131_072, 65_537, 0, 0), (refused, refused));
        assert_eq!(create(32_769, 0, 0, 0), (CUresult::SUCCESS, refused));
        assert_eq!(create(131_073, 0, 0, 0), (refused, refused));
        assert_eq!(create(16_384, 16_384, 16_384, 0), (too_much, too_much));
        assert_eq!(create(8192, 8192, 32_768, 0), (too_much, too_much));
        assert_eq!(create(8192, 16_384, 32_768, 0), (refused, refused));
        assert_eq!(create(32_768, 32_768, 2048, LAYERED), (too_much, too_much));
        assert_eq!(create(32_768, 32_768, 2049, LAYERED), (refused, refused));
        assert_eq!(create(32_769, 0, 2, LAYERED), (refused, refused));
    });
}
