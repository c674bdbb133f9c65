//! What a free part of a device is worth less than its size.

use crate::placement::mix::Mix;
use crate::placement::policies::expected_waste::fixed_point::{ONE, ratio};
use crate::placement::policies::expected_waste::packing_prices::{prices, values};
use crate::request::Request;

/// Sizes that get a price of their own at most: finding prices takes the third power of their number.
const SIZES_MAX: usize = 32;

/// For each part of a device that can be left free, how much of it the expected work cannot turn into value.
#[derive(Clone, Debug)]
pub(crate) struct WasteTable {
    /// By free thousandths, in thousandths times `scale`.
    waste: Vec<i32>,
}

impl WasteTable {
    /// Of a mix: each part of a device that is asked for has its price ([`prices`]); what a free part could be filled
    /// with at these prices is of use, the rest is waste. In thousandths of a device times `scale`.
    pub(crate) fn new(mix: &Mix, scale: i64) -> Self {
        let mut counts = [0u64; 1001];
        for (request, count) in mix.requests().filter(|(request, _)| !several_whole(request)) {
            let part = usize::try_from(request.devices.core.get()).unwrap_or(1000).clamp(1, 1000);
            counts[part] += count * u64::from(request.devices.count);
        }
        // Whole devices always have a price: that of the unit.
        counts[1000] = counts[1000].max(1);
        merge_rare(&mut counts);
        let asked = || (0u16..).zip(counts).filter(|(_, count)| *count > 0);
        let sizes: Vec<u16> = asked().map(|(size, _)| size).collect();
        let counts: Vec<u64> = asked().map(|(_, count)| count).collect();
        let values = values(&sizes, &prices(&sizes, &counts));
        let whole = values.last().copied().filter(|whole| *whole > 0).unwrap_or(ONE);
        let waste = (0i128..).zip(&values).map(|(free, value)| {
            let of_use = (ratio(*value, whole) * 1000 * i128::from(scale)) / ONE;
            i32::try_from(free * i128::from(scale) - of_use).unwrap_or(i32::MAX)
        });
        Self { waste: waste.collect() }
    }

    /// Waste of a device with so much free.
    pub(crate) fn of(&self, free: u16) -> i32 {
        self.waste.get(usize::from(free)).copied().unwrap_or_default()
    }
}

/// Tasks for several whole devices have no use for parts.
fn several_whole(request: &Request) -> bool {
    request.devices.count > 1 && request.devices.takes_whole_devices()
}

/// Counts sizes that make up the least demand with the next larger ones, until there are few enough. The whole device
/// stays.
fn merge_rare(counts: &mut [u64; 1001]) {
    let mut sizes: Vec<usize> = (0..1000).filter(|size| counts[*size] > 0).collect();
    while sizes.len() >= SIZES_MAX {
        let demand = |size: usize| counts[size].saturating_mul(size as u64);
        let Some(rarest) = (0..sizes.len()).min_by_key(|index| demand(sizes[*index])) else { return };
        let size = sizes.remove(rarest);
        let larger = sizes.get(rarest).copied().unwrap_or(1000);
        counts[larger] += std::mem::take(&mut counts[size]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::DeviceCore;
    use crate::request::DeviceRequest;

    fn mix(sizes: &[(u16, u32, u64)]) -> Mix {
        let request = |count, core| Request {
            devices: DeviceRequest { count, core: DeviceCore::new(core), ..DeviceRequest::default() },
            ..Request::default()
        };
        Mix::counted(sizes.iter().map(|(count, core, tasks)| (request(*count, *core), *tasks)))
    }

    #[test]
    fn what_the_expected_sizes_fill_is_no_waste() {
        let waste = WasteTable::new(&mix(&[(1, 500, 10)]), 1);
        assert_eq!([0, 499, 500, 700, 1000].map(|free| waste.of(free)), [0, 499, 0, 200, 0]);
    }

    #[test]
    fn parts_of_several_devices_are_expected_as_well() {
        assert_eq!(WasteTable::new(&mix(&[(2, 500, 10)]), 1).of(500), 0);
        assert_eq!(WasteTable::new(&mix(&[(2, 1000, 10)]), 1).of(500), 500);
    }

    #[test]
    fn any_number_of_different_sizes_is_taken_in() {
        let sizes: Vec<(u16, u32, u64)> = (1..1000).map(|core| (1, core, u64::from(core % 7 + 1))).collect();
        let waste = WasteTable::new(&mix(&sizes), 1);
        // A part may be worth more than its size, if what fills it is hard to place elsewhere.
        assert!((1..1000).all(|free| (-1000..=i32::from(free)).contains(&waste.of(free))));
        assert_eq!((waste.of(0), waste.of(1000)), (0, 0));
    }
}
