//! The description of this node for the scheduler.

use std::collections::BTreeMap;
use std::fs;

use aliquot_proto::agent::v1 as cluster;
use aliquot_proto::node::v1::{Device, DeviceHealth, Node};

use crate::container;
use crate::settings::{Config, Settings};

/// Processor time and memory of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Machine {
    cpu_millis: u64,
    memory_bytes: u64,
}

impl Machine {
    /// The values of this machine.
    pub(crate) fn this() -> Machine {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine {
            cpu_millis: u64::try_from(processors).unwrap_or(1).saturating_mul(1000),
            memory_bytes: total_memory(&memory).unwrap_or(0),
        }
    }

    /// The part of the machine that jobs may use.
    fn for_jobs(self, settings: &Settings) -> Machine {
        Machine {
            cpu_millis: self.cpu_millis.saturating_sub(settings.reserved_cpu_millis),
            memory_bytes: self.memory_bytes.saturating_sub(settings.reserved_memory_bytes),
        }
    }
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The description of this node for the scheduler. `is_own` says whether a slice of this name belongs to a job.
///
/// A device is healthy for the scheduler only as long as all slices of it belong to jobs. Jobs are promised exact
/// parts, and it is not known what another user of the node will take next. Jobs that run there stay.
pub(crate) fn spec(
    config: &Config,
    machine: Machine,
    node: &Node,
    address: Option<&str>,
    runs_images: bool,
    is_own: impl Fn(&str) -> bool,
) -> cluster::NodeSpec {
    let settings = &config.settings;
    let Machine { cpu_millis, memory_bytes } = machine.for_jobs(settings);
    let groups = nvlink_groups(&node.devices);
    let mut problems: Vec<String> =
        Some(node.problem.clone()).filter(|problem| !problem.is_empty()).into_iter().collect();
    let mut devices = Vec::new();
    for device in node.devices.iter().filter(|device| !device.mig_enabled) {
        let foreign = device.slices.iter().find(|slice| !is_own(slice));
        let is_broken = device.health() != DeviceHealth::Healthy;
        if is_broken {
            problems.push(format!("device {}: {}", device.uuid, device.health_reason));
        } else if let Some(slice) = foreign {
            problems.push(format!("device {}: slice {slice} is not a job's", device.uuid));
        }
        devices.push(cluster::Device {
            uuid: device.uuid.clone(),
            model: device.model.clone(),
            memory_bytes: device.memory_bytes,
            healthy: !is_broken && foreign.is_none(),
            nvlink_group: groups.get(device.uuid.as_str()).copied(),
            numa_node: u32::try_from(device.numa_node).ok(),
            attributes: attributes(device),
        });
    }
    cluster::NodeSpec {
        version: node.manager_version.clone(),
        // Whether containers can run here and find their slices.
        labels: labels(config, node, runs_images && container::finds_slices_in(&node.cdi_dir)),
        taints: settings
            .taints
            .iter()
            .map(|taint| cluster::Taint { key: taint.key.clone(), value: taint.value.clone() })
            .collect(),
        cpu_millis,
        memory_bytes,
        devices,
        cordoned: settings.cordoned,
        address: settings.address.clone().or(address.map(str::to_owned)).unwrap_or_else(|| node.name.clone()),
        problem: problems.join("; "),
        opens_streams: true,
        keeps_secrets: true,
    }
}

fn labels(config: &Config, node: &Node, runs_images: bool) -> std::collections::HashMap<String, String> {
    let own = [
        ("hostname", node.name.clone()),
        ("arch", std::env::consts::ARCH.to_owned()),
        ("driver-version", node.driver_version.clone()),
        ("cuda-version", node.cuda_version.clone()),
        ("images", if runs_images { "podman".to_owned() } else { String::new() }),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.to_owned(), value));
    own.chain(config.settings.labels.clone()).collect()
}

