//! Tests of the simulated NVML, loaded from its file as programs do and compared with the machine's state.

mod faults;
mod loaded;
mod partition;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use aliquot_abi::nvml::*;
use aliquot_fake_machine::{CONFIG_VARIABLE, Config, Machine};
use aliquot_harness::{artifacts, wait};
use loaded::{Expect, LIBRARY_VARIABLE, Nvml};

const ROLE_VARIABLE: &str = "FAKE_NVML_TEST_ROLE";
const CONFIGURATION: &str =
    "driver_version = '570.1'\n[[device]]\nnvlink = [1]\n[[device]]\nname = 'second'\nnuma_node = 1\n";

/// Runs `body` in a new process of this test, on a new machine.
fn alone(test: &str, body: impl FnOnce()) {
    alone_on(test, CONFIGURATION, body);
}

/// Like [`alone`], on a machine with the keys `configuration`.
fn alone_on(test: &str, configuration: &str, body: impl FnOnce()) {
    if std::env::var(ROLE_VARIABLE).is_ok_and(|role| role == "alone") {
        return body();
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("machine.toml");
    let state = folder.path().join("state");
    let text = format!("state = {:?}\n{configuration}", state.to_str().expect("a path in UTF-8"));
    std::fs::write(&path, text).expect("the configuration can be written");
    let mut command = again(test, "alone");
    command.env(CONFIG_VARIABLE, path).env(LIBRARY_VARIABLE, artifacts::fake_nvml());
    let status = command.status().expect("the test program starts");
    assert!(status.success());
}

fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test program has a path"));
    command.args(["--exact", test, "--nocapture"]).env(ROLE_VARIABLE, role);
    command
}

#[test]
fn devices_are_those_of_the_configuration() {
    alone("devices_are_those_of_the_configuration", || {
        let nvml = Nvml::load();
        let (mut count, mut device, mut name) = (0, nvmlDevice_t(core::ptr::null_mut()), [0; 96]);
        nvml.nvmlDeviceGetCount_v2(&mut count).is(nvmlReturn_t::UNINITIALIZED);
        nvml.nvmlShutdown().is(nvmlReturn_t::UNINITIALIZED);
        nvml.nvmlInit_v2().ok();
        nvml.nvmlDeviceGetCount_v2(&mut count).ok();
        assert_eq!(count, 2);
        nvml.nvmlDeviceGetHandleByIndex_v2(2, &mut device).is(nvmlReturn_t::INVALID_ARGUMENT);
        nvml.nvmlDeviceGetName(device, name.as_mut_ptr(), 96).is(nvmlReturn_t::INVALID_ARGUMENT);
        nvml.nvmlDeviceGetHandleByIndex_v2(1, &mut device).ok();
        nvml.nvmlDeviceGetName(device, name.as_mut_ptr(), 3).is(nvmlReturn_t::INSUFFICIENT_SIZE);
        nvml.nvmlDeviceGetName(device, name.as_mut_ptr(), 96).ok();
        assert_eq!(name[..7], b"second\0".map(|byte| byte as c_char));
        let (mut peer, mut active, mut level) = (device, 0, 0);
        nvml.nvmlDeviceGetHandleByPciBusId_v2(c"00000000:10:00.0".as_ptr(), &mut peer).ok();
        nvml.nvmlDeviceGetNvLinkState(peer, 0, &mut active).ok();
        nvml.nvmlDeviceGetNvLinkState(device, 0, &mut active).is(nvmlReturn_t::NOT_SUPPORTED);
        nvml.nvmlDeviceGetTopologyCommonAncestor(device, peer, &mut level).ok();
        assert_eq!((active, level), (1, 50));
        let mut memory = nvmlMemory_v2_t::default();
        nvml.nvmlDeviceGetMemoryInfo_v2(device, &mut memory).is(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
        let mut current = 0;
        nvml.nvmlDeviceGetMigMode(device, &mut current, &mut count).is(nvmlReturn_t::NOT_SUPPORTED);
    });
}

#[test]
fn instances_are_found_through_their_gpu_while_it_is_in_mig_mode() {
    const GPUS: &str = "[[device]]\nmig = [{ profile = '1g.10gb', memory = '10GiB', sm_count = 16 }]\n[[device]]\n";
    alone_on("instances_are_found_through_their_gpu_while_it_is_in_mig_mode", GPUS, || {
        let nvml = Nvml::load();
        nvml.nvmlInit_v2().ok();
        let (mut count, mut mode, mut pending, mut name) = (0, 0, 0, [0; 96]);
        let nobody = nvmlDevice_t(core::ptr::null_mut());
        let (mut gpu, mut instance, mut parent) = (nobody, nobody, nobody);
        nvml.nvmlDeviceGetCount_v2(&mut count).ok();
        nvml.nvmlDeviceGetHandleByIndex_v2(0, &mut gpu).ok();
        nvml.nvmlDeviceGetMigMode(gpu, &mut mode, &mut pending).ok();
        assert_eq!((count, mode, pending), (2, 1, 1));
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &mut instance).ok();
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1, &mut parent).is(nvmlReturn_t::NOT_FOUND);
        nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance, &mut parent).ok();
        assert!(parent == gpu && instance != gpu);
        let mut memory = nvmlMemory_t::default();
        nvml.nvmlDeviceGetMemoryInfo(instance, &mut memory).ok();
        nvml.nvmlDeviceGetName(instance, name.as_mut_ptr(), 96).ok();
        assert_eq!(memory.total, 10 << 30);
        nvml.nvmlDeviceGetMinorNumber(instance, &mut count).is(nvmlReturn_t::NOT_SUPPORTED);
        // NVML gives no utilisation, neither for the GPU nor for the instance.
        for device in [gpu, instance] {
            let mut rates = nvmlUtilization_t::default();
            nvml.nvmlDeviceGetUtilizationRates(device, &mut rates).is(nvmlReturn_t::NOT_SUPPORTED);
            count = 0;
            nvml.nvmlDeviceGetProcessUtilization(device, core::ptr::null_mut(), &mut count, 0)
                .is(nvmlReturn_t::NOT_SUPPORTED);
        }
        let machine = Machine::open(Config::from_env().expect("a valid configuration")).expect("a machine");
        machine.set_mig_mode(0, false);
        nvml.nvmlDeviceGetMigMode(gpu, &mut mode, &mut pending).ok();
        assert_eq!(mode, 0);
        nvml.nvmlDeviceGetMemoryInfo(instance, &mut memory).is(nvmlReturn_t::INVALID_ARGUMENT);
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &mut instance).is(nvmlReturn_t::NOT_FOUND);
    });
}

