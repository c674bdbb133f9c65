//! The devices that will do for a request, and what each of them would give.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use aliquot_scheduler_core::{DeviceCore, DeviceMemory};
use k8s_openapi::api::resource::v1::{Device, DeviceTaint, DeviceToleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::capacity::consumed;
use super::expression::Expression;
use super::pools::is_given_out;
use super::take::thousandths;
use super::{CORE, DRIVER, MEMORY, Pool, PoolKey, Pools, Taken, whole};

/// The value of the attribute by which the books know a device that will do.
pub(crate) const USABLE: &str = "true";

/// Tainted devices that are looked at for the reason of a pod, at most.
const TAINTED_MAX: usize = 1000;

/// Characters of the expressions that stand in an attribute's name, at most.
const TEXT_MAX: usize = 200;

/// The time that expressions may take at one look, for all devices together. Nothing is scheduled meanwhile. 40 000
/// devices and a usual expression take a few tenths of a second.
const TIME_MAX: Duration = Duration::from_secs(5);

/// What a request asks of a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Criteria {
    pub(crate) class: String,
    /// CEL expressions: first those of the class, then those of the request.
    pub(crate) expressions: Vec<String>,
    pub(crate) tolerations: Vec<DeviceToleration>,
    pub(crate) capacity: BTreeMap<String, Quantity>,
    /// All devices of a node are wanted.
    pub(crate) is_all: bool,
    /// Administrative access is wanted.
    pub(crate) is_admin: bool,
}

impl Criteria {
    /// A text that is equal for equal criteria.
    pub(crate) fn key(&self) -> String {
        let capacity: BTreeMap<&String, &String> = self.capacity.iter().map(|(name, of)| (name, &of.0)).collect();
        let of_devices = [self.is_all, self.is_admin];
        serde_json::json!([self.class, self.expressions, self.tolerations, capacity, of_devices]).to_string()
    }

    fn tolerate(&self, device: &Device) -> bool {
        self.untolerated(device).is_none()
    }

    /// The first taint of a device that is not tolerated.
    fn untolerated<'a>(&self, device: &'a Device) -> Option<&'a DeviceTaint> {
        untolerated(&self.tolerations, device)
    }

    /// A device that all expressions select and that has a taint which is not tolerated, with this taint. Only the first
    /// tainted devices are looked at.
    pub(crate) fn kept_away_from<'a>(&self, pools: &'a Pools) -> Option<(&'a PoolKey, &'a Device, &'a DeviceTaint)> {
        let devices = pools.tainted().flat_map(|(key, pool)| pool.devices.values().map(move |device| (key, device)));
        let tainted = devices.filter_map(|(key, device)| Some((key, device, self.untolerated(device)?)));
        let mut tainted = tainted.take(TAINTED_MAX).peekable();
        // To compile expressions takes time.
        tainted.peek()?;
        let selector = Selector::of(&self.expressions, TIME_MAX).ok()?;
        tainted.find(|(key, device, _)| selector.selects(&key.0, device) == Ok(true))
    }
}

/// The devices for which criteria hold.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) criteria: Criteria,
    /// The attribute by which the books mark each of the devices. Users read its name, too.
    pub(crate) attribute: String,
    /// Our driver's pools.
    pools: BTreeMap<PoolKey, Result<BTreeMap<String, Taken>, String>>,
    /// Those of our driver's pools of which not all selected devices will do, or are known.
    lacking: BTreeSet<PoolKey>,
    /// If all devices of a node are wanted: the numbers of them that nodes have.
    numbers: BTreeSet<u16>,
    /// By pool, the findings about the devices of all drivers that are selected, or may be. `None`: devices of our
    /// driver will do, and only these count.
    others: Option<BTreeMap<PoolKey, BTreeMap<String, Found>>>,
    /// See [`TIME_MAX`].
    time_max: Duration,
}

/// The finding about a device of another driver that criteria select, or may select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Usable,
    /// It has a taint that is not tolerated.
    Tainted,
    /// It lacks a capacity, or has too little of it even if no part of it is given out. The text says of which.
    Lacks(String),
    /// It needs what is not supported.
    Unsupported(&'static str),
    /// An expression fails on it: it is not known whether it is selected.
    Failed(String),
}

