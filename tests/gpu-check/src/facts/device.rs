//! Properties that the device and NVML report.

use nix::sys::statfs::statfs;

use crate::findings::Findings;
use crate::nvml::Nvml;
use crate::scene::Scene;

/// The device's attributes about stream memory operations, by the driver's numbers and names.
const ATTRIBUTES: [(u32, &str); 6] = [
    (91, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM"),
    (92, "CAN_USE_STREAM_MEM_OPS_V1"),
    (93, "CAN_USE_64_BIT_STREAM_MEM_OPS_V1"),
    (94, "CAN_USE_STREAM_WAIT_VALUE_NOR_V1"),
    (122, "CAN_USE_64_BIT_STREAM_MEM_OPS"),
    (123, "CAN_USE_STREAM_WAIT_VALUE_NOR"),
];

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    for (number, name) in ATTRIBUTES {
        match cuda.attribute(number) {
            Ok(value) => findings.figure(format!("attribute {number}, {name}"), f64::from(value), ""),
            Err(error) => findings.skip(format!("attribute {number}, {name}"), error.to_string()),
        }
    }
    for dir in [std::env::temp_dir(), "/dev/shm".into(), "/run".into()] {
        match statfs(&dir) {
            Ok(file_system) => {
                let kind = file_system.filesystem_type().0 as f64;
                findings.figure(format!("file system of {}", dir.display()), kind, "f_type");
            }
            Err(error) => findings.skip(format!("file system of {}", dir.display()), error.to_string()),
        }
    }
    let nvml = match Nvml::open() {
        Ok(nvml) => nvml,
        Err(error) => {
            findings.skip("NVML and CUDA mean the same memory", format!("{error:#}"));
            return Ok(());
        }
    };
    let memory = nvml.memory_v2(&cuda.uuid()?)?;
    let total = cuda.memory()?.1;
    findings.figure("total memory by CUDA", total as f64, "bytes");
    findings.figure("total memory by NVML", memory.total as f64, "bytes");
    findings.figure("of that reserved", memory.reserved as f64, "bytes");
    // Nothing on an H100. Not judged, because nobody has promised it of other devices.
    let more = (memory.total - memory.reserved) as f64 - total as f64;
    findings.figure("what NVML has beyond that and CUDA's", more, "bytes");
    Ok(())
}
