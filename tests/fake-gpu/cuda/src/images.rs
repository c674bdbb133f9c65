//! Reads the kernels and variables of module images: PTX text, cubins (ELF) and fat binaries.

use aliquot_abi::cuda::CUresult;

use crate::Done;
use crate::caller::{bytes, get};

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const FATBIN_MAGIC: u32 = 0xBA55_ED50;
const FATBIN_WRAPPER_MAGIC: u32 = 0x4662_43B1;
/// Maximum length of a PTX text that is parsed.
const PTX_BYTES_MAX: usize = 1 << 30;

/// A kernel of an image.
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Offset and size of each parameter, if the image contains them.
    pub(crate) parameters: Option<Vec<(usize, usize)>>,
}

/// A global variable of an image.
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// The contents of an image.
pub(crate) struct Image {
    /// The kernels; `None` if they cannot be listed: then every name counts as a kernel.
    pub(crate) entries: Option<Vec<Entry>>,
    pub(crate) variables: Vec<Variable>,
}

/// Reads an image at an address. Its length follows only from the image itself.
pub(crate) fn read_at(image: *const u8) -> Done<Image> {
    let magic = get(image.cast::<[u8; 4]>())?;
    match u32::from_le_bytes(magic) {
        FATBIN_MAGIC => Ok(Image { entries: None, variables: Vec::new() }),
        // The wrapper's pointer to the fat binary comes after two words.
        FATBIN_WRAPPER_MAGIC => read_at(get(image.wrapping_add(8).cast::<*const u8>())?),
        _ if magic == ELF_MAGIC => read_elf(bytes(image, elf_bytes(image)?)?),
        _ => {
            let text = crate::caller::text(image.cast())?.to_bytes();
            read_ptx(text.get(..text.len().min(PTX_BYTES_MAX)).unwrap_or(text))
        }
    }
}

/// Reads an image from a file's contents.
pub(crate) fn read_file(contents: &[u8]) -> Done<Image> {
    match contents.first_chunk::<4>() {
        Some(magic) if u32::from_le_bytes(*magic) == FATBIN_MAGIC => Ok(Image { entries: None, variables: Vec::new() }),
        Some(&ELF_MAGIC) => read_elf(contents),
        _ => read_ptx(contents.split(|&byte| byte == 0).next().unwrap_or(contents)),
    }
}

/// An image whose kernels cannot be listed.
pub(crate) fn opaque() -> Vec<u8> {
    let mut image = FATBIN_MAGIC.to_le_bytes().to_vec();
    image.resize(16, 0);
    image
}

/// The end of an ELF's section headers and sections, from the headers alone.
fn elf_bytes(image: *const u8) -> Done<usize> {
    let header = Elf { contents: bytes(image, 64)? };
    let (offset, size, count) = header.section_table()?;
    let headers_end = offset.checked_add(size * count).ok_or(CUresult::INVALID_IMAGE)?;
    let headers = Elf { contents: bytes(image, headers_end)? };
    let mut end = headers_end;
    for index in 0..count {
        let section = headers.section(index)?;
        // A section of this type has a size but no bytes in the file.
        if section.kind != SHT_NOBITS {
            end = end.max(section.offset.checked_add(section.bytes).ok_or(CUresult::INVALID_IMAGE)?);
        }
    }
    Ok(end)
}

const SHT_SYMTAB: u32 = 2;
const SHT_NOBITS: u32 = 8;
const STT_OBJECT: u8 = 1;
const SHN_UNDEF: u64 = 0;

struct Elf<'a> {
    contents: &'a [u8],
}

struct Section {
    name: usize,
    kind: u32,
    offset: usize,
    bytes: usize,
    link: usize,
}

