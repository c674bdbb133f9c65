//! Reads the symbols of an object that the loader has mapped.
//!
//! The shim looks the driver's functions up in the driver's own symbol table, and the real `dlsym` in the C library's:
//! a call of `dlsym` for this purpose would find the shim's own.

use crate::sys;
use core::ffi::{CStr, c_char, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The beginning of an ELF file.
#[repr(C)]
struct FileHeader {
    identification: [u8; 16],
    kind: u16,
    machine: u16,
    version: u32,
    entry: u64,
    headers_offset: u64,
    sections_offset: u64,
    flags: u32,
    bytes: u16,
    header_bytes: u16,
    header_count: u16,
}

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

#[repr(C)]
struct Relocation {
    address: u64,
    info: u64,
    addend: i64,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const DT_NULL: i64 = 0;
const DT_NEEDED: i64 = 1;
const DT_PLTRELSZ: i64 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_SONAME: i64 = 14;
const DT_PLTREL: i64 = 20;
const DT_DEBUG: i64 = 21;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_RELACOUNT: i64 = 0x6fff_fff9;
const STT_NOTYPE: u8 = 0;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STB_WEAK: u8 = 2;

/// The relocations that hold a function's address: a word of data, a slot of a call, and a slot of a call that may be
/// bound lazily.
#[cfg(target_arch = "x86_64")]
mod relocation {
    pub(super) const WORD: u32 = 1;
    pub(super) const SLOT: u32 = 6;
    pub(super) const LATE_SLOT: u32 = 7;
}

#[cfg(target_arch = "aarch64")]
mod relocation {
    pub(super) const WORD: u32 = 257;
    pub(super) const SLOT: u32 = 1025;
    pub(super) const LATE_SLOT: u32 = 1026;
}

/// A mapped object. `Copy`, so that it can be stored; it is valid only while the object is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    base: usize,
    headers: *const ProgramHeader,
    header_count: u16,
}

/// A word of an object that the loader binds to a symbol.
pub(crate) struct Reference<'a> {
    /// The symbol's name, which is NUL-terminated.
    pub(crate) name: *const c_char,
    /// The word that the loader writes.
    pub(crate) slot: &'a AtomicPtr<c_void>,
    /// Whether the object itself defines the symbol.
    is_defined_here: bool,
    /// Address of the object's own variable of this name, if it defines one.
    pub(crate) own_variable: Option<*mut c_void>,
    /// Whether it may stay unbound.
    pub(crate) is_weak: bool,
    /// Its number among the references that may be bound lazily, at the first call.
    late_number: Option<u32>,
}

impl Reference<'_> {
    /// Whether it is not bound yet: it points to the linker's code that binds it at the first call, which is in
    /// `image`, the object itself. It can also point to another function of the object, as tracers do it.
    pub(crate) fn is_unbound(&self, image: &Image) -> bool {
        /// Number of bytes of the code that are read.
        const BYTES: usize = 16;
        let Some(number) = self.late_number else { return false };
        let code = self.slot.load(Ordering::Relaxed).addr();
        if self.is_defined_here || !image.contains(code) || !image.contains(code.wrapping_add(BYTES)) {
            return false;
        }
        // SAFETY: all bytes are in the object's segments, and code is readable.
        is_binding_code(unsafe { &*core::ptr::with_exposed_provenance::<[u8; BYTES]>(code) }, number)
    }
}

/// Whether `code` is what a linker writes to bind reference `number`: it pushes the number, then jumps.
#[cfg(target_arch = "x86_64")]
fn is_binding_code(code: &[u8; 16], number: u32) -> bool {
    const LANDING_PAD: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const PUSH: &[u8] = &[0x68];
    let code = code.strip_prefix(LANDING_PAD).unwrap_or(code);
    code.strip_prefix(PUSH).is_some_and(|rest| rest.starts_with(&number.to_le_bytes()))
}

/// Whether `code` is what a linker writes to bind references: it saves two registers, then jumps. It is the same for
/// all.
#[cfg(target_arch = "aarch64")]
fn is_binding_code(code: &[u8; 16], _: u32) -> bool {
    const LANDING_PAD: &[u8] = &0xd503_245f_u32.to_le_bytes();
    const SAVE: &[u8] = &0xa9bf_7bf0_u32.to_le_bytes();
    code.strip_prefix(LANDING_PAD).unwrap_or(code).starts_with(SAVE)
}

