//! Devices that lately did not become ready. They are left out for a while.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::Mirror;
use super::super::DeviceClaims;
use super::DeviceId;
use crate::dra::{Ask, DevicesAsk, Found, PoolKey};

/// The devices that are left out.
#[derive(Debug, Default)]
pub(super) struct Shunned {
    /// How many waits for each device have failed whose time to leave it out is not over. It is given out again at the end of
    /// the last one.
    failures: BTreeMap<DeviceId, u32>,
}

impl Mirror {
    /// Leaves out these devices until [`shun_devices_no_more`](Self::shun_devices_no_more) was called as often.
    pub(crate) fn shun_devices(&mut self, devices: BTreeSet<DeviceId>) {
        for device in &devices {
            *self.device_claims.others.shunned.failures.entry(device.clone()).or_default() += 1;
        }
        self.forget_places_with(devices);
    }

    /// One time to leave out these devices is over.
    pub(crate) fn shun_devices_no_more(&mut self, devices: BTreeSet<DeviceId>) {
        let failures = &mut self.device_claims.others.shunned.failures;
        let ends = |device: &DeviceId| match failures.get_mut(device) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => failures.remove(device).is_some(),
        };
        let free = devices.into_iter().filter(ends).collect();
        self.forget_places_with(free);
    }

    /// Names a device of another driver that a waiting pod could have, if it were not left out; `None`: there is none.
    pub(in super::super::super) fn shunned_for_pod(&self, uid: &str) -> Option<String> {
        let claims = &self.device_claims;
        if claims.others.shunned.failures.is_empty() {
            return None;
        }
        let (_, asks) = self.asks_of(&self.pods.get(uid)?.facts);
        let mut choices = asks.iter().flat_map(Ask::choices).filter(|choice| !claims.is_ours(choice));
        choices.find_map(|choice| claims.shunned_for(choice, |_, _| true))
    }
}

impl DeviceClaims {
    pub(super) fn is_shunned(&self, pool: &PoolKey, device: &str) -> bool {
        let failures = &self.others.shunned.failures;
        !failures.is_empty() && failures.contains_key(&(pool.clone(), device.to_owned()))
    }

    /// Names a device that a request could have, if it were not left out; `None`: there is none. `reaches`: whether the
    /// request's node reaches a device.
    pub(super) fn shunned_for(&self, ask: &DevicesAsk, reaches: impl Fn(&PoolKey, &str) -> bool) -> Option<String> {
        let selection = self.selection(ask).ok()?;
        let would_do =
            |(pool, device): &&DeviceId| reaches(pool, device) && selection.found(pool, device) == Some(&Found::Usable);
        let ((driver, pool), device) = self.others.shunned.failures.keys().find(would_do)?;
        Some(format!(
            "device {pool}/{device} of {driver} did not become ready lately, and is left out for five minutes"
        ))
    }
}
