//! The values of the configuration file that have a notation of their own: sizes, UUIDs and places on the PCI bus.

use serde::Deserialize;

/// Bytes, as a number or as text with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    /// Reads whole numbers only. What the simulated machine has must not depend on how the command line under test reads
    /// sizes, so this is a reader of its own.
    pub(crate) fn bytes(&self, key: &str) -> Result<u64, String> {
        let text = match self {
            Size::Bytes(bytes) => return Ok(*bytes),
            Size::Text(text) => text,
        };
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "" | "B" => Some(1),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            "KB" => Some(1_000),
            "MB" => Some(1_000_000),
            "GB" => Some(1_000_000_000),
            _ => None,
        };
        let bytes = unit.and_then(|unit: u64| digits.trim_end().parse::<u64>().ok()?.checked_mul(unit));
        bytes.ok_or_else(|| format!("{key} {text:?} must be a whole number with B, KiB, MiB, GiB, KB, MB or GB"))
    }
}

pub(crate) fn in_range(key: &str, value: u64, least: u64, greatest: u64) -> Result<u64, String> {
    if (least..=greatest).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{key} {value} must be from {least} to {greatest}"))
    }
}

pub(super) fn uuid_or_default(text: Option<&str>, index: usize) -> Result<[u8; 16], String> {
    let Some(text) = text else { return Ok(default_uuid(index)) };
    parse_uuid(text).ok_or_else(|| format!("uuid {text:?} must look like \"GPU-01234567-89ab-cdef-0123-456789abcdef\""))
}

pub(super) fn default_uuid(index: usize) -> [u8; 16] {
    let mut uuid = [0xa1, 0x10, 0xc0, 0x7a, 0x51, 0x30, 0x4a, 0x7e, 0x80, 0, 0, 0, 0, 0, 0, 0];
    // The first byte differs between devices, so a short prefix is enough to name one.
    uuid[0] ^= (index as u8) << 4 | index as u8;
    uuid[15] = index as u8;
    uuid
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let text = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"))?;
    let groups = text.split('-').map(str::len);
    if !groups.eq([8, 4, 4, 4, 12]) {
        return None;
    }
    let hex = text.replace('-', "");
    let mut uuid = [0; 16];
    for (byte, digits) in uuid.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(uuid)
}

/// Domain, bus and device of `[domain:]bus:device[.function]`.
pub(super) fn parse_pci(text: &str) -> Option<(u32, u32, u32)> {
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    let hex = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let parts = place.split(':').map(hex).collect::<Option<Vec<_>>>()?;
    let (domain, bus, device) = match parts[..] {
        [domain, bus, device] => (domain, bus, device),
        [bus, device] => (0, bus, device),
        _ => return None,
    };
    (bus < 256 && device < 32 && function == "0").then_some((domain, bus, device))
}