/// The driver whose devices criteria select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    /// The devices are this driver's, and perhaps those of further drivers, but none is ours.
    Other(String),
    /// No such device is there now, but one can still come.
    Unknown,
}

impl Selection {
    /// `number` makes the name of the attribute unique.
    pub(crate) fn new(criteria: Criteria, number: u64) -> Selection {
        let what = if criteria.is_all { "number of the node's devices, all " } else { "" };
        let mut named = format!("{what}usable for DeviceClass {:?}", criteria.class);
        // The expressions of the class come first.
        if !criteria.expressions.is_empty() {
            let expressions = criteria.expressions.join(" && ");
            let cut: String = expressions.chars().take(TEXT_MAX).collect();
            let more = if cut == expressions { "" } else { "..." };
            named = format!("{named} ({cut}{more})");
        }
        let attribute = format!("{named} #{number}");
        let (pools, lacking, numbers) = Default::default();
        Selection { criteria, attribute, pools, lacking, numbers, others: None, time_max: TIME_MAX }
    }

    /// Looks at pools that are new or have changed.
    pub(crate) fn look_at<'a>(&mut self, pools: &Pools, keys: impl Iterator<Item = &'a PoolKey> + Clone) {
        let selector = Selector::of(&self.criteria.expressions, self.time_max);
        for key in keys.clone().filter(|(driver, _)| driver == DRIVER) {
            match pools.get(key) {
                Some(pool) => {
                    let found = selector.as_ref().map_err(String::clone).and_then(|of| self.usable(of, pool));
                    match found {
                        Ok((_, true)) => _ = self.lacking.remove(key),
                        _ => _ = self.lacking.insert(key.clone()),
                    }
                    self.pools.insert(key.clone(), found.map(|(usable, _)| usable));
                }
                None => {
                    self.pools.remove(key);
                    self.lacking.remove(key);
                }
            }
        }
        if self.criteria.is_all {
            let nodes: BTreeSet<&String> = self.pools.keys().filter_map(|key| pools.get(key)?.node.as_ref()).collect();
            self.numbers = nodes.into_iter().filter_map(|node| self.all_on(pools, node)).collect();
        }
        match selector {
            Ok(selector) => self.look_at_others(&selector, pools, keys),
            Err(error) if self.pools.is_empty() => _ = self.pools.insert(PoolKey::default(), Err(error)),
            Err(_) => {}
        }
    }

    fn look_at_others<'a>(&mut self, selector: &Selector, pools: &Pools, keys: impl Iterator<Item = &'a PoolKey>) {
        // All devices of a node are those of every driver.
        if self.ours().next().is_some() && !self.criteria.is_all {
            self.others = None;
            return;
        }
        let keys: Vec<&PoolKey> =
            if self.others.is_some() { keys.collect() } else { pools.all().map(|(key, _)| key).collect() };
        let others = self.others.get_or_insert_default();
        for key in keys {
            let found = pools.get(key).map(|pool| found(&self.criteria, selector, &key.0, pool)).unwrap_or_default();
            match found.is_empty() {
                true => _ = others.remove(key),
                false => _ = others.insert(key.clone(), found),
            }
        }
    }

    /// Our driver's devices that will do.
    fn ours(&self) -> impl Iterator<Item = &Taken> + Clone {
        self.pools.values().flatten().flat_map(BTreeMap::values)
    }

    /// The driver whose devices the criteria select.
    pub(crate) fn whose(&self) -> Whose {
        if self.ours().next().is_some() {
            return Whose::Ours;
        }
        self.other_driver().map_or(Whose::Unknown, Whose::Other)
    }

    /// Another driver of which a device is selected.
    fn other_driver(&self) -> Option<String> {
        let mut others = self.others.iter().flatten().filter(|((driver, _), _)| driver != DRIVER);
        let has_selected = |found: &BTreeMap<String, Found>| found.values().any(|of| !matches!(of, Found::Failed(_)));
        others.find(|(_, found)| has_selected(found)).map(|((driver, _), _)| driver.clone())
    }

    /// The finding about a device, if our driver has no device that will do. `None`: the device is not selected.
    pub(crate) fn found(&self, pool: &PoolKey, device: &str) -> Option<&Found> {
        self.others.as_ref()?.get(pool)?.get(device)
    }

    /// All findings, if our driver has no device that will do.
    pub(crate) fn all_found(&self) -> impl Iterator<Item = (&PoolKey, &String, &Found)> {
        let pools = self.others.iter().flatten();
        pools.flat_map(|(key, found)| found.iter().map(move |(device, found)| (key, device, found)))
    }

    /// The devices of a pool that will do, and whether all selected ones do.
    ///
    /// # Errors
    /// An expression fails on one of them.
    fn usable(&self, selector: &Selector, pool: &Pool) -> Result<(BTreeMap<String, Taken>, bool), String> {
        let mut usable = BTreeMap::new();
        let mut are_all = pool.is_complete;
        for (name, device) in pool.devices.iter().filter(|_| pool.is_complete) {
            if !selector.selects(DRIVER, device)? {
                continue;
            }
            // A device that is too small is none of "all" devices, as in Kubernetes, whatever else keeps claims away from it.
            let Some(taken) = Taken::of(device, &self.criteria.capacity) else { continue };
            if !is_given_out(device) || !self.criteria.tolerate(device) {
                are_all = false;
                continue;
            }
            usable.insert(name.clone(), taken);
        }
        Ok((usable, are_all))
    }

    /// How many devices of our driver a node has for a request for all of them; `None`: it has none, has more than a claim
    /// can get, or has some that will not do.
    ///
    /// Kubernetes' own allocator leaves out a device of which too little is left. Here the device is one of them whatever is
    /// taken of it, so a pod waits until all have room. The books give room away many times in a cycle, and evict pods for
    /// more: a number that follows what is left would be out of date at once, and a pod would get fewer devices than are
    /// freed for it. Other drivers' devices are chosen when a pod is bound, so those are counted as Kubernetes does.
    pub(crate) fn all_on(&self, pools: &Pools, node: &str) -> Option<u16> {
        let number = self.number_on(pools, node).filter(|number| (1..=whole::RESULTS_MAX).contains(number));
        number.and_then(|number| u16::try_from(number).ok())
    }

    /// The number of a node's devices, if all of them are wanted and they are more than a claim can get.
    pub(crate) fn too_many_on(&self, pools: &Pools, node: &str) -> Option<usize> {
        self.number_on(pools, node).filter(|number| self.criteria.is_all && *number > whole::RESULTS_MAX)
    }

    fn number_on(&self, pools: &Pools, node: &str) -> Option<usize> {
        let mut number = 0;
        for (key, _) in pools.on(node) {
            if self.lacking.contains(key) {
                return None;
            }
            number += self.pools.get(key)?.as_ref().ok()?.len();
        }
        Some(number)
    }

    /// If all devices of a node are wanted: the numbers of them that nodes have, the smallest first.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u16> {
        self.numbers.iter().copied()
    }

    /// The value of the attribute for the devices of a node that will do. `None`: the node has none.
    pub(crate) fn value_on(&self, pools: &Pools, node: &str) -> Option<String> {
        match self.criteria.is_all {
            true => self.all_on(pools, node).map(|number| number.to_string()),
            false => Some(USABLE.to_owned()),
        }
    }

    /// What a device gives for the request; `None`: it will not do.
    pub(crate) fn taken(&self, pool: &PoolKey, device: &str) -> Option<&Taken> {
        self.pools.get(pool)?.as_ref().ok()?.get(device)
    }

    /// What the request takes of each device.
    ///
    /// # Errors
    /// An expression fails, or the devices are another driver's, or they would give different amounts, or administrative
    /// access is wanted.
    pub(crate) fn part(&self) -> Result<(DeviceCore, DeviceMemory), String> {
        if let Some(Err(error)) = self.pools.values().find(|found| found.is_err()) {
            return Err(error.clone());
        }
        match self.whose() {
            Whose::Ours if self.criteria.is_admin => {
                return Err(format!(
                    "it asks for adminAccess, which Aliquot does not support for devices of {DRIVER}: a container sees a \
                     device through its slice, and there is no slice without a part of a device; ask for a part, or ask the \
                     node's manager"
                ));
            }
            Whose::Ours if self.criteria.is_all => {
                if let Some(driver) = self.other_driver() {
                    return Err(format!(
                        "it asks for all devices, and DeviceClass {:?} selects devices of the driver {driver}, too; select \
                         those of one driver",
                        self.criteria.class
                    ));
                }
            }
            Whose::Ours => {}
            Whose::Other(driver) => {
                let class = &self.criteria.class;
                return Err(format!(
                    "DeviceClass {class:?} selects devices of the driver {driver}, and not of {DRIVER}"
                ));
            }
            Whose::Unknown => return Ok(self.wanted()),
        }
        Taken::as_one(self.ours()).ok_or_else(|| {
            format!(
                "devices of DeviceClass {:?} would give different amounts for the same request; ask for amounts that \
                 all of them can give",
                self.criteria.class
            )
        })
    }

    /// What is asked for, used where there is no device by which it could be rounded.
    pub(crate) fn wanted(&self) -> (DeviceCore, DeviceMemory) {
        let amount = |name: &str| self.criteria.capacity.get(name).and_then(|wanted| thousandths(&wanted.0));
        let core = amount(CORE).map_or(1000, |core| u32::try_from(core / 100).unwrap_or(1000).clamp(1, 1000));
        let memory = amount(MEMORY).and_then(|memory| u64::try_from(memory / 1000).ok());
        let memory = memory.map(|memory| DeviceMemory::Bytes(aliquot_scheduler_core::Bytes::new(memory)));
        (DeviceCore::new(core), memory.unwrap_or(DeviceMemory::Thousandths(1000)))
    }
}

