//! The shim's file as the loader sees it: size, symbols, flags and segments.

use std::collections::BTreeSet;
use std::fs;

use aliquot_harness::{GIB, Node, SimulatedGpu, artifacts};
use object::elf::{self, DynamicTag};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader};
use object::{LittleEndian, Object, ObjectSymbol, ObjectSymbolTable, RelocationTarget};

const LE: LittleEndian = LittleEndian;

fn with_library<T>(look: impl FnOnce(&ElfFile64<LittleEndian>) -> T) -> T {
    let bytes = fs::read(artifacts::shim()).unwrap();
    look(&ElfFile64::parse(&*bytes).unwrap())
}

/// The strings of the dynamic section's entries with `tag`.
fn dynamic_strings(tag: DynamicTag) -> Vec<String> {
    with_library(|file| {
        let table = file.elf_section_table().dynamic_table(LE, file.data()).unwrap();
        let entries = table.iter().filter(|entry| entry.tag == tag);
        entries.map(|entry| String::from_utf8(table.string(entry).unwrap().to_vec()).unwrap()).collect()
    })
}

/// The sum of the values of the dynamic section's entries with `tag`.
fn dynamic_value(tag: DynamicTag) -> u64 {
    with_library(|file| {
        let table = file.elf_section_table().dynamic_table(LE, file.data()).unwrap();
        table.iter().filter(|entry| entry.tag == tag).map(|entry| entry.val).sum()
    })
}

/// The names of the dynamic symbols that the library defines, or that it needs.
fn symbols(defined: bool) -> BTreeSet<String> {
    with_library(|file| {
        let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_undefined() != defined);
        symbols.map(|symbol| symbol.name().unwrap().to_owned()).collect()
    })
}

#[test]
fn it_needs_the_c_library_and_nothing_else() {
    assert_eq!(dynamic_strings(elf::DT_NEEDED), ["libc.so.6"]);
    assert!(dynamic_strings(elf::DT_RPATH).is_empty() && dynamic_strings(elf::DT_RUNPATH).is_empty());
}

#[test]
fn it_runs_with_a_c_library_of_2012() {
    let versions: Vec<String> = with_library(|file| {
        let (sections, bytes) = (file.elf_section_table(), file.data());
        let (mut needed, link) = sections.gnu_verneed(LE, bytes).unwrap().unwrap();
        let strings = sections.strings(LE, bytes, link).unwrap();
        let mut versions = Vec::new();
        while let Some((_, mut parts)) = needed.next().unwrap() {
            while let Some(part) = parts.next().unwrap() {
                versions.push(String::from_utf8(part.name(LE, strings).unwrap().to_vec()).unwrap());
            }
        }
        versions
    });
    assert!(!versions.is_empty());
    for version in versions {
        let number = version.strip_prefix("GLIBC_").unwrap_or_else(|| panic!("a version of something else: {version}"));
        let parts: Vec<u32> = number.split('.').map(|part| part.parse().unwrap()).collect();
        assert!(parts <= vec![2, 17], "it needs {version}");
    }
}

#[test]
fn it_is_small() {
    // A hook takes up to 1 KiB: its code, unwind information, and names for the loader.
    let bytes = fs::metadata(artifacts::shim()).unwrap().len();
    assert!(bytes < 256 * 1024, "it has {bytes} bytes");
}

#[test]
fn it_exports_its_hooks_and_nothing_else() {
    let mut expected: BTreeSet<String> = ["dlsym", "dlvsym", "dlopen", "dlmopen", "chroot"].map(str::to_owned).into();
    macro_rules! cuda {
        ($($class:ident $policy:ident : $symbol:ident $(| $per_thread:ident)? = $name:ident @ $since:literal $arguments:tt;)*) => {$(
            if stringify!($class) != "forward" {
                expected.insert(stringify!($symbol).to_owned());
                $(expected.insert(stringify!($per_thread).to_owned());)?
            }
        )*};
    }
    macro_rules! nvml {
        ($($class:ident $policy:ident : $symbol:ident $arguments:tt;)*) => {$(
            if stringify!($class) != "forward" {
                expected.insert(stringify!($symbol).to_owned());
            }
        )*};
    }
    aliquot_abi::cuda_api!(cuda);
    aliquot_abi::nvml_api!(nvml);
    assert_eq!(symbols(true), expected);
}

#[test]
fn it_imports_next_to_nothing() {
    let imported = symbols(false);
    let known = [
        // For the list of objects, if the C library's own is not found, and for the kernel's auxiliary values. No
        // function that programs interpose: theirs may call the shim's dlsym.
        "dl_iterate_phdr",
        "getauxval",
        // The environment. Not `environ`, which is no reserved name.
        "__environ",
        // Weak references of the start files.
        "__cxa_finalize",
        "__gmon_start__",
        "_ITM_deregisterTMCloneTable",
        "_ITM_registerTMCloneTable",
    ];
    let unknown: Vec<&String> = imported.iter().filter(|name| !known.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "it imports {unknown:?}");
}

