//! DeviceClasses.

use k8s_openapi::api::resource::v1::DeviceClass;
use serde_json::Value;

use super::super::status::Failure;
use super::{at_most, claim, name, typed};

const MAX_SELECTORS: usize = 32;
const MAX_CONFIGURATIONS: usize = 32;

pub(in super::super) fn validate(object: &Value, _old: Option<&Value>) -> Result<(), Failure> {
    let class: DeviceClass = typed(object)?;
    let spec = class.spec.unwrap_or_default();
    at_most(spec.selectors.iter().flatten().count(), MAX_SELECTORS, "spec.selectors")?;
    at_most(spec.config.iter().flatten().count(), MAX_CONFIGURATIONS, "spec.config")?;
    if let Some(resource) = &spec.extended_resource_name {
        name::label_key(resource, "spec.extendedResourceName")?;
    }
    spec.config.iter().flatten().try_for_each(|each| claim::opaque(each.opaque.as_ref(), "spec.config"))
}
