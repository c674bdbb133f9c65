//! A node for tests: devices and slices in memory, with the rules that hold on any node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use aliquot_dialects::{Container, Pod};
use aliquot_node::{
    Consumer, CreateError, Device, Devices, Enforcement, MigInstance, MigProfile, Node, NodeError, NodeUsage, Part,
    Partition, Partitioning, Placement, Shortcoming, Slice, SliceRequest,
};
use tokio::sync::watch;

use super::resource::Room;
use crate::pod_resources::Holder;

pub(crate) const GIB: u64 = 1 << 30;

/// Device `number`, with `memory_gib` GiB.
pub(crate) fn device(number: u32, memory_gib: u64) -> Device {
    Device {
        uuid: format!("GPU-00000000-0000-0000-0000-{number:012x}"),
        index: number,
        model: "NVIDIA A100-SXM4-80GB".into(),
        memory_bytes: memory_gib * GIB,
        compute_capability: Some((8, 0)),
        pci_bus_id: None,
        pcie_root: None,
        numa_node: None,
        nvlink_peers: Vec::new(),
        is_partitioned: false,
        partitioning: None,
        mig_instance: None,
        enforcement: Enforcement::Shares,
        problem: None,
    }
}

/// An instance of device 0.
pub(crate) fn mig_instance(number: u32, profile: &str) -> Device {
    let mut found = device(0, 10);
    found.uuid = format!("MIG-00000000-0000-0000-0000-{number:012x}");
    found.mig_instance = Some(MigInstance { gpu_uuid: device(0, 80).uuid, profile: profile.into(), placement: None });
    found
}

/// Device `number` in MIG mode, of four memory slices with 10 GiB each, for instances of one, two, and all of them.
pub(crate) fn partitionable(number: u32) -> Device {
    let profile = |name: &str, size: u32, compute_slices: u32| MigProfile {
        name: name.into(),
        memory_bytes: u64::from(size) * 10 * GIB,
        units: BTreeMap::from([("compute-slices".to_owned(), compute_slices)]),
        placements: (0..4).step_by(size as usize).map(|start| Placement { start, size }).collect(),
    };
    let profiles = vec![profile("1g.10gb", 1, 1), profile("2g.20gb", 2, 2), profile("4g.40gb", 4, 4)];
    let partitioning = Some(Partitioning { profiles, occupied: Vec::new() });
    Device { is_partitioned: true, partitioning, ..device(number, 40) }
}

/// A slice of one device.
pub(crate) fn slice_of(name: &str, device: &Device, core_percent: u32, memory_bytes: u64) -> Slice {
    let part = Part {
        device_uuid: device.uuid.clone(),
        core_request_percent: core_percent,
        core_limit_percent: core_percent,
        memory_limit_bytes: memory_bytes,
    };
    made(SliceRequest { name: name.into(), parts: vec![part], ..SliceRequest::default() })
}

fn made(content: SliceRequest) -> Slice {
    let cdi_device = format!("aliquot.dev/slice={}", content.name);
    Slice { content, cdi_device, processes: 0, consumers: BTreeSet::new() }
}

/// A holder: the only container of a pod has these units of one resource.
pub(crate) fn holder(pod: &str, resource: &str, ids: &[&str]) -> Holder {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    Holder {
        consumer: Consumer { namespace: "default".into(), pod: pod.into(), container: "main".into() },
        devices: BTreeMap::from([(resource.to_owned(), ids)]),
        cdi_devices: BTreeSet::new(),
    }
}

/// A pod with one container.
pub(crate) fn pod(container: &str, resources: &[(&str, &str)], annotations: &[(&str, &str)]) -> Pod {
    let owned = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let container = Container { name: container.into(), resources: owned(resources) };
    Pod { annotations: owned(annotations), containers: vec![container], ..Pod::default() }
}

/// A node that gives out the parts that it has, and no more.
pub(crate) struct TestNode {
    devices: watch::Sender<Arc<Devices>>,
    slices: Mutex<BTreeMap<String, Slice>>,
    refuses_slices: AtomicBool,
    uses_instances: AtomicBool,
    /// Slices of containers that run.
    running: Mutex<BTreeSet<String>>,
    /// How many slices were read for answers.
    looked_at: AtomicUsize,
    shortcoming: Mutex<Option<Shortcoming>>,
}

