//! Pools of stream-ordered memory: reserve, release, and use by other processes.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::{alone, say, together, wait_for_end};

const SMALL: &str = "[[device]]\nmemory = '64MiB'";
const PIECE: usize = 2 << 20;
const MIB: usize = 1 << 20;

fn properties(kind: u32, location: CUmemLocation, handle_types: u32) -> CUmemPoolProps {
    CUmemPoolProps {
        alloc_kind: kind,
        handle_types,
        location,
        win32_security_attributes: core::ptr::null_mut(),
        max_size_bytes: 0,
        reserved: [0; 56],
    }
}

fn on_device(id: i32) -> CUmemLocation {
    CUmemLocation { kind: 1, id }
}

fn attribute(driver: &Driver, pool: CUmemoryPool, attribute: u32) -> usize {
    let mut bytes = 0_u64;
    driver.cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()).ok();
    bytes as usize
}

/// Reserved and used bytes.
fn usage(driver: &Driver, pool: CUmemoryPool) -> (usize, usize) {
    (attribute(driver, pool, 5), attribute(driver, pool, 7))
}

fn set(driver: &Driver, pool: CUmemoryPool, attribute: u32, value: u64) -> CUresult {
    let mut value = value;
    driver.cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast())
}

fn create(driver: &Driver, properties: CUmemPoolProps) -> CUmemoryPool {
    let mut pool = CUmemoryPool::NULL;
    driver.cuMemPoolCreate(&mut pool, &properties).ok();
    pool
}

fn allocate(driver: &Driver, pool: CUmemoryPool, bytes: usize, stream: CUstream) -> CUdeviceptr {
    let mut address = 0;
    driver.cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream).ok();
    address
}

#[test]
fn a_pool_reserves_in_chunks_and_less_where_less_is_left() {
    alone(
        "pools::a_pool_reserves_in_chunks_and_less_where_less_is_left",
        &format!("pool_chunk = '32MiB'\n{SMALL}"),
        || {
            let driver = Driver::with_context();
            let stream = driver.stream(0);
            let pool = create(&driver, properties(1, on_device(0), 0));
            let first = allocate(&driver, pool, 1000, stream);
            assert_eq!((usage(&driver, pool), driver.used()), ((32 * MIB, 1024), 32 * MIB));
            let held = driver.alloc(24 * MIB);
            let second = allocate(&driver, pool, 33 * MIB, stream);
            assert_eq!(usage(&driver, pool), (34 * MIB, 33 * MIB + 1024));
            driver.cuMemFreeAsync(first, stream).ok();
            driver.cuMemFreeAsync(second, stream).ok();
            driver.cuMemFree_v2(held).ok();
            driver.cuStreamSynchronize(stream).ok();
            assert_eq!((usage(&driver, pool), driver.used()), ((0, 0), 0));
        },
    );
}

#[test]
fn every_synchronisation_gives_back_what_is_above_the_threshold() {
    alone("pools::every_synchronisation_gives_back_what_is_above_the_threshold", SMALL, || {
        let driver = Driver::with_context();
        let (stream, event) = (driver.stream(0), driver.event());
        let pool = create(&driver, properties(1, on_device(0), 0));
        set(&driver, pool, 4, 4 * PIECE as u64).ok();
        let target = driver.alloc(64);
        let bytes = [1_u8; 64];
        let synchronise: [&dyn Fn(); 4] = [
            &|| driver.cuStreamSynchronize(stream).ok(),
            &|| driver.cuCtxSynchronize().ok(),
            &|| {
                driver.cuEventRecord(event, stream).ok();
                driver.cuEventSynchronize(event).ok();
            },
            &|| driver.cuMemcpyHtoD_v2(target, bytes.as_ptr().cast(), 64).ok(),
        ];
        for synchronise in synchronise {
            let address = allocate(&driver, pool, 8 * PIECE, stream);
            driver.cuMemFreeAsync(address, stream).ok();
            synchronise();
            assert_eq!(usage(&driver, pool), (4 * PIECE, 0));
        }
        assert_eq!((attribute(&driver, pool, 6), attribute(&driver, pool, 8)), (8 * PIECE, 8 * PIECE));
        set(&driver, pool, 6, 1).is(CUresult::INVALID_VALUE);
        set(&driver, pool, 6, 0).ok();
        set(&driver, pool, 8, 0).ok();
        assert_eq!((attribute(&driver, pool, 6), attribute(&driver, pool, 8)), (4 * PIECE, 0));
        driver.cuMemPoolTrimTo(pool, PIECE).ok();
        assert_eq!(usage(&driver, pool), (PIECE, 0));
    });
}

