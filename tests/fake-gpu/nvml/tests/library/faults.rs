//! Faults of devices in use.

use std::thread;

use aliquot_abi::nvml::*;
use aliquot_fake_machine::{Config, Machine};

use crate::loaded::{Expect, Nvml};
use crate::{alone, alone_on};

const XID_EVENTS: u64 = 8;
const NO_INSTANCE: c_uint = c_uint::MAX;
const NOBODY: nvmlDevice_t = nvmlDevice_t(core::ptr::null_mut());
const NOTHING: nvmlEventData_t =
    nvmlEventData_t { device: NOBODY, event_type: 0, event_data: 0, gpu_instance_id: 0, compute_instance_id: 0 };

fn machine() -> Machine {
    Machine::open(Config::from_env().expect("a valid configuration")).expect("a machine")
}

fn device(nvml: &Nvml, index: c_uint) -> nvmlDevice_t {
    let mut device = NOBODY;
    nvml.nvmlDeviceGetHandleByIndex_v2(index, &mut device).ok();
    device
}

/// An event set for the errors of these devices.
fn event_set(nvml: &Nvml, devices: &[nvmlDevice_t]) -> nvmlEventSet_t {
    let mut set = nvmlEventSet_t(core::ptr::null_mut());
    nvml.nvmlEventSetCreate(&mut set).ok();
    devices.iter().for_each(|device| nvml.nvmlDeviceRegisterEvents(*device, XID_EVENTS, set).ok());
    set
}

#[test]
fn each_set_reports_an_error_once_with_the_last_xid() {
    alone("faults::each_set_reports_an_error_once_with_the_last_xid", || {
        let (nvml, machine) = (Nvml::load(), machine());
        nvml.nvmlInit_v2().ok();
        machine.report_xid(1, 48);
        let (first, second) = (device(&nvml, 0), device(&nvml, 1));
        let (both, one) = (event_set(&nvml, &[first, second]), event_set(&nvml, &[first]));
        let mut data = NOTHING;
        let told = |data: nvmlEventData_t| (data.device, data.event_type, data.event_data);
        // Errors before the registration are not events.
        nvml.nvmlEventSetWait_v2(both, &mut data, 0).is(nvmlReturn_t::TIMEOUT);
        machine.report_xid(1, 79);
        nvml.nvmlEventSetWait_v2(both, &mut data, 0).ok();
        assert_eq!(told(data), (second, XID_EVENTS, 79));
        assert_eq!((data.gpu_instance_id, data.compute_instance_id), (NO_INSTANCE, NO_INSTANCE));
        nvml.nvmlEventSetWait_v2(both, &mut data, 0).is(nvmlReturn_t::TIMEOUT);
        nvml.nvmlEventSetWait_v2(one, &mut data, 0).is(nvmlReturn_t::TIMEOUT);

        machine.report_xid(0, 79);
        machine.report_xid(0, 31);
        for _ in 0..2 {
            nvml.nvmlEventSetWait_v2(one, &mut data, 0).ok();
            assert_eq!(told(data), (first, XID_EVENTS, 31));
        }
        nvml.nvmlEventSetWait_v2(one, &mut data, 0).is(nvmlReturn_t::TIMEOUT);

        // The structure of the first version has no instance ids.
        data = NOTHING;
        nvml.nvmlEventSetWait(both, &mut data, 0).ok();
        assert_eq!((told(data), data.gpu_instance_id), ((first, XID_EVENTS, 31), 0));
    });
}

#[test]
fn a_waiting_thread_gets_an_event_at_once() {
    alone("faults::a_waiting_thread_gets_an_event_at_once", || {
        let nvml = Nvml::load();
        nvml.nvmlInit_v2().ok();
        let set = event_set(&nvml, &[device(&nvml, 0)]);
        let mut data = NOTHING;
        thread::scope(|scope| {
            scope.spawn(|| machine().report_xid(0, 79));
            // The longest possible timeout.
            nvml.nvmlEventSetWait_v2(set, &mut data, c_uint::MAX).ok();
        });
        assert_eq!(data.event_data, 79);
    });
}

