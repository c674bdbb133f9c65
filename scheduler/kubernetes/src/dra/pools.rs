//! The devices of drivers, by pool, from the ResourceSlices that they publish.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use aliquot_scheduler_core::{Bytes, DeviceSpec, Health};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice, ResourceSliceSpec};

use super::counters::{self, Counters};
use super::reach::Reach;
use super::selection::has_effect;
use super::taint_rule::TaintRule;
use super::take::thousandths;
use super::{DRIVER, MEMORY};

/// A driver, and the name of a pool of it.
pub(crate) type PoolKey = (String, String);

/// All that drivers have published.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    slices: BTreeMap<String, ResourceSliceSpec>,
    slices_of: BTreeMap<PoolKey, BTreeSet<String>>,
    pools: BTreeMap<PoolKey, Pool>,
    /// The DeviceTaintRules, by name.
    taint_rules: BTreeMap<String, TaintRule>,
    /// The pools with devices that taints keep claims away from.
    tainted: BTreeSet<PoolKey>,
    /// The pools that are on one node alone.
    on_node: BTreeMap<String, BTreeSet<PoolKey>>,
    /// The pools of other drivers whose devices are not on one node alone.
    spread: BTreeSet<PoolKey>,
    /// A pool has changed that is, or was, in `spread`.
    has_changed_spread: bool,
    /// How often they have changed.
    changes: u64,
    /// Pools of which slices or taint rules have changed since they were read.
    changed: BTreeSet<PoolKey>,
}

/// A pool, as its newest generation says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pool {
    /// The node that its devices are on; `None`: they are not on one node alone.
    pub(crate) node: Option<String>,
    /// By name, with the taints of the rules that select them.
    pub(crate) devices: BTreeMap<String, Device>,
    /// The names of the devices of another driver, in the order in which Kubernetes' allocator tries them.
    pub(crate) order: Vec<String>,
    /// Where each of the devices can be used, if they are another driver's.
    pub(crate) reach: BTreeMap<String, Reach>,
    /// For devices of another driver: the calls on the node that it says can be left out, where it says so. Kubelet reads
    /// them in the allocation.
    pub(crate) skipped: BTreeMap<String, Vec<String>>,
    /// Where the devices can be used of those slices that have a device which its driver makes ready after the allocation.
    slow: Vec<Reach>,
    /// Where the devices of the slices that are there can be used, if the pool is another driver's and not complete.
    arriving: Vec<Reach>,
    /// What there is of the counters that its devices share, if they are another driver's.
    pub(crate) counters: Counters,
    /// All slices are there, and agree with each other. Otherwise `devices` is what it was before, and nothing is given
    /// out.
    pub(crate) is_complete: bool,
}

impl Pool {
    /// Whether it is not known which devices of the pool can be used on a node with this name and these labels.
    pub(crate) fn is_changing_on(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        let mut reaches = self.reach.values().chain(&self.arriving);
        !self.is_complete && reaches.any(|reach| reach.includes(node, labels))
    }

    /// Whether the pool is tried after others on a node with this name and these labels. As in Kubernetes' own allocator, a
    /// device for another node makes it so, too, if a device for this node is in the same slice.
    pub(crate) fn is_slow_on(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        self.slow.iter().any(|reach| reach.includes(node, labels))
    }
}

impl Pools {
    pub(crate) fn slice(&mut self, slice: ResourceSlice) {
        let name = slice.metadata.name.unwrap_or_default();
        if self.slices.get(&name) == Some(&slice.spec) {
            return;
        }
        self.slice_gone(&name);
        let key = key_of(&slice.spec);
        self.slices_of.entry(key.clone()).or_default().insert(name.clone());
        self.slices.insert(name, slice.spec);
        self.changed.insert(key);
    }

    pub(crate) fn slice_gone(&mut self, name: &str) {
        let Some(slice) = self.slices.remove(name) else { return };
        let key = key_of(&slice);
        if let Some(names) = self.slices_of.get_mut(&key) {
            names.remove(name);
            if names.is_empty() {
                self.slices_of.remove(&key);
            }
        }
        self.changed.insert(key);
    }

    pub(crate) fn slice_names(&self) -> BTreeSet<String> {
        self.slices.keys().cloned().collect()
    }

    /// Notes a DeviceTaintRule with what its class says, or with `None` that there is none of this name.
    pub(crate) fn taint_rule(&mut self, name: &str, rule: Option<TaintRule>) {
        let before = self.taint_rules.remove(name);
        if before != rule {
            let is_concerned = |key: &&PoolKey| before.iter().chain(&rule).any(|rule| rule.is_about(key));
            self.changed.extend(self.slices_of.keys().filter(is_concerned).cloned());
        }
        self.taint_rules.extend(rule.map(|rule| (name.to_owned(), rule)));
    }

