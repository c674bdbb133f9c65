//! A ledger with arbitrary content from a tenant, for the fuzz target.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use aliquot_abi::ledger::{self, BYTES_MASK, MANAGER_PID};
use aliquot_abi::region::{ACCOUNTS, DEVICES_MAX, LEDGER_FILE_BYTES, Ledger};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::region::map::Mapping;
use crate::region::view::{self, SlotState};

/// A ledger, mapped as that of a region.
pub struct HostileLedger {
    file: File,
    ledger: Mapping<Ledger>,
}

impl HostileLedger {
    /// An empty ledger.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn new() -> io::Result<HostileLedger> {
        let file = File::from(memfd_create(c"ledger", MemfdFlags::CLOEXEC)?);
        file.set_len(LEDGER_FILE_BYTES as u64)?;
        let ledger = Mapping::new(&file, LEDGER_FILE_BYTES)?;
        Ok(HostileLedger { file, ledger })
    }

    /// Empties it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.set_len(LEDGER_FILE_BYTES as u64)
    }

    /// Writes `value` at `offset`, as the tenant does: anywhere in the file.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn write(&self, offset: u64, value: u64) -> io::Result<()> {
        self.file.write_all_at(&value.to_ne_bytes(), offset % (LEDGER_FILE_BYTES as u64 - 7))
    }

    /// Reads everything that the manager reads.
    ///
    /// # Panics
    /// A value is out of its bounds.
    pub fn look(&self) {
        let ledger: &Ledger = &self.ledger;
        let _ = view::implausible(ledger, DEVICES_MAX);
        for number in 0..ACCOUNTS {
            let account = view::account(ledger, number);
            assert!(account.used_bytes <= account.peak_bytes && account.peak_bytes <= BYTES_MASK, "{account:?}");
        }
        let used: Vec<usize> = view::slots(ledger).map(|(index, _)| index).collect();
        for device in 0..DEVICES_MAX {
            let _ = view::sum(ledger, used.iter().copied(), device);
            for &index in &used {
                let _ = view::work(ledger, index, device);
            }
        }
        for (index, _) in view::slots(ledger) {
            assert!(view::held_bytes(ledger, index, DEVICES_MAX).iter().all(|&bytes| bytes <= BYTES_MASK));
        }
    }

    /// Gives all slots back, as the manager does when all processes have ended.
    ///
    /// # Panics
    /// A slot is still in use, or its memory is still counted.
    pub fn reclaim(&self) {
        let ledger: &Ledger = &self.ledger;
        let slots: Vec<(usize, SlotState)> = view::slots(ledger).collect();
        for (index, state) in slots {
            match state {
                SlotState::Attached(identity, _) => _ = ledger::reclaim(ledger, index, identity, MANAGER_PID),
                SlotState::Between { .. } => _ = ledger::repair(ledger, index),
                SlotState::Free => {}
            }
        }
        assert_eq!(view::slots(ledger).count(), 0);
        for number in 0..ACCOUNTS {
            assert!(ledger::settle(ledger, number));
            assert_eq!(view::account(ledger, number).used_bytes, 0);
        }
    }
}
