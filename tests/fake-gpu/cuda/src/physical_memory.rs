//! Physical memory of `cuMemCreate`, and its export to other processes.
//!
//! It is a part of one anonymous file, so that it can be mapped at several addresses. Memory that can be exported has
//! its own file, which ends with a description of the memory. The process that made it is charged until the last handle
//! and the last mapping are gone.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use aliquot_abi::cuda::{CUdeviceptr, CUmemAllocationProp, CUmemLocation, CUresult};

use crate::Done;
use crate::backing::{Backing, Plain};
use crate::caller::{get, not_null, put};
use crate::handles::{self, Kind, Object};
use crate::locations::{self, Location};
use crate::memory::Side;
use crate::multicast::Multicast;
use crate::pool_sharing::ordinal_of_index;
use crate::process::{initialised, process};

/// Sizes and addresses are multiples of this.
pub(crate) const GRANULARITY_BYTES: u64 = 2 << 20;
const ALLOCATION_PINNED: c_uint = 1;
const HANDLE_POSIX_FD: c_uint = 1;
/// `CU_MEM_CREATE_USAGE_TILE_POOL`: only for sparse arrays.
const USAGE_TILE_POOL: u16 = 1;
const DESCRIPTION_BYTES: u64 = 4096;
const MAGIC: u64 = u64::from_be_bytes(*b"alq-phys");
/// Stands for the host in place of a device's index.
const HOST_INDEX: u64 = u64::MAX;

/// The place of physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On the device with this ordinal.
    Device(usize),
    Host,
    /// On all devices of a multicast object.
    Everywhere,
}

/// Physical memory, or a multicast object, which is mapped like it.
pub(crate) struct Physical {
    properties: CUmemAllocationProp,
    pub(crate) place: Place,
    pub(crate) bytes: u64,
    /// Its own file, until the memory is gone. Without one, the memory lies at `offset` in the common file.
    own_file: Mutex<Option<Backing>>,
    offset: u64,
    /// Whether this process made it and is charged for it.
    is_charged: bool,
    /// Number of handles; number of mappings and bindings.
    references: Mutex<(usize, usize)>,
    pub(crate) multicast: Option<Multicast>,
}

// SAFETY: the only pointer inside is a property that is stored but never dereferenced.
unsafe impl Send for Physical {}
// SAFETY: as above; mutable data is behind a mutex.
unsafe impl Sync for Physical {}

impl Object for Physical {
    const KIND: Kind = Kind::PhysicalMemory;
}

/// The description at the end of an exportable file.
#[derive(Clone, Copy)]
#[repr(C)]
struct Description {
    magic: u64,
    bytes: u64,
    device_index: u64,
    location_kind: u32,
    location_id: i32,
}

// SAFETY: integers only, and the assertion below excludes padding.
unsafe impl Plain for Description {}

const _: () = assert!(size_of::<Description>() == 32);

/// The common file, for all physical memory of the process that cannot be exported, and the number of its bytes in use.
fn common() -> Done<(&'static Backing, &'static Mutex<u64>)> {
    static FILE: OnceLock<Option<Backing>> = OnceLock::new();
    static BYTES: Mutex<u64> = Mutex::new(0);
    let file = FILE.get_or_init(|| Backing::create(c"simulated-gpu-physical", 0)).as_ref();
    file.map(|file| (file, &BYTES)).ok_or(CUresult::OUT_OF_MEMORY)
}

/// Handles of memory that has its own file, by the file's inode.
static BY_FILE: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn by_file() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    BY_FILE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Physical {
    fn references(&self) -> MutexGuard<'_, (usize, usize)> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn side(&self) -> Side {
        match self.place {
            Place::Device(ordinal) => Side::Device(ordinal),
            Place::Host => Side::PinnedHost,
            Place::Everywhere => Side::Device(self.multicast.as_ref().map_or(0, Multicast::first_device)),
        }
    }

    /// Whether it is only for sparse arrays.
    pub(crate) fn is_tile_pool(&self) -> bool {
        let [_, _, low, high, ..] = self.properties.alloc_flags;
        u16::from_ne_bytes([low, high]) == USAGE_TILE_POOL
    }

    /// Replaces the caller's pages at `address` by a part of the memory, without access rights.
    pub(crate) fn map(&self, offset: u64, bytes: u64, address: u64) -> Done {
        let mapped = match &*self.own_file() {
            Some(own) => own.map(offset, bytes, address, libc::PROT_NONE),
            None => common()?.0.map(self.offset + offset, bytes, address, libc::PROT_NONE),
        };
        mapped.map(|_| ()).ok_or(CUresult::OUT_OF_MEMORY)
    }

    fn own_file(&self) -> MutexGuard<'_, Option<Backing>> {
        self.own_file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a mapping or binding.
    pub(crate) fn hold(&self) {
        self.references().1 += 1;
    }

    /// Counts one mapping or binding less.
    pub(crate) fn let_go(&self) {
        self.count_off(|(_, mappings)| *mappings -= 1);
    }

    /// Decreases a count. When no handle and no mapping is left, frees the memory.
    fn count_off(&self, change: impl FnOnce(&mut (usize, usize))) {
        let mut references = self.references();
        let before = *references;
        change(&mut references);
        if *references != (0, 0) || before == (0, 0) {
            return;
        }
        if let Some(multicast) = &self.multicast {
            multicast.unbind_all();
        }
        if let (true, Place::Device(ordinal)) = (self.is_charged, self.place) {
            initialised().devices[ordinal].release(self.bytes);
        }
        // The pages of its own file belong to the processes that still have the file open.
        let own = self.own_file().take();
        if own.is_none()
            && let Ok((file, _)) = common()
        {
            file.discard(self.offset, self.bytes);
        }
    }
}

