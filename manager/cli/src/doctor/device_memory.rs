//! Whether the kernel gives out device memory by itself. No call of the driver allocates such memory, so no slice limits it.

use std::fs;
use std::path::{Path, PathBuf};

use super::finding::Finding;

/// Findings about this machine, whose root directory is `root`.
pub(super) fn findings(root: &Path) -> Vec<Finding> {
    numa_nodes(root).into_iter().chain(migration(root)).collect()
}

/// GPUs whose memory is a NUMA node of the kernel (GH200, GB200), which `malloc` draws from. The driver has this file
/// only for such GPUs.
fn numa_nodes(root: &Path) -> Option<Finding> {
    let gpus = fs::read_dir(root.join("proc/driver/nvidia/gpus")).into_iter().flatten().flatten();
    let states = gpus.filter_map(|gpu| fs::read_to_string(gpu.path().join("numa_status")).ok());
    let mut nodes: Vec<String> = states.filter_map(|text| node_in_use(&text)).collect();
    nodes.sort_unstable();
    let list = nodes.join(",");
    (!nodes.is_empty()).then(|| {
        Finding::warn(
            "GPU memory as NUMA nodes",
            format!("the kernel gives out memory of the GPUs (nodes {list}), which no slice limits"),
            "set NVreg_CoherentGPUMemoryMode=driver for the module nvidia (R580 or later), or keep these nodes out of \
             containers' cpuset.mems",
        )
    })
}

/// The number of the node, unless the kernel does not have it now.
fn node_in_use(text: &str) -> Option<String> {
    let field = |name| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
    // The GPU's memory may come online at any moment, unless it has no node.
    let node = field("Node:").filter(|node| !node.starts_with('-'))?;
    (field("Status:") != Some("offline")).then(|| node.to_owned())
}

/// HMM: pages of `malloc` that a kernel touches move to the device. Only the open modules have it, on Linux 6.1 or later.
fn migration(root: &Path) -> Option<Finding> {
    let read = |path: &str| fs::read_to_string(root.join(PathBuf::from(path))).unwrap_or_default();
    let is_open = read("proc/driver/nvidia/version").contains("Open Kernel Module");
    let is_on = read("sys/module/nvidia_uvm/parameters/uvm_disable_hmm").trim() == "N";
    let kernel = read("proc/sys/kernel/osrelease");
    let mut numbers = kernel.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let is_new = (numbers.next(), numbers.next()) >= (Some(6), Some(1));
    (is_open && is_on && is_new).then(|| {
        Finding::warn(
            "HMM",
            "pages of the host that kernels touch can move into device memory, which no slice limits",
            "set uvm_disable_hmm=1 for the module nvidia-uvm (/etc/modprobe.d), and load it anew",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's root directory with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn text(files: &[(&str, &str)]) -> String {
        findings(machine(files).path()).iter().map(|finding| finding.text(0, false)).collect()
    }

    #[test]
    fn memory_of_gpus_that_the_kernel_gives_out_is_told() {
        let gpu = |bus: &str| format!("proc/driver/nvidia/gpus/0009:{bus}:00.0/numa_status");
        let state =
            |node: &str, status: &str| format!("Node:      {node}\nStatus:    {status}\nSize:      1780000000\n");
        let (first, second, third) = (gpu("01"), gpu("02"), gpu("03"));
        let machine = |status: &str| {
            let states = [state("9", status), state("2", "online"), state("-1", "online")];
            text(&[(&first, &states[0]), (&second, &states[1]), (&third, &states[2])])
        };
        assert!(machine("online").contains("(nodes 2,9)"), "{}", machine("online"));
        assert!(machine("offline").contains("(nodes 2)"), "{}", machine("offline"));
        assert_eq!(text(&[(&first, &state("2", "offline"))]), "");
        assert_eq!(text(&[("proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t\t NVIDIA H100\n")]), "");
    }

    #[test]
    fn pages_that_move_to_the_device_are_told() {
        let machine = |module: &str, disabled: &str, kernel: &str| {
            text(&[
                ("proc/driver/nvidia/version", module),
                ("sys/module/nvidia_uvm/parameters/uvm_disable_hmm", disabled),
                ("proc/sys/kernel/osrelease", kernel),
            ])
        };
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n";
        for kernel in ["6.1.24-1-amd64\n", "6.17.0\n", "10.0\n"] {
            let found = machine(open, "N\n", kernel);
            assert!(found.contains("HMM") && found.contains("uvm_disable_hmm=1"), "{kernel}: {found}");
        }
        assert_eq!(machine(open, "Y\n", "6.8.0"), "");
        assert_eq!(machine(open, "N\n", "5.15.0-112-generic"), "");
        assert_eq!(machine("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n", "N\n", "6.8.0"), "");
        assert_eq!(text(&[]), "");
    }
}