impl<'a> Elf<'a> {
    fn number(&self, offset: usize, bytes: usize) -> Done<u64> {
        let end = offset.checked_add(bytes).ok_or(CUresult::INVALID_IMAGE)?;
        let digits = self.contents.get(offset..end).ok_or(CUresult::INVALID_IMAGE)?;
        Ok(digits.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// Offset of the section headers, size of one, and their number.
    fn section_table(&self) -> Done<(usize, usize, usize)> {
        // 64 bits, little-endian
        if self.number(4, 1)? != 2 || self.number(5, 1)? != 1 {
            return Err(CUresult::INVALID_IMAGE);
        }
        let (offset, size, count) = (self.number(0x28, 8)?, self.number(0x3a, 2)?, self.number(0x3c, 2)?);
        if size < 64 || count == 0 {
            Err(CUresult::INVALID_IMAGE)
        } else {
            Ok((offset as usize, size as usize, count as usize))
        }
    }

    fn section(&self, index: usize) -> Done<Section> {
        let (table, size, _) = self.section_table()?;
        let at = index.checked_mul(size).and_then(|offset| offset.checked_add(table)).ok_or(CUresult::INVALID_IMAGE)?;
        Ok(Section {
            name: self.number(at, 4)? as usize,
            kind: self.number(at + 4, 4)? as u32,
            offset: self.number(at + 0x18, 8)? as usize,
            bytes: self.number(at + 0x20, 8)? as usize,
            link: self.number(at + 0x28, 4)? as usize,
        })
    }

    /// The NUL-terminated text at `offset` of a section.
    fn text(&self, section: &Section, offset: usize) -> Done<&'a str> {
        let start = section.offset.checked_add(offset).ok_or(CUresult::INVALID_IMAGE)?;
        let rest = self.contents.get(start..).ok_or(CUresult::INVALID_IMAGE)?;
        let text = rest.split(|&byte| byte == 0).next().unwrap_or(&[]);
        std::str::from_utf8(text).map_err(|_| CUresult::INVALID_IMAGE)
    }
}

/// A cubin has a section `.text.NAME` for each kernel, and a symbol for each global variable.
fn read_elf(contents: &[u8]) -> Done<Image> {
    let elf = Elf { contents };
    let (_, _, count) = elf.section_table()?;
    let names = elf.section(elf.number(0x3e, 2)? as usize)?;
    let mut image = Image { entries: Some(Vec::new()), variables: Vec::new() };
    for index in 0..count {
        let section = elf.section(index)?;
        if let Some(name) = elf.text(&names, section.name)?.strip_prefix(".text.") {
            image.entries.get_or_insert_default().push(Entry { name: name.to_owned(), parameters: None });
        }
        if section.kind == SHT_SYMTAB {
            let texts = elf.section(section.link)?;
            for symbol in (section.offset..section.offset.saturating_add(section.bytes)).step_by(24) {
                let kind = elf.number(symbol + 4, 1)? as u8 & 0xf;
                let bytes = elf.number(symbol + 16, 8)?;
                if kind == STT_OBJECT && elf.number(symbol + 6, 2)? != SHN_UNDEF && bytes > 0 {
                    let name = elf.text(&texts, elf.number(symbol, 4)? as usize)?.to_owned();
                    image.variables.push(Variable { name, bytes });
                }
            }
        }
    }
    Ok(image)
}

/// A PTX text begins, after comments, with its version.
fn read_ptx(text: &[u8]) -> Done<Image> {
    let text = std::str::from_utf8(text).map_err(|_| CUresult::INVALID_IMAGE)?;
    let code = without_comments(text);
    let mut words = code.split_ascii_whitespace();
    if words.next() != Some(".version") || words.next().is_none_or(|version| version.parse::<f32>().is_err()) {
        // Printable text counts as PTX with an error; anything else is not an image.
        let is_text =
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
        return Err(if is_text { CUresult::INVALID_PTX } else { CUresult::INVALID_IMAGE });
    }
    if !code.contains(".target") {
        return Err(CUresult::INVALID_PTX);
    }
    let mut entries = Vec::new();
    for (place, _) in code.match_indices(".entry") {
        let rest = code[place + ".entry".len()..].trim_start();
        let name = identifier(rest).ok_or(CUresult::INVALID_PTX)?;
        let after = rest[name.len()..].trim_start();
        let list = after.strip_prefix('(').and_then(|list| list.split_once(')')).map_or("", |(list, _)| list);
        entries.push(Entry { name: name.to_owned(), parameters: Some(parameters(list)) });
    }
    Ok(Image { entries: Some(entries), variables: variables(&code) })
}

fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        code.push_str(&rest[..start]);
        let end = if rest[start..].starts_with("//") { "\n" } else { "*/" };
        rest = rest[start..].split_once(end).map_or("", |(_, rest)| rest);
        code.push('\n');
    }
    code + rest
}