/// The findings about the devices of a pool that criteria select, or may select.
fn found(criteria: &Criteria, selector: &Selector, driver: &str, pool: &Pool) -> BTreeMap<String, Found> {
    let of_device = |device: &Device| match selector.selects(driver, device) {
        Ok(false) => None,
        Err(error) => Some(Found::Failed(error)),
        Ok(true) => Some(match unsupported_of_others(device) {
            Some(feature) => Found::Unsupported(feature),
            None => match consumed(device, &criteria.capacity) {
                Err(why) => Found::Lacks(why),
                Ok(_) if criteria.tolerate(device) => Found::Usable,
                Ok(_) => Found::Tainted,
            },
        }),
    };
    pool.devices.iter().filter_map(|(name, device)| Some((name.clone(), of_device(device)?))).collect()
}

/// What is not supported of another driver's device.
pub(crate) fn unsupported_of_others(device: &Device) -> Option<&'static str> {
    let takes_of_node = device.node_allocatable_resources.as_ref().is_some_and(|of| !of.is_empty());
    takes_of_node.then_some("resources of the node (nodeAllocatableResources)")
}

/// Compiled expressions, for one look at devices.
pub(super) struct Selector {
    expressions: Vec<Expression>,
    began: Instant,
    time_max: Duration,
}

