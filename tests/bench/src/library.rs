//! The shim's file: its size and its dependencies.

use aliquot_harness::artifacts;
use object::Endianness;
use object::elf::DT_NEEDED;
use object::read::elf::{Dyn, ElfFile64, FileHeader};

use crate::table::{Table, yes_or_no};

const BYTES_MAX: usize = 256 << 10;
const GLIBC_MAX: (u32, u32) = (2, 17);

/// Reads the shim's file.
pub(crate) fn measure() {
    let data = std::fs::read(artifacts::shim()).expect("the shim can be read");
    let (needed, versions) = needs(&data).expect("the shim is a library");
    let newest = versions.iter().filter_map(|version| glibc(version)).max().unwrap_or_default();
    let mut table = Table::new(&["the shim's file", "found", "aim", "met"]);
    let mut row =
        |what: &str, found: String, aim: &str, met| table.row(&[what.into(), found, aim.into(), yes_or_no(met)]);
    row("size, KiB", format!("{:.1}", data.len() as f64 / 1024.0), "< 256", data.len() < BYTES_MAX);
    row("libraries it needs", needed.join(" "), "libc.so.6", needed == ["libc.so.6"]);
    row("newest symbol", format!("GLIBC_{}.{}", newest.0, newest.1), "≤ GLIBC_2.17", newest <= GLIBC_MAX);
}

/// The libraries and symbol versions that an ELF file needs.
fn needs(data: &[u8]) -> object::Result<(Vec<String>, Vec<String>)> {
    let file = ElfFile64::<Endianness>::parse(data)?;
    let endian = file.elf_header().endian()?;
    let sections = file.elf_section_table();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (mut libraries, mut versions) = (Vec::new(), Vec::new());
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries.iter().filter(|entry| entry.d_tag(endian) == DT_NEEDED) {
            libraries.push(text(entry.string(endian, strings)?));
        }
    }
    if let Some((mut needed, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut of_library)) = needed.next()? {
            while let Some(version) = of_library.next()? {
                versions.push(text(version.name(endian, strings)?));
            }
        }
    }
    Ok((libraries, versions))
}

/// Major and minor of `GLIBC_2.17` or `GLIBC_2.2.5`.
fn glibc(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
