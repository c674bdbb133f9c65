//! Device memory that processes take and that the driver lists for none of them.
//!
//! On an H100 the driver takes 5.6 MiB for each process and lists them for no process. They count for the process's
//! slice. So no memory of a device must be kept back for them, and a slice may have all of it.
//!
//! ```text
//! unlisted = (used by the device - listed for its processes) / processes that compute
//! ```
//!
//! The two figures are asked for one after the other. Memory that processes allocate or free in between would look
//! unlisted, and a slice would be refused memory for it. So a value that differs from the last one counts only if
//! nothing has moved: the driver is asked twice for both figures, in turn, and gives the same ones.

use std::collections::BTreeMap;

use super::processes::each_once;
use crate::inventory::{DeviceProcess, DeviceSource, DeviceUuid};

/// An upper bound. A greater value has another cause, for example processes that this driver does not list.
const BYTES_MAX: u64 = 16 << 20;

/// Unlisted memory of each computing process when nothing moved last, by device.
#[derive(Debug, Default)]
pub(super) struct Unlisted(BTreeMap<DeviceUuid, u64>);

impl Unlisted {
    /// Memory that each computing process takes of a device beyond what the driver has just listed for it.
    pub(super) fn bytes(
        &mut self,
        source: &mut dyn DeviceSource,
        device: &DeviceUuid,
        listed: &BTreeMap<u32, DeviceProcess>,
    ) -> u64 {
        let known_bytes = self.0.get(device).copied().unwrap_or(0);
        let Some(used_bytes) = source.used_bytes(device).ok().flatten() else { return known_bytes };
        let bytes = each_bytes(used_bytes, listed);
        if bytes == known_bytes {
            return bytes;
        }
        let is_listed_again = source.processes(device).is_ok_and(|processes| each_once(&processes) == *listed);
        if !is_listed_again || source.used_bytes(device).ok().flatten() != Some(used_bytes) {
            return known_bytes;
        }
        self.0.insert(device.clone(), bytes);
        bytes
    }
}

fn each_bytes(used_bytes: u64, listed: &BTreeMap<u32, DeviceProcess>) -> u64 {
    let mut processes = listed.values();
    let listed_bytes = processes.try_fold(0_u64, |sum, process| Some(sum.saturating_add(process.memory_bytes?)));
    let count = listed.values().filter(|process| process.computes).count() as u64;
    let each = listed_bytes.and_then(|bytes| used_bytes.saturating_sub(bytes).checked_div(count)).unwrap_or(0);
    if each <= BYTES_MAX { each } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use aliquot_node::Partition;

    use super::*;
    use crate::inventory::{Inventory, SourceError, UtilisationSample};

    const MIB: u64 = 1 << 20;

    fn process(pid: u32, memory_bytes: Option<u64>, computes: bool) -> DeviceProcess {
        DeviceProcess { pid, memory_bytes, computes }
    }

    /// A driver that answers in this order.
    #[derive(Default)]
    struct Driver {
        used: VecDeque<u64>,
        lists: VecDeque<Vec<DeviceProcess>>,
    }

    impl DeviceSource for Driver {
        fn inventory(&mut self) -> Result<Inventory, SourceError> {
            Ok(Inventory::default())
        }

        fn processes(&mut self, _: &DeviceUuid) -> Result<Vec<DeviceProcess>, SourceError> {
            Ok(self.lists.pop_front().expect("not asked so often"))
        }

        fn used_bytes(&mut self, _: &DeviceUuid) -> Result<Option<u64>, SourceError> {
            Ok(Some(self.used.pop_front().expect("not asked so often")))
        }

        fn utilisation(&mut self, _: &DeviceUuid, _: u64) -> Result<Vec<UtilisationSample>, SourceError> {
            Ok(Vec::new())
        }

        fn create_instance(&mut self, _: &Partition) -> Result<(), SourceError> {
            Ok(())
        }

        fn destroy_instance(&mut self, _: &Partition) -> Result<(), SourceError> {
            Ok(())
        }
    }

    #[test]
    fn what_is_unlisted_is_split_among_computing_processes() {
        let listed = [process(1, Some(100 * MIB), true), process(2, Some(50 * MIB), true), process(3, Some(9), false)];
        let of = |used_bytes: u64, listed: &[DeviceProcess]| each_bytes(used_bytes, &each_once(listed));
        assert_eq!(of(162 * MIB + 9, &listed), 6 * MIB);
        assert_eq!(of(150 * MIB, &listed), 0);
        // A process that the driver does not list.
        assert_eq!(of(1000 * MIB, &listed), 0);
        assert_eq!(of(162 * MIB, &[process(1, None, true)]), 0);
        assert_eq!(of(5 * MIB, &[]), 0);
    }

    #[test]
    fn what_moves_while_the_driver_is_asked_is_not_unlisted() {
        let device = DeviceUuid::new("GPU-1");
        let list = |bytes: u64| vec![process(1, Some(bytes), true)];
        let mut unlisted = Unlisted::default();
        let mut look = |used: &[u64], lists: &[u64]| {
            let mut lists: VecDeque<_> = lists.iter().map(|bytes| list(*bytes)).collect();
            let listed = each_once(&lists.pop_front().unwrap());
            let mut driver = Driver { used: used.iter().copied().collect(), lists };
            let bytes = unlisted.bytes(&mut driver, &device, &listed);
            assert!(driver.used.is_empty() && driver.lists.is_empty(), "the driver is asked as often as it is needed");
            bytes
        };
        // Another process allocates 4 MiB after the list was read, and keeps them or not.
        assert_eq!(look(&[14 * MIB], &[10 * MIB, 14 * MIB]), 0);
        assert_eq!(look(&[14 * MIB, 10 * MIB], &[10 * MIB, 10 * MIB]), 0);
        // Nothing moves while the driver is asked.
        assert_eq!(look(&[15 * MIB, 15 * MIB], &[10 * MIB, 10 * MIB]), 5 * MIB);
        // The same value again needs no second question, and movement between the figures changes nothing.
        assert_eq!(look(&[25 * MIB], &[20 * MIB]), 5 * MIB);
        assert_eq!(look(&[29 * MIB], &[20 * MIB, 24 * MIB]), 5 * MIB);
        assert_eq!(look(&[20 * MIB, 20 * MIB], &[20 * MIB, 20 * MIB]), 0);
    }
}
