//! The device as a program sees it: every interface must show the slice.

use crate::cuda::call;
use crate::findings::Findings;
use crate::nvml::Nvml;
use crate::scene::{Scene, is_about};
use crate::way::Way;

/// Memory that the case holds while it compares.
const HELD_BYTES: u64 = 128 << 20;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let (_, total) = cuda.memory()?;
    let mut device_total = 0;
    // SAFETY: the output is a live local.
    unsafe { call!(cuda, cuDeviceTotalMem_v2(&mut device_total, cuda.device))? };
    findings.expect(
        "cuDeviceTotalMem agrees with cuMemGetInfo",
        device_total as u64 == total,
        format!("{device_total} and {total} bytes"),
    );
    if scene.way == Way::Limited {
        let limit = scene.limits.memory_bytes;
        findings.expect("the total is the slice's", total == limit, format!("{total} bytes, the slice has {limit}"));
    }

    let nvml = match Nvml::open() {
        Ok(nvml) => nvml,
        Err(error) => {
            findings.skip("NVML agrees with CUDA", format!("{error:#}"));
            return Ok(());
        }
    };
    let uuid = cuda.uuid()?;
    let before = scene.steady_free()?;
    let held = cuda.allocate(HELD_BYTES)?;
    let free = scene.steady_free()?;
    findings.expect(
        format!("{} MiB more in use show in cuMemGetInfo", HELD_BYTES >> 20),
        is_about(before.saturating_sub(free), HELD_BYTES),
        format!("{before} bytes free before, {free} after"),
    );
    for (name, memory) in
        [("nvmlDeviceGetMemoryInfo", nvml.memory(&uuid)), ("nvmlDeviceGetMemoryInfo_v2", nvml.memory_v2(&uuid))]
    {
        let what = format!("{name} shows the same free and total as CUDA");
        match memory {
            Err(error) => findings.skip(what, format!("{error:#}")),
            // Without a limit, NVML counts the driver's own memory and CUDA does not.
            Ok(_) if scene.way != Way::Limited => {}
            Ok(memory) => findings.expect(
                what,
                memory.total == total && is_about(memory.free, free),
                format!("NVML {} of {} bytes, CUDA {free} of {total}", memory.free, memory.total),
            ),
        }
    }
    if scene.way == Way::Limited {
        only_own_processes(findings, &nvml, &uuid);
    }
    cuda.free(held)?;
    Ok(())
}

/// A slice's list of processes contains only the slice's processes, with the ids in their own namespace.
fn only_own_processes(findings: &mut Findings, nvml: &Nvml, uuid: &str) {
    let what = "NVML lists this process, with what it holds, and no process of others";
    match nvml.processes(uuid) {
        Err(error) => findings.skip(what, format!("{error:#}")),
        Ok(list) => {
            let own = std::process::id();
            let holds = list.len() == 1 && list[0].pid == own && list[0].used_gpu_memory >= HELD_BYTES;
            findings.expect(what, holds, format!("this is {own}: {list:?}"));
        }
    }
}