    /// Reads the pools that have changed. Returns the pools that differ from before, with the nodes that each
    /// is or was on.
    pub(crate) fn read(&mut self) -> BTreeMap<PoolKey, BTreeSet<String>> {
        let mut news = BTreeMap::new();
        for key in std::mem::take(&mut self.changed) {
            let before = self.pools.get(&key);
            let pool = self.slices_of.get(&key).map(|names| self.pool(&key, names));
            let pool = pool.map(|pool| match before {
                Some(before) if !pool.is_complete => {
                    Pool { is_complete: false, arriving: pool.arriving, ..before.clone() }
                }
                _ => pool,
            });
            if before == pool.as_ref() {
                continue;
            }
            let nodes = [before, pool.as_ref()].into_iter().flatten().filter_map(|pool| pool.node.clone());
            news.insert(key.clone(), nodes.collect());
            if let Some(node) = before.and_then(|before| before.node.clone())
                && let Some(keys) = self.on_node.get_mut(&node)
            {
                keys.remove(&key);
            }
            self.has_changed_spread |= self.spread.remove(&key);
            self.tainted.remove(&key);
            match pool {
                Some(pool) => {
                    if pool.devices.values().any(|device| device.taints.iter().flatten().any(has_effect)) {
                        self.tainted.insert(key.clone());
                    }
                    match &pool.node {
                        Some(node) => _ = self.on_node.entry(node.clone()).or_default().insert(key.clone()),
                        None if key.0 == DRIVER => {}
                        None => {
                            self.spread.insert(key.clone());
                            self.has_changed_spread = true;
                        }
                    }
                    self.pools.insert(key, pool);
                }
                None => _ = self.pools.remove(&key),
            }
        }
        self.on_node.retain(|_, keys| !keys.is_empty());
        self.changes += u64::from(!news.is_empty());
        news
    }

    /// A number that is another one after each change of the pools.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether a pool of another driver that is or was on several nodes has changed since the last call.
    pub(crate) fn take_has_changed_spread(&mut self) -> bool {
        std::mem::take(&mut self.has_changed_spread)
    }

    fn pool(&self, key: &PoolKey, names: &BTreeSet<String>) -> Pool {
        let (driver, _) = key;
        let slices: Vec<&ResourceSliceSpec> = names.iter().filter_map(|name| self.slices.get(name)).collect();
        let newest = slices.iter().map(|slice| slice.pool.generation).max();
        let slices: Vec<&ResourceSliceSpec> =
            slices.into_iter().filter(|slice| Some(slice.pool.generation) == newest).collect();
        let node = slices.first().and_then(|slice| slice.node_name.clone());
        let node = node.filter(|node| slices.iter().all(|slice| slice.node_name.as_ref() == Some(node)));
        let is_complete =
            slices.iter().all(|slice| usize::try_from(slice.pool.resource_slice_count) == Ok(slices.len()));
        let (mut devices, mut order, mut reach) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let mut skipped = BTreeMap::new();
        let defined = if driver == DRIVER { Some(Counters::new()) } else { counters::defined(&slices) };
        let mut is_complete = is_complete && defined.is_some();
        let counters = defined.unwrap_or_default();
        let all = slices.iter().flat_map(|slice| slice.devices.iter().flatten().map(move |device| (slice, device)));
        for (slice, device) in all {
            is_complete &= devices.insert(device.name.clone(), device.clone()).is_none();
            if driver != DRIVER {
                order.push(device.name.clone());
                reach.insert(device.name.clone(), Reach::of(slice, device));
                let calls = slice.skip_node_operations.clone().filter(|calls| !calls.is_empty());
                skipped.extend(calls.map(|calls| (device.name.clone(), calls)));
                is_complete &= counters::taken_by(device).keys().all(|name| counters.contains_key(name));
            }
        }
        for rule in self.taint_rules.values().filter(|rule| rule.is_about(key)) {
            // An expression of a class that is none selects no device.
            let Ok(selector) = rule.selector() else { continue };
            devices.values_mut().for_each(|device| rule.taint(&selector, driver, device));
        }
        let arriving = match driver == DRIVER || is_complete {
            true => Vec::new(),
            false => slices.iter().flat_map(|slice| Reach::all_of(slice)).collect(),
        };
        let is_slow = |slice: &&&ResourceSliceSpec| {
            let mut conditions = slice.devices.iter().flatten().filter_map(|device| device.binding_conditions.as_ref());
            driver != DRIVER && conditions.any(|conditions| !conditions.is_empty())
        };
        let slow = slices.iter().filter(is_slow).flat_map(|slice| Reach::all_of(slice)).collect();
        Pool { node, devices, order, reach, skipped, slow, arriving, counters, is_complete }
    }

    pub(crate) fn get(&self, key: &PoolKey) -> Option<&Pool> {
        self.pools.get(key)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&PoolKey, &Pool)> + Clone {
        self.pools.iter()
    }