fn attributes(device: &Device) -> std::collections::HashMap<String, String> {
    let known = [
        ("compute-capability", &device.compute_capability),
        ("pci-bus-id", &device.pci_bus_id),
        ("mig-profile", &device.mig_profile),
        ("mig-gpu", &device.mig_gpu_uuid),
    ];
    let known = known.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

/// Numbers the groups of devices that reach each other by NVLink, directly or through other devices.
fn nvlink_groups(devices: &[Device]) -> BTreeMap<&str, u32> {
    let mut groups: BTreeMap<&str, u32> = BTreeMap::new();
    let mut next = 0;
    for device in devices.iter().filter(|device| !device.nvlink_peers.is_empty()) {
        if groups.contains_key(device.uuid.as_str()) {
            continue;
        }
        let mut reached = vec![device];
        while let Some(device) = reached.pop() {
            if groups.insert(&device.uuid, next).is_none() {
                let is_peer = |other: &&Device| {
                    device.nvlink_peers.contains(&other.uuid) || other.nvlink_peers.contains(&device.uuid)
                };
                reached.extend(devices.iter().filter(is_peer));
            }
        }
        next += 1;
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        let settings: Settings = toml::from_str(&format!("scheduler = 'head:1'\n{text}")).unwrap();
        settings.completed(Path::new("/s"), Path::new("/r"), Path::new("/r/manager.sock"), "n").unwrap()
    }

    fn device(name: &str, peers: &[&str]) -> Device {
        Device {
            uuid: name.into(),
            memory_bytes: 80,
            numa_node: -1,
            nvlink_peers: peers.iter().map(|peer| (*peer).to_owned()).collect(),
            health: DeviceHealth::Healthy.into(),
            ..Device::default()
        }
    }

    const MACHINE: Machine = Machine { cpu_millis: 8000, memory_bytes: 4 << 30 };

    #[test]
    fn jobs_get_what_is_not_reserved() {
        let config = config("reserved_cpu_millis = 500\nlabels = { disk = 'ssd' }\naddress = 'n1'");
        let spec =
            spec(&config, MACHINE, &Node { name: "n".into(), ..Node::default() }, Some("10.0.0.1"), true, |_| true);
        assert_eq!((spec.cpu_millis, spec.memory_bytes, spec.address.as_str()), (7500, 3 << 30, "n1"));
        assert_eq!((spec.labels["disk"].as_str(), spec.labels["hostname"].as_str()), ("ssd", "n"));
        assert_eq!(total_memory("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16384));
        assert!(Machine::this().cpu_millis > 0 && Machine::this().memory_bytes > 0);
    }

    #[test]
    fn jobs_with_images_come_only_where_podman_finds_their_slices() {
        let images = |cdi_dir: &str, runs_images| {
            let node = Node { cdi_dir: cdi_dir.into(), ..Node::default() };
            spec(&config(""), MACHINE, &node, None, runs_images, |_| true).labels.get("images").cloned()
        };
        assert_eq!(images("/var/run/cdi", true).as_deref(), Some("podman"));
        for (cdi_dir, runs_images) in [("/var/run/cdi", false), ("", true), ("/srv/cdi", true)] {
            assert_eq!(images(cdi_dir, runs_images), None, "{cdi_dir:?} {runs_images}");
        }
    }

    #[test]
    fn a_device_of_which_another_has_a_slice_gets_no_jobs() {
        let devices = vec![
            Device { slices: vec!["job-1-1".into()], ..device("a", &[]) },
            Device { slices: vec!["job-1-2".into(), "train".into()], ..device("b", &[]) },
            Device { health: DeviceHealth::Unhealthy.into(), health_reason: "Xid 79".into(), ..device("c", &[]) },
            Device { mig_enabled: true, ..device("d", &[]) },
        ];
        let node = Node { devices, ..Node::default() };
        let spec = spec(&config(""), MACHINE, &node, None, false, |slice| slice.starts_with("job-"));
        let healthy: Vec<_> = spec.devices.iter().map(|device| (device.uuid.as_str(), device.healthy)).collect();
        assert_eq!(healthy, [("a", true), ("b", false), ("c", false)]);
        assert!(spec.problem.contains("train") && spec.problem.contains("Xid 79"), "{}", spec.problem);
    }

    #[test]
    fn devices_that_reach_each_other_are_one_group() {
        let devices = [
            device("a", &["b"]),
            device("b", &["a", "c"]),
            device("c", &[]),
            device("d", &[]),
            device("e", &["f"]),
            device("f", &["e"]),
        ];
        let groups = nvlink_groups(&devices);
        let all: Vec<_> = devices.iter().map(|device| groups.get(device.uuid.as_str()).copied()).collect();
        assert_eq!(all, [Some(0), Some(0), Some(0), None, Some(1), Some(1)]);
    }
}
