//! The devices of nodes, from the inventories that their managers publish, and requests for parts of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_api_server::{Inventory, InventoryDevice};
use aliquot_dialects::{DecidedPart, Decision, Memory, NodeFacts, Pod, Refusal, Share, Spoken, Wish};
use aliquot_scheduler_core::{
    Bytes, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, FurtherRequest, FurtherRequests, Health, Texts,
};
use aliquot_scheduler_engine::DevicePart;

use crate::elastic::{Asked, BoundPart};
use crate::wanted::{self, Wanted};

/// The attribute of a device that holds its UUID.
pub(crate) const UUID: &str = "uuid";
/// The attribute of devices of an inventory, which are given out by a device plugin and not by claims.
pub(crate) const BY_PLUGIN: &str = "given out by a device plugin";
/// The attribute of a device that holds its MIG profile; empty for a whole GPU.
const MIG_PROFILE: &str = "migProfile";

/// How requests are read on all nodes, and the devices that requests can mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) spoken: Spoken,
    pub(crate) facts: NodeFacts,
    /// The models of all devices.
    pub(crate) models: BTreeSet<String>,
    /// The sizes of all devices' memory.
    pub(crate) memory_bytes: BTreeSet<u64>,
    /// Some nodes give out devices by claims.
    pub(crate) has_claimed_devices: bool,
    /// Extended resources that no node has, with the device classes that stand for them.
    pub(crate) classes: BTreeMap<String, String>,
}

impl Default for Reading {
    fn default() -> Reading {
        let spoken = Spoken::new([]).expect("Aliquot's own words do not clash with themselves");
        Reading {
            spoken,
            facts: NodeFacts::default(),
            models: BTreeSet::new(),
            memory_bytes: BTreeSet::new(),
            has_claimed_devices: false,
            classes: BTreeMap::new(),
        }
    }
}

/// What a pod asks for of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The container that gets the parts.
    pub(crate) container: String,
    pub(crate) devices: DeviceRequest,
    /// The models that will do; empty: any.
    pub(crate) models: BTreeSet<String>,
    pub(crate) attributes: BTreeMap<String, String>,
    /// The part of a device that the container gets by its claim. Its room is kept for the claim already.
    pub(crate) kept: Option<BoundPart>,
}

impl Reading {
    /// What each container of a pod asks for of devices. Containers that ask for none are left out. `of_claim`: what an
    /// `ElasticGPUClaim` of this name asks for.
    ///
    /// # Errors
    /// A request is not valid, or not supported.
    pub(crate) fn asks(&self, pod: &Pod, of_claim: impl Fn(&str) -> Result<Asked, String>) -> Result<Vec<Ask>, String> {
        let mut asks = Vec::new();
        for (index, container) in pod.containers.iter().enumerate() {
            let of_container = |why: String| format!("container {:?}: {why}", container.name);
            let mut kept = None;
            let wish = match pod.elastic_gpu_claim(index) {
                Some(claim) => {
                    let asked = of_claim(claim).map_err(of_container)?;
                    kept.clone_from(&asked.bound_to);
                    self.claimed(pod, index, asked).map(Some)
                }
                None => self.spoken.translate(pod, index, &self.facts),
            };
            if let Some(wish) = wish.map_err(|refusal| of_container(refusal.to_string()))? {
                let ask = self.of_wish(&container.name, &wish).map_err(of_container)?;
                asks.push(Ask { kept, ..ask });
            }
        }
        Ok(asks)
    }

    fn claimed(&self, pod: &Pod, index: usize, asked: Asked) -> Result<Wish, Refusal> {
        let amounts = (asked.core_percent, asked.memory_bytes);
        let mut wish = self.spoken.translate_claim(pod, index, &self.facts, amounts)?;
        wish.constraints.models = asked.models;
        wish.constraints.uuids = asked.bound_to.map(|part| part.device).into_iter().collect();
        Ok(wish)
    }

    /// Whether it is certain that a pod asks for no device.
    pub(crate) fn asks_for_none(&self, pod: &Pod) -> bool {
        (0..pod.containers.len()).all(|index| matches!(self.spoken.translate(pod, index, &self.facts), Ok(None)))
    }