    /// The pools with devices that taints keep claims away from.
    pub(super) fn tainted(&self) -> impl Iterator<Item = (&PoolKey, &Pool)> {
        self.tainted.iter().filter_map(|key| Some((key, self.pools.get(key)?)))
    }

    /// Our driver's pools on a node.
    pub(crate) fn on(&self, node: &str) -> impl Iterator<Item = (&PoolKey, &Pool)> {
        let keys = self.on_node.get(node).into_iter().flatten().filter(|(driver, _)| driver == DRIVER);
        keys.filter_map(|key| Some((key, self.pools.get(key)?)))
    }

    /// Other drivers' pools that may have devices on a node, in the order in which Kubernetes' allocator tries them.
    pub(crate) fn others_on(&self, node: &str) -> impl Iterator<Item = (&PoolKey, &Pool)> {
        let local = self.on_node.get(node).into_iter().flatten().filter(|(driver, _)| driver != DRIVER);
        let sorted: BTreeSet<&PoolKey> = local.chain(&self.spread).collect();
        sorted.into_iter().filter_map(|key| Some((key, self.pools.get(key)?)))
    }

    /// Whether any node has devices of our driver.
    pub(crate) fn has_ours(&self) -> bool {
        self.on_node.values().flatten().any(|(driver, _)| driver == DRIVER)
    }
}

fn key_of(slice: &ResourceSliceSpec) -> PoolKey {
    (slice.driver.clone(), slice.pool.name.clone())
}

/// The name of a device of our driver in the books.
pub(crate) fn uuid(pool: &str, device: &str) -> String {
    format!("{pool}/{device}")
}

/// The UUID that our driver publishes for a device, if there is one.
pub(crate) fn hardware_uuid(device: &Device) -> Option<&str> {
    text(device, "uuid")
}

/// The devices of a pool as the books know them, with these attributes.
pub(crate) fn device_specs(
    pool: &str,
    devices: &BTreeMap<String, Device>,
    attributes: impl Fn(&str) -> BTreeMap<String, String>,
) -> Vec<DeviceSpec> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, device) in devices {
        if let Some(clique) = text(device, "nvlinkClique") {
            groups.entry(clique).or_default().push(name);
        }
    }
    let linked: Vec<&Vec<&str>> = groups.values().filter(|names| names.len() > 1).collect();
    let roots: BTreeSet<&str> = devices.values().filter_map(|device| text(device, PCIE_ROOT)).collect();
    let number = |position: Option<usize>| position.and_then(|position| u16::try_from(position).ok());
    let spec = |(name, device): (&String, &Device)| {
        let memory = device.capacity.as_ref()?.get(MEMORY)?;
        let memory = u64::try_from(thousandths(&memory.value.0)? / 1000).ok()?;
        let numa = device.attributes.as_ref().and_then(|of| of.get(NUMA_NODE)).and_then(|of| of.int);
        Some(DeviceSpec {
            uuid: uuid(pool, name),
            model: text(device, "productName").unwrap_or_default().to_owned(),
            memory: Bytes::new(memory),
            health: if is_given_out(device) { Health::Healthy } else { Health::Unhealthy },
            nvlink_group: number(linked.iter().position(|names| names.contains(&name.as_str()))),
            switch: number(text(device, PCIE_ROOT).and_then(|root| roots.iter().position(|of| *of == root))),
            numa: numa.and_then(|numa| u16::try_from(numa).ok()),
            attributes: attributes(name).into(),
            ..DeviceSpec::default()
        })
    };
    devices.iter().filter_map(spec).collect()
}

/// The texts by which constraints compare an attribute of devices: two texts are equal exactly if the values are. A list
/// (Kubernetes' feature gate `DRAListTypeAttributes`) has a text for each element. There is none if the device does not
/// have the attribute.
pub(crate) fn compared_values(driver: &str, device: &Device, attribute: &str) -> Vec<String> {
    // An attribute without a domain belongs to the driver's domain.
    let own = attribute.strip_prefix(driver).and_then(|rest| rest.strip_prefix('/'));
    let value = device.attributes.as_ref().and_then(|all| all.get(attribute).or_else(|| all.get(own?)));
    let Some(DeviceAttribute { bool, bools, int, ints, string, strings, version, versions }) = value else {
        return Vec::new();
    };
    texts("bool", bool.as_ref(), bools.as_deref())
        .or_else(|| texts("int", int.as_ref(), ints.as_deref()))
        .or_else(|| texts("string", string.as_ref(), strings.as_deref()))
        .or_else(|| texts("version", version.as_ref(), versions.as_deref()))
        .unwrap_or_default()
}

