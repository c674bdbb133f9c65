//! Virtual memory management beyond single mappings: locations, other processes, sparse arrays, several devices.

use std::os::fd::AsRawFd;

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::{alone, say, together, wait_for_end};

const SMALL: &str = "[[device]]\nmemory = '64MiB'";
const PAIR: &str = "[[device]]\nmemory = '64MiB'\nnvlink = [1]\n[[device]]\nmemory = '64MiB'";
const PIECE: usize = 2 << 20;
const ON_FIRST: CUmemLocation = CUmemLocation { kind: 1, id: 0 };
const ON_HOST: CUmemLocation = CUmemLocation { kind: 2, id: 0 };

fn properties(location: CUmemLocation, handle_types: u32) -> CUmemAllocationProp {
    let win32_handle_meta_data = core::ptr::null_mut();
    CUmemAllocationProp {
        kind: 1,
        requested_handle_types: handle_types,
        location,
        win32_handle_meta_data,
        alloc_flags: [0; 8],
    }
}

fn create(driver: &Driver, bytes: usize, properties: CUmemAllocationProp) -> u64 {
    let mut handle = 0;
    driver.cuMemCreate(&mut handle, bytes, &properties, 0).ok();
    handle
}

/// Maps a handle, readable and writable from a location.
fn map(driver: &Driver, handle: u64, bytes: usize, location: CUmemLocation) -> CUdeviceptr {
    let mut address = 0;
    driver.cuMemAddressReserve(&mut address, bytes, 0, 0, 0).ok();
    driver.cuMemMap(address, bytes, 0, handle, 0).ok();
    driver.cuMemSetAccess(address, bytes, &CUmemAccessDesc { location, flags: 3 }, 1).ok();
    address
}

#[test]
fn host_memory_is_mapped_and_takes_nothing_of_the_device() {
    alone("virtual_memory::host_memory_is_mapped_and_takes_nothing_of_the_device", SMALL, || {
        let driver = Driver::with_context();
        let handle = create(&driver, PIECE, properties(ON_HOST, 0));
        assert_eq!(driver.used(), 0);
        let address = map(&driver, handle, PIECE, ON_HOST);
        let mut kind = 0_u32;
        driver.cuPointerGetAttribute((&raw mut kind).cast(), 2, address).ok();
        assert_eq!(kind, 1);
        let mut flags = 9;
        driver.cuMemGetAccess(&mut flags, &ON_FIRST, address).ok();
        assert_eq!(flags, 0);
        driver.cuMemGetAccess(&mut flags, &ON_HOST, address).ok();
        assert_eq!(flags, 3);
        let device = create(&driver, PIECE, properties(ON_FIRST, 0));
        let mapped = map(&driver, device, PIECE, ON_FIRST);
        let host = CUmemAccessDesc { location: ON_HOST, flags: 3 };
        driver.cuMemSetAccess(mapped, PIECE, &host, 1).is(CUresult::INVALID_VALUE);
        let mut refused = 0;
        let fabric = properties(ON_FIRST, 8);
        driver.cuMemCreate(&mut refused, PIECE, &fabric, 0).is(CUresult::NOT_SUPPORTED);
    });
}

#[test]
fn a_retained_handle_is_one_more_reference_also_from_several_threads() {
    alone("virtual_memory::a_retained_handle_is_one_more_reference_also_from_several_threads", SMALL, || {
        let driver = Driver::with_context();
        let handle = create(&driver, PIECE, properties(ON_FIRST, 0));
        let address = map(&driver, handle, PIECE, ON_FIRST);
        let mut same = 0;
        driver.cuMemRetainAllocationHandle(&mut same, address as *mut c_void).ok();
        assert_eq!(same, handle);
        let released = std::thread::scope(|scope| {
            let threads = (0..4).map(|_| scope.spawn(|| driver.cuMemRelease(handle).is_ok())).collect::<Vec<_>>();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().then_some(())).count()
        });
        assert_eq!((released, driver.used()), (2, PIECE));
        let mut new = 0;
        driver.cuMemRetainAllocationHandle(&mut new, address as *mut c_void).ok();
        driver.cuMemUnmap(address, PIECE).ok();
        assert_eq!(driver.used(), PIECE);
        driver.cuMemRelease(new).ok();
        assert_eq!(driver.used(), 0);
    });
}

