//! Additional names and variables by which containers get a slice.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{NameError, name};

/// Variables that the manager sets itself: devices, and libraries to preload.
const OWN_VARIABLES: [&str; 5] =
    ["ALIQUOT_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD"];

/// Additional names and variables by which containers get a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Published {
    /// Additional names of its CDI device.
    pub aliases: BTreeSet<String>,
    /// Additional variables for its containers.
    pub environment: BTreeMap<String, String>,
}

/// A variable that cannot be set.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the variable {name:?} cannot be set for a slice's containers: {reason}")]
pub struct VariableError {
    name: String,
    reason: &'static str,
}

impl Published {
    pub(super) fn check_aliases(&self) -> Result<(), NameError> {
        self.aliases.iter().try_for_each(|alias| name::check(alias))
    }

    pub(super) fn check_environment(&self) -> Result<(), VariableError> {
        let reason = |name: &str, value: &str| {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                Some("a name is not empty and has no '=', and neither name nor value has a byte 0")
            } else if OWN_VARIABLES.contains(&name) {
                Some("it says what the slice is")
            } else {
                None
            }
        };
        let mut wrong = self.environment.iter().filter_map(|(name, value)| Some((name, reason(name, value)?)));
        wrong.next().map_or(Ok(()), |(name, reason)| Err(VariableError { name: name.clone(), reason }))
    }
}
