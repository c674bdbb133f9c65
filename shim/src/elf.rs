//! Reading the symbols of an object that the loader has mapped.
//!
//! The shim looks the driver's functions up in the driver's own symbol table, and the real `dlsym` in the C library's: calling
//! `dlsym` for that would find the shim's own.

use core::ffi::{CStr, c_char, c_void};

#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical_address: u64,
    file_bytes: u64,
    memory_bytes: u64,
    alignment: u64,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    bytes: u64,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: i64 = 0;
const DT_NEEDED: i64 = 1;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_GNU_IFUNC: u8 = 10;

/// An object as it is mapped. `Copy`, so that it can be kept; it is as valid as the object is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    base: usize,
    headers: *const ProgramHeader,
    header_count: u16,
}

/// The tables of an [`Image`] that a look-up needs.
struct Tables {
    symbols: *const Symbol,
    strings: *const c_char,
    soname: Option<u64>,
    gnu_hash: *const u32,
    sysv_hash: *const u32,
}

impl Image {
    /// The object at `base` with `header_count` program headers at `headers`.
    ///
    /// # Safety
    /// They must be what the loader says of a mapped object, and the object must stay mapped while the image is used.
    pub(crate) unsafe fn new(base: usize, headers: *const c_void, header_count: u16) -> Image {
        Image { base, headers: headers.cast(), header_count }
    }

    /// What [`Image::new`] was given.
    pub(crate) fn parts(&self) -> (usize, *const c_void, u16) {
        (self.base, self.headers.cast(), self.header_count)
    }

    fn headers(&self) -> &[ProgramHeader] {
        if self.headers.is_null() {
            return &[];
        }
        // SAFETY: see `new`.
        unsafe { core::slice::from_raw_parts(self.headers, self.header_count as usize) }
    }

    /// Whether `address` lies in the object.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.headers().iter().filter(|header| header.kind == PT_LOAD).any(|header| {
            let start = self.base.wrapping_add(header.address as usize);
            address.wrapping_sub(start) < header.memory_bytes as usize
        })
    }

    /// Calls `visit` with each entry of the dynamic section; not at all if there is none.
    fn each_dynamic(&self, mut visit: impl FnMut(i64, u64)) {
        let Some(dynamic) = self.headers().iter().find(|header| header.kind == PT_DYNAMIC) else { return };
        let mut entry = core::ptr::with_exposed_provenance::<Dynamic>(self.base.wrapping_add(dynamic.address as usize));
        loop {
            // SAFETY: the dynamic section of a mapped object is readable and ends with DT_NULL.
            let Dynamic { tag, value } = unsafe { &*entry };
            if *tag == DT_NULL {
                return;
            }
            visit(*tag, *value);
            // SAFETY: DT_NULL has not been reached.
            entry = unsafe { entry.add(1) };
        }
    }

    fn tables(&self) -> Option<Tables> {
        let mut tables = Tables {
            symbols: core::ptr::null(),
            strings: core::ptr::null(),
            soname: None,
            gnu_hash: core::ptr::null(),
            sysv_hash: core::ptr::null(),
        };
        self.each_dynamic(|tag, value| match tag {
            DT_HASH => tables.sysv_hash = self.pointer(value),
            DT_STRTAB => tables.strings = self.pointer(value),
            DT_SYMTAB => tables.symbols = self.pointer(value),
            DT_SONAME => tables.soname = Some(value),
            DT_GNU_HASH => tables.gnu_hash = self.pointer(value),
            _ => {}
        });
        (!tables.symbols.is_null() && !tables.strings.is_null()).then_some(tables)
    }

    /// A pointer of the dynamic section: glibc has relocated it, other loaders and the vDSO have not.
    fn pointer<T>(&self, value: u64) -> *const T {
        let address = value as usize;
        core::ptr::with_exposed_provenance(if address < self.base { self.base.wrapping_add(address) } else { address })
    }

    /// Whether the object's DT_SONAME is `name`.
    pub(crate) fn has_soname(&self, name: &CStr) -> bool {
        let Some(tables) = self.tables() else { return false };
        let Some(offset) = tables.soname else { return false };
        // SAFETY: an offset of the dynamic section lies in the string table, whose strings are NUL-terminated.
        let soname = unsafe { CStr::from_ptr(tables.strings.add(offset as usize)) };
        soname == name
    }

    /// Whether one of the object's DT_NEEDED entries is `name`.
    pub(crate) fn needs(&self, name: &CStr) -> bool {
        let Some(tables) = self.tables() else { return false };
        let mut found = false;
        self.each_dynamic(|tag, value| {
            // SAFETY: an offset of the dynamic section lies in the string table, whose strings are NUL-terminated.
            found |= tag == DT_NEEDED && unsafe { CStr::from_ptr(tables.strings.add(value as usize)) } == name;
        });
        found
    }

    /// The address of the function `name` that the object defines, or null.
    pub(crate) fn function(&self, name: &CStr) -> *mut c_void {
        let Some(tables) = self.tables() else { return core::ptr::null_mut() };
        let symbol = if tables.gnu_hash.is_null() { tables.find_sysv(name) } else { tables.find_gnu(name) };
        match symbol {
            // An indirect function would have to be called to learn its address; no driver has one under these names.
            Some(symbol) if symbol.info & 0xf != STT_GNU_IFUNC => {
                core::ptr::with_exposed_provenance_mut(self.base.wrapping_add(symbol.value as usize))
            }
            _ => core::ptr::null_mut(),
        }
    }
}