#[test]
fn another_process_maps_what_a_descriptor_names() {
    let import = |driver: &Driver, text: &str| {
        let (process, number) = text.split_once(' ').unwrap();
        let path = format!("/proc/{process}/fd/{number}");
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let before = driver.used();
        let os_handle = core::ptr::without_provenance_mut(file.as_raw_fd() as usize);
        let (mut handle, mut again) = (0, 0);
        driver.cuMemImportFromShareableHandle(&mut handle, core::ptr::null_mut(), 1).is(CUresult::INVALID_VALUE);
        driver.cuMemImportFromShareableHandle(&mut handle, os_handle, 1).ok();
        driver.cuMemImportFromShareableHandle(&mut again, os_handle, 1).ok();
        assert_eq!((handle, driver.used()), (again, before));
        let address = map(driver, handle, PIECE, ON_FIRST);
        let mut back = [0_u8; 4];
        driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, 4).ok();
        assert_eq!(back, [5; 4]);
        driver.cuMemsetD8_v2(address, 6, 4).ok();
        driver.cuCtxSynchronize().ok();
        driver.cuMemRelease(handle).ok();
        driver.cuMemRelease(handle).ok();
        driver.cuMemUnmap(address, PIECE).ok();
        driver.cuMemRelease(handle).is(CUresult::INVALID_VALUE);
        assert_eq!(driver.used(), before);
    };
    let export = |driver: &Driver| {
        let handle = create(driver, PIECE, properties(ON_FIRST, 1));
        let private = create(driver, PIECE, properties(ON_FIRST, 0));
        let mut number = 0_i32;
        let target = (&raw mut number).cast();
        driver.cuMemExportToShareableHandle(target, private, 1, 0).is(CUresult::INVALID_VALUE);
        driver.cuMemExportToShareableHandle(target, handle, 1, 0).ok();
        let mut own = 0;
        let os_handle = core::ptr::without_provenance_mut(number as usize);
        driver.cuMemImportFromShareableHandle(&mut own, os_handle, 1).ok();
        assert_eq!(own, handle);
        driver.cuMemRelease(own).ok();
        let address = map(driver, handle, PIECE, ON_FIRST);
        driver.cuMemsetD8_v2(address, 5, 4).ok();
        // The other process's streams do not synchronise with this process's.
        driver.cuCtxSynchronize().ok();
        say("handle", format!("{} {number}", std::process::id()));
        wait_for_end();
        let mut back = [0_u8; 4];
        driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, 4).ok();
        assert_eq!((back, driver.used()), ([6; 4], 2 * PIECE));
    };
    together(
        "virtual_memory::another_process_maps_what_a_descriptor_names",
        &[SMALL],
        |world| {
            let mut exporter = world.start("export");
            let text = exporter.hear("handle");
            world.start_with("import", &[("HANDLE", &text)]).finish();
            exporter.finish();
        },
        |role| match (Driver::with_context(), role) {
            (driver, "export") => export(&driver),
            (driver, _) => import(&driver, &std::env::var("HANDLE").unwrap()),
        },
    );
}

#[test]
fn external_memory_is_mapped_from_a_shareable_handle() {
    #[repr(C)]
    struct Handle(u32, [u64; 2], u64, u32, [u32; 16]);
    #[repr(C)]
    struct Buffer(u64, u64, u32, [u32; 16]);
    #[repr(C)]
    struct Mipmapped(u64, CUDA_ARRAY3D_DESCRIPTOR, u32, [u32; 16]);
    alone("virtual_memory::external_memory_is_mapped_from_a_shareable_handle", SMALL, || {
        let driver = Driver::with_context();
        let handle = create(&driver, PIECE, properties(ON_FIRST, 1));
        let mapped = map(&driver, handle, PIECE, ON_FIRST);
        driver.cuMemsetD8_v2(mapped + 100, 3, 4).ok();
        let mut number = 0_i32;
        driver.cuMemExportToShareableHandle((&raw mut number).cast(), handle, 1, 0).ok();
        let mut external = CUexternalMemory::NULL;
        let import = |driver: &Driver, external: &mut CUexternalMemory, kind, bytes| {
            let description = Handle(kind, [number as u64, 0], bytes, 0, [0; 16]);
            driver.cuImportExternalMemory(external, (&raw const description).cast())
        };
        import(&driver, &mut external, 8, PIECE as u64).is(CUresult::NOT_SUPPORTED);
        import(&driver, &mut external, 1, 1 + PIECE as u64).is(CUresult::INVALID_VALUE);
        import(&driver, &mut external, 1, PIECE as u64).ok();
        let (mut address, mut array) = (0, CUmipmappedArray::NULL);
        let beyond = Buffer(PIECE as u64, 1, 0, [0; 16]);
        driver
            .cuExternalMemoryGetMappedBuffer(&mut address, external, (&raw const beyond).cast())
            .is(CUresult::INVALID_VALUE);
        let buffer = Buffer(100, 1000, 0, [0; 16]);
        driver.cuExternalMemoryGetMappedBuffer(&mut address, external, (&raw const buffer).cast()).ok();
        let shape = CUDA_ARRAY3D_DESCRIPTOR { width: 64, height: 64, depth: 0, format: 1, num_channels: 1, flags: 0 };
        let levels = Mipmapped(4096, shape, 2, [0; 16]);
        driver.cuExternalMemoryGetMappedMipmappedArray(&mut array, external, (&raw const levels).cast()).ok();
        driver.cuDestroyExternalMemory(external).ok();
        driver.cuDestroyExternalMemory(external).is(CUresult::INVALID_HANDLE);
        let mut back = [0_u8; 4];
        driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, 4).ok();
        assert_eq!((back, driver.used()), ([3; 4], PIECE));
        driver.cuMipmappedArrayDestroy(array).ok();
        driver.cuMemFree_v2(address).ok();
        driver.cuMemFree_v2(address).is(CUresult::INVALID_VALUE);
        assert_eq!(driver.used(), PIECE);
    });
}

