//! Durations of kernels and copies on the device's timeline.

use std::time::{Duration, Instant};

use aliquot_abi::cuda::*;
use aliquot_fake_machine::{CONFIG_VARIABLE, Config, Machine, kernel_duration_ns};
use aliquot_harness::wait;

use crate::library::{Driver, Expect};
use crate::scenario::{World, alone, say, together, wait_for_end};

#[test]
fn kernels_take_as_long_as_the_rule_says() {
    alone("durations::kernels_take_as_long_as_the_rule_says", "[[device]]\nsm_count = 2\n", || {
        let driver = Driver::with_context();
        let (spin, plain) = (driver.function(c"spin_ns"), driver.function(c"plain"));
        let (stream, start, end) = (driver.stream(1), driver.event(), driver.event());
        // The stream is held, so that no kernel begins before all are submitted.
        let held = driver.hold(stream);
        driver.cuEventRecord(start, stream).ok();
        driver.spin(spin, 3_000_000, stream).ok();
        driver.spin(spin, 7_000_000, stream).ok();
        driver.cuEventRecord(end, stream).ok();
        held.release();
        driver.cuStreamSynchronize(stream).ok();
        assert!((driver.elapsed_ms(start, end) - 10.0).abs() < 0.001);

        let none = core::ptr::null_mut();
        let held = driver.hold(stream);
        driver.cuEventRecord(start, stream).ok();
        // Two SMs with two blocks of 1024 threads each: ten blocks are three waves.
        driver.cuLaunchKernel(plain, 10, 1, 1, 1024, 1, 1, 0, stream, none, none).ok();
        driver.cuEventRecord(end, stream).ok();
        held.release();
        driver.cuStreamSynchronize(stream).ok();
        assert!((driver.elapsed_ms(start, end) - 0.032).abs() < 0.001);
    });
}

/// The times at which kernels of 30 ms in three streams end that begin together, in milliseconds.
fn ends_of_three_streams() -> Vec<f32> {
    let driver = Driver::with_context();
    let (spin, streams) = (driver.function(c"spin_ns"), [(); 3].map(|()| driver.stream(1)));
    let (start, ends) = (driver.event(), [(); 3].map(|()| driver.event()));
    let held = driver.hold(streams[0]);
    driver.cuEventRecord(start, streams[0]).ok();
    for (stream, end) in streams.into_iter().zip(ends) {
        driver.cuStreamWaitEvent(stream, start, 0).ok();
        driver.spin(spin, 30_000_000, stream).ok();
        driver.cuEventRecord(end, stream).ok();
    }
    held.release();
    driver.cuCtxSynchronize().ok();
    let mut found = ends.map(|end| driver.elapsed_ms(start, end));
    found.sort_by(f32::total_cmp);
    found.to_vec()
}

#[test]
fn kernels_of_several_streams_run_one_after_the_other() {
    alone("durations::kernels_of_several_streams_run_one_after_the_other", "timeslice_us = 1000000\n", || {
        let ends = ends_of_three_streams();
        assert!(ends.iter().zip([30.0, 60.0, 90.0]).all(|(end, wanted)| (end - wanted).abs() < 0.001), "{ends:?}");
    });
}

#[test]
fn as_many_kernels_overlap_as_the_setting_says() {
    const CONFIGURATION: &str = "timeslice_us = 1000000\nconcurrent_kernels = 2\n";
    alone("durations::as_many_kernels_overlap_as_the_setting_says", CONFIGURATION, || {
        let ends = ends_of_three_streams();
        assert!(ends.iter().zip([30.0, 30.0, 60.0]).all(|(end, wanted)| (end - wanted).abs() < 0.001), "{ends:?}");
        // The device was busy for 60 ms, not for 90.
        let configuration = std::env::var_os(CONFIG_VARIABLE).expect("the machine's configuration");
        let machine = Machine::open(Config::load(configuration.as_ref()).unwrap()).unwrap();
        assert_eq!(machine.device_use(0).busy_ns, 60_000_000);
    });
}

