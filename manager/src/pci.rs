//! PCI bus ids, as NVML and as the kernel write them.

/// The kernel's form of a bus id of NVML. NVML writes the domain with eight digits and in capitals, the kernel with at
/// least four: domains from 0x10000 on, as of Hyper-V and VMD, have five or more.
#[must_use]
pub(crate) fn kernel_bus_id(nvml: &str) -> Option<String> {
    let (domain, rest) = nvml.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    // Without a domain, what is before the colon is the bus.
    rest.contains(':').then(|| format!("{domain:04x}:{}", rest.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_written_as_the_kernel_does() {
        for (nvml, expected) in [
            ("00000000:3B:00.0", Some("0000:3b:00.0")),
            ("00010000:3B:00.0", Some("10000:3b:00.0")),
            ("0001:3b:00.0", Some("0001:3b:00.0")),
            ("", None),
            ("3B:00.0", None),
            ("GPU:3B:00.0", None),
        ] {
            assert_eq!(kernel_bus_id(nvml).as_deref(), expected, "{nvml}");
        }
    }
}
