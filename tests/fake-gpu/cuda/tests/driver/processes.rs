//! Several processes on one machine.

use aliquot_abi::cuda::*;
use aliquot_harness::wait;

use crate::library::{Driver, Expect};
use crate::scenario::{Player, World, alone, say, together, wait_for_end};

const SMALL: &str = "[[device]]\nmemory = '64MiB'";

/// A device of 64 MiB, in timed mode and in instant mode, which avoids locks and system calls.
const SMALL_IN_BOTH_MODES: [&str; 2] =
    ["mode = 'timed'\n[[device]]\nmemory = '64MiB'", "mode = 'instant'\n[[device]]\nmemory = '64MiB'"];

#[test]
fn processes_that_race_fill_the_device_exactly() {
    let direct = |world: &World| {
        let mut players = (0..4).map(|_| world.start("take")).collect::<Vec<_>>();
        let taken = players.iter_mut().map(|player| player.hear("taken").parse::<u64>().expect("a number"));
        assert_eq!(taken.sum::<u64>(), 64);
        assert_eq!(world.machine().device_use(0).memory_bytes, 64 << 20);
        players.into_iter().for_each(Player::finish);
        assert_eq!(world.machine().device_use(0).processes, []);
    };
    together("processes::processes_that_race_fill_the_device_exactly", &SMALL_IN_BOTH_MODES, direct, |_| {
        let driver = Driver::with_context();
        let (mut address, mut taken) = (0, 0);
        while driver.cuMemAlloc_v2(&mut address, 1 << 20).is_ok() {
            taken += 1;
        }
        say("taken", taken);
        wait_for_end();
    });
}

#[test]
fn memory_of_a_killed_process_is_free_at_once() {
    let direct = |world: &World| {
        let mut holder = world.start("hold");
        holder.hear("holds");
        let processes = world.machine().device_use(0).processes;
        assert_eq!((processes.len(), processes[0].pid, processes[0].memory_bytes), (1, holder.child.id(), 40 << 20));
        holder.kill();
        assert_eq!(world.machine().device_use(0).processes, []);
        let mut next = world.start("hold");
        next.hear("holds");
        next.finish();
    };
    together("processes::memory_of_a_killed_process_is_free_at_once", &SMALL_IN_BOTH_MODES, direct, |_| {
        let driver = Driver::with_context();
        driver.alloc(40 << 20);
        say("holds", "");
        wait_for_end();
    });
}

#[test]
fn memory_of_a_killed_process_stays_in_use_during_teardown() {
    const TEST: &str = "processes::memory_of_a_killed_process_stays_in_use_during_teardown";
    const BYTES: u64 = 48 << 20;
    let direct = |world: &World| {
        let mut holder = world.start("holder");
        holder.hear("holds");
        // Started before the end of the holder, whose memory stays in use for a short time only.
        let mut other = world.start("other");
        other.hear("ready");
        let ids = [holder.child.id(), other.child.id()];
        holder.kill();
        let taken = world.machine().device_use(0);
        let of_process =
            |id: u32| taken.processes.iter().find(|process| process.pid == id).map(|process| process.memory_bytes);
        assert_eq!((taken.memory_bytes, taken.processes.len()), (BYTES, 2));
        assert_eq!(ids.map(of_process), [Some(BYTES), Some(0)]);
        drop(other.child.stdin.take());
        other.hear("refused");
        other.finish();
        let machine = world.machine();
        wait::until_true("both are gone", || machine.device_use(0).processes.is_empty());
    };
    let configuration = "teardown_ms = 5000\n[[device]]\nmemory = '64MiB'\n";
    together(TEST, &[configuration], direct, |role| {
        let driver = Driver::with_context();
        if role == "holder" {
            driver.alloc(BYTES as usize);
            say("holds", "");
            return wait_for_end();
        }
        say("ready", "");
        wait_for_end();
        let mut address = 0;
        driver.cuMemAlloc_v2(&mut address, BYTES as usize).is(CUresult::OUT_OF_MEMORY);
        say("refused", "");
        wait::until_true("the memory is free", || driver.cuMemAlloc_v2(&mut address, BYTES as usize).is_ok());
    });
}