impl Selector {
    /// # Errors
    /// One of the sources is not a CEL expression.
    pub(super) fn within_time(sources: &[String]) -> Result<Selector, String> {
        Selector::of(sources, TIME_MAX)
    }

    /// # Errors
    /// One of the sources is not a CEL expression.
    fn of(sources: &[String], time_max: Duration) -> Result<Selector, String> {
        let expressions = sources.iter().map(|source| Expression::compile(source)).collect::<Result<_, _>>()?;
        Ok(Selector { expressions, began: Instant::now(), time_max })
    }

    /// Whether all expressions select a device. After the first that does not, the others are not asked, as in Kubernetes.
    ///
    /// # Errors
    /// An expression fails on this device, or there is no time left for it.
    pub(super) fn selects(&self, driver: &str, device: &Device) -> Result<bool, String> {
        for expression in &self.expressions {
            if self.began.elapsed() >= self.time_max {
                let sources: Vec<&str> = self.expressions.iter().map(Expression::source).collect();
                return Err(format!(
                    "the CEL expressions {sources:?} take longer than {:?} for all devices together; make them simpler",
                    self.time_max
                ));
            }
            if !expression.selects(driver, device)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a taint keeps any claim away.
pub(super) fn has_effect(taint: &DeviceTaint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
}

/// The first taint of a device that keeps a claim with these tolerations away.
pub(crate) fn untolerated<'a>(tolerations: &[DeviceToleration], device: &'a Device) -> Option<&'a DeviceTaint> {
    let is_tolerated = |taint: &DeviceTaint| tolerations.iter().any(|of| tolerates(of, taint));
    device.taints.iter().flatten().find(|taint| has_effect(taint) && !is_tolerated(taint))
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let is_any_value = toleration.operator.as_deref() == Some("Exists");
    named(&toleration.key).is_none_or(|key| key == taint.key)
        && named(&toleration.effect).is_none_or(|effect| effect == taint.effect)
        && (is_any_value || named(&toleration.value) == named(&taint.value))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::ResourceSlice;
    use serde_json::{Value, json};

    use super::*;

    fn pools(driver: &str, devices: Value) -> Pools {
        let mut pools = Pools::default();
        let slice: ResourceSlice = serde_json::from_value(json!({
            "metadata": {"name": "s"},
            "spec": {
                "driver": driver, "nodeName": "n", "devices": devices,
                "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            },
        }))
        .unwrap();
        pools.slice(slice);
        pools.read();
        pools
    }

    fn device(name: &str, more: Value) -> Value {
        let mut device = json!({
            "name": name, "allowMultipleAllocations": true, "attributes": {"type": {"string": "gpu"}},
            "capacity": {"core": {"value": "100"}, "memory": {"value": "80Gi"}},
        });
        json_patch::merge(&mut device, &more);
        device
    }

    fn selection(pools: &Pools, expressions: &[&str], tolerations: Value) -> Selection {
        let criteria = Criteria {
            class: "c".into(),
            expressions: expressions.iter().map(|text| (*text).to_owned()).collect(),
            tolerations: serde_json::from_value(tolerations).unwrap(),
            capacity: BTreeMap::from([("core".to_owned(), Quantity("25".into()))]),
            is_all: false,
            is_admin: false,
        };
        let mut selection = Selection::new(criteria, 1);
        let keys: Vec<PoolKey> = pools.all().map(|(key, _)| key.clone()).collect();
        selection.look_at(pools, keys.iter());
        selection
    }

    fn usable(selection: &Selection, names: &[&str]) -> Vec<bool> {
        let key = (DRIVER.to_owned(), "n".to_owned());
        names.iter().map(|name| selection.taken(&key, name).is_some()).collect()
    }

    #[test]
    fn tainted_and_partitioned_devices_are_left_out() {
        let taint = json!({"taints": [{"key": "broken", "effect": "NoSchedule"}]});
        let harmless = json!({"taints": [{"key": "seen", "effect": "None"}]});
        let counters = json!({"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]});
        let devices = [device("a", taint), device("b", harmless), device("c", counters)];
        let pools = pools(DRIVER, json!(devices));
        let names = ["a", "b", "c"];
        assert_eq!(usable(&selection(&pools, &[], json!([])), &names), [false, true, false]);
        for (toleration, tolerates) in [
            (json!({"key": "broken", "operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "broken", "value": ""}), true),
            (json!({"key": "broken", "value": "x"}), false),
        ] {
            let selection = selection(&pools, &[], json!([toleration]));
            assert_eq!(usable(&selection, &names), [tolerates, true, false], "{toleration}");
        }
    }

    #[test]
    fn an_expression_is_not_asked_about_what_another_leaves_out() {
        let devices = [device("a", json!({"attributes": {"colour": {"string": "red"}}})), device("b", json!({}))];
        let pools = pools(DRIVER, json!(devices));
        let colour = r#"device.attributes["gpu.aliquot.dev"].colour == "red""#;
        let error = selection(&pools, &[colour], json!([])).part().unwrap_err();
        assert!(error.contains("\"b\"") && error.contains("colour"), "{error}");
        let guard = r#""colour" in device.attributes["gpu.aliquot.dev"]"#;
        let guarded = selection(&pools, &[guard, colour], json!([]));
        assert_eq!(guarded.part(), Ok((DeviceCore::new(250), DeviceMemory::Thousandths(1000))));
        assert_eq!(usable(&guarded, &["a", "b"]), [true, false]);
    }

    #[test]
    fn expressions_have_a_time_for_all_devices_together() {
        let devices: Vec<Value> = (0..100).map(|number| device(&format!("d{number}"), json!({}))).collect();
        for driver in [DRIVER, "gpu.example.com"] {
            let pools = pools(driver, json!(devices));
            let mut slow = selection(&pools, &["lists.range(10000).all(a, a >= 0)"], json!([]));
            let keys: Vec<PoolKey> = pools.all().map(|(key, _)| key.clone()).collect();
            slow.time_max = Duration::from_millis(1);
            slow.look_at(&pools, keys.iter());
            let error = match driver {
                DRIVER => slow.part().unwrap_err(),
                _ => match slow.found(&keys[0], "d99") {
                    Some(Found::Failed(error)) => error.clone(),
                    found => panic!("{found:?}"),
                },
            };
            assert!(error.contains("a >= 0") && error.contains("longer than 1ms for all devices"), "{error}");
            // One without expressions is not bound by time.
            let mut plain = selection(&pools, &[], json!([]));
            plain.time_max = Duration::ZERO;
            plain.look_at(&pools, keys.iter());
            assert_eq!(plain.whose() == Whose::Ours, driver == DRIVER);
        }
    }

    #[test]
    fn devices_of_another_driver_are_named_by_it() {
        let pools = pools("gpu.example.com", json!([device("a", json!({}))]));
        let others = selection(&pools, &[], json!([]));
        assert_eq!(others.whose(), Whose::Other("gpu.example.com".into()));
        let error = others.part().unwrap_err();
        assert!(error.contains("gpu.example.com"), "{error}");
        // No node has such a device, but one can still come.
        let none = selection(&pools, &[r#"device.driver == "gpu.aliquot.dev""#], json!([]));
        assert_eq!(none.whose(), Whose::Unknown);
        assert_eq!(none.part(), Ok((DeviceCore::new(250), DeviceMemory::Thousandths(1000))));
    }

    #[test]
    fn what_other_drivers_devices_need_is_found_out() {
        let devices = [
            json!({"name": "plain", "capacity": {"core": {"value": "30"}}}),
            json!({
                "name": "tainted", "taints": [{"key": "broken", "effect": "NoExecute"}],
                "capacity": {"core": {"value": "25"}},
            }),
            json!({"name": "shared", "allowMultipleAllocations": true, "capacity": {"core": {"value": "25"}}}),
            json!({"name": "small", "capacity": {"core": {"value": "24"}}}),
            json!({"name": "without", "allowMultipleAllocations": true}),
            json!({"name": "of-node", "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}}}),
            json!({"name": "other", "attributes": {"left": {"bool": false}}}),
        ];
        let pools = pools("nic.example.com", json!(devices));
        let left = r#"!("left" in device.attributes["nic.example.com"]) || device.attributes["nic.example.com"].left"#;
        let selection = selection(&pools, &[left], json!([]));
        let key = ("nic.example.com".to_owned(), "n".to_owned());
        let found = |device: &str| selection.found(&key, device);
        assert_eq!(
            [found("plain"), found("shared"), found("tainted"), found("other")],
            [Some(&Found::Usable), Some(&Found::Usable), Some(&Found::Tainted), None]
        );
        for (device, text) in [("small", "there is 24, and a request takes 25"), ("without", "no capacity \"core\"")] {
            let Some(Found::Lacks(why)) = found(device) else { panic!("{device}: {:?}", found(device)) };
            assert!(why.contains(text), "{why}");
        }
        let Some(Found::Unsupported(named)) = found("of-node") else { panic!("{:?}", found("of-node")) };
        assert!(named.contains("resources of the node"), "{named}");
    }
}