#[test]
fn external_semaphores_order_a_stream_and_the_host() {
    #[repr(C)]
    struct Handle(u32, [u64; 2], u32, [u32; 16]);
    let parameters = |value: u64| {
        let mut words = [0_u64; 18];
        words[0] = value;
        words
    };
    alone("virtual_memory::external_semaphores_order_a_stream_and_the_host", "", || {
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let file = tempfile::tempfile().unwrap();
        file.set_len(8).unwrap();
        let given = std::os::fd::IntoRawFd::into_raw_fd(file.try_clone().unwrap());
        let mut semaphore = CUexternalSemaphore::NULL;
        let description = Handle(9, [given as u64, 0], 0, [0; 16]);
        driver.cuImportExternalSemaphore(&mut semaphore, (&raw const description).cast()).ok();
        let (three, five) = (parameters(3), parameters(5));
        driver.cuWaitExternalSemaphoresAsync(&semaphore, three.as_ptr().cast(), 1, stream).ok();
        driver.cuSignalExternalSemaphoresAsync(&semaphore, five.as_ptr().cast(), 1, stream).ok();
        driver.cuStreamQuery(stream).is(CUresult::NOT_READY);
        std::os::unix::fs::FileExt::write_all_at(&file, &3_u64.to_ne_bytes(), 0).unwrap();
        driver.cuStreamSynchronize(stream).ok();
        let mut value = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut value, 0).unwrap();
        assert_eq!(u64::from_ne_bytes(value), 5);
        let (mut graph, mut exec, seven) = (CUgraph::NULL, CUgraphExec::NULL, parameters(7));
        driver.cuStreamBeginCapture_v2(stream, 0).ok();
        driver.cuSignalExternalSemaphoresAsync(&semaphore, seven.as_ptr().cast(), 1, stream).ok();
        driver.cuStreamEndCapture(stream, &mut graph).ok();
        driver.cuGraphInstantiateWithFlags(&mut exec, graph, 0).ok();
        driver.cuGraphLaunch(exec, stream).ok();
        driver.cuWaitExternalSemaphoresAsync(&semaphore, seven.as_ptr().cast(), 1, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        driver.cuDestroyExternalSemaphore(semaphore).ok();
        driver
            .cuSignalExternalSemaphoresAsync(&semaphore, five.as_ptr().cast(), 1, stream)
            .is(CUresult::INVALID_HANDLE);
    });
}