    /// What containers ask for, in the words of the books.
    pub(crate) fn wanted(&self, asks: &[Ask]) -> Result<Wanted, String> {
        let of_container = |ask: &Ask| {
            let mut attributes = ask.attributes.clone();
            if self.has_claimed_devices {
                attributes.insert(BY_PLUGIN.to_owned(), "true".to_owned());
            }
            FurtherRequest { name: String::new(), devices: ask.devices, models: ask.models.clone(), attributes }
        };
        let wishes = asks.iter().map(|ask| wanted::Wish { of: &ask.container, choices: vec![of_container(ask)] });
        Wanted::of(wishes.collect(), Vec::new(), |_| Vec::new())
    }

    fn of_wish(&self, container: &str, wish: &Wish) -> Result<Ask, String> {
        let (core_percent, memory) = match wish.share {
            Share::Whole => (100, DeviceMemory::Thousandths(1000)),
            Share::ByCore(core) => (core.request_percent, DeviceMemory::Thousandths(core.request_percent * 10)),
            Share::Both { core, memory } => (core.request_percent, rounded_up(memory)),
            Share::ByMemory { memory, .. } => (self.core_of_memory(wish, memory), rounded_up(memory)),
        };
        let mut attributes = BTreeMap::new();
        let constraints = &wish.constraints;
        if constraints.one_numa_node {
            return Err("it asks for devices of one NUMA node, which Aliquot's scheduler does not support yet".into());
        }
        match constraints.uuids.as_slice() {
            _ if !constraints.not_uuids.is_empty() => {
                return Err("it excludes devices by UUID, which Aliquot's scheduler does not support yet".into());
            }
            [] => {}
            [uuid] => _ = attributes.insert(UUID.to_owned(), uuid.clone()),
            _ => return Err("it names several devices, of which Aliquot's scheduler supports only one yet".into()),
        }
        match &constraints.mig_profile {
            Some(profile) => _ = attributes.insert(MIG_PROFILE.to_owned(), profile.clone()),
            None if wish.share == Share::Whole => _ = attributes.insert(MIG_PROFILE.to_owned(), String::new()),
            None => {}
        }
        let count = u16::try_from(wish.devices).map_err(|_| format!("{} devices are too many", wish.devices))?;
        let devices = DeviceRequest { count, core: DeviceCore::new(core_percent * 10), memory };
        Ok(Ask { container: container.to_owned(), devices, models: self.models_for(wish), attributes, kept: None })
    }

    /// The models that a wish allows; empty: any.
    fn models_for(&self, wish: &Wish) -> BTreeSet<String> {
        let (only, never) = (&wish.constraints.models, &wish.constraints.not_models);
        if only.is_empty() && never.is_empty() {
            return BTreeSet::new();
        }
        let is_of = |model: &str, patterns: &[String]| {
            patterns.iter().any(|pattern| model.to_lowercase().contains(&pattern.to_lowercase()))
        };
        let allowed = |model: &&String| (only.is_empty() || is_of(model, only)) && !is_of(model, never);
        let found: BTreeSet<String> = self.models.iter().filter(allowed).cloned().collect();
        match found.is_empty() {
            // No device will do. The reason that is given names what is missing.
            true => BTreeSet::from([if only.is_empty() {
                format!("other than {}", never.join(", "))
            } else {
                only.join(" or ")
            }]),
            false => found,
        }
    }

    /// The time that comes with a request for memory alone: the same part of the device's time as of its memory. The
    /// device is not known yet, so the smallest one that will do counts, of which the part is the largest.
    fn core_of_memory(&self, wish: &Wish, memory: Memory) -> u32 {
        let sizes = self.memory_bytes.iter().copied();
        let smallest = match memory {
            Memory::Bytes(bytes) => sizes.filter(|size| *size >= bytes).min(),
            Memory::PartsPerMillion(_) => sizes.min(),
        };
        smallest.map_or(1, |size| wish.share.on(size).core_request_percent)
    }

    /// Whether a resource asks for devices here. Such a resource is not counted on nodes.
    pub(crate) fn is_of_devices(&self, resource: &str) -> bool {
        self.spoken.is_resource(resource) || self.classes.contains_key(resource)
    }
}