/// The tables of an [`Image`] that a look-up uses.
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
    /// They must be what the loader reports of a mapped object, and the object must stay mapped while the image is
    /// used.
    pub(crate) unsafe fn new(base: usize, headers: *const c_void, header_count: u16) -> Image {
        Image { base, headers: headers.cast(), header_count }
    }

    /// The program's own object.
    pub(crate) fn of_program() -> Option<Image> {
        let headers: *const ProgramHeader = core::ptr::with_exposed_provenance(sys::auxiliary(sys::AT_PHDR));
        // SAFETY: the kernel, or the loader if it was run as a program, tells where the headers are, and how many.
        let image = unsafe { Image::new(0, headers.cast(), sys::auxiliary(sys::AT_PHNUM) as u16) };
        let own = image.headers().iter().find(|header| header.kind == PT_PHDR)?;
        Some(Image { base: headers.addr().wrapping_sub(own.address as usize), ..image })
    }

    /// The address that the loader has written into the program for debuggers.
    pub(crate) fn debug(&self) -> Option<*const c_void> {
        let mut debug = None;
        self.each_dynamic(|tag, value| {
            if tag == DT_DEBUG {
                debug = Some(core::ptr::with_exposed_provenance(value as usize));
            }
        });
        debug
    }

    /// The object whose file is mapped at `start`, if its program headers are known to be mapped.
    ///
    /// # Safety
    /// `start` must be where the loader has mapped an object's first page, and the object must stay mapped while the
    /// image is used.
    pub(crate) unsafe fn from_file_start(start: *const c_void) -> Option<Image> {
        /// The smallest page size.
        const PAGE_BYTES: u64 = 4096;
        // SAFETY: the first page of an object's file holds its header.
        let file = unsafe { start.cast::<FileHeader>().as_ref() }?;
        if file.identification.first_chunk() != Some(b"\x7fELF") {
            return None;
        }
        // Linkers put the program headers behind the file's header. Tools that add headers move them to the end of the
        // file, which may not be mapped.
        let headers_bytes = u64::from(file.header_count) * size_of::<ProgramHeader>() as u64;
        if file.headers_offset.saturating_add(headers_bytes) > PAGE_BYTES {
            return None;
        }
        let headers = start.cast::<u8>().wrapping_add(file.headers_offset as usize).cast();
        // SAFETY: the headers lie in the first page.
        let image = unsafe { Image::new(0, headers, file.header_count) };
        let first = image.headers().iter().find(|header| header.kind == PT_LOAD)?;
        let base = start.addr().wrapping_sub((first.address - first.offset) as usize);
        Some(Image { base, ..image })
    }

    /// The arguments of [`Image::new`].
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

    /// Whether `address` is in one of the object's segments.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.headers().iter().filter(|header| header.kind == PT_LOAD).any(|header| {
            let start = self.base.wrapping_add(header.address as usize);
            address.wrapping_sub(start) < header.memory_bytes as usize
        })
    }

    /// Whether the object has something at `offset` from its base: a word that is not relocated yet holds such an
    /// offset.
    pub(crate) fn has_at_offset(&self, offset: usize) -> bool {
        self.contains(self.base.wrapping_add(offset))
    }

    /// Calls `visit` with each entry of the dynamic section, if there is one.
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

    /// A pointer from the dynamic section: glibc has relocated it; other loaders and the vDSO have not.
    fn pointer<T>(&self, value: u64) -> *const T {
        let address = value as usize;
        core::ptr::with_exposed_provenance(if self.contains(address) {
            address
        } else {
            self.base.wrapping_add(address)
        })
    }

    /// The object's name for linking (DT_SONAME).
    pub(crate) fn soname(&self) -> Option<&CStr> {
        let tables = self.tables()?;
        // SAFETY: an offset of the dynamic section lies in the string table, whose strings are NUL-terminated.
        Some(unsafe { CStr::from_ptr(tables.strings.add(tables.soname? as usize)) })
    }

    /// Whether the object's DT_SONAME is `name`.
    pub(crate) fn has_soname(&self, name: &CStr) -> bool {
        self.soname() == Some(name)
    }

    /// Whether this is the C library, or the part of it that has `dlopen` and `dlsym` before glibc 2.34.
    pub(crate) fn is_c_library(&self) -> bool {
        self.soname().is_some_and(|soname| soname == c"libc.so.6" || soname == c"libdl.so.2")
    }

    /// The pages that the loader makes read-only after it has relocated the object (RELRO).
    pub(crate) fn read_only_after_relocation(&self, page_bytes: usize) -> Option<Range<usize>> {
        let header = self.headers().iter().find(|header| header.kind == PT_GNU_RELRO)?;
        let start = self.base.wrapping_add(header.address as usize);
        // Rounded as glibc does: a last page that is shared with other data stays writable.
        let page = |address: usize| address & page_bytes.wrapping_neg();
        Some(page(start)..page(start.wrapping_add(header.memory_bytes as usize)))
    }

    /// Calls `visit` with each reference to a symbol.
    pub(crate) fn each_reference(&self, mut visit: impl FnMut(Reference<'_>)) {
        let Some(tables) = self.tables() else { return };
        let (mut relocations, mut late) = ((core::ptr::null(), 0), (core::ptr::null(), 0));
        let (mut relative_count, mut has_addends) = (0, true);
        self.each_dynamic(|tag, value| match tag {
            DT_RELA => relocations.0 = self.pointer::<Relocation>(value),
            DT_RELASZ => relocations.1 = value as usize / size_of::<Relocation>(),
            DT_RELACOUNT => relative_count = value as usize,
            DT_JMPREL => late.0 = self.pointer::<Relocation>(value),
            DT_PLTRELSZ => late.1 = value as usize / size_of::<Relocation>(),
            DT_PLTREL => has_addends = value as i64 == DT_RELA,
            _ => {}
        });
        // In most libraries nearly all relocations have no symbol, and these come first.
        for ((start, count), without_symbol) in [(relocations, relative_count), (late, 0)] {
            if start.is_null() || !has_addends {
                continue;
            }
            // SAFETY: the tables are as long as the dynamic section says, and nothing writes them.
            let table = unsafe { core::slice::from_raw_parts(start, count) };
            for (number, entry) in table.iter().enumerate().skip(without_symbol) {
                let kind = entry.info as u32;
                let is_whole_address = kind != relocation::WORD || entry.addend == 0;
                if !matches!(kind, relocation::WORD | relocation::SLOT | relocation::LATE_SLOT) || !is_whole_address {
                    continue;
                }
                // SAFETY: relocations hold indices of the symbol table.
                let symbol = unsafe { &*tables.symbols.add((entry.info >> 32) as usize) };
                let slot = self.base.wrapping_add(entry.address as usize);
                let is_defined_here = symbol.section != 0;
                let is_variable = is_defined_here && symbol.info & 0xf == STT_OBJECT;
                visit(Reference {
                    name: tables.strings.wrapping_add(symbol.name as usize),
                    // SAFETY: the word that the loader writes for this relocation; for these kinds it is aligned.
                    slot: unsafe { &*core::ptr::with_exposed_provenance(slot) },
                    is_defined_here,
                    own_variable: is_variable.then(|| self.address_of(symbol)),
                    is_weak: symbol.info >> 4 == STB_WEAK,
                    late_number: (kind == relocation::LATE_SLOT).then_some(number as u32),
                });
            }
        }
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

    /// The address of the function `name` that the object defines; null if it defines none.
    pub(crate) fn function(&self, name: &CStr) -> *mut c_void {
        let Some(tables) = self.tables() else { return core::ptr::null_mut() };
        let symbol = if tables.gnu_hash.is_null() { tables.find_sysv(name) } else { tables.find_gnu(name) };
        match symbol {
            // No variables. No indirect functions, which would have to be called to learn the address: no driver has
            // one under these names. Functions that are written in assembly may have no type.
            Some(symbol) if matches!(symbol.info & 0xf, STT_FUNC | STT_NOTYPE) => self.address_of(symbol),
            _ => core::ptr::null_mut(),
        }
    }

    fn address_of(&self, symbol: &Symbol) -> *mut c_void {
        core::ptr::with_exposed_provenance_mut(self.base.wrapping_add(symbol.value as usize))
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
        // SAFETY: a DT_GNU_HASH table is four words, a filter of 64-bit words, buckets, and chains, as read here; the
        // last entry of a chain has its lowest bit set.
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
