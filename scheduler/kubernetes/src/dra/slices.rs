//! ResourceSlices as API servers of different versions have them.

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

/// By this name devices have in Kubernetes 1.36 what is `nodeAllocatableResources` from 1.37 on, with other fields.
const FORMER_NAME: &str = "nodeAllocatableResourceMappings";

/// Reads a ResourceSlice. A device that stands for resources of its node is known as such by its former name, too: for each
/// resource it then has an entry without fields.
///
/// # Errors
/// What cannot be read of its `spec`.
pub(crate) fn read_slice(slice: DynamicObject) -> Result<ResourceSlice, String> {
    let DynamicObject { metadata, mut data, .. } = slice;
    let mut spec = data.get_mut("spec").map(Value::take).unwrap_or_default();
    for device in spec.get_mut("devices").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(former) = device.get(FORMER_NAME).and_then(Value::as_object) else { continue };
        let resources: Map<String, Value> = former.keys().map(|name| (name.clone(), json!({}))).collect();
        device["nodeAllocatableResources"] = resources.into();
    }
    let spec = serde_json::from_value(spec).map_err(|error| error.to_string())?;
    Ok(ResourceSlice { metadata, spec })
}

#[cfg(test)]
mod tests {
    use super::super::unsupported_of_others;
    use super::*;

    fn read(devices: Value) -> Result<ResourceSlice, String> {
        let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": "nic.example.com", "nodeName": "n", "pool": pool, "devices": devices});
        read_slice(serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap())
    }

    #[test]
    fn a_device_that_takes_of_its_node_is_known_by_both_names() {
        let former = json!({"cpu": {"capacityKey": "cores", "allocationMultiplier": "2"}});
        let slice = read(json!([
            {"name": "of-1-36", "nodeAllocatableResourceMappings": former},
            {"name": "of-1-37", "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}}},
            {"name": "plain", "nodeAllocatableResourceMappings": {}},
        ]));
        let slice = slice.unwrap();
        assert_eq!(slice.metadata.name.as_deref(), Some("s"));
        let devices = slice.spec.devices.unwrap();
        let takes: Vec<bool> = devices.iter().map(|device| unsupported_of_others(device).is_some()).collect();
        assert_eq!(takes, [true, true, false]);
    }

    #[test]
    fn a_slice_that_cannot_be_read_is_an_error() {
        let error = read(json!([{"name": "x", "allowMultipleAllocations": "yes"}])).unwrap_err();
        assert!(error.contains("yes"), "{error}");
    }
}
