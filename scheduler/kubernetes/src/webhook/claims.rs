//! ResourceClaims, their templates and DeviceClasses with parameters that the driver would refuse when a pod starts,
//! and parts that no device has.

use aliquot_api_server::slice_config::{DRIVER, SliceConfig};
use aliquot_dialects::quantity;
use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClaim, DeviceClass, OpaqueDeviceConfiguration, ResourceClaim, ResourceClaimSpec,
    ResourceClaimTemplate,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::review::Answer;

/// The capacity that is a device's time, in percent.
const CORE: &str = "core";
/// The classes of all GPUs and of all MIG instances of the driver; classes of users end with a dot and one of them, or
/// select by other means.
const CLASSES: [&str; 2] = ["gpu.aliquot.dev", "mig.gpu.aliquot.dev"];

/// What is said about a claim, a template or a class.
///
/// # Errors
/// The object is none of them.
pub(super) fn judge(object: &Value) -> Result<Answer, String> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let wrong = match kind {
        "ResourceClaim" => of_spec(read::<ResourceClaim>(object)?.spec),
        "ResourceClaimTemplate" => {
            of_spec(read::<ResourceClaimTemplate>(object)?.spec.and_then(|template| template.spec))
        }
        "DeviceClass" => {
            let spec = read::<DeviceClass>(object)?.spec.unwrap_or_default();
            let opaque = spec.config.iter().flatten().filter_map(|config| config.opaque.as_ref());
            opaque.enumerate().find_map(|(at, opaque)| {
                let wrong = parameters(opaque)?.err()?;
                Some(("slice-config", format!("config {at}: {wrong}")))
            })
        }
        other => return Err(format!("{other:?} is no kind that is reviewed here")),
    };
    Ok(wrong.map_or_else(Answer::default, |(reason, message)| Answer::refused(reason, message)))
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<K, String> {
    K::deserialize(object).map_err(|error| format!("the object cannot be read: {error}"))
}

/// What parameters for our driver say; `None`: they are for another driver.
fn parameters(opaque: &OpaqueDeviceConfiguration) -> Option<Result<SliceConfig, String>> {
    let read = || SliceConfig::parse(&opaque.parameters.0).map_err(|error| error.to_string());
    (opaque.driver == DRIVER).then(read)
}

fn of_spec(spec: Option<ResourceClaimSpec>) -> Option<(&'static str, String)> {
    spec?.devices.as_ref().and_then(of_claim)
}

/// What is wrong with a claim: the reason in a word, and in a sentence.
fn of_claim(claim: &DeviceClaim) -> Option<(&'static str, String)> {
    let mut limits = Vec::new();
    for (at, config) in claim.config.iter().flatten().enumerate() {
        match config.opaque.as_ref().and_then(parameters) {
            Some(Ok(read)) => limits.extend(read.core_limit_percent.map(|limit| (limit, &config.requests))),
            Some(Err(wrong)) => return Some(("slice-config", format!("config {at}: {wrong}"))),
            None => {}
        }
    }
    let of_requests = claim.requests.iter().flatten().flat_map(|request| {
        let exact =
            request.exactly.iter().map(|exact| (request.name.clone(), &exact.capacity, &exact.device_class_name));
        let one_of = request.first_available.iter().flatten();
        let one_of = one_of.map(|of| (format!("{}/{}", request.name, of.name), &of.capacity, &of.device_class_name));
        exact.chain(one_of)
    });
    of_requests.into_iter().find_map(|(name, capacity, class)| {
        let core = core_percent(capacity.as_ref()?)?;
        if core > 100 && CLASSES.contains(&class.as_str()) {
            let message = format!(
                "request {name:?}: {CORE} is {core}; one device has 100 percent of its time: ask for several devices by count"
            );
            return Some(("value", message));
        }
        let base = name.split('/').next().unwrap_or_default();
        let is_meant = |requests: &Option<Vec<String>>| {
            let named = requests.as_deref().unwrap_or_default();
            named.is_empty() || named.iter().any(|named| *named == name || named == base)
        };
        // The last one that says something counts.
        let (limit, _) = limits.iter().rfind(|(_, requests)| is_meant(requests))?;
        let message = format!("request {name:?}: coreLimitPercent is {limit}; it must be at least {CORE}, which is {core}");
        (u64::from(*limit) < core).then_some(("value", message))
    })
}