pub(crate) fn check_granular(value: u64) -> Done {
    if value.is_multiple_of(GRANULARITY_BYTES) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

fn check_properties(properties: &CUmemAllocationProp) -> Done<Place> {
    if properties.kind != ALLOCATION_PINNED {
        return Err(CUresult::INVALID_VALUE);
    }
    if properties.requested_handle_types & !HANDLE_POSIX_FD != 0 {
        // Fabric handles need a fabric manager; those of Windows need Windows.
        return Err(CUresult::NOT_SUPPORTED);
    }
    match locations::read(properties.location)? {
        Location::Device(device) => Ok(Place::Device(device.ordinal)),
        Location::Host => Ok(Place::Host),
    }
}

/// Room for `bytes` in a file: its own one with a description, or the common file.
fn make_room(properties: &CUmemAllocationProp, place: Place, bytes: u64) -> Done<(Mutex<Option<Backing>>, u64)> {
    if properties.requested_handle_types != 0 {
        let device_index = match place {
            Place::Device(ordinal) => initialised().devices[ordinal].index as u64,
            _ => HOST_INDEX,
        };
        let CUmemLocation { kind: location_kind, id: location_id } = properties.location;
        let description = Description { magic: MAGIC, bytes, device_index, location_kind, location_id };
        let own = Backing::create(c"simulated-gpu-shareable", bytes + DESCRIPTION_BYTES);
        let own = own.filter(|own| own.write(bytes, description.bytes())).ok_or(CUresult::OUT_OF_MEMORY)?;
        return Ok((Mutex::new(Some(own)), 0));
    }
    let (file, used) = common()?;
    let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
    let offset = *used;
    if !file.grow(offset + bytes) {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    *used += bytes;
    Ok((Mutex::new(None), offset))
}

fn register(physical: Physical) -> u64 {
    let file = physical.own_file().as_ref().map(Backing::inode);
    let handle = handles::register(physical).0.expose_provenance() as u64;
    if let Some(file) = file {
        by_file().insert(file, handle);
    }
    handle
}

/// Makes a multicast object's handle.
pub(crate) fn register_multicast(bytes: u64, multicast: Multicast) -> Done<u64> {
    let properties = CUmemAllocationProp {
        kind: ALLOCATION_PINNED,
        requested_handle_types: 0,
        location: CUmemLocation { kind: 0, id: 0 },
        win32_handle_meta_data: core::ptr::null_mut(),
        alloc_flags: [0; 8],
    };
    let (own_file, offset) = make_room(&properties, Place::Everywhere, bytes)?;
    let (references, multicast) = (Mutex::new((1, 0)), Some(multicast));
    let place = Place::Everywhere;
    Ok(register(Physical { properties, place, bytes, own_file, offset, is_charged: false, references, multicast }))
}

pub(crate) fn cuMemCreate(
    target: *mut u64,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> Done {
    process()?;
    not_null(target)?;
    let properties = get(properties)?;
    let place = check_properties(&properties)?;
    let bytes = bytes as u64;
    check_granular(bytes)?;
    if bytes == 0 || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if let Place::Device(ordinal) = place {
        initialised().devices[ordinal].reserve(bytes)?;
    }
    let (own_file, offset) = make_room(&properties, place, bytes).inspect_err(|_| {
        if let Place::Device(ordinal) = place {
            initialised().devices[ordinal].release(bytes);
        }
    })?;
    let references = Mutex::new((1, 0));
    let (is_charged, multicast) = (true, None);
    put(target, register(Physical { properties, place, bytes, own_file, offset, is_charged, references, multicast }))
}

/// The physical memory or multicast object that a handle names.
pub(crate) fn physical(handle: u64) -> Done<&'static Physical> {
    process()?;
    handles::find(pointer_of(handle)).ok_or(CUresult::INVALID_VALUE)
}

fn pointer_of(handle: u64) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(handle as usize)
}

pub(crate) fn cuMemRelease(handle: u64) -> Done {
    let mut released = false;
    physical(handle)?.count_off(|(handles, _)| {
        released = *handles > 0;
        *handles = handles.saturating_sub(1);
        if *handles == 0 {
            by_file().retain(|_, known| *known != handle);
            // If several threads release the last references at once, only one of them retires the handle.
            let _ = handles::retire::<Physical>(pointer_of(handle));
        }
    });
    if released { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Adds a reference to mapped memory. Returns its handle, or a new one if that was released.
pub(crate) fn retain(physical: &'static Physical, handle: u64) -> u64 {
    physical.references().0 += 1;
    if handles::find::<Physical>(pointer_of(handle)).is_some() {
        handle
    } else {
        handles::name(physical).expose_provenance() as u64
    }
}

pub(crate) fn cuMemExportToShareableHandle(
    target: *mut c_void,
    handle: u64,
    handle_type: c_uint,
    flags: c_ulonglong,
) -> Done {
    let physical = physical(handle)?;
    not_null(target)?;
    if flags != 0 || handle_type != HANDLE_POSIX_FD {
        return Err(CUresult::INVALID_VALUE);
    }
    // Only memory that was made for export has its own file.
    let own_file = physical.own_file();
    let own_file = own_file.as_ref().ok_or(CUresult::INVALID_VALUE)?;
    put(target.cast::<c_int>(), own_file.duplicate().ok_or(CUresult::OUT_OF_MEMORY)?)
}

/// Memory described by a descriptor of the program: its file, size and place.
pub(crate) struct Foreign {
    pub(crate) backing: Backing,
    pub(crate) bytes: u64,
    place: Place,
    location: CUmemLocation,
}

impl Foreign {
    /// Reads a descriptor's file. The descriptor still belongs to the program.
    pub(crate) fn look_at(number: c_int) -> Option<Foreign> {
        // SAFETY: duplicating a descriptor accesses no memory; an invalid number is refused.
        let backing = Backing::own(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) })?;
        let bytes = backing.bytes()?.checked_sub(DESCRIPTION_BYTES)?;
        let mut record = [0; size_of::<Description>()];
        let description = backing.read(bytes, &mut record).then(|| Description::from_bytes(&record)).flatten()?;
        if description.magic != MAGIC || description.bytes != bytes {
            return None;
        }
        let place = match description.device_index {
            HOST_INDEX => Place::Host,
            index => Place::Device(ordinal_of_index(index)?),
        };
        let id = match place {
            Place::Device(ordinal) => ordinal as c_int,
            _ => description.location_id,
        };
        Some(Foreign { backing, bytes, place, location: CUmemLocation { kind: description.location_kind, id } })
    }

    /// The ordinal of the memory's device; 0 for host memory, which all devices can access.
    pub(crate) fn ordinal(&self) -> usize {
        if let Place::Device(ordinal) = self.place { ordinal } else { 0 }
    }
}

pub(crate) fn cuMemImportFromShareableHandle(target: *mut u64, os_handle: *mut c_void, handle_type: c_uint) -> Done {
    process()?;
    not_null(target)?;
    if handle_type != HANDLE_POSIX_FD {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let number = c_int::try_from(os_handle.addr()).map_err(|_| CUresult::INVALID_VALUE)?;
    let foreign = Foreign::look_at(number).ok_or(CUresult::INVALID_VALUE)?;
    // Memory that this process made or imported before gets another reference with the same handle.
    let known = by_file().get(&foreign.backing.inode()).copied();
    if let Some(known) = known
        && let Ok(present) = physical(known)
    {
        return put(target, retain(present, known));
    }
    let properties = CUmemAllocationProp {
        kind: ALLOCATION_PINNED,
        requested_handle_types: HANDLE_POSIX_FD,
        location: foreign.location,
        win32_handle_meta_data: core::ptr::null_mut(),
        alloc_flags: [0; 8],
    };
    let Foreign { backing, bytes, place, .. } = foreign;
    let (own_file, references) = (Mutex::new(Some(backing)), Mutex::new((1, 0)));
    let (is_charged, multicast) = (false, None);
    put(target, register(Physical { properties, place, bytes, own_file, offset: 0, is_charged, references, multicast }))
}

pub(crate) fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const CUmemAllocationProp,
    option: c_uint,
) -> Done {
    process()?;
    check_properties(&get(properties)?)?;
    if option > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    put(granularity, GRANULARITY_BYTES as usize)
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(properties: *mut CUmemAllocationProp, handle: u64) -> Done {
    put(properties, physical(handle)?.properties)
}

/// Handles of address ranges are DMA buffers, which need a kernel module.
pub(crate) fn cuMemGetHandleForAddressRange(
    target: *mut c_void,
    address: CUdeviceptr,
    bytes: usize,
    handle_type: c_uint,
    flags: c_ulonglong,
) -> Done {
    process()?;
    not_null(target)?;
    if bytes == 0 || handle_type != 1 || flags > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    crate::memory::known_side_of(address, bytes as u64)?;
    Err(CUresult::NOT_SUPPORTED)
}