#[test]
fn event_sets_wait_and_end() {
    alone("event_sets_wait_and_end", || {
        let nvml = Nvml::load();
        nvml.nvmlInit_v2().ok();
        let mut set = nvmlEventSet_t(core::ptr::null_mut());
        let mut device = nvmlDevice_t(core::ptr::null_mut());
        nvml.nvmlDeviceGetHandleByIndex_v2(0, &mut device).ok();
        nvml.nvmlEventSetCreate(&mut set).ok();
        nvml.nvmlDeviceRegisterEvents(device, 8, set).ok();
        nvml.nvmlEventSetWait_v2(set, core::ptr::null_mut(), 1).is(nvmlReturn_t::TIMEOUT);
        nvml.nvmlEventSetFree(set).ok();
        nvml.nvmlEventSetFree(set).is(nvmlReturn_t::INVALID_ARGUMENT);
    });
}

/// Takes memory, and repeatedly takes device time, until its input ends: NVML lists only processes that used the device
/// in the last second.
fn hold() {
    let machine = Machine::open(Config::from_env().expect("a valid configuration")).expect("a machine");
    let member = Box::leak(Box::new(machine)).join().expect("a record");
    assert!(member.reserve_memory(0, (3 << 20) + member.config().context_memory_bytes));
    member.add_context(0);
    let work = move || {
        let time_slice = member.take_time_slice(0, 0);
        member.end_time_slice(0, time_slice, time_slice.start_ns + 10_000_000, 10_000_000);
    };
    work();
    println!("holds");
    std::thread::spawn(move || {
        loop {
            work();
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the pipe can be read");
}

#[test]
fn processes_are_shown_with_what_they_use() {
    const TEST: &str = "processes_are_shown_with_what_they_use";
    if std::env::var(ROLE_VARIABLE).is_ok_and(|role| role == "hold") {
        return hold();
    }
    alone(TEST, || {
        // As measured on an H100: 5696 KiB of a context's memory are listed for no process.
        const LISTED_BYTES: u64 = (3 << 20) + (530_432 << 10);
        const USED_BYTES: u64 = (3 << 20) + (536_128 << 10);
        const RESERVED_BYTES: u64 = 480 << 20;
        let nvml = Nvml::load();
        nvml.nvmlInit_v2().ok();
        let mut device = nvmlDevice_t(core::ptr::null_mut());
        nvml.nvmlDeviceGetHandleByIndex_v2(0, &mut device).ok();
        let mut holder = again(TEST, "hold");
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test program starts");
        let mut lines = BufReader::new(holder.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("the process can be heard").contains("holds")));

        let (mut count, mut infos) = (0, [nvmlProcessInfo_t::default(); 2]);
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, core::ptr::null_mut())
            .is(nvmlReturn_t::INSUFFICIENT_SIZE);
        assert_eq!(count, 1);
        count = 2;
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, infos.as_mut_ptr()).ok();
        assert_eq!((count, infos[0].pid, infos[0].used_gpu_memory), (1, holder.id(), LISTED_BYTES));
        let mut memory = nvmlMemory_t::default();
        nvml.nvmlDeviceGetMemoryInfo(device, &mut memory).ok();
        assert_eq!((memory.used, memory.free + memory.used), (USED_BYTES + RESERVED_BYTES, memory.total));
        let mut version_2 = nvmlMemory_v2_t { version: NVML_MEMORY_V2, ..nvmlMemory_v2_t::default() };
        nvml.nvmlDeviceGetMemoryInfo_v2(device, &mut version_2).ok();
        assert_eq!((version_2.used, version_2.reserved, version_2.free), (USED_BYTES, RESERVED_BYTES, memory.free));
        assert_eq!((version_2.total, memory.total), ((80 << 30) + RESERVED_BYTES, version_2.total));
        let mut details = [nvmlProcessDetail_v1_t::default(); 2];
        let mut list = nvmlProcessDetailList_v1_t {
            version: NVML_PROCESS_DETAIL_LIST_V1,
            mode: NVML_PROCESS_MODE_ALL,
            num_proc_array_entries: 0,
            proc_array: core::ptr::null_mut(),
        };
        nvml.nvmlDeviceGetRunningProcessDetailList(device, &mut list).is(nvmlReturn_t::INSUFFICIENT_SIZE);
        list.proc_array = details.as_mut_ptr();
        nvml.nvmlDeviceGetRunningProcessDetailList(device, &mut list).ok();
        assert_eq!((list.num_proc_array_entries, details[0].pid), (1, holder.id()));
        list.mode = NVML_PROCESS_MODE_GRAPHICS;
        nvml.nvmlDeviceGetRunningProcessDetailList(device, &mut list).ok();
        assert_eq!(list.num_proc_array_entries, 0);
        list.mode = 4;
        nvml.nvmlDeviceGetRunningProcessDetailList(device, &mut list).is(nvmlReturn_t::INVALID_ARGUMENT);
        list.version += 1;
        nvml.nvmlDeviceGetRunningProcessDetailList(device, &mut list).is(nvmlReturn_t::INVALID_ARGUMENT);
        let (mut pids, mut stats) = ([0; 2], nvmlAccountingStats_t::default());
        count = 2;
        nvml.nvmlDeviceGetAccountingPids(device, &mut count, pids.as_mut_ptr()).ok();
        nvml.nvmlDeviceGetAccountingStats(device, pids[0], &mut stats).ok();
        assert_eq!((count, pids[0], stats.max_memory_usage), (1, holder.id(), LISTED_BYTES));
        nvml.nvmlDeviceGetAccountingStats(device, 1, &mut stats).is(nvmlReturn_t::NOT_FOUND);
        // The machine may delay the holder for longer than the second that NVML covers.
        let (mut count, mut samples) = (0, [nvmlProcessUtilizationSample_t::default(); 2]);
        wait::until_true("the holder is at work", || {
            count = 2;
            nvml.nvmlDeviceGetProcessUtilization(device, samples.as_mut_ptr(), &mut count, 0) == nvmlReturn_t::SUCCESS
        });
        assert_eq!((count, samples[0].pid), (1, holder.id()));
        assert!(samples[0].sm_util > 0);
        nvml.nvmlDeviceGetProcessUtilization(device, samples.as_mut_ptr(), &mut count, u64::MAX)
            .is(nvmlReturn_t::NOT_FOUND);
        let mut all = nvmlProcessesUtilizationInfo_v1_t {
            version: NVML_PROCESSES_UTILIZATION_INFO_V1,
            process_samples_count: 0,
            last_seen_time_stamp: 0,
            proc_util_array: core::ptr::null_mut(),
        };
        wait::until_true("the holder is at work, and there is no room to say so", || {
            nvml.nvmlDeviceGetProcessesUtilizationInfo(device, &mut all) == nvmlReturn_t::INSUFFICIENT_SIZE
        });
        all.version += 1;
        nvml.nvmlDeviceGetProcessesUtilizationInfo(device, &mut all).is(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
        let (mut kind, mut room, mut rates) = (0, 0, [nvmlSample_t::default(); 1]);
        let gpu_samples = NVML_GPU_UTILIZATION_SAMPLES;
        nvml.nvmlDeviceGetSamples(device, gpu_samples, 0, &mut kind, &mut room, core::ptr::null_mut()).ok();
        wait::until_true("the device is in use", || {
            nvml.nvmlDeviceGetSamples(device, gpu_samples, 0, &mut kind, &mut room, rates.as_mut_ptr()).ok();
            assert_eq!(room, 1);
            rates[0].sample_value > 0
        });

        holder.kill().expect("the process can be killed");
        holder.wait().expect("the process ends");
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, core::ptr::null_mut()).ok();
        nvml.nvmlDeviceGetMemoryInfo(device, &mut memory).ok();
        assert_eq!((count, memory.used), (0, RESERVED_BYTES));
    });
}
