//! Settings of the audit.

use std::path::PathBuf;

use aliquot_node::AuditPolicy;
use serde::Deserialize;

/// How the audit treats what it finds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSettings {
    /// The policy for processes that get past their slice, unless the slice has a stricter one.
    pub policy: AuditPolicy,
    /// Device memory that a process may use beyond its ledger without being suspected: for contexts, for modules, and
    /// for the driver itself.
    pub overhead_allowance_bytes: u64,
    /// The program of the MPS server on this machine.
    pub mps_server: PathBuf,
}

impl Default for AuditSettings {
    fn default() -> AuditSettings {
        // A context with all of a framework's libraries loaded takes about half of the default.
        AuditSettings {
            policy: AuditPolicy::default(),
            overhead_allowance_bytes: 2 << 30,
            mps_server: "/usr/bin/nvidia-cuda-mps-server".into(),
        }
    }
}