#[test]
fn a_sparse_arrays_memory_stays_as_long_as_it_is_mapped() {
    alone("virtual_memory::a_sparse_arrays_memory_stays_as_long_as_it_is_mapped", SMALL, || {
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let shape =
            CUDA_ARRAY3D_DESCRIPTOR { width: 512, height: 512, depth: 0, format: 1, num_channels: 1, flags: 0x40 };
        let mut array = CUarray::NULL;
        driver.cuArray3DCreate_v2(&mut array, &shape).ok();
        assert_eq!(driver.used(), 0);
        let plain = create(&driver, PIECE, properties(ON_FIRST, 0));
        let mut tiles = properties(ON_FIRST, 0);
        tiles.alloc_flags[2] = 1;
        let memory = create(&driver, PIECE, tiles);
        let mut info = CUarrayMapInfo {
            resource_type: 0,
            resource: array.0,
            subresource_type: 0,
            reserved0: 0,
            subresource: [0, 0, 256, 0, 0, 256, 512, 1],
            mem_operation_type: 1,
            mem_handle_type: 0,
            mem_handle: plain,
            offset: 0,
            device_bit_mask: 1,
            flags: 0,
            reserved: [0; 2],
        };
        driver.cuMemMapArrayAsync(&mut info, 1, stream).is(CUresult::INVALID_VALUE);
        info.mem_handle = memory;
        info.subresource[2] = 100;
        driver.cuMemMapArrayAsync(&mut info, 1, stream).is(CUresult::INVALID_VALUE);
        info.subresource[2] = 256;
        driver.cuMemMapArrayAsync(&mut info, 1, stream).ok();
        let mut address = 0;
        driver.cuMemAddressReserve(&mut address, PIECE, 0, 0, 0).ok();
        driver.cuMemMap(address, PIECE, 0, memory, 0).is(CUresult::INVALID_VALUE);
        driver.cuMemRelease(memory).ok();
        driver.cuMemRelease(plain).ok();
        assert_eq!(driver.used(), PIECE);
        info.mem_operation_type = 2;
        driver.cuMemMapArrayAsync(&mut info, 1, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(driver.used(), 0);
        // Memory that is still mapped at the array's end is released with it.
        info.mem_operation_type = 1;
        info.mem_handle = create(&driver, PIECE, tiles);
        driver.cuMemMapArrayAsync(&mut info, 1, stream).ok();
        driver.cuMemRelease(info.mem_handle).ok();
        driver.cuStreamSynchronize(stream).ok();
        driver.cuArrayDestroy(array).ok();
        assert_eq!(driver.used(), 0);
    });
}

#[test]
fn multicast_objects_hold_what_is_bound_to_them() {
    alone("virtual_memory::multicast_objects_hold_what_is_bound_to_them", PAIR, || {
        let driver = Driver::with_context();
        let shape = CUmulticastObjectProp { num_devices: 2, size: 2 * PIECE, handle_types: 0, flags: 0 };
        let (mut object, mut granularity) = (0, 0);
        let alone = CUmulticastObjectProp { num_devices: 1, ..shape };
        driver.cuMulticastCreate(&mut object, &alone).is(CUresult::INVALID_VALUE);
        driver.cuMulticastGetGranularity(&mut granularity, &shape, 0).ok();
        assert_eq!(granularity, PIECE);
        driver.cuMulticastCreate(&mut object, &shape).ok();
        let memory = create(&driver, PIECE, properties(ON_FIRST, 0));
        driver.cuMulticastAddDevice(object, 0).ok();
        driver.cuMulticastAddDevice(object, 0).is(CUresult::INVALID_VALUE);
        driver.cuMulticastBindMem(object, 0, memory, 0, PIECE, 0).is(CUresult::ILLEGAL_STATE);
        driver.cuMulticastAddDevice(object, 1).ok();
        driver.cuMulticastBindMem(object, 0, memory, 0, PIECE, 0).ok();
        driver.cuMulticastBindMem(object, 0, memory, 0, PIECE, 0).is(CUresult::INVALID_VALUE);
        driver.cuMulticastBindMem_v2(object, 1, PIECE, memory, 0, PIECE, 0).is(CUresult::INVALID_DEVICE);
        map(&driver, object, 2 * PIECE, ON_FIRST);
        driver.cuMemRelease(memory).ok();
        assert_eq!(driver.used(), PIECE);
        driver.cuMulticastUnbind(object, 0, PIECE, PIECE).is(CUresult::INVALID_VALUE);
        driver.cuMulticastUnbind(object, 0, 0, PIECE).ok();
        assert_eq!(driver.used(), 0);
        let memory = create(&driver, PIECE, properties(ON_FIRST, 0));
        let address = map(&driver, memory, PIECE, ON_FIRST);
        driver.cuMulticastBindAddr(object, PIECE, address, PIECE, 0).ok();
        driver.cuMemUnmap(address, PIECE).ok();
        driver.cuMemRelease(memory).ok();
        assert_eq!(driver.used(), PIECE);
    });
}
