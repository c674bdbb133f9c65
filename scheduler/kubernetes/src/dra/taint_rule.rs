//! DeviceTaintRules: taints that an administrator gives to devices, beside those that drivers publish.

use k8s_openapi::api::resource::v1::{Device, DeviceSelector, DeviceTaint};
use serde::Deserialize;
use serde_json::Value;

use super::selection::Selector;
use super::{PoolKey, expressions};

/// One taint, and the devices that have it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaintRule {
    /// Without a selector, every device has the taint. The API's description says that none has, but Kubernetes' own
    /// scheduler and its evictions read it so, and this scheduler must agree with them.
    device_selector: Option<TaintSelector>,
    taint: DeviceTaint,
    /// What else a device must satisfy: the expressions of the selector, behind those of its class.
    #[serde(skip)]
    expressions: Vec<String>,
}

/// Selects the devices of which all given names are right, and which satisfy all expressions. Kubernetes 1.34 has a class
/// and expressions, and newer versions do not. Unknown criteria are refused: without them a rule would taint devices that it
/// does not mean.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TaintSelector {
    driver: Option<String>,
    pool: Option<String>,
    device: Option<String>,
    device_class_name: Option<String>,
    selectors: Option<Vec<DeviceSelector>>,
}

impl TaintRule {
    /// Reads a DeviceTaintRule, without its metadata.
    ///
    /// # Errors
    /// What cannot be read of its `spec`.
    pub(crate) fn of(data: &Value) -> Result<TaintRule, String> {
        let mut rule = TaintRule::deserialize(&data["spec"]).map_err(|error| error.to_string())?;
        let selectors = rule.device_selector.as_mut().and_then(|of| of.selectors.take());
        rule.expressions = expressions(&selectors.unwrap_or_default())?;
        rule.selector().map(|_| rule)
    }

    /// The class of which a device must be.
    pub(crate) fn class(&self) -> Option<&str> {
        self.device_selector.as_ref()?.device_class_name.as_deref()
    }

    /// The same with the expressions of its class, which a device must satisfy first.
    pub(crate) fn with_class(&self, expressions: &[String]) -> TaintRule {
        let expressions = expressions.iter().chain(&self.expressions).cloned().collect();
        TaintRule { expressions, ..self.clone() }
    }

    /// # Errors
    /// One of its expressions is none.
    pub(super) fn selector(&self) -> Result<Selector, String> {
        Selector::within_time(&self.expressions)
    }

    /// Whether devices of a pool may have the taint.
    pub(super) fn is_about(&self, (driver, pool): &PoolKey) -> bool {
        let is = |wanted: &Option<String>, name: &String| wanted.as_ref().is_none_or(|wanted| wanted == name);
        self.device_selector.as_ref().is_none_or(|of| is(&of.driver, driver) && is(&of.pool, pool))
    }

    /// Gives the taint to a device of a pool that the rule is about, if the rule means this device. As in Kubernetes, it
    /// does not mean one for which an expression fails.
    pub(super) fn taint(&self, selector: &Selector, driver: &str, device: &mut Device) {
        let meant = self.device_selector.as_ref().and_then(|of| of.device.as_ref());
        if meant.is_none_or(|meant| *meant == device.name) && selector.selects(driver, device) == Ok(true) {
            device.taints.get_or_insert_default().push(self.taint.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whether the device `x` of the pool `p` of the driver `d` has the taint.
    fn taints(selector: Value) -> Result<bool, String> {
        let taint = json!({"key": "broken", "effect": "NoSchedule"});
        let rule = TaintRule::of(&json!({"spec": {"deviceSelector": selector, "taint": taint}}))?;
        let mut device = Device { name: "x".into(), ..Device::default() };
        if rule.is_about(&("d".into(), "p".into())) {
            rule.taint(&rule.selector()?, "d", &mut device);
        }
        Ok(device.taints.is_some())
    }

    #[test]
    fn all_names_in_a_selector_must_be_right() {
        assert_eq!(taints(json!(null)), Ok(true), "no selector");
        assert_eq!(taints(json!({})), Ok(true), "every device");
        assert_eq!(taints(json!({"driver": "d", "pool": "p", "device": "x"})), Ok(true));
        for wrong in ["driver", "pool", "device"] {
            let mut selector = json!({"driver": "d", "pool": "p", "device": "x"});
            selector[wrong] = json!("other");
            assert_eq!(taints(selector), Ok(false), "{wrong}");
        }
    }

    #[test]
    fn a_rule_with_unknown_criteria_taints_no_device() {
        let error = taints(json!({"deviceModel": "gpu"})).unwrap_err();
        assert!(error.contains("deviceModel"), "{error}");
        for (selector, named) in [(json!({}), "not in CEL"), (json!({"cel": {"expression": "1 +"}}), "1 +")] {
            let error = taints(json!({"selectors": [selector]})).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn all_expressions_of_a_selector_must_be_true() {
        let of = |expressions: [&str; 2]| {
            let selectors = expressions.map(|expression| json!({"cel": {"expression": expression}}));
            taints(json!({"driver": "d", "selectors": selectors}))
        };
        let is_of_driver = "device.driver == 'd'";
        assert_eq!(of([is_of_driver, "true"]), Ok(true));
        assert_eq!(of([is_of_driver, "false"]), Ok(false));
        assert_eq!(of([is_of_driver, "device.attributes['d'].missing == 1"]), Ok(false), "it fails");
    }
}