/// The memory in the books' words: never less than what was asked for.
fn rounded_up(memory: Memory) -> DeviceMemory {
    match memory {
        Memory::Bytes(bytes) => DeviceMemory::Bytes(Bytes::new(bytes)),
        Memory::PartsPerMillion(parts) => DeviceMemory::Thousandths(parts.div_ceil(1000).min(1000)),
    }
}

/// A node's devices in the words of the books. `may_give_out`: whether anything of them may be given out now.
pub(crate) fn specs(inventory: &Inventory, may_give_out: bool) -> Vec<DeviceSpec> {
    let devices = &inventory.devices;
    let groups = nvlink_groups(devices);
    let mut roots: BTreeMap<&str, u16> = BTreeMap::new();
    let mut specs = Vec::with_capacity(devices.len());
    for (device, nvlink_group) in devices.iter().zip(groups) {
        let next = u16::try_from(roots.len()).unwrap_or(u16::MAX);
        let switch = device.pcie_root.as_deref().map(|root| *roots.entry(root).or_insert(next));
        let is_healthy = device.problem.is_none() && may_give_out;
        specs.push(DeviceSpec {
            uuid: device.uuid.clone(),
            model: device.model.clone(),
            memory: Bytes::new(device.memory_bytes),
            health: if is_healthy { Health::Healthy } else { Health::Unhealthy },
            nvlink_group,
            switch,
            numa: device.numa_node.and_then(|numa| u16::try_from(numa).ok()),
            attributes: Texts::from([
                (UUID.to_owned(), device.uuid.clone()),
                (BY_PLUGIN.to_owned(), "true".to_owned()),
                (MIG_PROFILE.to_owned(), device.mig_profile.clone().unwrap_or_default()),
            ]),
            ..DeviceSpec::default()
        });
    }
    specs
}

/// A device of which pods have parts, but which its node does not report.
pub(crate) fn unknown(uuid: &str, held_bytes: u64) -> DeviceSpec {
    DeviceSpec {
        uuid: uuid.to_owned(),
        memory: Bytes::new(held_bytes),
        health: Health::Unhealthy,
        ..DeviceSpec::default()
    }
}

/// By device, the number of its group: devices of a group reach each other by NVLink. `None`: it has no such link.
fn nvlink_groups(devices: &[InventoryDevice]) -> Vec<Option<u16>> {
    let number = |uuid: &String| devices.iter().position(|device| device.uuid == *uuid);
    let mut groups: Vec<Option<u16>> = vec![None; devices.len()];
    let mut next = 0;
    for first in 0..devices.len() {
        if groups[first].is_some() || devices[first].nvlink_peers.is_empty() {
            continue;
        }
        let mut left = vec![first];
        while let Some(device) = left.pop() {
            if groups[device].replace(next).is_none() {
                left.extend(
                    devices[device].nvlink_peers.iter().filter_map(number).filter(|peer| groups[*peer].is_none()),
                );
            }
        }
        next += 1;
    }
    groups
}

/// The parts of devices that a pod's decision names, as the engine knows them.
pub(crate) fn decided<'a>(parts: impl Iterator<Item = &'a DecidedPart>) -> Vec<DevicePart> {
    let part = |part: &DecidedPart| DevicePart {
        uuid: part.uuid.clone(),
        core: DeviceCore::new(part.core_thousandths),
        memory: Bytes::new(part.memory_bytes),
    };
    parts.map(part).collect()
}

/// The decision that gives these containers so many of these parts each, in this order, and the kept parts to theirs;
/// `None`: there are no parts.
pub(crate) fn decision(
    containers: &[(String, usize)],
    parts: &[DevicePart],
    kept: &[(String, DevicePart)],
) -> Option<Decision> {
    let part = |part: &DevicePart| DecidedPart {
        uuid: part.uuid.clone(),
        core_thousandths: part.core.get(),
        memory_bytes: part.memory.get(),
    };
    let mut parts = parts.iter().map(part);
    let mut of_container = |(name, count): &(String, usize)| {
        let parts: Vec<DecidedPart> = parts.by_ref().take(*count).collect();
        (!parts.is_empty()).then(|| (name.clone(), parts))
    };
    let mut containers: BTreeMap<String, Vec<DecidedPart>> = containers.iter().filter_map(&mut of_container).collect();
    containers.extend(kept.iter().map(|(name, of)| (name.clone(), vec![part(of)])));
    (!containers.is_empty()).then_some(Decision { containers })
}

