//! The driver, NVML, and the devices.

use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_abi::cuda::CUresult;
use aliquot_proto::node::v1::{self as proto, DeviceHealth, Node};
use libloading::Library;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::finding::Finding;
use super::manager::Manager;
use crate::error::with_causes;
use crate::quantity::bytes_human;
use crate::simulated;

const CUDA: &str = "CUDA driver";
const NVML: &str = "NVML";
const INSTALL_DRIVER: &str =
    "install NVIDIA's driver: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide";
const UPDATE_DRIVER: &str = "update the driver to R510 (CUDA 11.6) or later";
const NO_GPU: &str = "nothing to do: this machine has no NVIDIA GPU; where it should have one, look at: lspci -d 10de:";
/// From this CUDA version on, stream memory operations are enabled by default.
const CUDA_WANTED: c_int = 11_070;

/// The kind of GPUs on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gpus {
    /// At least one NVIDIA GPU.
    Real,
    /// The simulated GPU of `aliquot run --simulated`.
    Simulated,
    /// No GPU of either kind.
    None,
}

/// Whether the PCI bus shows a display controller or accelerator by NVIDIA.
fn nvidia_gpu_on_bus() -> bool {
    let Ok(devices) = fs::read_dir("/sys/bus/pci/devices") else { return false };
    devices.flatten().any(|device| {
        let read = |file: &str| fs::read_to_string(device.path().join(file)).unwrap_or_default();
        // Base class 3 is a display controller, 0x12 a processing accelerator.
        read("vendor").trim() == "0x10de" && ["0x03", "0x12"].iter().any(|class| read("class").starts_with(class))
    })
}

/// The kind of GPUs, and findings about driver and devices. If no device is seen here, the manager's answer counts: in
/// a pod, only the manager may have the driver's libraries.
pub(super) fn findings(manager: &Manager, in_pod: bool) -> (Gpus, Vec<Finding>) {
    let node = manager.node().filter(|node| !node.devices.is_empty());
    if let Some(node) = node.filter(|_| in_pod) {
        return (Gpus::Real, of_manager(node));
    }
    let (gpus, mut findings) = own_findings();
    match node {
        Some(node) if gpus == Gpus::None => return (Gpus::Real, of_manager(node)),
        Some(node) => findings.extend(node.devices.iter().filter_map(ill)),
        None => {}
    }
    (gpus, findings)
}

/// Findings from the manager's description of driver and devices.
fn of_manager(node: &Node) -> Vec<Finding> {
    let version = format!("{}, CUDA {}, as the manager sees it", node.driver_version, node.cuda_version);
    let device = |device: &proto::Device| {
        let well =
            || Finding::ok(name_of(device), format!("{}, {}, healthy", device.model, bytes_human(device.memory_bytes)));
        ill(device).unwrap_or_else(well)
    };
    let driver = match node.problem.as_str() {
        "" => Finding::ok("driver", version),
        problem => Finding::fail("driver", problem, "look for errors of the driver on the node: dmesg | grep -i nvrm"),
    };
    [driver].into_iter().chain(node.devices.iter().map(device)).collect()
}

/// The finding about a device with a problem, as the manager sees it. The manager gives out no more parts of such a
/// device.
fn ill(device: &proto::Device) -> Option<Finding> {
    let remedy = "nothing new gets a part of it until it has been well for 30 seconds; the driver's messages say more: \
                  dmesg | grep -i xid";
    let is_ill = device.health() == DeviceHealth::Unhealthy;
    is_ill.then(|| Finding::fail(format!("{} health", name_of(device)), device.health_reason.clone(), remedy))
}

/// The device's name with its NVML index; instances have their GPU's index.
fn name_of(device: &proto::Device) -> String {
    match device.mig_profile.as_str() {
        "" => format!("GPU {}", device.index),
        profile => format!("GPU {} {profile}", device.index),
    }
}

fn own_findings() -> (Gpus, Vec<Finding>) {
    let (cuda, nvml) = (cuda_version(), Nvml::init());
    let seen = nvml.as_ref().is_ok_and(|nvml| nvml.device_count().is_ok_and(|count| count > 0));
    let gpus = match (simulated::is_shown(), seen || nvidia_gpu_on_bus()) {
        (true, true) => Gpus::Simulated,
        (false, true) => Gpus::Real,
        (_, false) => Gpus::None,
    };
    (gpus, findings_of(gpus, cuda, nvml))
}