#[test]
fn a_write_occupies_only_its_own_stream() {
    alone("durations::a_write_occupies_only_its_own_stream", "write_ns = 2000\n", || {
        let driver = Driver::with_context();
        let (stream, other, start, end) = (driver.stream(1), driver.stream(1), driver.event(), driver.event());
        let mut memory = core::ptr::null_mut();
        driver.cuMemHostAlloc(&mut memory, 8, 1).ok();
        let word = memory.addr() as CUdeviceptr;
        let held = driver.hold(stream);
        driver.cuEventRecord(start, stream).ok();
        for value in 1..=50 {
            driver.cuStreamWriteValue64_v2(stream, word, value, 0).ok();
        }
        driver.cuEventRecord(end, stream).ok();
        held.release();
        driver.cuStreamSynchronize(stream).ok();
        assert!((driver.elapsed_ms(start, end) - 0.1).abs() < 0.001);

        driver.spin(driver.function(c"spin_ns"), 100_000_000_000, other).ok();
        driver.cuStreamWriteValue64_v2(stream, word, 51, 0).ok();
        driver.cuStreamSynchronize(stream).ok();
        driver.cuStreamQuery(other).is(CUresult::NOT_READY);
    });
}

#[test]
fn calls_keep_the_processor_as_long_as_the_machine_says() {
    const TEST: &str = "durations::calls_keep_the_processor_as_long_as_the_machine_says";
    let timed = "launch_ns = 3000000\nwrite_call_ns = 2000000\n";
    let instant = &format!("mode = 'instant'\n{timed}");
    let direct = |world: &World| world.start("caller").finish();
    together(TEST, &[timed, instant], direct, |_| {
        let driver = Driver::with_context();
        let (plain, stream) = (driver.function(c"plain"), driver.stream(1));
        let mut memory = core::ptr::null_mut();
        driver.cuMemHostAlloc(&mut memory, 8, 1).ok();
        let none = core::ptr::null_mut();
        let begin = Instant::now();
        for _ in 0..5 {
            driver.cuLaunchKernel(plain, 1, 1, 1, 1, 1, 1, 0, stream, none, none).ok();
        }
        driver.cuStreamWriteValue64_v2(stream, memory.addr() as CUdeviceptr, 1, 0).ok();
        assert!(begin.elapsed() >= Duration::from_millis(17));
    });
}

#[test]
fn a_kernel_that_waits_for_another_device_keeps_its_own() {
    const TEST: &str = "durations::a_kernel_that_waits_for_another_device_keeps_its_own";
    let direct = |world: &World| {
        let mut player = world.start("both");
        player.hear("one waits");
        let busy_ns = |device: usize| world.machine().device_use(device).busy_ns;
        wait::until_true("the kernel that waits uses its device", || busy_ns(0) > 10_000_000);
        assert_eq!(busy_ns(1), 0);
        player.finish();
    };
    together(TEST, &["[[device]]\n[[device]]\n"], direct, |_| {
        const DURATION_NS: u64 = 3_000_000;
        let driver = Driver::with_context();
        let mut counters = core::ptr::null_mut();
        driver.cuMemHostAlloc(&mut counters, 16, 1).ok();
        let counters = [counters.addr() as u64, counters.addr() as u64 + 8];
        let launch = |own: u64, peer: u64| {
            let (kernel, stream) = (driver.function(c"rendezvous"), driver.stream(1));
            let mut values = [own, peer, 1, DURATION_NS];
            let mut parameters = values.each_mut().map(|value| core::ptr::from_mut(value).cast::<c_void>());
            let none = core::ptr::null_mut();
            driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), none).ok();
            stream
        };
        let first = launch(counters[0], counters[1]);
        say("one waits", "");
        wait_for_end();
        driver.cuStreamQuery(first).is(CUresult::NOT_READY);
        let mut other = CUcontext::NULL;
        driver.cuDevicePrimaryCtxRetain(&mut other, 1).ok();
        driver.cuCtxSetCurrent(other).ok();
        let second = launch(counters[1], counters[0]);
        driver.cuStreamSynchronize(second).ok();
        driver.cuStreamSynchronize(first).ok();
    });
}

