//! The shim, embedded in the manager, so that a node runs versions that were tested together.

use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// The content of the library's file.
#[must_use]
pub fn bytes() -> &'static [u8] {
    include_bytes!(env!("ALIQUOT_SHIM_PATH"))
}

/// The library's file name, which contains a hash of its content: several versions can lie side by side while slices
/// use them.
#[must_use]
pub fn file_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let hash = Sha256::digest(bytes());
        let digits: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("libaliquot-{digits}.so")
    })
}
