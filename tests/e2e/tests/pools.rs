//! Stream-ordered memory pools are charged with all memory that they reserve.

use std::sync::atomic::Ordering;
use std::thread;

use aliquot_harness::{FrontDriver, HostProgram, MIB, Process, Region, SimulatedGpu, like_a_device_of, run};

#[test]
fn a_pool_is_charged_for_what_it_has_in_reserve() {
    let (said, region) = like_a_device_of(64 * MIB, "pool_chunk = '2MiB'", "pools", &[]);
    for line in [
        "24 MiB freed, 16 kept: 16 MiB in use",
        "trimmed to 4 MiB: 4 MiB in use",
        "freed; the own pool keeps all: 8 MiB in use",
        "freed: 0 MiB in use",
        "at the end: 0 MiB in use",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}\n{said}");
    }
    assert_eq!(region.used_bytes(0), 0);
    // The program was refused once. Requests that were granted at a second attempt do not count.
    assert_eq!(region.ledger().devices[0].refused.load(Ordering::Relaxed), 1);
}

/// A pool grows by larger pieces than the program asks for, if there is room. In a slice it must use smaller ones.
#[test]
fn a_pool_that_takes_large_pieces_fits_in_what_is_left() {
    for program in ["pools", "allocations"] {
        let (_, region) = like_a_device_of(64 * MIB, "", program, &[]);
        assert_eq!(region.used_bytes(0), 0, "{program}");
    }
}

/// Pools grow in small steps, so that many pieces fit.
const RACED: &str = "mode = 'instant'\npool_chunk = '2MiB'\n";

/// Processes with several threads each allocate and free at the same time, more than the limit allows.
#[track_caller]
fn race(gpu: &SimulatedGpu, region: &Region, processes: usize, arguments: &[&str]) {
    let program = HostProgram::linked(gpu, "pool_threads");
    let racers: Vec<Process> =
        (0..processes).map(|_| Process::start(region.preload_into(program.on(gpu).args(arguments)))).collect();
    let (mut granted, mut refused) = (0, 0);
    for racer in racers {
        let said = racer.wait().success().stdout;
        let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        granted += numbers[0];
        refused += numbers[1];
    }
    assert!(granted > 100 && refused > 0, "there was no race: {granted} granted, {refused} refused");
    assert_eq!(region.used_bytes(0), 0);
    assert_eq!(gpu.machine().device_use(0).memory_bytes, 0);
}

#[test]
fn threads_and_processes_that_race_leave_the_books_right() {
    let gpu = SimulatedGpu::with(RACED);
    race(&gpu, &Region::new(&gpu, 32 * MIB), 3, &[]);
}

/// If no stream can reuse memory that another stream is about to free, the limit holds at every moment.
#[test]
fn threads_and_processes_that_race_never_pass_the_limit() {
    let gpu = SimulatedGpu::with(RACED);
    let limit = 32 * MIB;
    let region = Region::new(&gpu, limit);
    race(&gpu, &region, 3, &["at once"]);
    assert!(region.peak_bytes(0) <= limit, "the ledger saw {} bytes above the limit", region.peak_bytes(0) - limit);
}

/// What one thread's request finds unused in a pool is not there for another thread's request at the same time. With
/// several processes, the sum of what each holds could mix different moments.
#[test]
fn the_device_holds_no_more_than_the_limit_while_threads_race() {
    let gpu = SimulatedGpu::with(&format!("{RACED}context_memory = '0MiB'\n"));
    let limit = 32 * MIB;
    let region = Region::new(&gpu, limit);
    let machine = gpu.machine();
    for _ in 0..8 {
        let most = thread::scope(|scope| {
            let racers = scope.spawn(|| race(&gpu, &region, 1, &["one stream"]));
            let mut most = 0;
            while !racers.is_finished() {
                most = machine.device_use(0).memory_bytes.max(most);
            }
            racers.join().unwrap();
            most
        });
        assert!(most <= limit, "the device held {} bytes above the limit", most - limit);
    }
}

#[test]
fn threads_that_share_pools_leave_nothing_in_the_books() {
    let gpu = SimulatedGpu::new();
    let region = Region::unlimited(&gpu);
    let said = run(region.preload_into(&mut HostProgram::linked(&gpu, "pool_threads").on(&gpu))).success().stdout;
    assert!(said.ends_with("all given back: yes\n"), "{said}");
    assert_eq!(region.used_bytes(0), 0);
}

/// Growth of a pool must not be charged twice: by the thread that makes it grow and by one that queries it meanwhile.
#[test]
fn a_pool_that_grows_while_it_is_asked_about_is_charged_once() {
    let gpu = SimulatedGpu::with("pool_chunk = '2MiB'\n");
    let driver = FrontDriver::new(&gpu, "driver_that_asks_back");
    let limit = 24 * MIB;
    let region = Region::new(&gpu, limit);
    let search = format!("-L{}", gpu.library_dir().display());
    let program = HostProgram::variant("pool_grows_while_asked", "exporting", &["-rdynamic", &search, "-lcuda"]);
    let mut process = Process::start(region.preload_into(driver.show_to(&mut program.on(&gpu))));
    process.wait_for("grown\n");
    assert_eq!(region.used_bytes(0), 16 * MIB);
    assert!(region.peak_bytes(0) <= limit, "the ledger saw {} bytes above the limit", region.peak_bytes(0) - limit);
}

/// While the driver destroys a pool, other calls must not give the pool's entry away: the driver may refuse.
#[test]
fn a_pool_that_the_driver_does_not_destroy_stays_charged() {
    let gpu = SimulatedGpu::with("pool_chunk = '2MiB'\n");
    let driver = FrontDriver::new(&gpu, "driver_that_asks_back");
    let region = Region::new(&gpu, 24 * MIB);
    let search = format!("-L{}", gpu.library_dir().display());
    let program = HostProgram::variant("pool_is_kept", "exporting", &["-rdynamic", &search, "-lcuda"]);
    let outcome = run(region.preload_into(driver.show_to(&mut program.on(&gpu)))).success();
    assert_eq!(outcome.stdout, "free while the second pool holds 8 MiB: 16 MiB\n");
}

/// Managed memory can move to the device, wherever it is preferred. The host's memory has another limit.
#[test]
fn managed_memory_of_pools_that_prefer_the_host_is_charged_to_the_device() {
    let gpu = SimulatedGpu::exact();
    let region = Region::new(&gpu, 64 * MIB);
    let outcome = run(region.preload_into(&mut HostProgram::linked(&gpu, "managed_pools").on(&gpu))).success();
    outcome.assert_said("own: 0 2\ndefault: 0 2\n");
    assert_eq!(region.used_bytes(0), 0);
}