#[test]
fn the_rule_counts_waves() {
    let direct = |world: &World| {
        let machine = world.machine();
        let device = &machine.config().devices[0];
        assert_eq!(kernel_duration_ns(device, 1, 1), 12_000);
        assert_eq!(kernel_duration_ns(device, 32 * 132, 1), 12_000);
        assert_eq!(kernel_duration_ns(device, 32 * 132 + 1, 64), 22_000);
        assert_eq!(kernel_duration_ns(device, 132 * 2, 1024), 12_000);
    };
    together("durations::the_rule_counts_waves", &[""], direct, |_| {});
}

#[test]
fn copies_take_time_and_busy_time_is_counted() {
    alone("durations::copies_take_time_and_busy_time_is_counted", "", || {
        const BYTES: usize = 25_000_000;
        let driver = Driver::with_context();
        let (stream, start, end) = (driver.stream(1), driver.event(), driver.event());
        let address = driver.alloc(BYTES);
        let mut host = core::ptr::null_mut();
        driver.cuMemHostAlloc(&mut host, BYTES, 0).ok();
        let held = driver.hold(stream);
        driver.cuEventRecord(start, stream).ok();
        driver.cuMemcpyHtoDAsync_v2(address, host, BYTES, stream).ok();
        driver.cuEventRecord(end, stream).ok();
        held.release();
        driver.cuStreamSynchronize(stream).ok();
        assert!((driver.elapsed_ms(start, end) - 1.0).abs() < 0.001);
    });
}

#[test]
fn a_full_launch_queue_makes_the_launcher_wait() {
    alone("durations::a_full_launch_queue_makes_the_launcher_wait", "launch_queue_depth = 4", || {
        let driver = Driver::with_context();
        let (stream, spin, first) = (driver.stream(1), driver.function(c"spin_ns"), driver.event());
        let begun = Instant::now();
        driver.spin(spin, 5_000_000, stream).ok();
        driver.cuEventRecord(first, stream).ok();
        let held = driver.hold(stream);
        for _ in 0..3 {
            driver.spin(spin, 5_000_000, stream).ok();
        }
        // Four launches are outstanding, so the fifth call returns only when the first is done.
        driver.spin(spin, 5_000_000, stream).ok();
        assert!(begun.elapsed() >= Duration::from_millis(5), "nobody has waited");
        driver.cuEventSynchronize(first).ok();
        driver.cuStreamQuery(stream).is(CUresult::NOT_READY);
        held.release();
        driver.cuCtxSynchronize().ok();
    });
}

#[test]
fn a_write_takes_a_place_in_the_launch_queue() {
    alone("durations::a_write_takes_a_place_in_the_launch_queue", "launch_queue_depth = 2", || {
        let driver = Driver::with_context();
        let (stream, spin) = (driver.stream(1), driver.function(c"spin_ns"));
        let mut memory = core::ptr::null_mut();
        driver.cuMemHostAlloc(&mut memory, 8, 1).ok();
        let begun = Instant::now();
        driver.spin(spin, 5_000_000, stream).ok();
        driver.cuStreamWriteValue64_v2(stream, memory.addr() as CUdeviceptr, 1, 0).ok();
        // The kernel and the write are outstanding, so the third call returns only when the kernel is done.
        driver.spin(spin, 1, stream).ok();
        assert!(begun.elapsed() >= Duration::from_millis(5), "nobody has waited");
        driver.cuCtxSynchronize().ok();
    });
}

#[test]
fn in_instant_mode_work_is_done_when_the_call_returns() {
    alone("durations::in_instant_mode_work_is_done_when_the_call_returns", "mode = 'instant'", || {
        let driver = Driver::with_context();
        let (stream, spin, event) = (driver.stream(1), driver.function(c"spin_ns"), driver.event());
        let address = driver.alloc(4096);
        driver.spin(spin, u64::MAX, stream).ok();
        driver.cuMemsetD8Async(address, 5, 4096, stream).ok();
        driver.cuEventRecord(event, stream).ok();
        driver.cuEventQuery(event).ok();
        driver.cuStreamQuery(stream).ok();
        let mut back = [0_u8; 4];
        driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, 4).ok();
        assert_eq!(back, [5; 4]);
    });
}
