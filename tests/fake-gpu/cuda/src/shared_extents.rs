//! Tickets, with which other processes open an allocation, and their invalidation.
//!
//! A ticket names the file behind a device's range and a slot in that file's trailer. The slot holds the ticket's
//! serial number as long as the allocation lives, so a ticket of a freed allocation is refused.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::CUresult;

use crate::Done;
use crate::arena::{Extent, TRAILER_BYTES};
use crate::backing::{Backing, BackingPlace, Plain};
use crate::device::Device;

/// A ticket, which a program passes to another process to let it open an allocation.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ticket {
    pub(crate) place: BackingPlace,
    offset: u64,
    pub(crate) bytes: u64,
    serial: u64,
    slot: u32,
    /// The device's index in the machine.
    pub(crate) device_index: u32,
    /// [`Ticket::IPC`] or [`Ticket::POOL`].
    pub(crate) kind: u32,
    magic: u32,
}

// SAFETY: integers only, and the assertion below excludes padding.
unsafe impl Plain for Ticket {}

const _: () = assert!(size_of::<Ticket>() == 56);

const MAGIC: u32 = u32::from_be_bytes(*b"alqT");
const SLOT_COUNT: usize = TRAILER_BYTES as usize / 8;

/// Slots in use, by the address of the allocation. Usually there are none.
static SHARED: Mutex<BTreeMap<u64, (usize, u64)>> = Mutex::new(BTreeMap::new());
static SHARED_COUNT: AtomicUsize = AtomicUsize::new(0);

fn shared() -> MutexGuard<'static, BTreeMap<u64, (usize, u64)>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticket {
    /// For `cuIpcOpenMemHandle`.
    pub(crate) const IPC: u32 = 1;
    /// For `cuMemPoolImportPointer`.
    pub(crate) const POOL: u32 = 2;

    /// Issues the ticket of an allocation, which stays the same as long as the allocation lives.
    pub(crate) fn issue(device: &Device, extent: &Extent, kind: u32) -> Done<Ticket> {
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
        let (backing, trailer) = device.arena.trailer();
        let mut shared = shared();
        let known = shared.get(&extent.start).copied();
        let (slot, serial) = match known {
            Some(known) => known,
            None => {
                let used = shared.values().map(|(slot, _)| *slot).collect::<Vec<_>>();
                let free = (0..SLOT_COUNT).find(|slot| !used.contains(slot)).ok_or(CUresult::OUT_OF_MEMORY)?;
                (free, NEXT_SERIAL.fetch_add(1, Ordering::Relaxed))
            }
        };
        if known.is_none() {
            if !backing.write(trailer + slot as u64 * 8, &serial.to_ne_bytes()) {
                return Err(CUresult::OUT_OF_MEMORY);
            }
            shared.insert(extent.start, (slot, serial));
            SHARED_COUNT.store(shared.len(), Ordering::Release);
        }
        let (_, offset) = device.arena.backing_of(extent.start);
        Ok(Ticket {
            place: backing.place(),
            offset,
            bytes: extent.bytes,
            serial,
            slot: slot as u32,
            device_index: device.index as u32,
            kind,
            magic: MAGIC,
        })
    }

    /// Reads a ticket from `bytes`, if they hold one of this kind.
    pub(crate) fn read(bytes: &[u8], kind: u32) -> Option<Ticket> {
        Ticket::from_bytes(bytes).filter(|ticket| ticket.magic == MAGIC && ticket.kind == kind)
    }

    /// Opens the allocation: its file and its offset in it. `None` if the allocation or its process is gone.
    pub(crate) fn open(&self) -> Option<(Backing, u64)> {
        let backing = Backing::open(&self.place)?;
        let trailer = backing.bytes()?.checked_sub(TRAILER_BYTES)?;
        let mut serial = [0; 8];
        let read = (self.slot as usize) < SLOT_COUNT && backing.read(trailer + u64::from(self.slot) * 8, &mut serial);
        let inside = self.offset.checked_add(self.bytes).is_some_and(|end| end <= trailer);
        (read && inside && u64::from_ne_bytes(serial) == self.serial).then_some((backing, self.offset))
    }
}

/// Invalidates the ticket of a freed allocation, if it has one.
#[inline]
pub(crate) fn forget(device: &Device, address: u64) {
    if SHARED_COUNT.load(Ordering::Acquire) != 0 {
        forget_slowly(device, address);
    }
}

#[cold]
fn forget_slowly(device: &Device, address: u64) {
    let mut shared = shared();
    if let Some((slot, _)) = shared.remove(&address) {
        let (backing, trailer) = device.arena.trailer();
        backing.write(trailer + slot as u64 * 8, &[0; 8]);
        SHARED_COUNT.store(shared.len(), Ordering::Release);
    }
}

/// Invalidates the tickets of all allocations that have ended with a context.
pub(crate) fn forget_ended(device: &Device) {
    if SHARED_COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let addresses = shared().keys().copied().filter(|&address| device.arena.contains(address)).collect::<Vec<_>>();
    for address in addresses.into_iter().filter(|&address| device.arena.around(address).is_none()) {
        forget_slowly(device, address);
    }
}
