//! Devices that a waiting pod could have if its claims tolerated their taints.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::DeviceTaint;

use super::Mirror;

impl Mirror {
    /// Names a device that only a taint keeps from a pod's claims, and says how many there are; `None`: there is none.
    pub(crate) fn tainted_for(&self, uid: &str) -> Option<String> {
        let pools = &self.device_claims.pools;
        let criteria = self.criteria_of(self.pods.get(uid)?);
        let tainted = criteria.iter().flat_map(|of| of.kept_away_from(pools));
        let tainted: BTreeMap<(&str, &str, &str), &DeviceTaint> = tainted
            .map(|((driver, pool), device, taint)| ((driver.as_str(), pool.as_str(), device.name.as_str()), taint))
            .collect();
        let (&(driver, pool, device), taint) = tainted.first_key_value()?;
        let DeviceTaint { key, value, effect, .. } = taint;
        let value = value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
        let others = match tainted.len() {
            1 => String::new(),
            2 => "; so is another device".to_owned(),
            all => format!("; so are {} other devices", all - 1),
        };
        Some(format!(
            "device {pool}/{device} of {driver} is kept from the pod by the taint {key}{value}:{effect}, which its claims \
             do not tolerate{others}"
        ))
    }
}
