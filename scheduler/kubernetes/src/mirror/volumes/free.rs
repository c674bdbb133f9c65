//! Volumes that exist and that no claim has. kube-scheduler takes one that will do for a claim, before it has one made.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaimSpec, PersistentVolumeSpec};

use super::capacity::bytes;
use super::{ClaimFacts, Name, Volumes};

/// What a claim asks of a volume that exists, or what such a volume offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    modes: BTreeSet<String>,
    /// `Filesystem` or `Block`.
    volume_mode: String,
    /// The VolumeAttributesClass, or nothing.
    attributes: String,
    size_bytes: u64,
}

/// A volume that no claim has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Free {
    class: String,
    sort: Sort,
    /// The claim that it is kept for.
    kept_for: Option<Name>,
}

impl Sort {
    pub(super) fn of_claim(spec: &PersistentVolumeClaimSpec) -> Sort {
        let size = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
        Sort {
            modes: spec.access_modes.iter().flatten().cloned().collect(),
            volume_mode: mode(spec.volume_mode.as_ref()),
            attributes: spec.volume_attributes_class_name.clone().unwrap_or_default(),
            size_bytes: size.and_then(bytes).unwrap_or(0),
        }
    }

    fn will_do_for(&self, asked: &Sort) -> bool {
        asked.modes.is_subset(&self.modes)
            && (&asked.volume_mode, &asked.attributes) == (&self.volume_mode, &self.attributes)
            && asked.size_bytes <= self.size_bytes
    }
}

impl Free {
    /// `class`: its StorageClass. `phase`: what its status says.
    pub(super) fn of(spec: &PersistentVolumeSpec, class: Option<String>, phase: Option<&str>) -> Option<Free> {
        let size = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
        let kept_for = |of: &ObjectReference| Some((of.namespace.clone()?, of.name.clone()?));
        (phase == Some("Available")).then(|| Free {
            class: class.unwrap_or_default(),
            sort: Sort {
                modes: spec.access_modes.iter().flatten().cloned().collect(),
                volume_mode: mode(spec.volume_mode.as_ref()),
                attributes: spec.volume_attributes_class_name.clone().unwrap_or_default(),
                size_bytes: size.and_then(bytes).unwrap_or(0),
            },
            kept_for: spec.claim_ref.as_ref().and_then(kept_for),
        })
    }

    fn will_do_for(&self, name: &Name, claim: &ClaimFacts) -> bool {
        self.kept_for.as_ref().is_none_or(|kept_for| kept_for == name)
            && claim.class.as_ref() == Some(&self.class)
            && self.sort.will_do_for(&claim.sort)
    }
}

impl Volumes {
    /// Checks that only a new volume will do for a claim. Which of the volumes that exist it is to have is not decided
    /// here.
    ///
    /// # Errors
    /// Why a volume that exists could be meant.
    pub(super) fn check_needs_new(&self, name: &Name, claim: &ClaimFacts) -> Result<(), String> {
        let why = if claim.has_selector {
            "has a selector".to_owned()
        } else {
            let will_do = |(volume, facts)| match facts {
                &super::VolumeFacts { free: Some(ref free), .. } => free.will_do_for(name, claim).then_some(volume),
                _ => None,
            };
            let Some(volume) = self.volumes.iter().find_map(will_do) else { return Ok(()) };
            format!("could have the PersistentVolume {volume:?}, which exists")
        };
        Err(format!(
            "the PersistentVolumeClaim {:?} {why}; Aliquot's scheduler does not choose among volumes, so bind the claim \
             by its volumeName",
            name.1
        ))
    }
}

fn mode(mode: Option<&String>) -> String {
    mode.map_or("Filesystem", String::as_str).to_owned()
}