/// The texts of a value of this type, or of the elements of a list; `None`: the attribute is of another type.
fn texts<T: Display>(of_type: &str, value: Option<&T>, list: Option<&[T]>) -> Option<Vec<String>> {
    let text = |value: &T| format!("{of_type} {value}");
    value.map(|value| vec![text(value)]).or_else(|| Some(list?.iter().map(text).collect()))
}

/// The text by which an attribute of a device of our driver is compared: its attributes are no lists.
pub(crate) fn compared_value(device: &Device, attribute: &str) -> Option<String> {
    let [value] = <[String; 1]>::try_from(compared_values(DRIVER, device, attribute)).ok()?;
    Some(value)
}

pub(super) const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";
const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";

/// Whether a device of our driver can be given out: it needs nothing that is not supported of these devices. The node's
/// manager fulfils no conditions before a pod is bound.
pub(super) fn is_given_out(device: &Device) -> bool {
    device.consumes_counters.as_ref().is_none_or(Vec::is_empty) && !has_conditions(device)
}

/// Whether a device's driver fulfils conditions before a pod is bound.
fn has_conditions(device: &Device) -> bool {
    let is_empty = |of: &Option<Vec<String>>| of.as_ref().is_none_or(Vec::is_empty);
    !is_empty(&device.binding_conditions) || !is_empty(&device.binding_failure_conditions)
}

fn text<'a>(device: &'a Device, attribute: &str) -> Option<&'a str> {
    device.attributes.as_ref()?.get(attribute)?.string.as_deref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(name: &str, generation: i64, count: i64, devices: Value) -> ResourceSlice {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "driver": DRIVER, "nodeName": "n", "devices": devices,
                "pool": {"name": "n", "generation": generation, "resourceSliceCount": count},
            },
        }))
        .unwrap()
    }

    fn device(name: &str, clique: &str) -> Value {
        let attributes = json!({"nvlinkClique": {"string": clique}, "productName": {"string": "H100"}});
        json!({"name": name, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}})
    }

    fn devices(pools: &mut Pools) -> Vec<String> {
        pools.read();
        let complete = pools.on("n").filter(|(_, pool)| pool.is_complete);
        complete.flat_map(|(_, pool)| pool.devices.keys().cloned()).collect()
    }

    #[test]
    fn a_pool_is_there_once_all_its_slices_are() {
        let mut pools = Pools::default();
        pools.slice(slice("a", 1, 1, json!([device("x", "x")])));
        assert_eq!(devices(&mut pools), ["x"]);
        // A new generation begins.
        pools.slice(slice("b", 2, 2, json!([device("y", "y")])));
        assert!(devices(&mut pools).is_empty());
        assert_eq!(pools.on("n").next().unwrap().1.devices.len(), 1, "it is known what there was");
        pools.slice(slice("a", 2, 2, json!([device("x", "x")])));
        assert_eq!(devices(&mut pools), ["x", "y"]);
        // Two devices of one name.
        pools.slice(slice("b", 2, 2, json!([device("x", "x")])));
        assert!(devices(&mut pools).is_empty());
        pools.slice_gone("b");
        pools.slice(slice("a", 3, 1, json!([device("x", "x")])));
        assert_eq!(devices(&mut pools), ["x"]);
        pools.slice_gone("a");
        assert!(devices(&mut pools).is_empty() && !pools.has_ours());
    }

    #[test]
    fn lists_are_compared_by_their_elements() {
        let device = |attributes: Value| -> Device {
            serde_json::from_value(json!({"name": "d", "attributes": attributes})).unwrap()
        };
        let of = |value: Value| compared_values("d.example", &device(json!({"a": value})), "d.example/a");
        assert_eq!(of(json!({"strings": ["x", "y"]})), ["string x", "string y"]);
        // A single value is like a list with one element, and values of different types differ.
        assert_eq!(of(json!({"string": "x"})), of(json!({"strings": ["x"]})));
        assert_eq!(of(json!({"ints": [1]})), ["int 1"]);
        assert_eq!(of(json!({"bools": [true, false]})), ["bool true", "bool false"]);
        assert_eq!(of(json!({"versions": ["1.0.0"]})), of(json!({"version": "1.0.0"})));
        assert_eq!(of(json!({})), [""; 0]);
    }

    #[test]
    fn devices_with_one_clique_are_one_group() {
        let mut pools = Pools::default();
        pools.slice(slice("a", 1, 1, json!([device("x", "x"), device("y", "x"), device("z", "z")])));
        pools.read();
        let (_, pool) = pools.on("n").next().unwrap();
        let specs = device_specs("n", &pool.devices, |_| BTreeMap::new());
        let groups: Vec<Option<u16>> = specs.iter().map(|spec| spec.nvlink_group).collect();
        assert_eq!(groups, [Some(0), Some(0), None]);
        assert_eq!((specs[0].uuid.as_str(), specs[0].model.as_str()), ("n/x", "H100"));
    }
}