/// The requests of a pod that has these parts already, whatever its words mean today.
pub(crate) fn requests_of(parts: &[DevicePart]) -> (DeviceRequest, Option<Arc<FurtherRequests>>) {
    FurtherRequests::for_parts(parts.iter().map(|part| (part.uuid.as_str(), part.core, part.memory)))
}

#[cfg(test)]
mod tests {
    use aliquot_dialects::{Container, Dialect};
    use aliquot_scheduler_core::Request;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn pod(containers: &[&[(&str, &str)]], annotations: &[(&str, &str)]) -> Pod {
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let container = |(number, resources): (usize, &&[(&str, &str)])| Container {
            name: format!("c{number}"),
            resources: resources.iter().map(text).collect(),
        };
        Pod {
            annotations: annotations.iter().map(text).collect(),
            containers: containers.iter().enumerate().map(container).collect(),
            ..Pod::default()
        }
    }

    fn reading() -> Reading {
        Reading {
            spoken: Spoken::new([Dialect::Hami, Dialect::GpuShare]).unwrap(),
            models: ["NVIDIA H100", "NVIDIA A100", "Tesla T4"].map(str::to_owned).into(),
            memory_bytes: [16 * GIB, 80 * GIB].into(),
            ..Reading::default()
        }
    }

    fn request(count: u16, core: u32, memory: DeviceMemory) -> DeviceRequest {
        DeviceRequest { count, core: DeviceCore::new(core), memory }
    }

    fn asked_by(pod: &Pod) -> Result<Vec<Ask>, String> {
        reading().asks(pod, |claim| Err(format!("there is no {claim}")))
    }

    #[test]
    fn words_become_parts_of_devices() {
        let bytes = |bytes| DeviceMemory::Bytes(Bytes::new(bytes));
        for (resources, expected) in [
            (&[("aliquot.dev/gpu-core", "30"), ("aliquot.dev/gpu-memory", "32")][..], request(1, 300, bytes(8 * GIB))),
            (&[("aliquot.dev/gpu-core", "25")], request(1, 250, DeviceMemory::Thousandths(250))),
            (&[("aliquot.dev/gpu-core", "200")], request(2, 1000, DeviceMemory::Thousandths(1000))),
            // A tenth of 80 GiB is half of 16 GiB, the smallest device that has so much.
            (&[("aliyun.com/gpu-mem", "8")], request(1, 500, bytes(8 * GIB))),
            (&[("aliyun.com/gpu-mem", "40")], request(1, 500, bytes(40 * GIB))),
            (
                &[("nvidia.com/gpu", "2"), ("nvidia.com/gpumem", "1024"), ("nvidia.com/gpucores", "10")],
                request(2, 100, bytes(GIB)),
            ),
        ] {
            let asks = asked_by(&pod(&[&[], resources], &[])).unwrap();
            assert_eq!((asks[0].devices, asks[0].container.as_str()), (expected, "c1"), "{resources:?}");
        }
        assert_eq!(asked_by(&pod(&[&[("cpu", "1")]], &[])), Ok(Vec::new()));
    }

    #[test]
    fn the_words_of_kai_are_those_of_its_annotations() {
        let spoken = Spoken::new([Dialect::Kai]).unwrap();
        let reading = Reading { spoken, ..reading() };
        let one = [("aliquot.dev/kai-gpu", "1")];
        let asked = |pod: &Pod| reading.asks(pod, |_| Err(String::new()));
        let two = pod(&[&[], &one], &[("gpu-fraction", "0.25"), ("gpu-fraction-num-devices", "2")]);
        let missing = asked(&two).unwrap_err();
        assert!(
            missing.contains("container \"c0\": gpu-fraction has no effect without aliquot.dev/kai-gpu"),
            "{missing}"
        );
        let two = pod(&[&one, &[]], &[("gpu-fraction", "0.25"), ("gpu-fraction-num-devices", "2")]);
        assert_eq!(asked(&two).unwrap()[0].devices, request(2, 250, DeviceMemory::Thousandths(250)));
        let memory = pod(&[&one], &[("gpu-memory", "4096")]);
        let bytes = DeviceMemory::Bytes(Bytes::new(4 * GIB));
        assert_eq!(asked(&memory).unwrap()[0].devices, request(1, 250, bytes));
        assert!(reading.is_of_devices("aliquot.dev/kai-gpu"));
    }