impl Tables {
    /// Symbol `index` if it is defined and its name is `name`.
    ///
    /// # Safety
    /// `index` must come from the object's hash table.
    unsafe fn matching(&self, index: u32, name: &CStr) -> Option<&Symbol> {
        // SAFETY: the hash table holds indices of the symbol table.
        let symbol = unsafe { &*self.symbols.add(index as usize) };
        if symbol.section == 0 || symbol.value == 0 {
            return None;
        }
        // SAFETY: a symbol's name lies in the string table, whose strings are NUL-terminated.
        let found = unsafe { CStr::from_ptr(self.strings.add(symbol.name as usize)) };
        (found == name).then_some(symbol)
    }

    fn find_gnu(&self, name: &CStr) -> Option<&Symbol> {
        let hash =
            name.to_bytes().iter().fold(5381_u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        let table = self.gnu_hash;
        // SAFETY: a DT_GNU_HASH table is four words, a filter of 64-bit words, buckets, and chains, as read here; the last
        // entry of a chain has its lowest bit set.
        unsafe {
            let (bucket_count, first, filter_words) = (*table, *table.add(1), *table.add(2));
            if bucket_count == 0 {
                return None;
            }
            let buckets = table.add(4).add(2 * filter_words as usize);
            let chains = buckets.add(bucket_count as usize);
            let mut index = *buckets.add((hash % bucket_count) as usize);
            if index < first {
                return None;
            }
            loop {
                let entry = *chains.add((index - first) as usize);
                if entry | 1 == hash | 1
                    && let Some(symbol) = self.matching(index, name)
                {
                    return Some(symbol);
                }
                if entry & 1 != 0 {
                    return None;
                }
                index = index.wrapping_add(1);
            }
        }
    }

    fn find_sysv(&self, name: &CStr) -> Option<&Symbol> {
        if self.sysv_hash.is_null() {
            return None;
        }
        let hash = name.to_bytes().iter().fold(0_u32, |hash, &byte| {
            let sum = (hash << 4).wrapping_add(u32::from(byte));
            let high = sum & 0xf000_0000;
            (sum ^ high >> 24) & !high
        });
        let table = self.sysv_hash;
        // SAFETY: a DT_HASH table is two counts, buckets and chains, as read here; index 0 ends a chain.
        unsafe {
            let bucket_count = *table;
            if bucket_count == 0 {
                return None;
            }
            let buckets = table.add(2);
            let chains = buckets.add(bucket_count as usize);
            let mut index = *buckets.add((hash % bucket_count) as usize);
            while index != 0 {
                if let Some(symbol) = self.matching(index, name) {
                    return Some(symbol);
                }
                index = *chains.add(index as usize);
            }
        }
        None
    }
}
