//! What further pods need to use the devices of a claim that is allocated already.

use std::collections::BTreeSet;

use super::DeviceClaims;
use crate::dra::{Allocated, DRIVER, unsupported_of_others, untolerated};
use crate::placement::OPTIONAL_NODE_OPERATIONS;

impl DeviceClaims {
    /// The features that a node must declare for pods that use what a claim was given.
    ///
    /// # Errors
    /// Why no further pod may use it. Kubernetes' API says of a tainted device of an allocated claim that no new pod may
    /// reserve the claim. A device of which nothing is known is taken as it is.
    pub(super) fn needed_for(&self, allocation: &Allocated) -> Result<BTreeSet<&'static str>, String> {
        for result in &allocation.results {
            let pool = self.pools.get(&(result.driver.clone(), result.pool.clone()));
            let Some(device) = pool.and_then(|pool| pool.devices.get(&result.device)) else { continue };
            let name = format!("{}/{}/{}", result.driver, result.pool, result.device);
            if let Some(taint) = untolerated(result.tolerations.as_deref().unwrap_or_default(), device) {
                return Err(format!(
                    "its device {name} has the taint {}:{}, which the claim does not tolerate",
                    taint.key, taint.effect
                ));
            }
            if let Some(feature) = unsupported_of_others(device).filter(|_| result.driver != DRIVER) {
                return Err(format!("its device {name} has {feature}, which Aliquot's scheduler does not support"));
            }
        }
        Ok(allocation.skips_node_operations.then_some(OPTIONAL_NODE_OPERATIONS).into_iter().collect())
    }
}
