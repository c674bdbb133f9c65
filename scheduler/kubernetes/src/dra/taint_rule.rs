//! DeviceTaintRules: taints that an administrator gives to devices, beside those that drivers publish.

use k8s_openapi::api::resource::v1::{Device, DeviceTaint};
use serde::Deserialize;
use serde_json::Value;

use super::PoolKey;

/// One taint, and the devices that have it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaintRule {
    /// Without a selector, every device has the taint. The API's description says that none has, but Kubernetes' own
    /// scheduler and its evictions read it so, and this scheduler must agree with them.
    device_selector: Option<TaintSelector>,
    taint: DeviceTaint,
}

/// Selects the devices of which all given names are right. Criteria of former versions, which are not known here, are
/// refused: without them a rule would taint devices that it does not mean.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct TaintSelector {
    driver: Option<String>,
    pool: Option<String>,
    device: Option<String>,
}

impl TaintRule {
    /// Reads a DeviceTaintRule, without its metadata.
    ///
    /// # Errors
    /// What cannot be read of its `spec`.
    pub(crate) fn of(data: &Value) -> Result<TaintRule, String> {
        TaintRule::deserialize(&data["spec"]).map_err(|error| error.to_string())
    }

    /// Whether devices of a pool may have the taint.
    pub(super) fn is_about(&self, (driver, pool): &PoolKey) -> bool {
        let is = |wanted: &Option<String>, name: &String| wanted.as_ref().is_none_or(|wanted| wanted == name);
        self.device_selector.as_ref().is_none_or(|of| is(&of.driver, driver) && is(&of.pool, pool))
    }

    /// Gives the taint to a device of a pool that the rule is about, if the rule means this device.
    pub(super) fn taint(&self, device: &mut Device) {
        let meant = self.device_selector.as_ref().and_then(|of| of.device.as_ref());
        if meant.is_none_or(|meant| *meant == device.name) {
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
            rule.taint(&mut device);
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
        let error = taints(json!({"deviceClassName": "gpu"})).unwrap_err();
        assert!(error.contains("deviceClassName"), "{error}");
    }
}