#[test]
fn it_has_no_thread_local_storage_and_no_executable_stack() {
    with_library(|file| {
        for segment in file.elf_header().program_headers(LE, file.data()).unwrap() {
            let (kind, flags) = (segment.p_type(LE), segment.p_flags(LE));
            assert_ne!(kind, elf::PT_TLS);
            assert!(kind != elf::PT_GNU_STACK || flags.0 & elf::PF_X.0 == 0, "the stack is executable");
            let both = elf::PF_W.0 | elf::PF_X.0;
            assert_ne!(flags.0 & both, both, "a segment can be written and executed");
        }
    });
}

/// The loader switches shadow stacks off for a process if one of its libraries does not declare to support them.
#[test]
#[cfg(target_arch = "x86_64")]
fn it_keeps_to_shadow_stacks() {
    let says_so = with_library(|file| {
        let (sections, bytes) = (file.elf_section_table(), file.data());
        let (_, section) = sections.section_by_name(LE, b".note.gnu.property").expect("a note of properties");
        let mut notes = section.notes(LE, bytes).unwrap().expect("notes");
        let note = notes.next().unwrap().expect("a note");
        let mut properties = note.gnu_properties(LE).expect("properties");
        let mut says_so = false;
        while let Some(property) = properties.next().unwrap() {
            says_so |= property.pr_type() == elf::GNU_PROPERTY_X86_FEATURE_1_AND
                && property.data_u32(LE).unwrap() & elf::GNU_PROPERTY_X86_FEATURE_1_SHSTK != 0;
        }
        says_so
    });
    assert!(says_so);
}

/// The linker's start files bring one function that runs at load and one that runs at unload. There are no others.
#[test]
fn nothing_of_its_own_runs_when_it_is_loaded() {
    for tag in [elf::DT_INIT_ARRAYSZ, elf::DT_FINI_ARRAYSZ] {
        assert!(dynamic_value(tag) <= 8, "it has {} functions of tag {tag:?}", dynamic_value(tag) / 8);
    }
    assert_eq!(dynamic_value(elf::DT_PREINIT_ARRAYSZ), 0);
    let (function, first_hook) = with_library(|file| {
        let (sections, bytes) = (file.elf_section_table(), file.data());
        let (_, section) = sections.section_by_name(LE, b".init_array").expect("the start files' own");
        let address = section.sh_addr.get(LE);
        let (_, relocations) = sections.section_by_name(LE, b".rela.dyn").expect("relocations");
        let (relocations, _) = relocations.rela(LE, bytes).unwrap().unwrap();
        let function = relocations.iter().find(|entry| entry.r_offset.get(LE) == address);
        let hooks = file.dynamic_symbols().filter(|symbol| !symbol.is_undefined());
        let first_hook = hooks.map(|symbol| symbol.address()).min().unwrap();
        (function.expect("the function's relocation").r_addend.get(LE) as u64, first_hook)
    });
    // The linker puts the start files' code in front of the library's.
    assert!(function < first_hook, "the function at {function:#x} runs, and the first hook lies at {first_hook:#x}");
}

#[test]
fn all_is_bound_at_the_start_to_its_own_functions_and_it_stays() {
    let (flags, flags_1) = (dynamic_value(elf::DT_FLAGS), dynamic_value(elf::DT_FLAGS_1));
    // With this flag the loader would bind the library's own references to the library before the program.
    assert_eq!(flags & elf::DF_SYMBOLIC.0, 0);
    assert_ne!(flags_1 & elf::DF_1_NOW.0, 0);
    assert_ne!(flags_1 & elf::DF_1_NODELETE.0, 0);
    let exported = symbols(true);
    let bound_by_loader = with_library(|file| {
        let relocations = file.dynamic_relocations().expect("relocations");
        let names = relocations.filter_map(|(_, relocation)| match relocation.target() {
            RelocationTarget::Symbol(index) => file.dynamic_symbol_table()?.symbol_by_index(index).ok(),
            _ => None,
        });
        names.map(|symbol| symbol.name().unwrap().to_owned()).collect::<BTreeSet<_>>()
    });
    assert!(bound_by_loader.contains("dl_iterate_phdr"));
    assert!(bound_by_loader.is_disjoint(&exported), "{bound_by_loader:?}");
}

#[test]
fn the_manager_hands_out_this_very_library() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("file", 50, GIB);
    let handed_out = fs::read(slice.shim()).unwrap();
    assert!(
        handed_out == fs::read(artifacts::shim()).unwrap(),
        "the manager carries another shim than the one built here"
    );
}