/// The percent of a device's time that are asked for, if that is said.
fn core_percent(capacity: &CapacityRequirements) -> Option<u64> {
    quantity::whole(&capacity.requests.as_ref()?.get(CORE)?.0).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(fields: Value) -> Value {
        let mut parameters = json!({"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig"});
        json_patch::merge(&mut parameters, &fields);
        json!([{"opaque": {"driver": DRIVER, "parameters": parameters}}])
    }

    /// A claim and a template for so much of a device's time, and what is said about both.
    fn refused(core: &str, class: &str, config: Value) -> Option<String> {
        let capacity = json!({"requests": {"core": core}});
        let request = json!({"name": "gpu", "exactly": {"deviceClassName": class, "capacity": capacity}});
        let spec = json!({"devices": {"requests": [request], "config": config}});
        let claim = json!({"kind": "ResourceClaim", "metadata": {}, "spec": spec});
        let template = json!({"kind": "ResourceClaimTemplate", "metadata": {}, "spec": {"spec": spec}});
        let [claim, template] = [claim, template].map(|object| judge(&object).unwrap());
        assert_eq!(claim, template);
        claim.refused.map(|refused| refused.message)
    }

    #[test]
    fn parameters_are_read_as_the_driver_reads_them() {
        for (fields, words) in [
            (json!({"apiVersion": "gpu.aliquot.dev/v2"}), "apiVersion \"gpu.aliquot.dev/v2\""),
            (json!({"coreLimitPercent": 0}), "coreLimitPercent is 0; it must be 1 to 100"),
            (json!({"corelimit": 80}), "unknown field `corelimit`"),
            (json!({"priorityClass": "high"}), "unknown variant `high`"),
            (json!({"hostMemoryLimit": "4GB"}), "it must be a quantity such as 4Gi"),
        ] {
            let message = refused("30", "gpu.aliquot.dev", config(fields.clone())).expect("refused");
            assert!(message.starts_with("config 0: ") && message.contains(words), "{fields}: {message}");
            let class = json!({"kind": "DeviceClass", "metadata": {}, "spec": {"config": config(fields)}});
            assert_eq!(judge(&class).unwrap().refused.unwrap().message, message);
        }
        let good = config(json!({"coreLimitPercent": 80, "auditPolicy": "stop", "hostMemoryLimit": "4Gi"}));
        assert_eq!(refused("30", "gpu.aliquot.dev", good), None);
        let of_others = json!([{"opaque": {"driver": "gpu.example.com", "parameters": {"kind": "Any"}}}]);
        assert_eq!(refused("30", "gpu.aliquot.dev", of_others), None);
    }

    #[test]
    fn a_limit_below_the_request_and_more_than_a_device_are_refused() {
        let message = refused("30", "gpu.aliquot.dev", config(json!({"coreLimitPercent": 20}))).unwrap();
        assert_eq!(message, "request \"gpu\": coreLimitPercent is 20; it must be at least core, which is 30");
        let message = refused("150", "gpu.aliquot.dev", json!([])).unwrap();
        assert!(message.contains("core is 150; one device has 100 percent"), "{message}");
        // What core means to another driver is not known.
        assert_eq!(refused("150", "gpu.example.com", json!([])), None);
        let mut of_another_request = config(json!({"coreLimitPercent": 20}));
        of_another_request[0]["requests"] = json!(["other"]);
        assert_eq!(refused("30", "gpu.aliquot.dev", of_another_request), None);
    }

    #[test]
    fn a_limit_holds_for_each_request_of_a_prioritised_list() {
        let request = |name: &str, core: &str| {
            let capacity = json!({"requests": {"core": core}});
            json!({"name": name, "deviceClassName": "gpu.aliquot.dev", "capacity": capacity})
        };
        let requests = json!([{"name": "gpu", "firstAvailable": [request("small", "20"), request("large", "60")]}]);
        let claim = |config: Value| {
            let spec = json!({"devices": {"requests": requests, "config": config}});
            judge(&json!({"kind": "ResourceClaim", "metadata": {}, "spec": spec})).unwrap().refused
        };
        let limit = config(json!({"coreLimitPercent": 50}));
        assert!(claim(limit.clone()).unwrap().message.starts_with("request \"gpu/large\""));
        let mut of_small = limit;
        of_small[0]["requests"] = json!(["gpu/small"]);
        assert_eq!(claim(of_small), None);
    }

    #[test]
    fn an_object_of_another_kind_is_an_error() {
        assert!(judge(&json!({"kind": "Secret"})).is_err());
        assert!(judge(&json!({"kind": "ResourceClaim", "spec": {"devices": 7}})).is_err());
    }
}