#[test]
fn a_stream_reuses_its_freed_memory_at_once() {
    alone("pools::a_stream_reuses_its_freed_memory_at_once", SMALL, || {
        let driver = Driver::with_context();
        let (stream, other) = (driver.stream(1), driver.stream(1));
        let pool = create(&driver, properties(1, on_device(0), 0));
        let held = driver.hold(stream);
        let mut address = 0;
        for _ in 0..10 {
            address = allocate(&driver, pool, 10 * PIECE, stream);
            driver.cuMemFreeAsync(address, stream).ok();
        }
        assert_eq!(usage(&driver, pool).0, 10 * PIECE);
        driver.cuMemFreeAsync(address, other).is(CUresult::INVALID_VALUE);
        // Another stream cannot use the memory before the free has run.
        allocate(&driver, pool, 10 * PIECE, other);
        assert_eq!(usage(&driver, pool), (20 * PIECE, 20 * PIECE));
        held.release();
        driver.cuCtxSynchronize().ok();
        assert_eq!(usage(&driver, pool), (10 * PIECE, 10 * PIECE));
    });
}

#[test]
fn pools_release_unused_memory_before_memory_runs_out() {
    alone("pools::pools_release_unused_memory_before_memory_runs_out", SMALL, || {
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let pool = create(&driver, properties(1, on_device(0), 0));
        set(&driver, pool, 4, u64::MAX).ok();
        let address = allocate(&driver, pool, 40 * MIB, stream);
        driver.cuMemFreeAsync(address, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(driver.used(), 40 * MIB);
        let plain = driver.alloc(50 * MIB);
        assert_eq!((usage(&driver, pool), driver.used()), ((0, 0), 50 * MIB));
        let mut address = 0;
        driver.cuMemAllocFromPoolAsync(&mut address, 15 * MIB, pool, stream).is(CUresult::OUT_OF_MEMORY);
        driver.cuMemFree_v2(plain).ok();
    });
}

#[test]
fn each_place_has_its_own_pools() {
    alone("pools::each_place_has_its_own_pools", "[[device]]\nmemory = '64MiB'\n[[device]]\nmemory = '64MiB'", || {
        let driver = Driver::with_context();
        let stream = driver.stream(0);
        let (mut default, mut pool) = (CUmemoryPool::NULL, CUmemoryPool::NULL);
        driver.cuDeviceGetDefaultMemPool(&mut default, 0).ok();
        driver.cuMemGetDefaultMemPool(&mut pool, &mut on_device(0), 1).ok();
        assert_eq!(pool, default);
        driver.cuMemPoolDestroy(default).is(CUresult::INVALID_VALUE);
        let mut host = CUmemLocation { kind: 2, id: 0 };
        let mut host_pool = CUmemoryPool::NULL;
        driver.cuMemGetDefaultMemPool(&mut host_pool, &mut host, 1).ok();
        driver.cuMemGetMemPool(&mut pool, &mut host, 1).ok();
        assert_eq!(pool, host_pool);
        let address = allocate(&driver, host_pool, PIECE, stream);
        assert_eq!((usage(&driver, host_pool), driver.used()), ((PIECE, PIECE), 0));
        let mut kind = 0_u32;
        driver.cuPointerGetAttribute((&raw mut kind).cast(), 2, address).ok();
        assert_eq!(kind, 1);
        driver.cuMemFreeAsync(address, stream).ok();
        let own = create(&driver, properties(1, on_device(0), 0));
        let other = create(&driver, properties(1, on_device(1), 0));
        driver.cuDeviceSetMemPool(0, other).is(CUresult::INVALID_VALUE);
        driver.cuMemSetMemPool(&mut host, 1, own).is(CUresult::INVALID_VALUE);
        driver.cuMemSetMemPool(&mut on_device(0), 1, own).ok();
        driver.cuDeviceGetMemPool(&mut pool, 0).ok();
        assert_eq!(pool, own);
        let mut address = 0;
        driver.cuMemAllocAsync(&mut address, 10, stream).ok();
        let mut of = CUmemoryPool::NULL;
        driver.cuPointerGetAttribute((&raw mut of).cast(), 17, address).ok();
        assert_eq!((of, usage(&driver, own)), (own, (PIECE, 512)));
        driver.cuMemPoolDestroy(own).ok();
        driver.cuDeviceGetMemPool(&mut pool, 0).ok();
        assert_eq!((pool, driver.used()), (default, PIECE));
        driver.cuMemFree_v2(address).ok();
        assert_eq!(driver.used(), 0);
        // Managed memory is charged to its preferred location.
        let managed = create(&driver, properties(2, on_device(0), 0));
        allocate(&driver, managed, 10, stream);
        assert_eq!(driver.used(), PIECE);
        let mut refused = CUmemoryPool::NULL;
        driver.cuMemPoolCreate(&mut refused, &properties(1, on_device(7), 0)).is(CUresult::INVALID_DEVICE);
        driver.cuMemPoolCreate(&mut refused, &properties(1, on_device(0), 8)).is(CUresult::NOT_SUPPORTED);
        driver.cuMemPoolCreate(&mut refused, &properties(3, on_device(0), 0)).is(CUresult::INVALID_VALUE);
    });
}

#[test]
fn others_see_what_pools_and_graphs_reserve() {
    together(
        "pools::others_see_what_pools_and_graphs_reserve",
        &[SMALL],
        |world| {
            let mut player = world.start("holder");
            let process_id = player.hear("held").parse::<u32>().unwrap();
            let seen = world.machine().device_use(0);
            assert_eq!(seen.memory_bytes, 3 * PIECE as u64);
            let holder = seen.processes.iter().find(|process| process.pid == process_id).unwrap();
            assert_eq!(holder.memory_bytes, 3 * PIECE as u64);
            player.finish();
            assert_eq!(world.machine().device_use(0).memory_bytes, 0);
        },
        |_| {
            let driver = Driver::with_context();
            let stream = driver.stream(1);
            let pool = create(&driver, properties(1, on_device(0), 0));
            allocate(&driver, pool, 10, stream);
            let (mut graph, mut exec, mut address) = (CUgraph::NULL, CUgraphExec::NULL, 0);
            driver.cuStreamBeginCapture_v2(stream, 0).ok();
            driver.cuMemAllocAsync(&mut address, PIECE + 1, stream).ok();
            driver.cuMemFreeAsync(address, stream).ok();
            driver.cuStreamEndCapture(stream, &mut graph).ok();
            driver.cuGraphInstantiateWithFlags(&mut exec, graph, 0).ok();
            driver.cuGraphLaunch(exec, stream).ok();
            driver.cuStreamSynchronize(stream).ok();
            say("held", std::process::id());
            wait_for_end();
        },
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the data from a line of hexadecimal text.
fn export_data(text: &str) -> CUmemPoolPtrExportData {
    let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
    for (byte, digits) in data.reserved.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    }
    data
}

/// Opens another process's descriptor.
fn open_descriptor(process_and_number: &str) -> std::fs::File {
    let (process, number) = process_and_number.split_once(' ').unwrap();
    std::fs::File::options().read(true).write(true).open(format!("/proc/{process}/fd/{number}")).unwrap()
}

fn export(driver: &Driver) {
    let stream = driver.stream(0);
    let pool = create(driver, properties(1, on_device(0), 1));
    let private = create(driver, properties(1, on_device(0), 0));
    let mut number = 0_i32;
    driver.cuMemPoolExportToShareableHandle((&raw mut number).cast(), private, 1, 0).is(CUresult::INVALID_VALUE);
    driver.cuMemPoolExportToShareableHandle((&raw mut number).cast(), pool, 1, 0).ok();
    allocate(driver, pool, 100, stream);
    let address = allocate(driver, pool, 5000, stream);
    let late = allocate(driver, pool, 5000, stream);
    driver.cuMemsetD8_v2(address, 7, 5000).ok();
    driver.cuCtxSynchronize().ok();
    let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
    driver.cuMemPoolExportPointer(&mut data, driver.alloc(10)).is(CUresult::INVALID_VALUE);
    driver.cuMemPoolExportPointer(&mut data, late).ok();
    let late_data = data;
    driver.cuMemFreeAsync(late, stream).ok();
    driver.cuMemPoolExportPointer(&mut data, address).ok();
    say("pool", format!("{} {number}", std::process::id()));
    say("pointer", hex(&data.reserved));
    say("late", hex(&late_data.reserved));
    wait_for_end();
    let mut back = [0_u8; 2];
    driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address + 4998, 2).ok();
    assert_eq!(back, [9, 9]);
}

fn import(driver: &Driver, pool_text: &str, pointer: &str, late: &str) {
    use std::os::fd::AsRawFd;
    let file = open_descriptor(pool_text);
    let number = core::ptr::without_provenance_mut(file.as_raw_fd() as usize);
    let (mut pool, mut address) = (CUmemoryPool::NULL, 0);
    driver.cuMemPoolImportFromShareableHandle(&mut pool, core::ptr::null_mut(), 1, 0).is(CUresult::INVALID_VALUE);
    driver.cuMemPoolImportFromShareableHandle(&mut pool, number, 1, 0).ok();
    let (stream, before) = (driver.stream(0), driver.used());
    driver.cuMemAllocFromPoolAsync(&mut address, 10, pool, stream).is(CUresult::INVALID_VALUE);
    driver.cuDeviceSetMemPool(0, pool).is(CUresult::INVALID_VALUE);
    driver.cuMemPoolImportPointer(&mut address, pool, &mut export_data(late)).is(CUresult::INVALID_VALUE);
    driver.cuMemPoolImportPointer(&mut address, pool, &mut export_data(pointer)).ok();
    let mut back = [0_u8; 5000];
    driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, 5000).ok();
    assert_eq!(back, [7; 5000]);
    driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address + 1, 5000).is(CUresult::INVALID_VALUE);
    driver.cuMemsetD8_v2(address, 9, 5000).ok();
    driver.cuMemFreeAsync(address, stream).ok();
    driver.cuStreamSynchronize(stream).ok();
    driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, 1).is(CUresult::INVALID_VALUE);
    assert_eq!(driver.used(), before);
}

#[test]
fn another_process_uses_what_a_pool_exports() {
    together(
        "pools::another_process_uses_what_a_pool_exports",
        &[SMALL],
        |world| {
            let mut exporter = world.start("export");
            let texts = ["pool", "pointer", "late"].map(|word| exporter.hear(word));
            let variables = [("POOL", texts[0].as_str()), ("POINTER", &texts[1]), ("LATE", &texts[2])];
            world.start_with("import", &variables).finish();
            exporter.finish();
        },
        |role| {
            let driver = Driver::with_context();
            let variable = |name| std::env::var(name).unwrap();
            if role == "export" {
                export(&driver);
            } else {
                import(&driver, &variable("POOL"), &variable("POINTER"), &variable("LATE"));
            }
        },
    );
}
