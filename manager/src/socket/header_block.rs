//! The one change to the bytes of clients: percent signs in `:authority` are replaced.
//!
//! gRPC's C core, on which Python, Ruby, C++ and others are built, sends the percent-encoded path of a Unix socket as
//! the authority of its requests (`%2Frun%2Faliquot%2Fmanager.sock`). RFC 3986 allows percent signs there, but the
//! server's library refuses them and resets the stream with a protocol error. The authority of a Unix socket has no
//! use, so each percent sign in it is replaced by a minus sign before the server sees it.
//!
//! Both signs have codes of the same length in HPACK's Huffman code (RFC 7541, appendix B). So the header block keeps
//! its length, the entries of the dynamic table keep their sizes, and nothing must be decoded and encoded again. An
//! authority whose name is an entry of the dynamic table is not found; encoders use the static table's entry.

/// The index of `:authority` in the static table.
const AUTHORITY_INDEX: usize = 1;
const AUTHORITY: &[u8] = b":authority";
/// `:authority` in the Huffman code.
const AUTHORITY_IN_CODE: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The code of `%`, and the bits in which the code of `-` differs.
const PERCENT_CODE: u32 = 0b01_0101;
const PERCENT_BITS: usize = 6;
const DIFFERENT_BITS: std::ops::Range<usize> = 4..6;

/// The number of symbols for each code length in bits. Codes of one length are consecutive, and the codes of the next
/// length follow them, so these numbers determine where each code ends.
const CODES_OF_BITS: [u32; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4];

/// Replaces percent signs in the `:authority` of a header block, which may be incomplete at its end.
pub(super) fn replace_percent_signs(block: &mut [u8]) {
    // An incomplete or invalid block is left to the server.
    if let Some(authority) = find_authority(block) {
        let bytes = &mut block[authority.at..authority.end];
        if authority.is_in_code {
            replace_codes(bytes);
        } else {
            bytes.iter_mut().filter(|byte| **byte == b'%').for_each(|byte| *byte = b'-');
        }
    }
}

/// A string in a header block.
struct Text {
    at: usize,
    end: usize,
    is_in_code: bool,
}

fn find_authority(block: &[u8]) -> Option<Text> {
    let mut at = 0;
    loop {
        let first = *block.get(at)?;
        let index_bits = match first {
            // An indexed field, or a table size update: no string follows.
            0b1000_0000.. => {
                integer(block, &mut at, 7)?;
                continue;
            }
            0b0010_0000..0b0100_0000 => {
                integer(block, &mut at, 5)?;
                continue;
            }
            0b0100_0000..0b1000_0000 => 6,
            _ => 4,
        };
        let is_authority = match integer(block, &mut at, index_bits)? {
            0 => {
                let name = text(block, &mut at)?;
                let expected = if name.is_in_code { AUTHORITY_IN_CODE } else { AUTHORITY };
                block.get(name.at..name.end)? == expected
            }
            index => index == AUTHORITY_INDEX,
        };
        let value = text(block, &mut at)?;
        if is_authority {
            return Some(value);
        }
    }
}

/// The string at `at`, which is moved past it; `None` if the block ends before the string does.
fn text(block: &[u8], at: &mut usize) -> Option<Text> {
    let is_in_code = block.get(*at)? & 0b1000_0000 != 0;
    let length = integer(block, at, 7)?;
    let text = Text { at: *at, end: at.checked_add(length)?, is_in_code };
    *at = text.end;
    (text.end <= block.len()).then_some(text)
}

