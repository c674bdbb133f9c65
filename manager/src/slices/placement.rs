//! Finds the devices for a new slice's parts, and decides whether a device has room for a part.

use std::collections::BTreeSet;

use super::{CreateError, Part, PartError, PartRequest, SliceId, Slices};
use crate::inventory::{Device, DeviceUuid, Health, Inventory, SharingMode};

impl Slices {
    /// Finds a device for each part. Parts that name their device come first, so that no other part takes it. Then come
    /// the others, the greatest first, which wastes the least room.
    pub(super) fn place(&self, inventory: &Inventory, requests: &[PartRequest]) -> Result<Vec<Part>, CreateError> {
        let best = self.place_among(inventory, requests, None);
        // The best device for the first part may be the only one with its sharing mode, so every mode is tried.
        let ways: BTreeSet<SharingMode> = inventory.devices.iter().map(|device| device.sharing).collect();
        if best.is_err() && ways.len() > 1 {
            let mut others = ways.into_iter().map(|way| self.place_among(inventory, requests, Some(way)));
            return others.find(Result::is_ok).unwrap_or(best);
        }
        best
    }

    /// Places the parts on devices with the mode `sharing`. `None` stands for the mode of the first part's device,
    /// because all of a slice's devices must be shared alike.
    fn place_among(
        &self,
        inventory: &Inventory,
        requests: &[PartRequest],
        sharing: Option<SharingMode>,
    ) -> Result<Vec<Part>, CreateError> {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|&at| {
            let request = &requests[at];
            (
                request.device.is_none(),
                u32::MAX - request.core_request_percent.min(100),
                u64::MAX - request.memory_limit_bytes,
            )
        });
        let mut placed: Vec<Option<Part>> = vec![None; requests.len()];
        let mut taken: Vec<DeviceUuid> = Vec::new();
        // A process uses MPS on all its devices or on none.
        let mut sharing = sharing;
        for at in order {
            let request = &requests[at];
            let shares = Shares::of(request)?;
            let part = match &request.device {
                Some(uuid) => {
                    if taken.contains(uuid) {
                        return Err(CreateError::DeviceTwice { device: uuid.clone() });
                    }
                    let device = inventory.device(uuid).ok_or_else(|| PartError::unknown(uuid, inventory))?;
                    if sharing.is_some_and(|sharing| sharing != device.sharing) {
                        return Err(CreateError::SharedOtherwise { device: uuid.clone() });
                    }
                    self.fit(device, &shares, None)?
                }
                None => self.best_fit(inventory, &shares, &taken, sharing)?,
            };
            sharing = sharing.or_else(|| Some(inventory.device(&part.device)?.sharing));
            taken.push(part.device.clone());
            placed[at] = Some(part);
        }
        Ok(placed.into_iter().flatten().collect())
    }

    /// The part on the device with the least sufficient room, among devices with the same sharing mode as the slice's
    /// other parts.
    fn best_fit(
        &self,
        inventory: &Inventory,
        shares: &Shares,
        taken: &[DeviceUuid],
        sharing: Option<SharingMode>,
    ) -> Result<Part, CreateError> {
        let is_like = |device: &&Device| sharing.is_none_or(|sharing| device.sharing == sharing);
        let free = inventory.devices.iter().filter(is_like).filter(|device| !taken.contains(&device.uuid));
        let mut refusals = Vec::new();
        let mut fits = Vec::new();
        for device in free {
            match self.fit(device, shares, None) {
                Ok(part) => {
                    let given = self.given(&device.uuid, None);
                    let left =
                        (100 - given.core_request_percent, device.memory_bytes.saturating_sub(given.memory_bytes));
                    fits.push((left, device.index, part));
                }
                Err(error) => refusals.push(error),
            }
        }
        let best = fits.into_iter().min_by_key(|(left, index, _)| (*left, *index));
        best.map(|(_, _, part)| part).ok_or_else(|| CreateError::none(inventory, taken.len(), refusals))
    }

    /// The part with `shares` on `device`, if it fits. The slice `except` does not count as given.
    pub(super) fn fit(&self, device: &Device, shares: &Shares, except: Option<SliceId>) -> Result<Part, PartError> {
        let uuid = || device.uuid.clone();
        if device.mig_enabled {
            return Err(PartError::Partitioned { device: uuid() });
        }
        if let Health::Unhealthy { reason } = &device.health {
            return Err(PartError::Unhealthy { device: uuid(), reason: reason.clone() });
        }
        if device.uuid.bytes().is_none() {
            return Err(PartError::Unnameable { device: uuid() });
        }
        let memory_bytes = match shares.memory_limit_bytes {
            0 => part_of(device.memory_bytes, shares.core_request_percent),
            bytes => bytes,
        };
        if memory_bytes > device.memory_bytes {
            return Err(PartError::MemoryMax { device: uuid(), asked: memory_bytes, has: device.memory_bytes });
        }
        let given = self.given(&device.uuid, except);
        let core_free = 100_u32.saturating_sub(given.core_request_percent);
        if shares.core_request_percent > core_free {
            return Err(PartError::CoreRoom { device: uuid(), asked: shares.core_request_percent, free: core_free });
        }
        let memory_free = device.memory_bytes.saturating_sub(given.memory_bytes);
        if memory_bytes > memory_free {
            return Err(PartError::MemoryRoom { device: uuid(), asked: memory_bytes, free: memory_free });
        }
        Ok(Part {
            device: uuid(),
            core_request_percent: shares.core_request_percent,
            core_limit_percent: shares.core_limit_percent,
            memory_limit_bytes: memory_bytes,
        })
    }
}

/// Shares that are valid in themselves, independent of the device.
pub(super) struct Shares {
    core_request_percent: u32,
    core_limit_percent: u32,
    memory_limit_bytes: u64,
}

impl Shares {
    fn of(request: &PartRequest) -> Result<Shares, PartError> {
        let limit = match request.core_limit_percent {
            0 => request.core_request_percent,
            limit => limit,
        };
        Shares::checked(request.core_request_percent, limit, request.memory_limit_bytes)
    }

    /// The shares of `part` after `change`. A limit that equals the request follows the request.
    pub(super) fn changed(part: &Part, change: &PartRequest) -> Result<Shares, PartError> {
        let or = |new, old| if new == 0 { old } else { new };
        let request = or(change.core_request_percent, part.core_request_percent);
        let follows = part.core_limit_percent == part.core_request_percent;
        let limit = or(change.core_limit_percent, if follows { request } else { part.core_limit_percent });
        let memory = if change.memory_limit_bytes == 0 { part.memory_limit_bytes } else { change.memory_limit_bytes };
        Shares::checked(request, limit, memory)
    }

    fn checked(request: u32, limit: u32, memory_limit_bytes: u64) -> Result<Shares, PartError> {
        if !(1..=100).contains(&request) {
            return Err(PartError::CoreRequest { found: request });
        }
        if limit > 100 {
            return Err(PartError::CoreLimit { found: limit });
        }
        if limit < request {
            return Err(PartError::LimitBelowRequest { request, limit });
        }
        Ok(Shares { core_request_percent: request, core_limit_percent: limit, memory_limit_bytes })
    }
}

/// `percent` of `bytes`, rounded down.
fn part_of(bytes: u64, percent: u32) -> u64 {
    let part = u128::from(bytes) * u128::from(percent) / 100;
    u64::try_from(part).unwrap_or(bytes)
}
