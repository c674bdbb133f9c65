//! Features of Kubernetes that are off in some clusters.

use serde_json::Value;

use super::resource::{Resource, SLICES};

/// The object as a server keeps it whose feature gate `DRAConsumableCapacity` is off: it drops the fields of this
/// feature, and says nothing about it.
pub(super) fn without_consumable_capacity(resource: &Resource, mut object: Value) -> Value {
    if (resource.group, resource.plural) != (SLICES.group, SLICES.plural) {
        return object;
    }
    for device in object["spec"]["devices"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        device.remove("allowMultipleAllocations");
        let capacities = device.get_mut("capacity").and_then(Value::as_object_mut);
        for capacity in capacities.into_iter().flat_map(|all| all.values_mut()).filter_map(Value::as_object_mut) {
            capacity.remove("requestPolicy");
        }
    }
    object
}
