//! Whether further pods may use the devices of a claim that is allocated already.

use super::DeviceClaims;
use crate::dra::{Allocated, DRIVER, unsupported_of_others, untolerated};

impl DeviceClaims {
    /// Checks that further pods may use what a claim was given. A device of which nothing is known is taken as it is.
    ///
    /// # Errors
    /// Why none may. Kubernetes' API says of a tainted device of an allocated claim that no new pod may reserve the claim.
    pub(super) fn check_allocated(&self, allocation: &Allocated) -> Result<(), String> {
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
        Ok(())
    }
}
