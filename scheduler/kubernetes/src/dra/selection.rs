//! The devices that will do for a request, and what each of them would give.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{DeviceCore, DeviceMemory};
use k8s_openapi::api::resource::v1::{Device, DeviceTaint, DeviceToleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::expression::Expression;
use super::pools::is_given_out;
use super::take::thousandths;
use super::{CORE, DRIVER, MEMORY, Pool, PoolKey, Pools, Taken};

/// Characters of expressions that stand in an attribute's name.
const TEXT_MAX: usize = 200;

/// What a request asks of a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Criteria {
    pub(crate) class: String,
    /// CEL expressions: first those of the class, then those of the request.
    pub(crate) expressions: Vec<String>,
    pub(crate) tolerations: Vec<DeviceToleration>,
    pub(crate) capacity: BTreeMap<String, Quantity>,
}

impl Criteria {
    /// Equal for equal criteria.
    pub(crate) fn key(&self) -> String {
        let capacity: BTreeMap<&String, &String> = self.capacity.iter().map(|(name, of)| (name, &of.0)).collect();
        serde_json::json!([self.class, self.expressions, self.tolerations, capacity]).to_string()
    }
}

/// The devices for which criteria hold.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) criteria: Criteria,
    /// The attribute that the books have on each of the devices. It is read by users, too.
    pub(crate) attribute: String,
    /// Our driver's pools.
    pools: BTreeMap<PoolKey, Result<BTreeMap<String, Taken>, String>>,
}

impl Selection {
    /// `number` tells it from all others.
    pub(crate) fn new(criteria: Criteria, number: u64) -> Selection {
        let mut named = format!("usable for DeviceClass {:?}", criteria.class);
        // The first expressions are the class's.
        if !criteria.expressions.is_empty() {
            let expressions = criteria.expressions.join(" && ");
            let cut: String = expressions.chars().take(TEXT_MAX).collect();
            let more = if cut == expressions { "" } else { "..." };
            named = format!("{named} ({cut}{more})");
        }
        Selection { criteria, attribute: format!("{named} #{number}"), pools: BTreeMap::new() }
    }