impl TestNode {
    pub(crate) fn new(devices: Vec<Device>) -> Arc<TestNode> {
        let devices = watch::Sender::new(Arc::new(Devices { devices, ..Devices::default() }));
        Arc::new(TestNode {
            devices,
            slices: Mutex::default(),
            refuses_slices: AtomicBool::new(false),
            uses_instances: AtomicBool::new(false),
            running: Mutex::default(),
            looked_at: AtomicUsize::new(0),
            shortcoming: Mutex::default(),
        })
    }

    /// Makes the node refuse all further slices.
    pub(crate) fn refuse_slices(&self) {
        self.refuses_slices.store(true, Ordering::Relaxed);
    }

    /// Sets whether programs use the instances, so that none can be destroyed.
    pub(crate) fn set_uses_instances(&self, are_used: bool) {
        self.uses_instances.store(are_used, Ordering::Relaxed);
    }

    /// Changes a device, and publishes the devices.
    pub(crate) fn change(&self, number: usize, change: impl FnOnce(&mut Device)) {
        self.devices.send_modify(|devices| change(&mut Arc::make_mut(devices).devices[number]));
    }

    /// Sets the number of processes in a slice.
    pub(crate) fn set_processes(&self, name: &str, processes: usize) {
        self.slices().get_mut(name).expect("a slice of that name").processes = processes;
    }

    /// Sets whether a container runs that was given a slice, without a process in it.
    pub(crate) fn set_running(&self, name: &str, runs: bool) {
        let mut running = self.running.lock().expect("no test panics while it holds this");
        if runs {
            running.insert(name.into())
        } else {
            running.remove(name)
        };
    }

    /// How many slices were read for answers so far.
    pub(crate) fn looked_at(&self) -> usize {
        self.looked_at.load(Ordering::Relaxed)
    }

    /// What the cluster lacks.
    pub(crate) fn shortcoming(&self) -> Option<Shortcoming> {
        self.shortcoming.lock().expect("no test panics while it holds this").clone()
    }

    fn look_at(&self, slices: Vec<Slice>) -> Vec<Slice> {
        self.looked_at.fetch_add(slices.len(), Ordering::Relaxed);
        slices
    }

    fn slices(&self) -> MutexGuard<'_, BTreeMap<String, Slice>> {
        self.slices.lock().expect("no test panics while it holds this")
    }
}

fn occupied_of<'devices>(devices: &'devices mut [Device], partition: &Partition) -> &'devices mut Vec<Placement> {
    let gpu = devices.iter_mut().find(|device| device.uuid == partition.gpu_uuid).expect("a GPU");
    &mut gpu.partitioning.as_mut().expect("a GPU in MIG mode").occupied
}

impl Node for TestNode {
    fn devices(&self) -> watch::Receiver<Arc<Devices>> {
        self.devices.subscribe()
    }

    fn look(&self) -> Result<(), NodeError> {
        Ok(())
    }

    fn create_instance(&self, partition: &Partition) -> Result<Device, NodeError> {
        let devices = Devices::clone(&self.devices.borrow());
        let gpu = devices.get(&partition.gpu_uuid).expect("a GPU");
        let Partitioning { profiles, occupied } = gpu.partitioning.as_ref().expect("a GPU in MIG mode");
        if occupied.iter().any(|other| other.overlaps(partition.placement)) {
            return Err(NodeError("Insufficient Resources".into()));
        }
        let profile = profiles.iter().find(|profile| profile.name == partition.profile).expect("a profile");
        let Placement { start, size } = partition.placement;
        let instance = Device {
            uuid: format!("MIG-{size:08}-{start:04}-0000-0000-{:012}", gpu.index),
            memory_bytes: profile.memory_bytes,
            is_partitioned: false,
            partitioning: None,
            mig_instance: Some(MigInstance {
                gpu_uuid: gpu.uuid.clone(),
                profile: profile.name.clone(),
                placement: Some(partition.placement),
            }),
            ..gpu.clone()
        };
        self.devices.send_modify(|devices| {
            let devices = &mut Arc::make_mut(devices).devices;
            devices.push(instance.clone());
            occupied_of(devices, partition).push(partition.placement);
        });
        Ok(instance)
    }

