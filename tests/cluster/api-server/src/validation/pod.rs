//! Checks of pods, as far as devices are concerned.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::super::status::Failure;
use super::{name, require, typed, unique};
use crate::quantity::Quantity;

pub(in super::super) fn validate(object: &Value, old: Option<&Value>) -> Result<(), Failure> {
    let pod: Pod = typed(object)?;
    let spec = pod.spec.as_ref().ok_or_else(|| Failure::invalid("spec", "required"))?;
    if let Some(old) = old {
        let mut old: Pod = typed(old)?;
        // The fields that a binding sets may differ.
        if let Some(old) = old.spec.as_mut().filter(|old| old.node_name.is_none()) {
            old.node_name.clone_from(&spec.node_name);
        }
        return require(pod.spec == old.spec, "spec", || "pod updates may not change these fields".into());
    }
    require(!spec.containers.is_empty(), "spec.containers", || "required".into())?;
    unique(spec.containers.iter().map(|container| &container.name), "spec.containers")?;
    let claims = spec.resource_claims.as_deref().unwrap_or_default();
    unique(claims.iter().map(|claim| &claim.name), "spec.resourceClaims")?;
    for claim in claims {
        name::label(&claim.name, "spec.resourceClaims.name")?;
        require(
            claim.resource_claim_name.is_some() != claim.resource_claim_template_name.is_some(),
            "spec.resourceClaims",
            || "exactly one of resourceClaimName and resourceClaimTemplateName is required".into(),
        )?;
    }
    for container in &spec.containers {
        name::label(&container.name, "spec.containers.name")?;
        let Some(resources) = &container.resources else { continue };
        for used in resources.claims.iter().flatten() {
            require(claims.iter().any(|claim| claim.name == used.name), "spec.containers.resources.claims", || {
                format!("{:?} is not in spec.resourceClaims", used.name)
            })?;
        }
        for (resource, limit) in resources.limits.iter().flatten() {
            let path = format!("spec.containers.resources.limits[{resource}]");
            let quantity = Quantity::parse(&limit.0);
            require(quantity.is_some(), &path, || format!("{:?} is no quantity", limit.0))?;
            // An extended resource must be in whole units, and its limit must equal its request.
            if resource.contains('/') {
                name::label_key(resource, &path)?;
                let whole = quantity.is_some_and(|quantity| quantity == Quantity::of(quantity.units()));
                require(whole, &path, || format!("{:?} must be an integer", limit.0))?;
                let requested = resources.requests.as_ref().and_then(|requests| requests.get(resource));
                require(requested.is_none_or(|requested| Quantity::parse(&requested.0) == quantity), &path, || {
                    "must be equal to the request".into()
                })?;
            }
        }
        for resource in resources.requests.iter().flatten().map(|(resource, _)| resource) {
            let limited = resources.limits.as_ref().is_some_and(|limits| limits.contains_key(resource));
            require(limited || !resource.contains('/'), "spec.containers.resources", || {
                format!("a limit must be set for {resource}")
            })?;
        }
    }
    Ok(())
}