fn findings_of(gpus: Gpus, cuda: Result<c_int, String>, nvml: Result<Nvml, NvmlError>) -> Vec<Finding> {
    let mut findings = Vec::new();
    // In a container there can be a driver without a GPU on the bus.
    if let (Err(reason), Err(_), Gpus::None) = (&cuda, &nvml, gpus) {
        return findings_without_gpu(reason);
    }
    findings.push(match cuda {
        Ok(version) if version >= CUDA_WANTED => Finding::ok(CUDA, format!("libcuda.so.1, {}", cuda_text(version))),
        Ok(version) => Finding::warn(
            CUDA,
            format!("libcuda.so.1, {}", cuda_text(version)),
            "shares are exact with CUDA 11.7 or later: update the driver",
        ),
        Err(reason) => Finding::fail(CUDA, reason, INSTALL_DRIVER),
    });
    match nvml {
        Ok(nvml) => {
            let version = nvml.sys_driver_version().unwrap_or_else(|error| format!("unknown version ({error})"));
            // The manager reads the memory of devices by this function.
            if nvml.lib().nvmlDeviceGetMemoryInfo_v2.is_ok() {
                findings.push(Finding::ok(NVML, format!("driver {version}")));
                findings.extend(devices(&nvml));
            } else {
                findings.push(Finding::fail(NVML, format!("driver {version} is too old"), UPDATE_DRIVER));
            }
        }
        Err(NvmlError::DriverNotLoaded) => {
            findings.push(Finding::fail(
                NVML,
                "the kernel module is not loaded",
                "sudo modprobe nvidia; if it fails: dmesg says why",
            ));
        }
        Err(error) => findings.push(Finding::fail(NVML, error.to_string(), INSTALL_DRIVER)),
    }
    findings.extend(mps(Path::new("/proc")));
    findings
}

/// Findings for a machine without a GPU, where a missing driver is no failure.
pub(super) fn findings_without_gpu(reason: &str) -> Vec<Finding> {
    vec![Finding::warn("GPU", format!("none by NVIDIA on this machine ({reason})"), NO_GPU)]
}

fn cuda_text(version: c_int) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

/// The driver's CUDA version: 13000 is 13.0.
fn cuda_version() -> Result<c_int, String> {
    // SAFETY: the driver's initialisers are made to run in any process.
    let library = unsafe { Library::new("libcuda.so.1") }.map_err(|error| with_causes(&error))?;
    // SAFETY: the signature is that in NVIDIA's documentation.
    let get_version = unsafe {
        library.get::<unsafe extern "C" fn(*mut c_int) -> CUresult>(c"cuDriverGetVersion".to_bytes_with_nul())
    };
    let get_version = get_version.map_err(|error| error.to_string())?;
    let mut version = 0;
    // SAFETY: the output is a live local, the call is allowed before cuInit, and the library stays loaded until the end
    // of the block.
    match unsafe { get_version(&mut version) } {
        CUresult::SUCCESS => Ok(version),
        error => Err(format!("cuDriverGetVersion answers {}", error.0)),
    }
}

fn devices(nvml: &Nvml) -> Vec<Finding> {
    let count = match nvml.device_count() {
        Ok(0) => return vec![Finding::warn("GPU", "the driver sees none", NO_GPU)],
        Ok(count) => count,
        Err(error) => {
            return vec![Finding::fail(
                "GPU",
                error.to_string(),
                "look for errors of the driver: dmesg | grep -i nvrm",
            )];
        }
    };
    (0..count)
        .flat_map(|index| {
            let what = format!("GPU {index}");
            match nvml.device_by_index(index) {
                Ok(device) => device_findings(&what, &device),
                Err(error) => vec![unwell(what, &error)],
            }
        })
        .collect()
}

fn device_findings(what: &str, device: &Device) -> Vec<Finding> {
    let name = device.name().unwrap_or_else(|_| "unknown model".to_owned());
    let mut findings = match device.memory_info() {
        Ok(memory) => vec![Finding::ok(what, format!("{name}, {}, healthy", bytes_human(memory.total)))],
        Err(error) => return vec![unwell(what.to_owned(), &error)],
    };
    let what_mode = format!("{what} compute mode");
    match device.compute_mode() {
        Ok(ComputeMode::ExclusiveProcess) => findings.push(Finding::warn(
            what_mode,
            "ExclusiveProcess: processes cannot share the device but by MPS",
            "where the manager's configuration does not share it by MPS: sudo nvidia-smi -c DEFAULT",
        )),
        Ok(ComputeMode::Default) | Err(_) => {}
        Ok(mode) => findings.push(Finding::fail(
            what_mode,
            format!("{mode:?}: processes cannot share the device"),
            "sudo nvidia-smi -c DEFAULT",
        )),
    }
    if let Ok(mode) = device.mig_mode()
        && mode.current != 0
    {
        findings.push(Finding::ok(
            format!("{what} MIG"),
            "on: slices are made on its instances, each of which is a device of its own",
        ));
    }
    findings
}

