//! The waste of a free part of a device: how much less than its size it is worth.

use crate::decisions::placement::policies::expected_waste::fixed_point::{ONE, ratio};
use crate::decisions::placement::policies::expected_waste::packing_prices::{prices, values};
use crate::state::node::Node;
use crate::vocabulary::device_request::DeviceMemory;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::quantity::Bytes;
use crate::vocabulary::request::Request;

/// The most sizes with a price of their own. The time to find prices grows with the third power of their number.
const SIZES_MAX: usize = 32;

/// The most sizes of device memory that are told apart.
const MEMORIES_MAX: usize = 16;

/// Tables of waste, one for each size of device memory: the same bytes are different parts of devices of different
/// sizes.
#[derive(Clone, Debug)]
pub(crate) struct WasteTables {
    mix: Mix,
    scale: i64,
    /// Whether the mix asks for memory in bytes. If not, one table is enough for all devices.
    by_memory: bool,
    tables: Vec<(Bytes, WasteTable)>,
}

impl WasteTables {
    /// The tables of a mix.
    pub(crate) fn new(mix: &Mix, scale: i64) -> Self {
        let in_bytes = |request: &Request| match request.devices.memory {
            DeviceMemory::Bytes(bytes) => request.devices.count > 0 && bytes > Bytes::ZERO,
            DeviceMemory::Thousandths(_) => false,
        };
        let by_memory = mix.requests().any(|(request, _)| in_bytes(request));
        let memory = Bytes::new(u64::MAX);
        Self { by_memory, tables: vec![(memory, WasteTable::new(mix, memory, scale))], mix: mix.clone(), scale }
    }

    /// Adds the table that a new node needs.
    pub(crate) fn learn(&mut self, node: &Node) {
        let memory = memory(node);
        let known = self.tables.iter().any(|(of, _)| *of == memory);
        if self.by_memory && !known && self.tables.len() <= MEMORIES_MAX {
            self.tables.push((memory, WasteTable::new(&self.mix, memory, self.scale)));
        }
    }

    /// The table for a node's devices. If there were too many sizes of memory, the table of the nearest size.
    pub(crate) fn of(&self, node: &Node) -> &WasteTable {
        let [(_, any), others @ ..] = &self.tables[..] else { unreachable!("there is a table from the beginning") };
        if others.is_empty() {
            return any;
        }
        let memory = memory(node).get();
        let nearest = others.iter().min_by_key(|(of, _)| of.get().abs_diff(memory));
        nearest.map_or(any, |(_, table)| table)
    }
}

/// Memory of a node's first device. Nodes with devices of different memory are rare.
fn memory(node: &Node) -> Bytes {
    node.devices().first().map_or(Bytes::ZERO, |device| device.memory())
}

/// For each free part of a device, how much of it the expected work cannot use.
#[derive(Clone, Debug)]
pub(crate) struct WasteTable {
    /// By free thousandths of a device: the waste, in thousandths of a device times `scale`.
    waste: Vec<i32>,
}

impl WasteTable {
    /// The table of a mix, for devices with this memory, in thousandths of a device times `scale`. Each requested part
    /// of a device has its price ([`prices`]). A free part is of use as far as it can be filled at these prices. The
    /// rest is waste.
    fn new(mix: &Mix, device_memory: Bytes, scale: i64) -> Self {
        let mut counts = [0u64; 1001];
        for (request, count) in mix.requests().filter(|(request, _)| !several_whole(request)) {
            let part = usize::try_from(request.devices.part_of(device_memory).max(1)).unwrap_or(usize::MAX);
            // A request that does not fit onto such devices gives no part of them a worth.
            if let Some(tasks) = counts.get_mut(part) {
                *tasks += count * u64::from(request.devices.count);
            }
        }
        // A whole device always has a price of 1.
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

    /// The waste of a device with this many free thousandths.
    pub(crate) fn of(&self, free: u16) -> i32 {
        self.waste.get(usize::from(free)).copied().unwrap_or_default()
    }
}

/// Whether a task is for several whole devices, so has no use for parts.
fn several_whole(request: &Request) -> bool {
    request.devices.count > 1 && request.devices.takes_whole_devices()
}

/// Adds the counts of the sizes with the least demand to the next larger sizes, until there are few enough sizes. The
/// whole device stays.
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
    use crate::vocabulary::device_request::DeviceRequest;
    use crate::vocabulary::quantity::DeviceCore;

    fn table(sizes: &[(u16, u32, u64)]) -> WasteTable {
        let request = |count, core| Request {
            devices: DeviceRequest { count, core: DeviceCore::new(core), ..DeviceRequest::default() },
            ..Request::default()
        };
        let mix = Mix::counted(sizes.iter().map(|(count, core, tasks)| (request(*count, *core), *tasks)));
        WasteTable::new(&mix, Bytes::ZERO, 1)
    }

    #[test]
    fn memory_makes_a_part_as_large_as_time_does() {
        let request = |mib| Request {
            devices: DeviceRequest {
                memory: DeviceMemory::Bytes(Bytes::from_mib(mib)),
                ..DeviceRequest::share(DeviceCore::new(100))
            },
            ..Request::default()
        };
        let mix = Mix::of([&request(6000), &request(20_000)]);
        let waste = |device_mib| WasteTable::new(&mix, Bytes::from_mib(device_mib), 1);
        // 6,000 MiB are 375 thousandths of 16,000, and 240 of 25,000; no part of the smaller device will do for 20,000.
        assert_eq!([375, 376, 752, 1000].map(|free| waste(16_000).of(free)), [375, -124, -248, 0]);
        assert_eq!(waste(25_000).of(240), 240, "6,000 needs a little more than 240, so nothing fits");
    }

    #[test]
    fn what_the_expected_sizes_fill_is_no_waste() {
        let waste = table(&[(1, 500, 10)]);
        assert_eq!([0, 499, 500, 700, 1000].map(|free| waste.of(free)), [0, 499, 0, 200, 0]);
    }

    #[test]
    fn parts_of_several_devices_are_expected_as_well() {
        assert_eq!(table(&[(2, 500, 10)]).of(500), 0);
        assert_eq!(table(&[(2, 1000, 10)]).of(500), 500);
    }

    #[test]
    fn any_number_of_different_sizes_is_taken_in() {
        let sizes: Vec<(u16, u32, u64)> = (1..1000).map(|core| (1, core, u64::from(core % 7 + 1))).collect();
        let waste = table(&sizes);
        // A part may be worth more than its size, if what fills it is hard to place elsewhere.
        assert!((1..1000).all(|free| (-1000..=i32::from(free)).contains(&waste.of(free))));
        assert_eq!((waste.of(0), waste.of(1000)), (0, 0));
    }
}
