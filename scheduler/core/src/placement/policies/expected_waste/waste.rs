//! What a free part of a device is worth less than its size.

use crate::placement::mix::Mix;
use crate::placement::policies::expected_waste::fixed_point::{ONE, ratio};
use crate::placement::policies::expected_waste::packing_prices::{prices, values};

/// For each part of a device that can be left free, how much of it the expected work cannot turn into value.
#[derive(Clone, Debug)]
pub(crate) struct WasteTable {
    /// By free thousandths, in thousandths times `scale`.
    waste: Vec<i32>,
}

impl WasteTable {
    /// Of a mix: each part of one device that is asked for has its price ([`prices`]); what a free part could be filled
    /// with at these prices is of use, the rest is waste. In thousandths of a device times `scale`.
    pub(crate) fn new(mix: &Mix, scale: i64) -> Self {
        let mut counts = [0u64; 1001];
        for (request, count) in mix.requests().filter(|(request, _)| request.devices.count == 1) {
            let part = usize::try_from(request.devices.core.get()).unwrap_or(1000).clamp(1, 1000);
            counts[part] += count;
        }
        // Whole devices always have a price: that of the unit.
        counts[1000] = counts[1000].max(1);
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
