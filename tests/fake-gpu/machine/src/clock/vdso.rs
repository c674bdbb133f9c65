//! The vDSO: the library that the kernel maps into every process, which reads clocks without a system call.

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym, timespec};

type Read = unsafe extern "C" fn(c_int, *mut timespec) -> c_int;

#[cfg(target_arch = "aarch64")]
const SYMBOL: &CStr = c"__kernel_clock_gettime";
#[cfg(not(target_arch = "aarch64"))]
const SYMBOL: &CStr = c"__vdso_clock_gettime";

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: u64,
    value: u64,
}

/// Reads `clock`. Returns `false`, with nothing read, if there is no vDSO or if its function fails.
pub(super) fn read(clock: c_int, now: &mut timespec) -> bool {
    static READ: OnceLock<Option<Read>> = OnceLock::new();
    // SAFETY: the kernel gives the vDSO's address, or 0.
    let read = READ.get_or_init(|| unsafe { find(libc::getauxval(libc::AT_SYSINFO_EHDR) as usize) });
    // SAFETY: the vDSO's function of this name has this type, and writes a timespec.
    read.is_some_and(|read| unsafe { read(clock, now) } == 0)
}

/// The function [`SYMBOL`] in the library at `base`.
///
/// # Safety
/// `base` is 0, or the address of a complete ELF file of this machine's kind that is mapped according to its headers
/// and stays mapped.
unsafe fn find(base: usize) -> Option<Read> {
    if base == 0 {
        return None;
    }
    // SAFETY: the file begins with its header, which gives the place of the program headers.
    let programs = unsafe {
        let header = &*std::ptr::with_exposed_provenance::<Elf64_Ehdr>(base);
        let programs = std::ptr::with_exposed_provenance::<Elf64_Phdr>(base + header.e_phoff as usize);
        std::slice::from_raw_parts(programs, usize::from(header.e_phnum))
    };
    let of_kind = |kind| programs.iter().find(|program| program.p_type == kind);
    let load = of_kind(libc::PT_LOAD)?;
    let bias = base.wrapping_add(load.p_offset as usize).wrapping_sub(load.p_vaddr as usize);
    let dynamic = of_kind(libc::PT_DYNAMIC)?;
    let entries = dynamic.p_memsz as usize / size_of::<Dynamic>();
    let first = std::ptr::with_exposed_provenance::<Dynamic>(base + dynamic.p_offset as usize);
    // SAFETY: the dynamic section has this place and size.
    let entries = unsafe { std::slice::from_raw_parts(first, entries) };
    let address =
        |tag| entries.iter().find(|entry| entry.tag == tag).map(|entry| bias.wrapping_add(entry.value as usize));
    let (symbols, strings) = (address(DT_SYMTAB)?, address(DT_STRTAB)?);
    // The number of symbols is not stored. It follows from the address of the string table, which linkers put directly
    // after the symbols.
    let count = strings.checked_sub(symbols)? / size_of::<Elf64_Sym>();
    // SAFETY: the symbol table lies at this address and ends before the string table.
    let symbols = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<Elf64_Sym>(symbols), count) };
    let is_it = |symbol: &&Elf64_Sym| {
        let name = std::ptr::with_exposed_provenance(strings + symbol.st_name as usize);
        // SAFETY: a symbol's name is a C string in the string table.
        symbol.st_value != 0 && unsafe { CStr::from_ptr(name) } == SYMBOL
    };
    let function = bias.wrapping_add(symbols.iter().find(is_it)?.st_value as usize);
    // SAFETY: the symbol with this name is a function of this type.
    Some(unsafe { std::mem::transmute::<*const (), Read>(std::ptr::with_exposed_provenance(function)) })
}