    #[test]
    fn each_container_has_its_own_parts_in_a_decision() {
        let core = |percent| vec![("aliquot.dev/gpu-core", percent)];
        let (small, two) = (core("30"), core("200"));
        let asks = asked_by(&pod(&[&small, &[], &two], &[])).unwrap();
        let containers: Vec<(String, usize)> =
            asks.iter().map(|ask| (ask.container.clone(), ask.devices.count.into())).collect();
        assert_eq!(containers, [("c0".to_owned(), 1), ("c2".to_owned(), 2)]);
        let mut request = Request::default();
        reading().wanted(&asks).unwrap().add_to(&mut request);
        assert_eq!((request.device_count(), request.total_core()), (3, 2300));
        let part =
            |uuid: &str, core| DevicePart { uuid: uuid.into(), core: DeviceCore::new(core), memory: Bytes::ZERO };
        let parts = [part("a", 300), part("b", 1000), part("c", 1000)];
        let decision = decision(&containers, &parts, &[]).unwrap().to_string();
        assert_eq!(decision, "c0=a/300/0;c2=b/1000/0,c/1000/0");
        assert_eq!(super::decision(&[], &parts, &[]), None);
        let error = asked_by(&pod(&[&core("0")], &[])).unwrap_err();
        assert!(error.starts_with("container \"c0\": aliquot.dev/gpu-core is \"0\""), "{error}");
    }

    #[test]
    fn models_are_those_whose_names_contain_the_words() {
        let models = |key: &str, value: &str| {
            let asked = [("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "1024")];
            asked_by(&pod(&[&asked], &[(key, value)])).unwrap().remove(0).models
        };
        assert_eq!(models("nvidia.com/use-gputype", "a100,t4"), ["NVIDIA A100", "Tesla T4"].map(str::to_owned).into());
        assert_eq!(models("nvidia.com/nouse-gputype", "nvidia"), ["Tesla T4".to_owned()].into());
        assert_eq!(models("nvidia.com/use-gputype", "b200"), ["b200".to_owned()].into());
    }

    #[test]
    fn devices_that_links_connect_are_one_group() {
        let device = |uuid: &str, peers: &[&str], root: &str| InventoryDevice {
            uuid: uuid.into(),
            nvlink_peers: peers.iter().map(|peer| (*peer).to_owned()).collect(),
            pcie_root: Some(root.into()),
            problem: (uuid == "d").then(|| "Xid 79".to_owned()),
            ..InventoryDevice::default()
        };
        let devices = vec![
            device("a", &["b"], "x"),
            device("b", &["a", "c"], "y"),
            device("c", &["b"], "x"),
            device("d", &[], "y"),
        ];
        let inventory = Inventory { devices, ..Inventory::default() };
        let found = specs(&inventory, true);
        let groups: Vec<Option<u16>> = found.iter().map(|spec| spec.nvlink_group).collect();
        assert_eq!(groups, [Some(0), Some(0), Some(0), None]);
        let switches: Vec<Option<u16>> = found.iter().map(|spec| spec.switch).collect();
        assert_eq!(switches, [Some(0), Some(1), Some(0), Some(1)]);
        let healthy: Vec<bool> = found.iter().map(|spec| spec.health == Health::Healthy).collect();
        assert_eq!(healthy, [true, true, true, false]);
        assert!(specs(&inventory, false).iter().all(|spec| spec.health == Health::Unhealthy));
    }

    #[test]
    fn what_a_pod_has_is_what_it_asks_for() {
        let part = |uuid: &str| DecidedPart { uuid: uuid.into(), core_thousandths: 300, memory_bytes: 8 * GIB };
        let parts = decided([part("a"), part("b")].iter());
        assert_eq!(requests_of(&parts), (request(2, 300, DeviceMemory::Bytes(Bytes::new(8 * GIB))), None));
        let decided = decision(&[("main".to_owned(), 2)], &parts, &[]).unwrap();
        assert_eq!(decided.containers, BTreeMap::from([("main".to_owned(), vec![part("a"), part("b")])]));
        assert_eq!(requests_of(&[]), (DeviceRequest::default(), None));
    }
}