#[test]
fn a_killed_process_loses_the_device() {
    let direct = |world: &World| {
        let mut holder = world.start("spin for an hour");
        holder.hear("runs");
        let mut next = world.start("spin a little");
        // The holder is killed while it has the device or the other process waits for the device.
        next.hear("first");
        holder.kill();
        next.hear("second");
        next.finish();
    };
    together("processes::a_killed_process_loses_the_device", &["timeslice_us = 100000"], direct, |role| {
        let driver = Driver::with_context();
        let (function, stream) = (driver.function(c"spin_ns"), driver.stream(1));
        if role == "spin for an hour" {
            driver.spin(function, 3_600_000_000_000, stream).ok();
            say("runs", "");
            driver.cuCtxSynchronize().ok();
        }
        for word in ["first", "second"] {
            driver.spin(function, 1_000_000, stream).ok();
            driver.cuStreamSynchronize(stream).ok();
            say(word, "");
        }
    });
}

#[test]
fn two_busy_processes_share_the_device_half_and_half() {
    let direct = |world: &World| {
        let mut players = [world.start("500000"), world.start("30000000")];
        players.iter_mut().for_each(|player| {
            player.hear("busy");
        });
        let machine = world.machine();
        let busy = |player: &Player| {
            let processes = machine.device_use(0).processes;
            processes.iter().find(|process| process.pid == player.child.id()).map_or(0, |process| process.busy_ns)
        };
        let before = players.each_ref().map(busy);
        // Shares are of device time, not of real time. A process that the machine delays for long loses a time slice, but a
        // lost one becomes an ever smaller part of the used time.
        wait::until_true("each has used half", || {
            let after = players.each_ref().map(busy);
            let used = [after[0] - before[0], after[1] - before[1]];
            let share = used[0] as f64 / (used[0] + used[1]).max(1) as f64;
            used[0] + used[1] > 1_000_000_000 && (share - 0.5).abs() < 0.02
        });
        players.into_iter().for_each(Player::kill);
    };
    together("processes::two_busy_processes_share_the_device_half_and_half", &[""], direct, |ns| {
        let driver = Driver::with_context();
        let (function, stream) = (driver.function(c"spin_ns"), driver.stream(1));
        let ns = ns.parse().expect("a number");
        for launch in 0.. {
            driver.spin(function, ns, stream).ok();
            if launch == 4 {
                say("busy", "");
            }
        }
    });
}

/// Forks, runs `child` in the child, and returns the child's exit status.
fn in_child(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child makes a few calls to the driver and ends by `_exit`; it uses nothing that other threads may
    // have locked.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!child())),
            pid => {
                let mut status = -1;
                assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
                status
            }
        }
    }
}

#[test]
fn a_forked_child_has_no_part_in_its_parents_state() {
    alone("processes::a_forked_child_has_no_part_in_its_parents_state", SMALL, || {
        let driver = Driver::load();
        let initialises = || {
            let (mut context, mut address) = (CUcontext::NULL, 0);
            driver.cuInit(0).is_ok()
                && driver.cuDevicePrimaryCtxRetain(&mut context, 0).is_ok()
                && driver.cuCtxSetCurrent(context).is_ok()
                && driver.cuMemAlloc_v2(&mut address, 1 << 20).is_ok()
        };
        assert_eq!(in_child(initialises), 0);
        assert!(initialises());
        let stream = driver.stream(0);
        let refused = || {
            let mut address = 0;
            [
                driver.cuMemAlloc_v2(&mut address, 512),
                driver.cuStreamSynchronize(stream),
                driver.cuCtxSynchronize(),
                driver.cuInit(0),
            ] == [CUresult::NOT_INITIALIZED; 4]
        };
        assert_eq!(in_child(refused), 0);
        assert_eq!(driver.used(), 1 << 20);
    });
}