fn identifier(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%'))).unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

/// Bytes of a PTX type such as `.u64`.
fn type_bytes(word: &str) -> Option<usize> {
    let bits: usize = word.trim_start_matches(['.', 'b', 'u', 's', 'f']).parse().ok()?;
    (word.starts_with(['.']) && matches!(bits, 8 | 16 | 32 | 64 | 128)).then_some(bits / 8)
}

/// The number of elements that a declarator such as `name[16]` has.
fn elements(declarator: &str) -> usize {
    let count = declarator.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    count.and_then(|(count, _)| count.trim().parse().ok()).unwrap_or(1)
}

fn parameters(list: &str) -> Vec<(usize, usize)> {
    let mut offset: usize = 0;
    let mut parameters = Vec::new();
    for declaration in list.split(',') {
        let words = declaration.split_ascii_whitespace().collect::<Vec<_>>();
        let Some(element) = words.iter().find_map(|word| type_bytes(word)) else { continue };
        let position = words.iter().position(|&word| word == ".align");
        let stated = position.and_then(|position| words.get(position + 1)?.parse::<usize>().ok());
        let align = stated.filter(|align| align.is_power_of_two()).unwrap_or(element);
        let bytes = element * elements(declaration);
        offset = offset.next_multiple_of(align);
        parameters.push((offset, bytes));
        offset += bytes;
    }
    parameters
}

/// The variables declared outside functions with `.global`, `.const` or similar.
fn variables(code: &str) -> Vec<Variable> {
    let mut variables = Vec::new();
    let mut depth = 0_i32;
    for statement in code.split_inclusive([';', '{', '}']) {
        if depth == 0 && (statement.contains(".global ") || statement.contains(".const ")) {
            let declaration = statement.split('=').next().unwrap_or(statement).trim_end_matches([';', '{', '}']);
            let words = declaration.split_ascii_whitespace().collect::<Vec<_>>();
            let element = words.iter().find_map(|word| type_bytes(word));
            let name = words.last().and_then(|word| identifier(word));
            if let (Some(element), Some(name), false) = (element, name, words.contains(&".extern")) {
                variables.push(Variable { name: name.to_owned(), bytes: (element * elements(declaration)) as u64 });
            }
        }
        depth += i32::from(statement.ends_with('{')) - i32::from(statement.ends_with('}'));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &[u8] = b"// made by hand\n.version 8.0\n.target sm_90\n.address_size 64\n\
        .visible .global .align 4 .b8 table[16];\n.extern .global .u32 other;\n\
        .visible .entry spin_ns(\n .param .u64 ns,\n .param .align 16 .b8 box[48]\n)\n{ ret; }\n/* .entry no( */\n.entry none() { ret; }";

    #[test]
    fn ptx_is_listed() {
        let image = read_ptx(PTX).unwrap();
        let entries = image.entries.unwrap();
        let names = entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names, ["spin_ns", "none"]);
        assert_eq!(entries[0].parameters.as_deref(), Some(&[(0, 8), (16, 48)][..]));
        assert_eq!(image.variables.len(), 1);
        assert_eq!((image.variables[0].name.as_str(), image.variables[0].bytes), ("table", 16));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        assert_eq!(read_ptx(b"hello").err(), Some(CUresult::INVALID_PTX));
        assert_eq!(read_ptx(b"\x01\x02").err(), Some(CUresult::INVALID_IMAGE));
        assert_eq!(read_ptx(b"").err(), Some(CUresult::INVALID_IMAGE));
        assert_eq!(read_file(b"\x7fELF").err(), Some(CUresult::INVALID_IMAGE));
    }
}
