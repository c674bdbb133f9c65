//! What owners have of other drivers' devices: whole devices, or shares of their capacities.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;

use super::DeviceId;
use crate::dra::{Amounts, DRIVER, thousandths};

/// What an owner has of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super::super) struct Use {
    /// Nobody else can have any of it.
    pub(super) is_whole: bool,
    /// What its shares consume of the device's capacities.
    pub(super) consumed: Amounts,
}

impl Use {
    /// Adds what another one has.
    pub(super) fn add(&mut self, other: &Use) {
        self.is_whole |= other.is_whole;
        for (name, amount) in &other.consumed {
            match self.consumed.get_mut(name) {
                Some(of) => *of = of.saturating_add(*amount),
                None => _ = self.consumed.insert(name.clone(), *amount),
            }
        }
    }
}

/// What an owner has of each device.
pub(in super::super::super) type Uses = BTreeMap<DeviceId, Use>;

/// What these results hold of devices of other drivers. `is_share`: whether a result is a share of a device.
pub(super) fn of_results<'a>(
    results: impl Iterator<Item = &'a DeviceRequestAllocationResult>,
    is_share: impl Fn(&DeviceRequestAllocationResult) -> bool,
) -> Uses {
    let mut uses = Uses::new();
    let takes = |result: &&DeviceRequestAllocationResult| result.driver != DRIVER && result.admin_access != Some(true);
    for result in results.filter(takes) {
        let device = ((result.driver.clone(), result.pool.clone()), result.device.clone());
        // An amount that cannot be read counts as more than there is.
        let amounts = result.consumed_capacity.iter().flatten();
        let amounts = amounts.map(|(name, of)| (name.clone(), thousandths(&of.0).unwrap_or(u128::MAX)));
        let used = match is_share(result) {
            true => Use { is_whole: false, consumed: amounts.collect() },
            false => Use { is_whole: true, consumed: Amounts::new() },
        };
        uses.entry(device).or_default().add(&used);
    }
    uses
}