/// The number that begins in the last `bits` bits of the byte at `at`, which is moved past it; `None` if the block ends
/// before the number does, or if the number exceeds any block's length.
fn integer(block: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    const BYTES_MAX: u32 = 3;
    let full = (1 << bits) - 1;
    let mut number = usize::from(*block.get(*at)?) & full;
    *at += 1;
    if number < full {
        return Some(number);
    }
    for more in 0..BYTES_MAX {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        number += (byte & 0x7f) << (7 * more);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Replaces percent signs in a Huffman-coded string.
fn replace_codes(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some((code, bits)) = code_at(bytes, at) {
        if (code, bits) == (PERCENT_CODE, PERCENT_BITS) {
            for bit in DIFFERENT_BITS.map(|bit| at + bit) {
                bytes[bit / 8] ^= 0x80 >> (bit % 8);
            }
        }
        at += bits;
    }
}

/// The code that begins at bit `at`, and its length; `None` at the end.
fn code_at(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let (mut code, mut first) = (0, 0);
    for (bits, &codes) in CODES_OF_BITS.iter().enumerate().skip(1) {
        let bit = at + bits - 1;
        code = code << 1 | u32::from(bytes.get(bit / 8)? >> (7 - bit % 8) & 1);
        first <<= 1;
        if code.wrapping_sub(first) < codes {
            return Some((code, bits));
        }
        first += codes;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SENT: &[u8] = b"%2Frun%2Faliquot%2Fmanager.sock";
    const SEEN: &[u8] = b"-2Frun-2Faliquot-2Fmanager.sock";
    const SENT_IN_CODE: &[u8] =
        b"\x54\x58\x6c\xb6\xa5\x45\x84\x74\x1b\xb5\xa7\x4a\xa2\xc3\x48\xea\x1c\xc5\xb1\x74\x1c\x9d\x7f";
    const SEEN_IN_CODE: &[u8] =
        b"\x58\x58\x6c\xb6\xa5\x85\x84\x74\x1b\xb5\xa7\x4a\xc2\xc3\x48\xea\x1c\xc5\xb1\x74\x1c\x9d\x7f";

    fn string(bytes: &[u8], is_in_code: bool) -> Vec<u8> {
        [&[bytes.len() as u8 | if is_in_code { 0x80 } else { 0 }], bytes].concat()
    }

    /// A POST to `/%2F` with `value` as the authority, encoded by `field`, and a header after it.
    fn block(field: &[u8], value: &[u8], is_in_code: bool) -> Vec<u8> {
        let path = [&[0x44], &string(b"/%2F", false)[..]].concat();
        let other = [&[0x00], &string(b"note", false)[..], &string(b"100%", false)].concat();
        [&[0x3f, 0x09, 0x83, 0x86], &path[..], field, &string(value, is_in_code), &other].concat()
    }

    #[test]
    fn percent_signs_in_the_authority_and_nowhere_else_are_replaced() {
        let own_name = |is_in_code: bool| {
            let name = if is_in_code { AUTHORITY_IN_CODE } else { AUTHORITY };
            [&[0x40], &string(name, is_in_code)[..]].concat()
        };
        for field in [vec![0x41], vec![0x01], vec![0x11], own_name(false), own_name(true)] {
            for (is_in_code, sent, seen) in [(false, SENT, SEEN), (true, SENT_IN_CODE, SEEN_IN_CODE)] {
                let mut found = block(&field, sent, is_in_code);
                replace_percent_signs(&mut found);
                assert_eq!(found, block(&field, seen, is_in_code), "{field:x?} {is_in_code}");
                let whole = found.clone();
                replace_percent_signs(&mut found);
                assert_eq!(found, whole);
            }
        }
    }

    #[test]
    fn a_block_that_is_cut_off_is_left_as_it_is() {
        let whole = block(&[0x41], SENT, false);
        let value_end = whole.len() - b"\x00\x04note\x04100%".len();
        for length in 0..value_end {
            let mut cut = whole[..length].to_vec();
            replace_percent_signs(&mut cut);
            assert_eq!(cut, whole[..length]);
        }
    }

    #[test]
    fn each_letter_has_a_code() {
        assert_eq!(CODES_OF_BITS.iter().sum::<u32>(), 257);
        // A string is padded with ones, which are the beginning of the longest code.
        assert_eq!(code_at(&[0xff, 0xff, 0xff, 0xff], 0), Some((0x3fff_ffff, 30)));
        assert_eq!(code_at(&[0xff], 0), None);
    }

    proptest! {
        #[test]
        fn any_block_keeps_its_length_and_changes_in_one_place(mut block in prop::collection::vec(any::<u8>(), 0..300)) {
            let before = block.clone();
            replace_percent_signs(&mut block);
            prop_assert_eq!(before.len(), block.len());
            let again = block.clone();
            replace_percent_signs(&mut block);
            prop_assert_eq!(again, block);
        }
    }
}