    /// Looks at pools of our driver that are new or have changed.
    pub(crate) fn look_at<'a>(&mut self, pools: &Pools, keys: impl Iterator<Item = &'a PoolKey>) {
        let expressions = self.expressions();
        for key in keys.filter(|(driver, _)| driver == DRIVER) {
            match pools.get(key) {
                Some(pool) => {
                    let found = expressions.as_deref().map_err(String::clone).and_then(|of| self.usable(of, pool));
                    self.pools.insert(key.clone(), found);
                }
                None => _ = self.pools.remove(key),
            }
        }
        if let (Err(error), true) = (expressions, self.pools.is_empty()) {
            self.pools.insert(PoolKey::default(), Err(error));
        }
    }

    fn expressions(&self) -> Result<Vec<Expression>, String> {
        self.criteria.expressions.iter().map(|source| Expression::compile(source)).collect()
    }

    /// The devices of a pool that will do.
    ///
    /// # Errors
    /// An expression fails on one of them.
    fn usable(&self, expressions: &[Expression], pool: &Pool) -> Result<BTreeMap<String, Taken>, String> {
        let mut usable = BTreeMap::new();
        for (name, device) in pool.devices.iter().filter(|_| pool.is_complete) {
            if selects(expressions, DRIVER, device)? && is_given_out(device) && self.tolerates(device) {
                usable.extend(Taken::of(device, &self.criteria.capacity).map(|taken| (name.clone(), taken)));
            }
        }
        Ok(usable)
    }

    fn tolerates(&self, device: &Device) -> bool {
        let mut taints = device.taints.iter().flatten().filter(|taint| taint.effect != "None");
        taints.all(|taint| self.criteria.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    }

    /// What a device gives for the request; `None`: it will not do.
    pub(crate) fn taken(&self, pool: &PoolKey, device: &str) -> Option<&Taken> {
        self.pools.get(pool)?.as_ref().ok()?.get(device)
    }

    /// What the request takes of each device.
    ///
    /// # Errors
    /// An expression fails, or the devices are another driver's, or they would give different amounts.
    pub(crate) fn part(&self, pools: &Pools) -> Result<(DeviceCore, DeviceMemory), String> {
        if let Some(Err(error)) = self.pools.values().find(|found| found.is_err()) {
            return Err(error.clone());
        }
        let all = || self.pools.values().flatten().flat_map(BTreeMap::values);
        if all().next().is_none() {
            return match self.driver_of_others(pools) {
                Some(driver) => Err(format!(
                    "DeviceClass {:?} selects devices of the driver {driver}, and Aliquot's scheduler allocates those of \
                     {DRIVER} alone",
                    self.criteria.class
                )),
                None => Ok(self.wanted()),
            };
        }
        Taken::as_one(all()).ok_or_else(|| {
            format!(
                "devices of DeviceClass {:?} would give different amounts for the same request; ask for amounts that \
                 all of them can give",
                self.criteria.class
            )
        })
    }

    /// What is asked for, where no device is there that could round it.
    fn wanted(&self) -> (DeviceCore, DeviceMemory) {
        let amount = |name: &str| self.criteria.capacity.get(name).and_then(|wanted| thousandths(&wanted.0));
        let core = amount(CORE).map_or(1000, |core| u32::try_from(core / 100).unwrap_or(1000).clamp(1, 1000));
        let memory = amount(MEMORY).and_then(|memory| u64::try_from(memory / 1000).ok());
        let memory = memory.map(|memory| DeviceMemory::Bytes(aliquot_scheduler_core::Bytes::new(memory)));
        (DeviceCore::new(core), memory.unwrap_or(DeviceMemory::Thousandths(1000)))
    }

    /// Another driver whose devices the criteria select.
    fn driver_of_others(&self, pools: &Pools) -> Option<String> {
        let expressions = self.expressions().ok()?;
        let mut others = pools.all().filter(|((driver, _), _)| driver != DRIVER);
        let is_selected = |(driver, _): &PoolKey, pool: &Pool| {
            pool.devices.values().any(|device| selects(&expressions, driver, device) == Ok(true))
        };
        others.find(|(key, pool)| is_selected(key, pool)).map(|((driver, _), _)| driver.clone())
    }
}

/// Whether all expressions select a device. After the first that does not, the others are not asked, as in Kubernetes.
fn selects(expressions: &[Expression], driver: &str, device: &Device) -> Result<bool, String> {
    for expression in expressions {
        if !expression.selects(driver, device)? {
            return Ok(false);
        }
    }
    Ok(true)
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
        let error = selection(&pools, &[colour], json!([])).part(&pools).unwrap_err();
        assert!(error.contains("\"b\"") && error.contains("colour"), "{error}");
        let guard = r#""colour" in device.attributes["gpu.aliquot.dev"]"#;
        let guarded = selection(&pools, &[guard, colour], json!([]));
        assert_eq!(guarded.part(&pools), Ok((DeviceCore::new(250), DeviceMemory::Thousandths(1000))));
        assert_eq!(usable(&guarded, &["a", "b"]), [true, false]);
    }

    #[test]
    fn devices_of_another_driver_are_named_by_it() {
        let pools = pools("gpu.example.com", json!([device("a", json!({}))]));
        let error = selection(&pools, &[], json!([])).part(&pools).unwrap_err();
        assert!(error.contains("gpu.example.com"), "{error}");
        // Nobody has such a device: it can still come.
        let none = selection(&pools, &[r#"device.driver == "gpu.aliquot.dev""#], json!([]));
        assert_eq!(none.part(&pools), Ok((DeviceCore::new(250), DeviceMemory::Thousandths(1000))));
    }
}
