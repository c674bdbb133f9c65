//! Which devices of other drivers have too little capacity for a pod that waits.

use super::super::super::Mirror;
use super::super::DeviceClaims;
use super::super::about::{AboutDevices, Lacking};
use crate::dra::{self, Ask, DRIVER, DevicesAsk, Found, PoolKey};

/// Devices that are named with what they lack.
const NAMED: usize = 3;

/// The devices that have too little capacity for a request.
struct Lacks {
    /// Devices with enough are fewer than the request asks for.
    is_too_few: bool,
    /// What each of them lacks, the nearest first.
    texts: Vec<String>,
}

impl Mirror {
    /// What devices of other drivers lack for a pod that waits: which device has how much of which capacity. `None`: no
    /// device that it could have lacks capacity.
    pub(in super::super::super) fn lacking_capacity(&self, uid: &str, seen: &mut AboutDevices) -> Option<String> {
        let claims = &self.device_claims;
        let (_, asks) = self.asks_of(&self.pods.get(uid)?.facts);
        let choices = asks.iter().flat_map(Ask::choices).filter(|choice| !claims.is_ours(choice));
        let found = choices.filter_map(|choice| {
            let key = (claims.criteria(choice).ok()?.key(), choice.count);
            let found = seen.lacking.entry(key).or_insert_with(|| claims.lacking(choice));
            Some((&choice.name, found.clone()?))
        });
        let found: Vec<(&String, Lacking)> = found.collect();
        let first = found.iter().find(|(_, lacking)| lacking.is_too_few).or_else(|| found.first());
        first.map(|(request, lacking)| format!("request {request:?}: {}", lacking.text))
    }
}

impl Lacks {
    fn text(&self) -> String {
        let named = self.texts.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        match self.texts.len().saturating_sub(NAMED) {
            0 => format!("too little capacity: {named}"),
            1 => format!("too little capacity: {named}, and 1 other device lacks more"),
            more => format!("too little capacity: {named}, and {more} other devices lack more"),
        }
    }
}

impl DeviceClaims {
    fn lacking(&self, ask: &DevicesAsk) -> Option<Lacking> {
        let lacks = self.lacks(ask, |_, _| true);
        (!lacks.texts.is_empty()).then(|| Lacking { is_too_few: lacks.is_too_few, text: lacks.text() })
    }

    /// What devices that a node reaches lack for a request; `None`: none of them lacks capacity. `reaches`: whether the node
    /// reaches a device.
    pub(super) fn lacking_for(&self, ask: &DevicesAsk, reaches: impl Fn(&PoolKey, &str) -> bool) -> Option<String> {
        let lacks = self.lacks(ask, reaches);
        (!lacks.texts.is_empty()).then(|| lacks.text())
    }

    fn lacks(&self, ask: &DevicesAsk, reaches: impl Fn(&PoolKey, &str) -> bool) -> Lacks {
        let selection = self.selection(ask).ok();
        let found = selection.into_iter().flat_map(|selection| selection.all_found());
        let mut enough = 0_usize;
        let mut lacking: Vec<(u128, String)> = Vec::new();
        for (key, device, found) in found.filter(|(key, device, _)| key.0 != DRIVER && reaches(key, device)) {
            let lack = match found {
                Found::Usable => self.lack_of(ask, key, device),
                // Its capacity is too small even if nobody has any of it, so it is furthest from being enough.
                Found::Lacks(why) => Some((u128::MAX, format!("{}/{device}: {why}", key.1))),
                Found::Tainted | Found::Unsupported(_) | Found::Failed(_) => continue,
            };
            match lack {
                Some(lack) => lacking.push(lack),
                None => enough += 1,
            }
        }
        lacking.sort();
        let texts = lacking.into_iter().map(|(_, text)| text).collect();
        Lacks { is_too_few: enough < usize::from(ask.count), texts }
    }

    /// The capacity of a device with shares of which most is missing for a request: the missing part in thousandths, and
    /// what is left of it. `None`: enough is left, or the device has no shares.
    fn lack_of(&self, ask: &DevicesAsk, key: &PoolKey, name: &str) -> Option<(u128, String)> {
        let device = self.pools.get(key)?.devices.get(name).filter(|device| dra::is_shared(device))?;
        let left = self.capacity_left(key, device);
        let takes = dra::consumed(device, &ask.capacity).ok()?;
        let missing = takes.iter().filter_map(|(capacity, takes)| {
            let left = left.get(capacity).copied().unwrap_or_default();
            let missing = takes.checked_sub(left).filter(|missing| *missing > 0)?;
            Some((missing.saturating_mul(1000) / takes, capacity, left, *takes))
        });
        let (missing, capacity, left, takes) = missing.max_by_key(|(missing, ..)| *missing)?;
        let (left, takes) = (dra::amount(left), dra::amount(takes));
        let text =
            format!("{}/{name} has {left} of its capacity {capacity:?} left, and the request takes {takes}", key.1);
        Some((missing, text))
    }
}
