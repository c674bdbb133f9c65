//! Whether the driver lists managed memory for the process that has it.
//!
//! The manager takes the driver's figure for a process, minus what the ledger holds for it, as overhead. Managed memory
//! is in the ledger. If the driver does not list it, it hides as many bytes of overhead.

use aliquot_abi::cuda::c_uint;

use crate::cuda::call;
use crate::findings::Findings;
use crate::nvml::Nvml;
use crate::scene::Scene;

const BYTES: usize = 1 << 30;
const MIB: f64 = (1 << 20) as f64;
/// `CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY`.
const MANAGED_MEMORY: c_uint = 83;
/// `CU_MEM_ATTACH_GLOBAL`.
const ATTACH_GLOBAL: c_uint = 1;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    if cuda.attribute(MANAGED_MEMORY).unwrap_or_default() == 0 {
        findings.skip("what is listed for managed memory", "the device has none");
        return Ok(());
    }
    let nvml = match Nvml::open() {
        Ok(nvml) => nvml,
        Err(error) => {
            findings.skip("what is listed for managed memory", format!("{error:#}"));
            return Ok(());
        }
    };
    let uuid = cuda.uuid()?;
    let look = || anyhow::Ok((nvml.listed_bytes(&uuid, std::process::id())?, nvml.used_bytes(&uuid)?));
    let stream = cuda.stream()?;
    let before = look()?;
    let mut address = 0;
    // SAFETY: the output is a live local.
    unsafe { call!(cuda, cuMemAllocManaged(&mut address, BYTES, ATTACH_GLOBAL))? };
    let allocated = look()?;
    // The device gets the pages when it writes to them.
    cuda.set(address, 1, BYTES, stream)?;
    cuda.finish(stream)?;
    let written = look()?;
    cuda.free(address)?;
    for (when, (listed, used)) in [("allocated", allocated), ("written by the device", written)] {
        let what = format!("{} MiB of managed memory, {when}", BYTES >> 20);
        findings.figure(
            format!("{what}: more listed for the process"),
            listed.saturating_sub(before.0) as f64 / MIB,
            "MiB",
        );
        findings.figure(
            format!("{what}: more of the device in use"),
            used.saturating_sub(before.1) as f64 / MIB,
            "MiB",
        );
    }
    Ok(())
}
