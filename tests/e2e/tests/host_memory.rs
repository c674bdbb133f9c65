//! Page-locked host memory is counted by the page, and has a limit of its own.

use std::sync::atomic::Ordering;

use aliquot_abi::ledger;
use aliquot_harness::{HostProgram, MIB, Region, SimulatedGpu, run, unchanged_in_a_slice};

#[test]
fn the_host_s_limit_holds_to_the_page() {
    let gpu = SimulatedGpu::with("pool_chunk = '2MiB'\n");
    let region = Region::new(&gpu, 64 * MIB);
    region.limits().host_memory_limit_bytes.store(16 * MIB, Ordering::Relaxed);
    let program = HostProgram::linked(&gpu, "host_memory");
    let outcome = run(region.preload_into(&mut program.on(&gpu))).success();
    assert_eq!(
        outcome.stdout,
        "allocate 12 MiB: 0\nand 4 MiB and one byte: 2\nand 4 MiB: 0\nfree 4 MiB: 0\nfree them twice: 1\n\
         register two bytes: 0\nand 4 MiB: 2\nand 4 MiB less two pages: 0\nunregister what is not: 713\n\
         unregister: 0 0\nphysical memory of 16 MiB: 0\nand 2 MiB: 2\na pool: 0\n18 MiB of it: 2\n14 MiB of it: 0\n\
         16 MiB in a context: 0\na page after another one's end: 2\n16 MiB after it: 0\n"
    );
    let host = &region.ledger().host;
    assert_eq!((ledger::used_bytes(host), host.peak_bytes.load(Ordering::Relaxed)), (0, 16 * MIB));
    assert_eq!(host.refused.load(Ordering::Relaxed), 5);
    assert_eq!(region.peak_bytes(0), 0, "memory of the host was taken for the device's");
}

#[test]
fn without_a_limit_the_host_s_memory_is_counted_all_the_same() {
    let gpu = SimulatedGpu::with("pool_chunk = '2MiB'\n");
    let program = HostProgram::linked(&gpu, "host_memory");
    let _ = unchanged_in_a_slice(&gpu, || program.on(&gpu)).success();
    let region = Region::unlimited(&gpu);
    let _ = run(region.preload_into(&mut program.on(&gpu))).success();
    // The program expected refusals and never freed these two blocks; no context's end freed them either.
    let kept = 2 * MIB + 18 * MIB;
    assert_eq!(ledger::used_bytes(&region.ledger().host), kept);
}
