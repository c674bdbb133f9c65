//! Linking, textures, clusters, and green contexts.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect, PTX};
use crate::scenario::alone;

#[test]
fn linked_images_hold_what_was_put_in() {
    alone("modules::linked_images_hold_what_was_put_in", "", || {
        let driver = Driver::with_context();
        let (mut state, none, nothing) = (CUlinkState::NULL, core::ptr::null_mut(), core::ptr::null_mut());
        driver.cuLinkCreate_v2(0, nothing, none, &mut state).ok();
        let data = PTX.as_ptr().cast_mut().cast::<c_void>();
        let name = c"a".as_ptr();
        driver.cuLinkAddData_v2(state, 9, data, PTX.len(), name, 0, nothing, none).is(CUresult::INVALID_VALUE);
        driver.cuLinkAddData_v2(state, 1, data, PTX.len(), name, 0, nothing, none).ok();
        driver.cuLinkAddFile_v2(state, 1, c"/nonexistent".as_ptr(), 0, nothing, none).is(CUresult::FILE_NOT_FOUND);
        let (mut image, mut size) = (core::ptr::null_mut(), 0);
        driver.cuLinkComplete(state, &mut image, &mut size).ok();
        driver.cuLinkAddData_v2(state, 1, data, PTX.len(), name, 0, nothing, none).is(CUresult::INVALID_VALUE);
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        driver.cuModuleLoadData(&mut module, image).ok();
        driver.cuLinkDestroy(state).ok();
        driver.cuLinkDestroy(state).is(CUresult::INVALID_HANDLE);
        driver.cuModuleGetFunction(&mut function, module, c"plain".as_ptr()).ok();
        let (mut count, mut offset, mut bytes) = (0, 0, 0);
        driver.cuFuncGetParamCount(function, &mut count).ok();
        driver.cuFuncGetParamInfo(function, 1, &mut offset, &mut bytes).ok();
        assert_eq!((count, offset, bytes), (2, 8, 8));
        let mut address = 0;
        driver.cuModuleGetGlobal_v2(&mut address, &mut bytes, module, c"table".as_ptr()).ok();
        assert_eq!(bytes, 64);
    });
}

#[test]
fn textures_and_surfaces_are_views_of_what_is_there() {
    #[repr(C)]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Resource(u32, u64, u32, u32, [u64; 3], [u64; 11], u32);
    alone("modules::textures_and_surfaces_are_views_of_what_is_there", "", || {
        let driver = Driver::with_context();
        let sampling = [0_u32; 26];
        let memory = driver.alloc(1000);
        let mut resource = Resource(2, memory, 0x20, 1, [1000, 0, 0], [0; 11], 0);
        let mut texture = 0;
        let nothing = core::ptr::null();
        let create = |texture: &mut u64, resource: &Resource, view: *const c_void| {
            driver.cuTexObjectCreate(texture, (&raw const *resource).cast(), sampling.as_ptr().cast(), view)
        };
        create(&mut texture, &resource, nothing).ok();
        create(&mut texture, &resource, sampling.as_ptr().cast()).is(CUresult::INVALID_VALUE);
        let mut told = Resource(9, 0, 0, 0, [0; 3], [0; 11], 0);
        driver.cuTexObjectGetResourceDesc((&raw mut told).cast(), texture).ok();
        assert_eq!(told, resource);
        driver.cuTexObjectGetResourceViewDesc((&raw mut told).cast(), texture).is(CUresult::INVALID_VALUE);
        driver.cuTexObjectDestroy(texture).ok();
        driver.cuTexObjectDestroy(texture).is(CUresult::INVALID_VALUE);
        resource.4[0] = 1001;
        create(&mut texture, &resource, nothing).is(CUresult::INVALID_VALUE);
        let mut surface = 0;
        let mut array = CUarray::NULL;
        for (flags, expected) in [(0, CUresult::INVALID_VALUE), (2, CUresult::SUCCESS)] {
            let shape = CUDA_ARRAY3D_DESCRIPTOR { width: 8, height: 8, depth: 0, format: 1, num_channels: 1, flags };
            driver.cuArray3DCreate_v2(&mut array, &shape).ok();
            let resource = Resource(0, array.0 as u64, 0, 0, [0; 3], [0; 11], 0);
            driver.cuSurfObjectCreate(&mut surface, (&raw const resource).cast()).is(expected);
            create(&mut texture, &resource, nothing).ok();
        }
        driver.cuSurfObjectGetResourceDesc((&raw mut told).cast(), surface).ok();
        driver.cuSurfObjectDestroy(surface).ok();
        assert_eq!(told.1, array.0 as u64);
    });
}