    fn destroy_instance(&self, partition: &Partition) -> Result<(), NodeError> {
        if self.devices.borrow().get(&partition.gpu_uuid).is_none_or(|gpu| gpu.problem.is_some()) {
            return Err(NodeError("GPU is lost".into()));
        }
        if self.uses_instances.load(Ordering::Relaxed) {
            return Err(NodeError("In use by another client".into()));
        }
        let is_it = |device: &Device| {
            device.mig_instance.as_ref().is_some_and(|instance| {
                (&instance.gpu_uuid, &instance.profile) == (&partition.gpu_uuid, &partition.profile)
                    && instance.placement == Some(partition.placement)
            })
        };
        self.devices.send_modify(|devices| {
            let devices = &mut Arc::make_mut(devices).devices;
            if devices.iter().any(is_it) {
                occupied_of(devices, partition).retain(|placement| *placement != partition.placement);
            }
            devices.retain(|device| !is_it(device));
        });
        Ok(())
    }

    fn create(&self, request: &SliceRequest) -> Result<Slice, CreateError> {
        if self.refuses_slices.load(Ordering::Relaxed) {
            return Err(NodeError("the disk is full".into()).into());
        }
        let mut slices = self.slices();
        if let Some(slice) = slices.get(&request.name) {
            let differs = CreateError::Differs { name: request.name.clone(), difference: "content".into() };
            return if slice.content == *request { Ok(slice.clone()) } else { Err(differs) };
        }
        let known: Vec<Slice> = slices.values().cloned().collect();
        let aliases = |slice: &Slice| !slice.content.aliases.is_disjoint(&request.aliases);
        if known.iter().any(aliases) {
            return Err(CreateError::Invalid("an alias is another slice's".into()));
        }
        for part in &request.parts {
            let devices = self.devices.borrow();
            let Some(device) = devices.get(&part.device_uuid) else {
                return Err(CreateError::Invalid(format!("no device {}", part.device_uuid)));
            };
            let room = Room::of(device, &known);
            if part.core_request_percent > room.core_percent || part.memory_limit_bytes > room.memory_bytes {
                return Err(CreateError::Unavailable(format!("no room on {}", device.uuid)));
            }
        }
        let slice = made(request.clone());
        slices.insert(request.name.clone(), slice.clone());
        Ok(slice)
    }

    fn remove(&self, name: &str) -> Result<(), NodeError> {
        self.slices().remove(name);
        Ok(())
    }

    fn remove_unused(&self, name: &str) -> Result<bool, NodeError> {
        let runs = self.running.lock().expect("no test panics while it holds this").contains(name);
        let mut slices = self.slices();
        let is_used = runs || slices.get(name).is_some_and(|slice| slice.processes > 0);
        if !is_used {
            slices.remove(name);
        }
        Ok(!is_used)
    }

    fn get(&self, name: &str) -> Option<Slice> {
        self.slices().get(name).cloned()
    }

    fn list(&self) -> Vec<Slice> {
        self.look_at(self.slices().values().cloned().collect())
    }

    fn list_beginning_with(&self, prefix: &str) -> Vec<Slice> {
        let slices = self.slices();
        let from = slices.range(prefix.to_owned()..);
        self.look_at(from.take_while(|(name, _)| name.starts_with(prefix)).map(|(_, slice)| slice.clone()).collect())
    }

    fn usage(&self) -> NodeUsage {
        NodeUsage::default()
    }

    fn set_consumers(&self, name: &str, consumers: &BTreeSet<Consumer>) {
        if let Some(slice) = self.slices().get_mut(name) {
            slice.consumers.clone_from(consumers);
        }
    }

    fn set_shortcoming(&self, shortcoming: Option<Shortcoming>) {
        *self.shortcoming.lock().expect("no test panics while it holds this") = shortcoming;
    }
}
