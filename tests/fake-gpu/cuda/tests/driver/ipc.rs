//! Sharing memory and events between processes.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::{say, together, wait_for_end};

fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(variable: &str) -> [u8; 64] {
    let text = std::env::var(variable).unwrap();
    let mut bytes = [0; 64];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    }
    bytes
}

fn export(driver: &Driver) {
    let (address, gone) = (driver.alloc(3000), driver.alloc(3000));
    let (mut handle, mut late) = (CUipcMemHandle { reserved: [0; 64] }, CUipcMemHandle { reserved: [0; 64] });
    let mut managed = 0;
    driver.cuMemAllocManaged(&mut managed, 10, 1).ok();
    driver.cuIpcGetMemHandle(&mut handle, managed).is(CUresult::INVALID_VALUE);
    driver.cuIpcGetMemHandle(&mut late, gone).ok();
    driver.cuIpcGetMemHandle(&mut handle, address).ok();
    let mut own = 0;
    driver.cuIpcOpenMemHandle_v2(&mut own, handle, 1).is(CUresult::INVALID_CONTEXT);
    driver.cuMemFree_v2(gone).ok();
    driver.cuMemsetD8_v2(address, 4, 3000).ok();
    driver.cuCtxSynchronize().ok();
    let (mut event, mut event_handle) = (CUevent::NULL, CUipcEventHandle { reserved: [0; 64] });
    driver.cuEventCreate(&mut event, 4).is(CUresult::INVALID_VALUE);
    driver.cuIpcGetEventHandle(&mut event_handle, driver.event()).is(CUresult::INVALID_VALUE);
    driver.cuEventCreate(&mut event, 4 | 2).ok();
    driver.cuIpcGetEventHandle(&mut event_handle, event).ok();
    let stream = driver.stream(1);
    driver.spin(driver.function(c"spin_ns"), 100_000_000, stream).ok();
    driver.cuEventRecord(event, stream).ok();
    say("memory", text(&handle.reserved));
    say("late", text(&late.reserved));
    say("event", text(&event_handle.reserved));
    wait_for_end();
    let mut back = [0_u8; 1];
    driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address + 2999, 1).ok();
    assert_eq!(back, [8]);
}

fn import(driver: &Driver) {
    let handle = CUipcMemHandle { reserved: bytes("MEMORY") };
    let late = CUipcMemHandle { reserved: bytes("LATE") };
    let (mut address, mut again, before) = (0, 0, driver.used());
    driver.cuIpcOpenMemHandle_v2(&mut address, handle, 0).is(CUresult::INVALID_VALUE);
    driver.cuIpcOpenMemHandle_v2(&mut address, late, 1).is(CUresult::INVALID_HANDLE);
    driver.cuIpcOpenMemHandle_v2(&mut address, CUipcMemHandle { reserved: [1; 64] }, 1).is(CUresult::INVALID_HANDLE);
    driver.cuIpcOpenMemHandle_v2(&mut address, handle, 1).ok();
    driver.cuIpcOpenMemHandle_v2(&mut again, handle, 1).ok();
    driver.cuIpcOpenMemHandle(&mut again, handle, 1).is(CUresult::ALREADY_MAPPED);
    let (mut base, mut size) = (0, 0);
    driver.cuMemGetAddressRange_v2(&mut base, &mut size, address + 10).ok();
    assert_eq!((again, base, size, driver.used()), (address, address, 3000, before));
    let mut back = [0_u8; 3000];
    driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, 3000).ok();
    assert_eq!(back, [4; 3000]);
    driver.cuMemsetD8_v2(address + 2999, 8, 1).ok();
    driver.cuCtxSynchronize().ok();
    driver.cuMemFree_v2(address).is(CUresult::INVALID_VALUE);
    driver.cuIpcCloseMemHandle(address).ok();
    driver.cuMemGetAddressRange_v2(&mut base, &mut size, address).ok();
    driver.cuIpcCloseMemHandle(address).ok();
    driver.cuIpcCloseMemHandle(address).is(CUresult::INVALID_VALUE);
    let mut event = CUevent::NULL;
    driver.cuIpcOpenEventHandle(&mut event, CUipcEventHandle { reserved: [1; 64] }).is(CUresult::INVALID_HANDLE);
    driver.cuIpcOpenEventHandle(&mut event, CUipcEventHandle { reserved: bytes("EVENT") }).ok();
    // A stream of this process waits for the other process's record, and so does a thread.
    let stream = driver.stream(1);
    driver.cuStreamWaitEvent(stream, event, 0).ok();
    driver.cuStreamSynchronize(stream).ok();
    driver.cuEventQuery(event).ok();
    driver.cuEventSynchronize(event).ok();
    driver.cuEventDestroy_v2(event).ok();
}

#[test]
fn memory_and_events_are_opened_by_their_handles() {
    together(
        "ipc::memory_and_events_are_opened_by_their_handles",
        &[""],
        |world| {
            let mut exporter = world.start("export");
            let texts = ["memory", "late", "event"].map(|word| exporter.hear(word));
            let variables = [("MEMORY", texts[0].as_str()), ("LATE", &texts[1]), ("EVENT", &texts[2])];
            world.start_with("import", &variables).finish();
            exporter.finish();
        },
        |role| match (Driver::with_context(), role) {
            (driver, "export") => export(&driver),
            (driver, _) => import(&driver),
        },
    );
}
