//! Which devices may serve a wish.

use std::fmt::{self, Display, Formatter};

/// Conditions on the devices of a wish. The default allows every device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    /// Another scheduler has chosen exactly these devices, in this order.
    pub decided: Option<Decided>,
    /// The model's name contains one of these, ignoring case; empty: any model.
    pub models: Vec<String>,
    /// The model's name contains none of these.
    pub not_models: Vec<String>,
    /// The device is one of these; empty: any device.
    pub uuids: Vec<String>,
    /// The device is none of these.
    pub not_uuids: Vec<String>,
    /// All devices of the container are on one NUMA node.
    pub one_numa_node: bool,
    /// The device is a MIG instance of this profile, for example `3g.40gb`.
    pub mig_profile: Option<String>,
}

/// The devices that another scheduler has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// The devices with these UUIDs.
    Uuids(Vec<String>),
    /// The devices with these indexes on the node, as NVML counts.
    Indexes(Vec<u32>),
}

impl Decided {
    /// The position of a device among the chosen ones.
    #[must_use]
    pub fn place(&self, device: &DeviceFacts<'_>) -> Option<usize> {
        match self {
            Decided::Uuids(uuids) => uuids.iter().position(|uuid| uuid == device.uuid),
            Decided::Indexes(indexes) => indexes.iter().position(|index| *index == device.index),
        }
    }
}

/// Prints the devices, separated by commas.
impl Display for Decided {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let devices: Vec<String> = match self {
            Decided::Uuids(uuids) => uuids.clone(),
            Decided::Indexes(indexes) => indexes.iter().map(u32::to_string).collect(),
        };
        f.write_str(&devices.join(", "))
    }
}

/// The facts of a device that constraints are checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFacts<'a> {
    /// The UUID of the device.
    pub uuid: &'a str,
    /// Its index on the node, as NVML counts.
    pub index: u32,
    /// The model of the device, as NVML names it.
    pub model: &'a str,
    /// Its profile, if it is a MIG instance.
    pub mig_profile: Option<&'a str>,
}

impl Constraints {
    /// Whether this device meets the constraints. `one_numa_node` concerns several devices and is not checked here.
    #[must_use]
    pub fn allow(&self, device: &DeviceFacts<'_>) -> bool {
        let decided = self.decided.as_ref().is_none_or(|decided| decided.place(device).is_some());
        let model = device.model.to_lowercase();
        let is_of = |models: &[String]| models.iter().any(|wanted| model.contains(&wanted.to_lowercase()));
        let names = |uuids: &[String]| uuids.iter().any(|uuid| uuid == device.uuid);
        decided
            && (self.models.is_empty() || is_of(&self.models))
            && !is_of(&self.not_models)
            && (self.uuids.is_empty() || names(&self.uuids))
            && !names(&self.not_uuids)
            && self.mig_profile.as_deref().is_none_or(|profile| device.mig_profile == Some(profile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceFacts<'_> =
        DeviceFacts { uuid: "GPU-1", index: 3, model: "NVIDIA A100-SXM4-80GB", mig_profile: None };

    fn allowed(change: impl FnOnce(&mut Constraints)) -> bool {
        let mut constraints = Constraints::default();
        change(&mut constraints);
        constraints.allow(&DEVICE)
    }

    #[test]
    fn each_constraint_excludes_by_itself() {
        assert!(allowed(|_| ()));
        assert!(allowed(|c| c.models = vec!["h100".into(), "a100".into()]));
        assert!(!allowed(|c| c.models = vec!["h100".into()]));
        assert!(!allowed(|c| c.not_models = vec!["A100".into()]));
        assert!(allowed(|c| c.uuids = vec!["GPU-1".into()]));
        assert!(!allowed(|c| c.uuids = vec!["GPU-2".into()]));
        assert!(!allowed(|c| c.not_uuids = vec!["GPU-1".into()]));
        assert!(!allowed(|c| c.mig_profile = Some("1g.10gb".into())));
        assert!(allowed(|c| c.decided = Some(Decided::Indexes(vec![3]))));
        assert!(!allowed(|c| c.decided = Some(Decided::Indexes(vec![0]))));
        assert!(!allowed(|c| c.decided = Some(Decided::Uuids(vec![]))));
    }
}