#[test]
fn an_error_of_an_instance_is_an_event_of_its_gpu() {
    const GPU: &str = "[[device]]\nmig = [\n{ profile = '3g.40gb', memory = '40GiB', sm_count = 60 },\n\
                       { profile = '1g.10gb', memory = '10GiB', sm_count = 16 }]\n";
    alone_on("faults::an_error_of_an_instance_is_an_event_of_its_gpu", GPU, || {
        let (nvml, machine) = (Nvml::load(), machine());
        nvml.nvmlInit_v2().ok();
        let gpu = device(&nvml, 0);
        let (mut instance, mut id, mut data) = (NOBODY, 0, NOTHING);
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1, &mut instance).ok();
        nvml.nvmlDeviceGetGpuInstanceId(instance, &mut id).ok();
        let set = event_set(&nvml, &[gpu]);
        nvml.nvmlDeviceRegisterEvents(instance, XID_EVENTS, set).is(nvmlReturn_t::NOT_SUPPORTED);
        machine.report_xid(2, 94);
        nvml.nvmlEventSetWait_v2(set, &mut data, 0).ok();
        assert_eq!((data.device, data.event_data, data.gpu_instance_id), (gpu, 94, id));
        assert_eq!(data.compute_instance_id, 0);
    });
}

#[test]
fn a_lost_device_answers_nothing_until_it_is_back() {
    alone("faults::a_lost_device_answers_nothing_until_it_is_back", || {
        let (nvml, machine) = (Nvml::load(), machine());
        nvml.nvmlInit_v2().ok();
        let (first, second) = (device(&nvml, 0), device(&nvml, 1));
        let set = event_set(&nvml, &[first]);
        let (mut memory, mut found, mut data, mut uuid) = (nvmlMemory_t::default(), NOBODY, NOTHING, [0; 96]);
        nvml.nvmlDeviceGetUUID(first, uuid.as_mut_ptr(), 96).ok();
        machine.report_xid(0, 79);
        machine.set_lost(0, true);
        // Events before the fault come first.
        nvml.nvmlEventSetWait_v2(set, &mut data, 0).ok();
        assert_eq!(data.event_data, 79);
        let lost = nvmlReturn_t::GPU_IS_LOST;
        nvml.nvmlEventSetWait_v2(set, &mut data, 0).is(lost);
        nvml.nvmlDeviceGetMemoryInfo(first, &mut memory).is(lost);
        nvml.nvmlDeviceGetHandleByIndex_v2(0, &mut found).is(lost);
        nvml.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &mut found).is(lost);
        nvml.nvmlDeviceRegisterEvents(first, XID_EVENTS, set).is(lost);
        nvml.nvmlDeviceGetMemoryInfo(second, &mut memory).ok();
        machine.set_lost(0, false);
        nvml.nvmlDeviceGetMemoryInfo(first, &mut memory).ok();
        nvml.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &mut found).ok();
        assert!(found == first);
        nvml.nvmlEventSetWait_v2(set, &mut data, 0).is(nvmlReturn_t::TIMEOUT);
    });
}

#[test]
fn the_recovery_action_is_a_field_of_gpus_only() {
    const RECOVERY_ACTION: c_uint = 230;
    const TEMPERATURE_OF_MEMORY: c_uint = 82;
    alone("faults::the_recovery_action_is_a_field_of_gpus_only", || {
        let (nvml, machine) = (Nvml::load(), machine());
        nvml.nvmlInit_v2().ok();
        let ask = |device: nvmlDevice_t| {
            let field = |field_id| nvmlFieldValue_t {
                field_id,
                scope_id: 0,
                timestamp: 0,
                latency_usec: 0,
                value_type: 0,
                nvml_return: nvmlReturn_t::UNKNOWN,
                value: [0xFF; 8],
            };
            let mut values = [RECOVERY_ACTION, TEMPERATURE_OF_MEMORY].map(field);
            nvml.nvmlDeviceGetFieldValues(device, 2, values.as_mut_ptr()).ok();
            values.map(|field| (field.nvml_return, field.value[0]))
        };
        machine.set_recovery_action(1, 2);
        let unknown = (nvmlReturn_t::NOT_SUPPORTED, 0xFF);
        assert_eq!(ask(device(&nvml, 0)), [(nvmlReturn_t::SUCCESS, 0), unknown]);
        assert_eq!(ask(device(&nvml, 1)), [(nvmlReturn_t::SUCCESS, 2), unknown]);
        nvml.nvmlDeviceGetFieldValues(device(&nvml, 0), -1, core::ptr::null_mut()).is(nvmlReturn_t::INVALID_ARGUMENT);
        nvml.nvmlDeviceGetFieldValues(device(&nvml, 0), 1, core::ptr::null_mut()).is(nvmlReturn_t::INVALID_ARGUMENT);
    });
}
