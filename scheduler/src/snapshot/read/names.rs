//! Finds entries by their names.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{DumpedGroupRef, DumpedPlace};
use anyhow::{Context, Result};

use crate::snapshot::format::{GroupEntry, NAMESPACE};

/// The index of each name in its list.
#[derive(Default)]
pub(super) struct Names {
    pub(super) nodes: BTreeMap<String, usize>,
    /// The key is the namespace and the name.
    pub(super) groups: BTreeMap<(String, String), usize>,
    pub(super) claims: BTreeMap<(String, String), usize>,
}

/// Splits `NAMESPACE/NAME`; `NAME` alone is in the default namespace.
pub(crate) fn split_name(name: &str) -> (String, String) {
    let (namespace, name) = name.split_once('/').unwrap_or((NAMESPACE, name));
    (namespace.to_owned(), name.to_owned())
}

impl Names {
    pub(super) fn node(&self, name: &str) -> Result<usize> {
        let known = self.nodes.get(name).copied();
        known.with_context(|| format!("there is no node {name:?}; nodes are listed under \"nodes\""))
    }

    pub(super) fn claim(&self, name: &str) -> Result<usize> {
        let known = self.claims.get(&split_name(name)).copied();
        known.with_context(|| format!("there is no claim {name:?}; write NAME, or NAMESPACE/NAME"))
    }

    pub(super) fn group(&self, group: &GroupEntry) -> Result<DumpedGroupRef> {
        match group {
            GroupEntry::Claim(name) => self.claim(name).map(DumpedGroupRef::Claim),
            GroupEntry::PodGroup(name) => {
                let known = self.groups.get(&split_name(name)).copied();
                let known =
                    known.with_context(|| format!("there is no pod group {name:?}; write NAME, or NAMESPACE/NAME"));
                known.map(DumpedGroupRef::Declared)
            }
        }
    }

    pub(super) fn place(&self, node: &str, devices: &[u16], alternative: u16) -> Result<DumpedPlace> {
        Ok(DumpedPlace { node: self.node(node)?, devices: devices.to_vec(), alternative, over_committed: false })
    }
}