#[test]
fn green_contexts_share_the_primary_contexts_memory() {
    alone("modules::green_contexts_share_the_primary_contexts_memory", "[[device]]\nsm_count = 20", || {
        let driver = Driver::with_context();
        let mut whole = CUdevResource::of_sms(0, 0, [0; 5]);
        driver.cuDeviceGetDevResource(0, &mut whole, 1000).is(CUresult::INVALID_RESOURCE_TYPE);
        driver.cuDeviceGetDevResource(0, &mut whole, 1).ok();
        assert_eq!(whole.sms()[0], 20);
        let (mut parts, mut rest, mut count) = ([whole; 4], whole, 0);
        driver.cuDevSmResourceSplitByCount(core::ptr::null_mut(), &mut count, &whole, &mut rest, 0, 4).ok();
        assert_eq!(count, 2);
        count = 1;
        driver.cuDevSmResourceSplitByCount(parts.as_mut_ptr(), &mut count, &whole, &mut rest, 0, 4).ok();
        assert_eq!((count, parts[0].sms()[0], rest.sms()[0]), (1, 8, 12));
        let (mut description, mut green, mut context) = (CUdevResourceDesc::NULL, CUgreenCtx::NULL, CUcontext::NULL);
        driver.cuDevResourceGenerateDesc(&mut description, parts.as_mut_ptr(), 1).ok();
        driver.cuGreenCtxCreate(&mut green, description, 0, 1).ok();
        driver.cuCtxFromGreenCtx(&mut context, green).ok();
        let (mut stream, mut plain, mut none) = (CUstream::NULL, CUcontext::NULL, CUgreenCtx::NULL);
        driver.cuGreenCtxStreamCreate(&mut stream, green, 0, 0).is(CUresult::INVALID_VALUE);
        driver.cuGreenCtxStreamCreate(&mut stream, green, 1, 0).ok();
        let mut told = CUgreenCtx::NULL;
        driver.cuStreamGetCtx_v2(stream, &mut plain, (&raw mut told).cast()).ok();
        let mut primary = CUcontext::NULL;
        driver.cuCtxGetCurrent(&mut primary).ok();
        assert_eq!((plain, told), (primary, green));
        driver.cuStreamGetGreenCtx(driver.stream(0), &mut none).ok();
        assert_eq!(none, CUgreenCtx::NULL);
        let mut ordinal = 9;
        driver.cuStreamGetDevice(stream, &mut ordinal).ok();
        let mut before = CUcontext::NULL;
        driver.cuCtxGetCurrent(&mut before).ok();
        driver.cuCtxSetCurrent(context).ok();
        driver.cuCtxGetDevResource(context, &mut rest, 1).ok();
        assert_eq!((ordinal, rest.sms()[0]), (0, 8));
        let address = driver.alloc(512);
        driver.cuCtxSetCurrent(before).ok();
        driver.cuGreenCtxDestroy(green).ok();
        driver.cuGreenCtxDestroy(green).is(CUresult::INVALID_CONTEXT);
        driver.cuCtxSetCurrent(context).is(CUresult::INVALID_CONTEXT);
        // Memory allocated in the green context belongs to the primary context.
        assert_eq!(driver.used(), 512);
        driver.cuMemFree_v2(address).ok();
    });
}

#[test]
fn clusters_fit_by_their_size() {
    alone("modules::clusters_fit_by_their_size", "[[device]]\nsm_count = 10", || {
        let driver = Driver::with_context();
        let function = driver.function(c"spin_ns");
        let mut attribute = [0_u32; 18];
        (attribute[0], attribute[2], attribute[3], attribute[4]) = (4, 2, 2, 1);
        let mut config = CUlaunchConfig {
            grid_dim: [64, 1, 1],
            block_dim: [1024, 1, 1],
            shared_mem_bytes: 0,
            stream: CUstream::NULL,
            attrs: attribute.as_mut_ptr().cast(),
            num_attrs: 1,
        };
        let (mut clusters, mut size) = (0, 0);
        driver.cuOccupancyMaxActiveClusters(&mut clusters, function, &config).ok();
        driver.cuOccupancyMaxPotentialClusterSize(&mut size, function, &config).ok();
        assert_eq!((clusters, size), (2 * 10 / 4, 8));
        config.num_attrs = 0;
        driver.cuOccupancyMaxActiveClusters(&mut clusters, function, &config).ok();
        assert_eq!(clusters, 20);
    });
}