fn unwell(what: String, error: &NvmlError) -> Finding {
    Finding::fail(
        what,
        format!("does not answer: {error}"),
        "look for Xid errors: dmesg | grep -i xid; a reset or a reboot may help",
    )
}

/// Warns about MPS, by the processes in `proc`. Leases hold under MPS, because they hold up launches. But the driver does
/// not distinguish the use of the server's clients.
fn mps(proc: &Path) -> Vec<Finding> {
    const CONTROL: &str = "nvidia-cuda-mps-control";
    let processes = fs::read_dir(proc).into_iter().flatten().flatten().map(|process| process.path());
    // The kernel keeps the first 15 bytes of a name, so the server and the control daemon have the same.
    let is_mps = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|command| command.starts_with("nvidia-cuda-mps"))
    };
    let arguments: Vec<String> = processes
        .filter(is_mps)
        .map(|process| fs::read(process.join("cmdline")).unwrap_or_default())
        .map(|arguments| String::from_utf8_lossy(&arguments).replace('\0', " "))
        .collect();
    if arguments.is_empty() {
        return Vec::new();
    }
    let mut findings = vec![Finding::warn(
        "MPS",
        "a control daemon or server runs: leases hold, but processes on its devices cannot be audited",
        "where the manager's configuration does not share devices by MPS ([sharing] mode = \"mps\"), stop it: echo quit \
         | nvidia-cuda-mps-control",
    )];
    let mut daemons = arguments.iter().filter(|arguments| arguments.contains(CONTROL));
    if daemons.any(|arguments| !arguments.contains("-multiuser-server")) {
        findings.push(Finding::warn(
            "users of MPS",
            "the control daemon serves one user at a time: programs of other users wait until that user's have ended",
            "where programs run as different users: nvidia-cuda-mps-control -d -multiuser-server",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    fn node() -> Node {
        let device = |index: u32, reason: &str| proto::Device {
            index,
            model: "NVIDIA H100".into(),
            memory_bytes: 80 << 30,
            health: if reason.is_empty() { DeviceHealth::Healthy } else { DeviceHealth::Unhealthy }.into(),
            health_reason: reason.into(),
            ..proto::Device::default()
        };
        Node {
            driver_version: "580.65.06".into(),
            cuda_version: "13.0".into(),
            devices: vec![device(0, ""), device(1, "the driver reported the critical error XID 79")],
            ..Node::default()
        }
    }

    fn text(findings: &[Finding]) -> String {
        findings.iter().map(|finding| finding.text(0, false)).collect()
    }

    #[test]
    fn the_manager_s_devices_are_told_where_none_is_seen() {
        let findings = of_manager(&node());
        let statuses: Vec<Status> = findings.iter().map(|finding| finding.status).collect();
        assert_eq!(statuses, [Status::Ok, Status::Ok, Status::Fail]);
        let text = text(&findings);
        assert!(text.contains("580.65.06, CUDA 13.0, as the manager sees it"), "{text}");
        assert!(text.contains("GPU 0  NVIDIA H100, 80 GiB, healthy"), "{text}");
        assert!(text.contains("GPU 1 health  the driver reported the critical error XID 79"), "{text}");
    }

    #[test]
    fn a_driver_that_does_not_answer_the_manager_is_told() {
        let problem = "libnvidia-ml.so.1: a libloading error occurred";
        let findings = of_manager(&Node { problem: problem.into(), ..node() });
        assert_eq!(findings[0].status, Status::Fail);
        assert!(text(&findings).contains(problem));
    }

    #[test]
    fn an_mps_that_serves_one_user_at_a_time_is_told() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: &str, command: &str, arguments: &str| {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("comm"), command).unwrap();
            fs::write(proc.path().join(pid).join("cmdline"), arguments).unwrap();
        };
        process("1", "systemd\n", "/sbin/init\0");
        assert!(mps(proc.path()).is_empty());
        process("7", "nvidia-cuda-mps\n", "nvidia-cuda-mps-control\0-d\0-multiuser-server\0");
        process("8", "nvidia-cuda-mps\n", "nvidia-cuda-mps-server\0-multiuser-server\0");
        assert_eq!(mps(proc.path()).len(), 1, "{}", text(&mps(proc.path())));
        process("9", "nvidia-cuda-mps\n", "/usr/bin/nvidia-cuda-mps-control\0-d\0");
        let both = text(&mps(proc.path()));
        assert!(both.contains("users of MPS") && both.contains("-multiuser-server"), "{both}");
    }
}
